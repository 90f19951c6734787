//! Messages of real clients: read to the last byte, and written as they were. `fixtures/README.md` says how
//! they were captured.

use std::{fs, path::PathBuf};

use swarmkeep_peer_wire::{
    Encode, Extended, Extension, ExtensionIds, Handshake, Limits, Message, ReceiveBuffer, Reserved,
};

pub(crate) fn fixture(name: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/peer-wire").join(name);
    fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Each stream, the extensions of its sender, the ids by which the receiver reads, and the messages in words.
const STREAMS: [(&str, Reserved, ExtensionIds, &str); 11] = [
    (
        "aria2-1.36.0/fetches.bin",
        Reserved::EXTENSIONS.union(Reserved::FAST),
        LIBTORRENT,
        "extended handshake, have none, allowed fast ×3, interested, request ×3, ut_pex, not interested, have all",
    ),
    (
        "aria2-1.36.0/seeds.bin",
        Reserved::EXTENSIONS.union(Reserved::FAST),
        TRANSMISSION,
        "extended handshake, have all, allowed fast ×3, ut_pex, unchoke, piece ×3",
    ),
    (
        "libtorrent-2.0.8.0/fetches.bin",
        LIBTORRENT_CAN,
        RTORRENT,
        "extended handshake, interested, request ×3, have",
    ),
    (
        "libtorrent-2.0.8.0/fetches-v2-magnet.bin",
        LIBTORRENT_CAN,
        LIBTORRENT,
        "extended handshake, ut_metadata, upload_only, have none, port, hash request, interested, request ×3, have",
    ),
    (
        "libtorrent-2.0.8.0/seeds.bin",
        LIBTORRENT_CAN,
        ARIA2,
        "extended handshake, have all, unchoke, allowed fast ×3, unchoke, piece ×3",
    ),
    (
        "libtorrent-2.0.8.0/seeds-v2-asked.bin",
        LIBTORRENT_CAN,
        LIBTORRENT,
        "extended handshake, have all, port, unchoke, ut_pex, allowed fast ×3, unchoke, piece, hashes ×2, hash reject, ut_metadata ×2, \
         ut_holepunch ×2",
    ),
    (
        "libtorrent-2.0.8.0/seeds-v2-magnet.bin",
        LIBTORRENT_CAN,
        LIBTORRENT,
        "extended handshake, have all, port, unchoke, ut_metadata, hashes, allowed fast ×3, unchoke, piece ×3",
    ),
    (
        "rtorrent-0.9.8/fetches.bin",
        Reserved::EXTENSIONS,
        TRANSMISSION,
        "extended handshake, keep-alive ×2, interested, request ×2, have, request, have",
    ),
    (
        "rtorrent-0.9.8/seeds.bin",
        Reserved::EXTENSIONS,
        LIBTORRENT,
        "extended handshake, bitfield, unchoke, piece ×3",
    ),
    (
        "transmission-3.00/fetches.bin",
        Reserved::EXTENSIONS.union(Reserved::FAST),
        ARIA2,
        "extended handshake, have none, ut_pex, interested, request ×3, have ×3, not interested",
    ),
    (
        "transmission-3.00/seeds.bin",
        Reserved::EXTENSIONS.union(Reserved::FAST),
        RTORRENT,
        "extended handshake, bitfield, ut_pex, unchoke, piece ×3",
    ),
];

const LIBTORRENT_CAN: Reserved = Reserved::EXTENSIONS.union(Reserved::FAST).union(Reserved::DHT);

/// The ids of the extensions of each client, as its handshake has them.
const ARIA2: ExtensionIds = ExtensionIds::NONE.with(Extension::Metadata, 9).with(Extension::Pex, 8);
const LIBTORRENT: ExtensionIds = ExtensionIds::NONE
    .with(Extension::DontHave, 7)
    .with(Extension::UploadOnly, 3)
    .with(Extension::Holepunch, 4)
    .with(Extension::Metadata, 2)
    .with(Extension::Pex, 1);
const RTORRENT: ExtensionIds = ExtensionIds::NONE.with(Extension::Metadata, 2).with(Extension::Pex, 1);
const TRANSMISSION: ExtensionIds = ExtensionIds::NONE.with(Extension::Metadata, 3).with(Extension::Pex, 1);

fn limits_of(name: &str) -> Limits {
    if name.contains("v2") {
        Limits::for_v2_torrent(3, 1 << 14)
    } else {
        Limits::for_torrent(33_000, 1 << 14)
    }
    .unwrap()
}

/// Reads a stream in steps of `step` bytes.
fn read(bytes: &[u8], limits: Limits, step: usize, mut each: impl FnMut(Message<'_>)) -> Handshake {
    let mut received = ReceiveBuffer::new(limits);
    let mut handshake = None;
    for part in bytes.chunks(step) {
        received.space()[..part.len()].copy_from_slice(part);
        received.filled(part.len());
        if handshake.is_none() {
            handshake = received.next_handshake().unwrap();
        }
        while handshake.is_some()
            && let Some(message) = received.next_message().unwrap()
        {
            each(message);
        }
    }
    assert!(received.unread().is_empty(), "{} bytes are left", received.unread().len());
    handshake.expect("each begins with one")
}

fn name_of(message: Message<'_>, ids: &ExtensionIds) -> &'static str {
    match message {
        Message::Extended(extended) => {
            let read = extended.read(ids).unwrap();
            read.extension().expect("ids were agreed on").name()
        }
        message => message.id().map_or("keep-alive", |id| id.name().expect("known")),
    }
}

#[test]
fn messages_of_clients_are_read_to_the_last_byte() {
    for (name, reserved, ids, said) in STREAMS {
        let bytes = fixture(name);
        for step in [1, 7, 4096] {
            let mut words: Vec<(&str, u32)> = Vec::new();
            let handshake = read(&bytes, limits_of(name), step, |message| {
                let word = name_of(message, &ids);
                match words.last_mut() {
                    Some((last, times)) if *last == word => *times += 1,
                    _ => words.push((word, 1)),
                }
            });
            assert_eq!(handshake.reserved, reserved, "{name}");
            let times = |times| if times == 1 { String::new() } else { format!(" ×{times}") };
            let words: Vec<_> =
                words.into_iter().map(|(word, count)| word.to_owned() + &times(count)).collect();
            assert_eq!(words.join(", "), said, "{name}");
        }
    }
}

#[test]
fn messages_of_clients_are_written_as_they_were() {
    for (name, _, ids, _) in STREAMS {
        let bytes = fixture(name);
        let (mut head, mut written) = (Vec::new(), Vec::new());
        let handshake = read(&bytes, limits_of(name), 4096, |message| {
            message.encode(&mut written);
            // Some clients write bencoded values in another way: they must read as the same.
            if let Message::Extended(extended) = message {
                let read = extended.read(&ids).unwrap();
                let mut again = Vec::new();
                read.to_peer(&ids).expect("its id is known").encode(&mut again);
                let payload = &again[6..];
                assert_eq!(Extended { payload, ..extended }.read(&ids), Ok(read), "{name}");
            }
        });
        handshake.encode(&mut head);
        assert!([head, written].concat() == bytes, "{name}");
    }
}
