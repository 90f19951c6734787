//! Requests of libtorrent for hashes and metadata, and its answers. `fixtures/README.md` says how they were
//! captured.

use std::time::Instant;

use swarmkeep_metainfo::{Info, InfoHashes, Metainfo};
use swarmkeep_peer::{
    hashes::{Answer, HashFetch, answer},
    metadata::{Fetched, MetadataFetch, MetadataUploads},
};
use swarmkeep_peer_wire::{
    ExtendedMessage, Extension, ExtensionIds, Handshake, Limits, Message, MetadataMessage,
};

use crate::peer_wire::captured::fixture;

/// Every message of a stream of libtorrent's behind the handshake.
fn messages(stream: &[u8]) -> Vec<Message<'_>> {
    let limits = Limits::for_v2_torrent(3, 1 << 14).unwrap();
    let mut rest = stream;
    Handshake::decode(&mut rest).unwrap().unwrap();
    std::iter::from_fn(|| limits.decode(&mut rest).unwrap()).collect()
}

#[test]
fn we_answer_hash_requests_as_libtorrent_does() {
    let metainfo = Metainfo::parse(&fixture("v2.torrent")).unwrap();
    let info = metainfo.info();
    let mut answers = 0;
    for stream in ["seeds-v2-asked.bin", "seeds-v2-magnet.bin"] {
        let stream = fixture(&format!("libtorrent-2.0.8.0/{stream}"));
        for message in messages(&stream) {
            match message {
                Message::Hashes(hashes) => {
                    let ours = answer(info, &hashes.range()).unwrap();
                    assert!(
                        matches!(ours, Answer::Hashes(ours) if ours == hashes.all()),
                        "{:?}",
                        hashes.range()
                    );
                }
                Message::HashReject(range) => assert!(answer(info, &range).is_err()),
                _ => continue,
            }
            answers += 1;
        }
    }
    assert_eq!(answers, 4);
}

#[test]
fn a_magnet_link_is_fetched_with_the_requests_and_answers_of_libtorrent() {
    let whole = Metainfo::parse(&fixture("v2.torrent")).unwrap().into_info();
    let (asked, sent) = (
        fixture("libtorrent-2.0.8.0/fetches-v2-magnet.bin"),
        fixture("libtorrent-2.0.8.0/seeds-v2-magnet.bin"),
    );
    let ids = ExtensionIds::NONE.with(Extension::Metadata, 2);
    let now = Instant::now();
    let hashes = InfoHashes::new(None, whole.info_hash_v2()).unwrap();
    let mut metadata = MetadataFetch::new(hashes, MetadataFetch::<u8>::LONGEST);
    let mut info = None;
    let mut layers = None;
    for message in messages(&sent) {
        match message {
            Message::Extended(extended) => match extended.read(&ids) {
                Ok(ExtendedMessage::Handshake(handshake)) => {
                    metadata.offered(1, handshake.metadata_size.unwrap()).unwrap();
                    assert_eq!((metadata.request(1, now), metadata.request(1, now)), (Some(0), None));
                }
                Ok(ExtendedMessage::Metadata(MetadataMessage::Data { piece, total_size, data })) => {
                    let Ok(Fetched::Whole { info: bytes, liars }) = metadata.data(1, piece, total_size, data)
                    else {
                        panic!("it is the only piece, and the right one");
                    };
                    assert!(bytes == whole.encoded() && liars.is_empty());
                    let data = MetadataUploads::default().answer(&bytes, 0);
                    assert!(matches!(data, MetadataMessage::Data { data, .. } if data == bytes));
                    info = Some(Info::parse(&bytes).unwrap());
                }
                _ => {}
            },
            Message::Hashes(hashes) => {
                let info = info.take().expect("it came before");
                assert!(!info.knows_hashes());
                let mut fetch = HashFetch::new(info).unwrap();
                let ours = fetch.request(1, now, |_| true).unwrap();
                let theirs = messages(&asked).into_iter().find_map(|message| match message {
                    Message::HashRequest(range) => Some(range),
                    _ => None,
                });
                assert_eq!(Some(ours), theirs);
                assert_eq!(fetch.hashes(1, &hashes), Ok(true));
                layers = Some(fetch.into_info());
            }
            _ => {}
        }
    }
    assert_eq!(layers.as_ref(), Some(&*whole));
}
