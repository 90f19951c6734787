//! Every message, byte for byte as the BEPs have it, in both directions.

use swarmkeep_peer_wire::{
    Bitfield, Block, Encode, Extended, ExtendedHandshake, ExtendedMessage, Extension, ExtensionIds,
    Handshake, HashRange, Hashes, Holepunch, HolepunchError, Limits, Message, MetadataMessage, Pex, PexFlags,
    Piece, PieceIndex, Reserved,
    bittorrent::{InfoHash, PeerId},
};

const PIECE: PieceIndex = PieceIndex(0x0102);
const BLOCK: Block = Block { piece: PIECE, begin: 0x4000, length: 0x2000 };
const ROOT: [u8; 32] = [0xab; 32];

/// A message and its bytes; spaces are for the reader.
pub(crate) fn vectors() -> Vec<(Message<'static>, &'static str)> {
    let range = HashRange::new(&ROOT, 2, 0x200, 4, 3).unwrap();
    let hashes = Hashes::new(range, &[[1; 32], [2; 32], [3; 32], [4; 32], [5; 32]]).unwrap();
    vec![
        (Message::KeepAlive, "00000000"),
        (Message::Choke, "00000001 00"),
        (Message::Unchoke, "00000001 01"),
        (Message::Interested, "00000001 02"),
        (Message::NotInterested, "00000001 03"),
        (Message::Have(PIECE), "00000005 04 00000102"),
        (Message::Bitfield(Bitfield::new(&[0xa0, 0x01])), "00000003 05 a001"),
        (Message::Request(BLOCK), "0000000d 06 00000102 00004000 00002000"),
        (
            Message::Piece(Piece { piece: PIECE, begin: 0x4000, data: b"\xde\xad\xbe\xef" }),
            "0000000d 07 00000102 00004000 deadbeef",
        ),
        (Message::Cancel(BLOCK), "0000000d 08 00000102 00004000 00002000"),
        (Message::Port(6881), "00000003 09 1ae1"),
        (Message::Suggest(PIECE), "00000005 0d 00000102"),
        (Message::HaveAll, "00000001 0e"),
        (Message::HaveNone, "00000001 0f"),
        (Message::Reject(BLOCK), "0000000d 10 00000102 00004000 00002000"),
        (Message::AllowedFast(PIECE), "00000005 11 00000102"),
        (Message::Extended(Extended { id: 3, payload: b"xyz" }), "00000005 14 03 78797a"),
        (
            Message::HashRequest(range),
            "00000031 15 abababababababababababababababababababababababababababababababab 00000002 00000200 00000004 00000003",
        ),
        (
            Message::Hashes(hashes),
            "000000d1 16 abababababababababababababababababababababababababababababababab 00000002 00000200 00000004 00000003
             0101010101010101010101010101010101010101010101010101010101010101
             0202020202020202020202020202020202020202020202020202020202020202
             0303030303030303030303030303030303030303030303030303030303030303
             0404040404040404040404040404040404040404040404040404040404040404
             0505050505050505050505050505050505050505050505050505050505050505",
        ),
        (
            Message::HashReject(range),
            "00000031 17 abababababababababababababababababababababababababababababababab 00000002 00000200 00000004 00000003",
        ),
        (Message::Unknown { id: 99, payload: &[1, 2, 3] }, "00000004 63 010203"),
    ]
}

