//! Messages of real clients: read to the last byte, and written as they were. `fixtures/README.md` says how
//! they were captured.

use std::{fs, path::PathBuf};

use swarmkeep_peer_wire::{
    Encode, Extended, Extension, ExtensionIds, Handshake, Limits, Message, ReceiveBuffer,
};

pub(crate) fn fixture(name: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/peer-wire").join(name);
    fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Each stream, and the ids of its receiver, by which it is read.
const STREAMS: [(&str, ExtensionIds); 11] = [
    ("aria2-1.36.0/fetches.bin", LIBTORRENT),
    ("aria2-1.36.0/seeds.bin", TRANSMISSION),
    ("libtorrent-2.0.8.0/fetches.bin", RTORRENT),
    ("libtorrent-2.0.8.0/fetches-v2-magnet.bin", LIBTORRENT),
    ("libtorrent-2.0.8.0/seeds.bin", ARIA2),
    ("libtorrent-2.0.8.0/seeds-v2-asked.bin", LIBTORRENT),
    ("libtorrent-2.0.8.0/seeds-v2-magnet.bin", LIBTORRENT),
    ("rtorrent-0.9.8/fetches.bin", TRANSMISSION),
    ("rtorrent-0.9.8/seeds.bin", LIBTORRENT),
    ("transmission-3.00/fetches.bin", ARIA2),
    ("transmission-3.00/seeds.bin", RTORRENT),
];

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

#[test]
fn messages_of_clients_are_read_to_the_last_byte_and_written_as_they_were() {
    for (name, ids) in STREAMS {
        let bytes = fixture(name);
        assert!(bytes.len() > 200, "{name} has messages behind its handshake");
        for step in [1, 7, 4096] {
            let (mut head, mut written) = (Vec::new(), Vec::new());
            let handshake = read(&bytes, limits_of(name), step, |message| {
                message.encode(&mut written);
                // Some clients write bencoded values in another way: they must read as the same.
                if let Message::Extended(extended) = message {
                    let read = extended.read(&ids).unwrap();
                    assert!(read.extension().is_some(), "{name}: ids were agreed on");
                    let mut again = Vec::new();
                    read.to_peer(&ids).expect("its id is known").encode(&mut again);
                    let payload = &again[6..];
                    assert_eq!(Extended { payload, ..extended }.read(&ids), Ok(read), "{name}");
                } else {
                    assert!(!matches!(message, Message::Unknown { .. }), "{name}: {message:?}");
                }
            });
            handshake.encode(&mut head);
            assert!([head, written].concat() == bytes, "{name}");
        }
    }
}
