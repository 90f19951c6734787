//! Each codec reads the messages of the other as the same, and both write the same bytes.

use std::{fs, path::Path};

use librqbit_peer_protocol::{
    self as rqbit, MessageDeserializeError,
    extended::{ExtendedMessage as TheirExtended, PeerExtendedMessageIds},
};
use proptest::{collection::vec, prelude::*};
use swarmkeep_peer_wire::{
    Bitfield, Block, Encode, Extended, ExtendedHandshake, ExtendedMessage, Extension, ExtensionIds,
    Handshake, Limits, Message, MessageId, MetadataMessage, Piece, PieceIndex, Reserved,
    bittorrent::{InfoHash, PeerId},
};
use swarmkeep_peers_wire::{limits, ours, serialize, theirs};

proptest! {
    #[test]
    fn both_write_the_same_and_each_reads_the_other(
        kind in 0..10_u8, piece in 0..4096_u32, begin in 0..1_u32 << 23, data in vec(any::<u8>(), 1..3000),
    ) {
        let bits: Vec<u8> = data.iter().copied().cycle().take(512).collect();
        let (piece, length) = (PieceIndex(piece), data.len() as u32);
        let block = Block { piece, begin, length };
        let message = match kind {
            0 => Message::KeepAlive,
            1 => Message::Choke,
            2 => Message::Unchoke,
            3 => Message::Interested,
            4 => Message::NotInterested,
            5 => Message::Have(piece),
            6 => Message::Bitfield(Bitfield::new(&bits)),
            7 => Message::Request(block),
            8 => Message::Cancel(block),
            _ => Message::Piece(Piece { piece, begin, data: &data }),
        };
        let mut written = Vec::new();
        message.encode(&mut written);
        let mut other = vec![0; written.len()];
        let count = serialize(&theirs(&message).unwrap(), &mut other);
        prop_assert_eq!(&written, &other[..count]);
        let (read, count) = rqbit::Message::deserialize(&written, &[]).unwrap();
        prop_assert_eq!(count, written.len());
        prop_assert_eq!(ours(&read), Some(message));
        prop_assert_eq!(limits().decode(&mut &other[..]), Ok(Some(message)));
    }

    /// Where both say that bytes are a message, it is the same; where we do, they do; where we do not, it is
    /// a check that they lack.
    #[test]
    fn of_any_bytes_both_read_the_same(id in 0..=8_u8, length in 0..20_u32, body in vec(any::<u8>(), 0..24)) {
        let bytes = [&length.to_be_bytes(), &[id][..], &body].concat();
        let mut rest = &bytes[..];
        let read = Limits::new().decode(&mut rest);
        match (read, rqbit::Message::deserialize(&bytes, &[])) {
            // A block that no torrent has.
            (Ok(Some(Message::NoSuchBlock { id, block })), Ok((other, count))) => {
                let request = id == MessageId::REQUEST;
                prop_assert_eq!(Some(if request { Message::Request(block) } else { Message::Cancel(block) }), ours(&other));
                prop_assert_eq!(count, bytes.len() - rest.len());
                let is_far = block.piece.0 == u32::MAX || block.begin.checked_add(block.length).is_none();
                prop_assert!(is_far || block.length == 0 || block.length > Limits::LONGEST_BLOCK);
            }
            (Ok(Some(message)), Ok((other, count))) => {
                prop_assert_eq!(Some(message), ours(&other));
                prop_assert_eq!(count, bytes.len() - rest.len());
            }
            (Ok(None), Err(MessageDeserializeError::NotEnoughData(..))) => {}
            // A length that the message cannot have: they wait for the whole frame first.
            (Err(_), Err(_)) => {}
            (Err(error), Ok((rqbit::Message::Piece(_), _))) => prop_assert!(error.to_string().contains("piece"), "{}", error),
            mismatch => prop_assert!(false, "{:?}", mismatch),
        }
    }

    #[test]
    fn handshakes_are_the_same(reserved: u64, info_hash: [u8; 20], peer_id: [u8; 20]) {
        let handshake = Handshake {
            reserved: Reserved::from_bits_retain(reserved),
            info_hash: InfoHash::new(info_hash),
            peer_id: PeerId::new(peer_id),
        };
        let mut written = Vec::new();
        handshake.encode(&mut written);
        let (read, 68) = rqbit::Handshake::deserialize(&written).unwrap() else { panic!("68 bytes") };
        prop_assert_eq!((read.reserved, read.info_hash.0, read.peer_id.0), (reserved, info_hash, peer_id));
        prop_assert_eq!(read.supports_extended(), handshake.reserved.contains(Reserved::EXTENSIONS));
        let mut other = [0; 68];
        prop_assert_eq!(read.serialize_unchecked_len(&mut other), 68);
        prop_assert_eq!(&other[..], &written);
    }

    #[test]
    fn metadata_and_extended_handshakes_are_the_same(
        piece in 0..5_u32, data in vec(any::<u8>(), 1..3000), kind in 0..4_u8, port: u16, size: Option<u32>,
    ) {
        // The ids that librqbit announces, and assumes.
        let ids = ExtensionIds::NONE.with(Extension::Metadata, 3).with(Extension::Pex, 1);
        let total_size = (piece << 14) + data.len() as u32;
        let mut handshake = ExtendedHandshake::new(ids);
        (handshake.port, handshake.metadata_size) = (Some(port), size);
        handshake.client = Some(b"swarmkeep");
        let message = match kind {
            0 => ExtendedMessage::Metadata(MetadataMessage::Request { piece }),
            1 => ExtendedMessage::Metadata(MetadataMessage::Reject { piece }),
            2 => ExtendedMessage::Metadata(MetadataMessage::Data { piece, total_size, data: &data }),
            _ => ExtendedMessage::Handshake(handshake),
        };
        let mut written = Vec::new();
        message.to_peer(&ids).unwrap().encode(&mut written);
        let (read, count) = rqbit::Message::deserialize(&written, &[]).unwrap();
        prop_assert_eq!(count, written.len());
        if let rqbit::Message::Extended(TheirExtended::Handshake(read)) = &read {
            prop_assert_eq!(read.m, PeerExtendedMessageIds::my());
            prop_assert_eq!((read.port(), read.metadata_size), (Some(port), size));
        }
        let mut other = vec![0; 4096];
        let count = serialize(&read, &mut other);
        let Ok(Some(Message::Extended(frame))) = Limits::new().decode(&mut &other[..count]) else { panic!("a frame") };
        prop_assert_eq!(frame.read(&ids), Ok(message));
    }
}