fn unhex(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> =
        hex.chars().filter_map(|digit| digit.to_digit(16)).map(|digit| digit as u8).collect();
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

#[test]
fn every_message_is_written_and_read_as_the_beps_have_it_and_nothing_behind_it() {
    for (message, hex) in vectors() {
        let (mut out, frame) = (b"before".to_vec(), unhex(hex));
        message.encode(&mut out);
        assert_eq!(out[6..], frame, "{message:?}");
        assert_eq!(message.encoded_len(), frame.len(), "{message:?}");
        let bytes = [&frame[..], b"behind"].concat();
        let mut rest = &bytes[..];
        assert_eq!(Limits::new().decode(&mut rest), Ok(Some(message)));
        assert_eq!(rest, b"behind", "{message:?}");
        for end in 0..frame.len() {
            let mut part = &frame[..end];
            assert_eq!(Limits::new().decode(&mut part), Ok(None), "{end} bytes of {message:?}");
            assert_eq!(part.len(), end);
        }
    }
}

#[cfg(target_pointer_width = "64")]
#[test]
fn a_message_is_small_enough_to_be_handed_around() {
    assert_eq!(size_of::<Message<'_>>(), 40);
    assert_eq!(size_of::<Result<Option<Message<'_>>, swarmkeep_peer_wire::Error>>(), 40);
}

#[test]
fn the_handshake_is_68_bytes_with_the_bits_where_the_beps_have_them() {
    let handshake = |reserved| Handshake {
        reserved,
        info_hash: InfoHash::new([0x11; 20]),
        peer_id: PeerId::new(*b"-XX0001-abcdefghijkl"),
    };
    for (reserved, byte, bit) in [
        (Reserved::EXTENSIONS, 5, 0x10),
        (Reserved::DHT, 7, 0x01),
        (Reserved::FAST, 7, 0x04),
        (Reserved::V2, 7, 0x10),
        // Bits that others set are kept.
        (Reserved::from_bits_retain(1 << 63), 0, 0x80),
    ] {
        let mut expected = b"\x13BitTorrent protocol\0\0\0\0\0\0\0\0".to_vec();
        expected[20 + byte] = bit;
        expected.extend([0x11; 20]);
        expected.extend(b"-XX0001-abcdefghijkl");
        let mut out = Vec::new();
        handshake(reserved).encode(&mut out);
        assert_eq!(out, expected, "{reserved:?}");
        out.push(0xff);
        let mut rest = &out[..];
        assert_eq!(Handshake::decode(&mut rest), Ok(Some(handshake(reserved))));
        assert_eq!(rest, [0xff]);
        for end in 0..68 {
            assert_eq!(Handshake::decode(&mut &out[..end]), Ok(None));
            let peeked = (end >= 48).then_some((reserved, InfoHash::new([0x11; 20])));
            assert_eq!(Handshake::peek(&out[..end]), Ok(peeked));
        }
    }
}

/// Messages for a peer with the ids 1 to 5, after the length, 20 and the id.
pub(crate) fn extended() -> Vec<(ExtendedMessage<'static>, u8, &'static [u8])> {
    let mut handshake =
        ExtendedHandshake::new(ExtensionIds::NONE.with(Extension::Metadata, 3).with(Extension::Pex, 1));
    handshake.client = Some("swarmkeep 0.1 µ".as_bytes());
    handshake.port = Some(6881);
    handshake.your_ip = Some([10, 1, 2, 3].into());
    handshake.ipv4 = Some([192, 0, 2, 1].into());
    handshake.ipv6 = Some([1; 16].into());
    handshake.request_queue = Some(250);
    handshake.metadata_size = Some(31235);
    handshake.upload_only = Some(true);
    handshake.complete_ago = Some(-1);
    let mut pex = Pex::default();
    pex.added = &[[10, 0, 0, 1, 0x1a, 0xe1], [10, 0, 0, 2, 0x1a, 0xe2]];
    pex.added_flags = &[0x12, 0x00];
    pex.dropped6 = &[[7; 18]];
    let (metadata, punch) = (ExtendedMessage::Metadata, ExtendedMessage::Holepunch);
    let (v4, v6) = ("192.0.2.7:6881".parse().unwrap(), "[2001:db8::7]:6882".parse().unwrap());
    vec![
        (
            ExtendedMessage::Handshake(handshake),
            0,
            b"d12:complete_agoi-1e4:ipv44:\xc0\x00\x02\x014:ipv616:\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\
              1:md11:ut_metadatai3e6:ut_pexi1ee13:metadata_sizei31235e1:pi6881e4:reqqi250e11:upload_onlyi1e\
              1:v16:swarmkeep 0.1 \xc2\xb56:yourip4:\x0a\x01\x02\x03e",
        ),
        (ExtendedMessage::Handshake(ExtendedHandshake::new(ExtensionIds::NONE)), 0, b"d1:mdee"),
        // The examples of BEP 9.
        (metadata(MetadataMessage::Request { piece: 0 }), 4, b"d8:msg_typei0e5:piecei0ee"),
        (
            metadata(MetadataMessage::Data { piece: 1, total_size: 16387, data: b"xyz" }),
            4,
            b"d8:msg_typei1e5:piecei1e10:total_sizei16387eexyz",
        ),
        (metadata(MetadataMessage::Reject { piece: 0 }), 4, b"d8:msg_typei2e5:piecei0ee"),
        (metadata(MetadataMessage::Unknown { kind: 7, piece: 2 }), 4, b"d8:msg_typei7e5:piecei2ee"),
        (
            ExtendedMessage::Pex(pex),
            5,
            b"d5:added12:\x0a\x00\x00\x01\x1a\xe1\x0a\x00\x00\x02\x1a\xe27:added.f2:\x12\x008:dropped618:\
              \x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07e",
        ),
        (ExtendedMessage::DontHave(PIECE), 1, b"\x00\x00\x01\x02"),
        (ExtendedMessage::UploadOnly(true), 2, b"\x01"),
        (ExtendedMessage::UploadOnly(false), 2, b"\x00"),
        (punch(Holepunch::Rendezvous(v4)), 3, b"\x00\x00\xc0\x00\x02\x07\x1a\xe1\x00\x00\x00\x00"),
        (
            punch(Holepunch::Connect(v6)),
            3,
            b"\x01\x01\x20\x01\x0d\xb8\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x07\x1a\xe2\x00\x00\x00\x00",
        ),
        (
            punch(Holepunch::Error(v4, HolepunchError::NOT_CONNECTED)),
            3,
            b"\x02\x00\xc0\x00\x02\x07\x1a\xe1\x00\x00\x00\x02",
        ),
        (ExtendedMessage::Unknown(Extended { id: 77, payload: b"whatever" }), 77, b"whatever"),
    ]
}

#[test]
fn every_extended_message_is_written_and_read_as_the_beps_have_it() {
    for (message, id, payload) in extended() {
        let mut out = Vec::new();
        let to_peer = message.to_peer(&ExtensionIds::ALL).unwrap();
        to_peer.encode(&mut out);
        let length = (2 + payload.len() as u32).to_be_bytes();
        assert_eq!(out, [&length[..], &[20, id], payload].concat(), "{message:?}");
        assert_eq!(to_peer.encoded_len(), out.len());
        let Ok(Some(Message::Extended(frame))) = Limits::new().decode(&mut &out[..]) else {
            panic!("{message:?}")
        };
        assert_eq!(frame.read(&ExtensionIds::ALL), Ok(message));
    }
}

#[test]
fn messages_unknown_to_the_peer_are_not_made_and_received_unknown_ones_are_returned() {
    for (message, id, payload) in extended() {
        let frame = Extended { id, payload };
        match message {
            ExtendedMessage::Handshake(_) => assert_eq!(frame.read(&ExtensionIds::NONE), Ok(message)),
            ExtendedMessage::Unknown(_) => {}
            _ => {
                assert_eq!(message.to_peer(&ExtensionIds::NONE), None);
                assert_eq!(frame.read(&ExtensionIds::NONE), Ok(ExtendedMessage::Unknown(frame)));
            }
        }
    }
}

#[test]
fn peers_of_an_exchange_come_with_their_flags_and_without_port_0() {
    let mut pex = Pex::default();
    pex.added = &[[10, 0, 0, 1, 0, 0], [10, 0, 0, 2, 0, 80]];
    pex.added_flags = &[0x01, 0x92];
    pex.added6 = &[[7; 18]];
    pex.dropped = &[[10, 0, 0, 3, 0, 80]];
    let added: Vec<_> = pex.added().map(|peer| (peer.endpoint.to_string(), peer.flags.bits())).collect();
    assert_eq!(added, [("10.0.0.2:80".into(), 0x92), ("[707:707:707:707:707:707:707:707]:1799".into(), 0)]);
    assert_eq!(pex.dropped().map(|peer| peer.to_string()).collect::<Vec<_>>(), ["10.0.0.3:80"]);
    assert!(PexFlags::from_bits_retain(0x92).contains(PexFlags::SEEDER | PexFlags::REACHABLE));
}

#[test]
fn without_its_code_a_hole_is_punched_all_the_same() {
    let frame = Extended { id: 3, payload: b"\x01\x00\xc0\x00\x02\x07\x1a\xe1" };
    let connect = Holepunch::Connect("192.0.2.7:6881".parse().unwrap());
    assert_eq!(frame.read(&ExtensionIds::ALL), Ok(ExtendedMessage::Holepunch(connect)));
}