#[test]
fn both_read_messages_of_real_clients_as_the_same() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fixtures/peer-wire");
    let (mut same, mut unknown) = (0, 0);
    for folder in fs::read_dir(fixtures).unwrap().flatten().filter(|entry| entry.path().is_dir()) {
        for file in fs::read_dir(folder.path()).unwrap().flatten() {
            let bytes = fs::read(file.path()).unwrap();
            let mut rest = &bytes[68..];
            while !rest.is_empty() {
                let frame = rest;
                let message = Limits::new().decode(&mut rest).unwrap().expect("whole messages");
                match rqbit::Message::deserialize(frame, &[]) {
                    Ok((other, count)) => {
                        assert_eq!(count, frame.len() - rest.len());
                        match (&other, message) {
                            (rqbit::Message::Extended(_), Message::Extended(Extended { .. })) => {}
                            (other, message) => assert_eq!(ours(other), Some(message)),
                        }
                        same += 1;
                    }
                    // Ids of this protocol that librqbit does not know, and messages under librqbit's own
                    // ids.
                    Err(MessageDeserializeError::UnsupportedMessageId(id)) => {
                        assert_eq!(message.id().map(|known| known.0), Some(id));
                        assert!(id > 8);
                        unknown += 1;
                    }
                    Err(error) => {
                        assert!(matches!(message, Message::Extended(_)), "{message:?}: {error}");
                        unknown += 1;
                    }
                }
            }
        }
    }
    println!("{same} messages are the same; librqbit does not know {unknown}");
    assert!(same > 70 && unknown > 10, "{same} and {unknown}");
}
