//! Defects of other codecs, each a test; and every error says which field, and why.

use swarmkeep_peer_wire::{
    Bitfield, Block, Encode, Error, Extended, ExtendedMessage, Extension, ExtensionIds, Handshake, HashRange,
    Hashes, Limits, Message, MessageId, MetadataMessage, Piece, PieceIndex, ReceiveBuffer,
};

/// 10 pieces of 64 KiB, the last of 100 bytes.
fn limits() -> Limits {
    Limits::for_torrent(9 * (64 << 10) + 100, 64 << 10).unwrap()
}

fn frame(length: u32, rest: &[u8]) -> Vec<u8> {
    [&length.to_be_bytes(), rest].concat()
}

fn block(id: u8, piece: u32, begin: u32, length: u32) -> Vec<u8> {
    [&[0, 0, 0, 13, id][..], &[piece, begin, length].map(u32::to_be_bytes).concat()].concat()
}

fn error(bytes: &[u8]) -> Error {
    let mut rest = bytes;
    let error = limits().decode(&mut rest).expect_err("no peer may send it");
    assert_eq!(rest, bytes, "a wrong message stays");
    let before_others = [bytes, &[0xff; 64]].concat();
    assert_eq!(limits().decode(&mut &*before_others), Err(error.clone()), "whatever comes behind it");
    error
}

#[test]
fn short_bodies_are_errors_and_never_a_panic() {
    for id in 0..=u8::MAX {
        for length in 1..=60 {
            for given in 0..=length {
                let body = vec![0; given as usize];
                let mut bytes = frame(length, &body);
                if given > 0 {
                    bytes[4] = id;
                }
                let _ = limits().decode(&mut &bytes[..]);
                let _ = Limits::new().decode(&mut &bytes[..]);
            }
        }
    }
    assert_eq!(error(&[0, 0, 0, 4, 4, 0, 0, 1]).to_string(), "have of 4 bytes: from 5 to 5 are allowed");
    let text = error(&[0, 0, 0, 9, 7, 0, 0, 0, 0, 0, 0, 0, 0]).to_string();
    assert_eq!(text, "piece of 9 bytes: from 10 to 131081 are allowed");
}

#[test]
fn trailing_bytes_are_an_error() {
    for id in [0, 1, 2, 3, 14, 15] {
        let expected = Error::Length { id: MessageId(id), length: 2, least: 1, most: 1 };
        assert_eq!(error(&[0, 0, 0, 2, id, 0]), expected);
    }
    for (id, length) in [(4, 5), (13, 5), (17, 5), (6, 13), (8, 13), (16, 13), (9, 3), (21, 49), (23, 49)] {
        let mut bytes = frame(length + 1, &vec![0; length as usize + 1]);
        bytes[4] = id;
        // One byte of the first piece, where a block is named: all is well but the length of the frame.
        bytes[length as usize + 3] = 1;
        let expected = Error::Length { id: MessageId(id), length: length + 1, least: length, most: length };
        assert_eq!(error(&bytes), expected);
    }
    // Behind a bencoded value, too.
    for payload in [&b"d8:msg_typei0e5:piecei0eex"[..], b"d8:msg_typei2e5:piecei0eex"] {
        let wrong = Extended { id: 4, payload }.read(&ExtensionIds::ALL).unwrap_err();
        assert_eq!(wrong.to_string(), "ut_metadata: something stands behind the dictionary");
    }
    let wrong = Extended { id: 0, payload: b"dex" }.read(&ExtensionIds::ALL).unwrap_err();
    assert_eq!(wrong.to_string(), "not bencoded: something behind the value at byte 2");
}

#[test]
fn nothing_is_reserved_on_the_word_of_a_prefix() {
    // The bitfield of a torrent of 100 million pieces would have 12.5 MB.
    let limits = Limits::for_torrent(100_000_000 * 16384, 16384).unwrap();
    let mut buffer = ReceiveBuffer::new(limits);
    let prefix = frame(1 + 12_500_000, &[5]);
    buffer.space()[..5].copy_from_slice(&prefix);
    buffer.filled(5);
    assert_eq!(buffer.next_message(), Ok(None));
    assert!(!buffer.space().is_empty());
    assert_eq!(buffer.capacity(), ReceiveBuffer::FIRST);
    // It grows with the bytes that really come: never to more than about twice as much.
    let mut came = 5;
    while came < 1 << 20 {
        let space = buffer.space();
        let count = space.len().min(1000);
        space[..count].fill(0);
        buffer.filled(count);
        came += count;
        assert!(
            buffer.capacity() <= (came * 8 / 3).max(ReceiveBuffer::FIRST),
            "{} of {came}",
            buffer.capacity()
        );
    }
}

#[test]
fn memory_has_a_limit_that_is_kept_whatever_comes() {
    let mut narrow = Limits::new();
    (narrow.longest_frame, narrow.longest_block) = (5000, 1 << 14);
    for limits in [limits(), Limits::new(), narrow] {
        let most = limits.longest().next_power_of_two().max(ReceiveBuffer::FIRST);
        for length in [5000, 5001, 1 << 17, 1 << 20, (1 << 20) + 1, 1 << 24, u32::MAX] {
            for id in 0..=30 {
                let mut buffer = ReceiveBuffer::new(limits);
                buffer.space()[..5].copy_from_slice(&frame(length, &[id]));
                buffer.filled(5);
                // A peer that goes on and on with zeroes, until it is found out or its frame is complete.
                for _ in 0..2000 {
                    match buffer.next_message() {
                        Ok(None) => {
                            let space = buffer.space();
                            let count = space.len();
                            assert!(count > 0, "a frame that is allowed fits");
                            space.fill(0);
                            buffer.filled(count);
                            assert!(buffer.capacity() <= most, "{} for {length} of {id}", buffer.capacity());
                        }
                        Ok(Some(_)) | Err(_) => break,
                    }
                }
            }
        }
    }
}

#[test]
fn a_frame_above_the_limit_is_refused_by_its_prefix() {
    let longest = limits().longest() as u32 - 4;
    assert_eq!(longest, 1 << 20);
    assert_eq!(error(&frame(longest + 1, &[])), Error::Longest { length: longest + 1, most: longest });
    assert_eq!(limits().decode(&mut &frame(longest, &[])[..]), Ok(None));
    for id in [5, 7, 20, 22, 99] {
        // With the id or without, the same is said.
        assert_eq!(error(&frame(longest + 1, &[id])), Error::Longest { length: longest + 1, most: longest });
    }
    for (id, length) in [(5, 4), (7, 10 + (128 << 10)), (22, 49 + 32 * 562)] {
        let wrong = error(&frame(length, &[id]));
        assert!(matches!(wrong, Error::Length { id: MessageId(named), .. } if named == id), "{wrong}");
    }
}

#[test]
fn bitfields_of_any_torrent_go_through() {
    for pieces in [1, 8, 9, 131_960, 131_961, 524_288, 600_000, 8 << 20, (8 << 20) + 1, 13_000_000_u64] {
        let limits = Limits::for_torrent(pieces * 16384, 16384).unwrap();
        let bytes = vec![0; Bitfield::bytes_for(pieces as u32)];
        let message = Message::Bitfield(Bitfield::new(&bytes));
        let mut out = Vec::new();
        message.encode(&mut out);
        assert!(out.len() <= limits.longest());
        assert_eq!(limits.decode(&mut &out[..]), Ok(Some(message)), "{pieces} pieces");
        let mut buffer = ReceiveBuffer::new(limits);
        let mut left = &out[..];
        while !left.is_empty() {
            assert_eq!(buffer.next_message(), Ok(None));
            let space = buffer.space();
            let count = space.len().min(left.len());
            space[..count].copy_from_slice(&left[..count]);
            left = &left[count..];
            buffer.filled(count);
        }
        assert_eq!(buffer.next_message(), Ok(Some(message)), "{pieces} pieces");
    }
}

#[test]
fn a_complete_frame_that_is_wrong_is_never_incomplete() {
    // Whatever its body, of a complete frame something is said.
    for id in 0..=u8::MAX {
        for length in 1..=120_u32 {
            for fill in [0, 1, 0xff, b'd'] {
                let mut body = vec![fill; length as usize];
                body[0] = id;
                let bytes = frame(length, &body);
                let read = limits().decode(&mut &bytes[..]);
                assert!(!matches!(read, Ok(None)), "message {id} of {length} bytes: {read:?}");
            }
        }
    }
}

#[test]
fn an_unknown_id_is_handed_up() {
    for id in [10, 11, 12, 18, 19, 24, 99, 255] {
        let bytes = [0, 0, 0, 3, id, 7, 8];
        assert_eq!(limits().decode(&mut &bytes[..]), Ok(Some(Message::Unknown { id, payload: &[7, 8] })));
        let unknown = Message::Unknown { id, payload: &[] };
        assert_eq!(limits().decode(&mut &[0, 0, 0, 1, id][..]), Ok(Some(unknown)));
    }
}

#[test]
fn a_piece_that_the_torrent_does_not_have_is_named_in_the_error() {
    for id in [4, 13, 17] {
        let expected = Error::Piece { id: MessageId(id), piece: PieceIndex(10), pieces: 10 };
        assert_eq!(error(&[0, 0, 0, 5, id, 0, 0, 0, 10]), expected);
    }
    let expected = Error::Piece { id: MessageId::REJECT, piece: PieceIndex(u32::MAX), pieces: 10 };
    assert_eq!(error(&block(16, u32::MAX, 0, 1)), expected);
    assert_eq!(error(&[0, 0, 0, 5, 4, 0, 0, 0, 10]).to_string(), "have: piece 10 of 10");
}

#[test]
fn a_block_lies_within_its_piece() {
    for (piece, begin, length) in
        [(0, 65536, 1), (0, 65535, 2), (0, u32::MAX, 1), (9, 100, 1), (9, 0, 101), (9, 99, 2)]
    {
        let wrong = error(&block(16, piece, begin, length));
        assert!(matches!(wrong, Error::Block { block, .. } if block.begin == begin), "{wrong}");
    }
    let beyond = "reject request: 2 bytes at 99 of piece 9, which has 100";
    assert_eq!(error(&block(16, 9, 99, 2)).to_string(), beyond);
    for length in [0, (128 << 10) + 1, u32::MAX] {
        let expected = Error::BlockLength { id: MessageId::REJECT, length, most: 128 << 10 };
        assert_eq!(error(&block(16, 0, 0, length)), expected);
    }
    // Also where the piece is longer.
    let limits = Limits::for_torrent(1 << 20, 1 << 20).unwrap();
    let (most, beyond) = (block(16, 0, 0, 128 << 10), block(16, 0, 0, (128 << 10) + 1));
    assert!(matches!(limits.decode(&mut &most[..]), Ok(Some(_))));
    assert!(matches!(limits.decode(&mut &beyond[..]), Err(Error::BlockLength { most: 0x2_0000, .. })));
}

#[test]
fn a_request_that_cannot_be_answered_is_recognised_and_the_next_message_is_read() {
    let wrong =
        [(u32::MAX, 0, 1), (10, 0, 1), (0, 65536, 1), (9, 0, 101), (0, 0, 0), (0, 0, (128 << 10) + 1)];
    for (piece, begin, length) in wrong {
        for id in [MessageId::REQUEST, MessageId::CANCEL] {
            let bytes = [&block(id.0, piece, begin, length)[..], &[0, 0, 0, 1, 2]].concat();
            let mut rest = &bytes[..];
            let block = Block { piece: PieceIndex(piece), begin, length };
            assert_eq!(limits().decode(&mut rest), Ok(Some(Message::NoSuchBlock { id, block })));
            assert_eq!(limits().decode(&mut rest), Ok(Some(Message::Interested)));
            // As it came.
            let mut again = Vec::new();
            Message::NoSuchBlock { id, block }.encode(&mut again);
            assert_eq!(again, bytes[..17]);
        }
    }
}

#[test]
fn a_block_that_does_not_fit_is_refused_before_its_bytes_come() {
    // 13 bytes of a frame of 16 KiB.
    let head = |piece: u32, begin: u32| {
        [&[0, 0, 0x40, 9, 7][..], &[piece, begin].map(u32::to_be_bytes).concat()].concat()
    };
    assert_eq!(limits().decode(&mut &head(0, 0)[..]), Ok(None));
    assert!(matches!(error(&head(10, 0)), Error::Piece { .. }));
    assert!(matches!(error(&head(9, 0)), Error::Block { piece_length: 100, .. }));
    assert!(matches!(error(&head(0, 65535)), Error::Block { .. }));
    // And 5 of one that is too long.
    assert!(matches!(error(&frame(10 + (128 << 10), &[7])), Error::Length { .. }));
}

#[test]
fn bitfields_have_a_bit_a_piece_and_no_more() {
    let length = Error::Length { id: MessageId::BITFIELD, length: 2, least: 3, most: 3 };
    assert_eq!(error(&[0, 0, 0, 2, 5]), length);
    assert!(matches!(error(&[0, 0, 0, 4, 5]), Error::Length { .. }));
    assert_eq!(error(&[0, 0, 0, 3, 5, 0xff, 0xe0]), Error::SpareBits { pieces: 10 });
    let all = Message::Bitfield(Bitfield::new(&[0xff, 0xc0]));
    assert_eq!(limits().decode(&mut &[0, 0, 0, 3, 5, 0xff, 0xc0][..]), Ok(Some(all)));
}

#[test]
fn ranges_of_hashes_are_those_of_bep_52() {
    let range = |base: u32, index: u32, length: u32, proof: u32| {
        let numbers = [base, index, length, proof].map(u32::to_be_bytes).concat();
        [&[0, 0, 0, 49, 21][..], &[7; 32], &numbers].concat()
    };
    for (numbers, message) in [
        ((0, 0, 0, 0), "a range of hashes: length is from 1 to 8192, got 0"),
        ((0, 0, 8193, 0), "a range of hashes: length is from 1 to 8192, got 8193"),
        (
            (0, 2, 4, 0),
            "a range of hashes: index is a multiple of length, or of the power of two above, got 2",
        ),
        (
            (0, 3, 3, 0),
            "a range of hashes: index is a multiple of length, or of the power of two above, got 3",
        ),
        ((50, 0, 4, 0), "a range of hashes: base layer is at most 49, got 50"),
        ((0, 0, 4, 50), "a range of hashes: proof layers are at most 49, got 50"),
    ] {
        let (base, index, length, proof) = numbers;
        assert_eq!(error(&range(base, index, length, proof)).to_string(), message);
        assert_eq!(HashRange::new(&[7; 32], base, index, length, proof).unwrap_err().to_string(), message);
    }
    // The last of a layer may be fewer, and libtorrent asks for the blocks of a whole piece.
    for (index, length) in [(512, 512), (512, 1), (512, 88), (0, 3), (8192, 8192)] {
        assert!(
            limits().decode(&mut &range(49, index, length, 49)[..]).is_ok_and(|message| message.is_some())
        );
    }
    let uncles = |length, proof| HashRange::new(&[7; 32], 0, 0, length, proof).unwrap().uncles();
    assert_eq!([uncles(4, 0), uncles(4, 1), uncles(4, 2), uncles(512, 9), uncles(512, 8)], [0, 0, 1, 1, 0]);
    assert_eq!([uncles(2, 0), uncles(2, 1), uncles(1, 0), uncles(1, 9), uncles(3, 2)], [0, 1, 1, 10, 1]);
}

#[test]
fn hashes_are_as_many_as_their_range_says() {
    let numbers = [0_u32, 0, 4, 2].map(u32::to_be_bytes).concat();
    let hashes = |count: u32, behind: usize| {
        let length = (49 + 32 * count).to_be_bytes();
        [&length, &[22][..], &[7; 32], &numbers, &vec![1; behind]].concat()
    };
    // Found out before the hashes come.
    for count in [2, 3, 7, 500] {
        assert!(matches!(error(&hashes(count, 0)), Error::Length { least: 177, most: 241, .. }), "{count}");
    }
    for count in [4, 5, 6] {
        assert_eq!(limits().decode(&mut &hashes(count, 0)[..]), Ok(None));
        let bytes = hashes(count, 32 * count as usize);
        let read = limits().decode(&mut &bytes[..]);
        let Ok(Some(Message::Hashes(hashes))) = read else { panic!("{read:?}") };
        assert_eq!((hashes.base().len(), hashes.proof().len()), (4, count as usize - 4));
    }
    let mut half = hashes(4, 200);
    half[3] += 16;
    assert!(matches!(error(&half), Error::Length { .. }));
    let range = HashRange::new(&[7; 32], 0, 0, 4, 2).unwrap();
    assert!(Hashes::new(range, &[[0; 32]; 3]).is_err() && Hashes::new(range, &[[0; 32]; 7]).is_err());
}

#[test]
fn something_else_than_a_handshake_is_known_by_its_first_wrong_byte() {
    for wrong in 0..20 {
        let mut bytes = *b"\x13BitTorrent protocol";
        bytes[wrong] ^= 1;
        assert_eq!(Handshake::decode(&mut &bytes[..=wrong]), Err(Error::Protocol));
        assert_eq!(Handshake::decode(&mut &bytes[..wrong]), Ok(None));
    }
}

#[test]
fn every_wrong_extended_message_says_which_field_and_why() {
    use Extension::{DontHave, Handshake, Holepunch, Metadata, Pex, UploadOnly};
    let id = |extension| ExtensionIds::ALL.id(extension).unwrap();
    let length = "ut_metadata: there are more or fewer bytes than the piece has in total_size";
    for (extension, payload, message) in [
        (Handshake, &b"le"[..], "extended handshake: it is no dictionary"),
        (Handshake, b"d1:m1:xe", "extended handshake: m is no dictionary"),
        (Handshake, b"d1:md6:ut_pexi256eee", "extended handshake: an id in m is no number from 0 to 255"),
        (Handshake, b"d1:pi65536ee", "extended handshake: p is no port"),
        (Handshake, b"d13:metadata_sizei-1ee", "extended handshake: metadata_size is no number of 32 bits"),
        (Handshake, b"d6:yourip5:abcdee", "extended handshake: yourip has 4 or 16 bytes"),
        (Handshake, b"d4:ipv43:abce", "extended handshake: ipv4 has 4 bytes"),
        (Handshake, b"d", "not bencoded: an early end at byte 1"),
        (Metadata, b"d5:piecei0ee", "ut_metadata: msg_type is missing"),
        (Metadata, b"d8:msg_typei0ee", "ut_metadata: piece is missing"),
        (Metadata, b"d8:msg_typei1e5:piecei0eex", "ut_metadata: total_size is missing"),
        (Metadata, b"d8:msg_typei1e5:piecei0e10:total_sizei4eexyz", length),
        (Metadata, b"d8:msg_typei1e5:piecei1e10:total_sizei4eexyz", length),
        (Metadata, b"d8:msg_typei0e5:piecei-1ee", "ut_metadata: piece is no number of 32 bits"),
        (Pex, b"d5:added5:abcdee", "ut_pex: added and dropped have 6 bytes per peer"),
        (Pex, b"d6:added6i1ee", "ut_pex: a list of peers is no byte string"),
        (Pex, b"d5:added6:abcdef7:added.f2:xxe", "ut_pex: added.f and added6.f have a byte a peer"),
        (DontHave, b"\0\0\0", "lt_donthave: the piece has 4 bytes"),
        (UploadOnly, b"", "upload_only: the flag has 1 byte"),
        (Holepunch, b"\0", "ut_holepunch: msg_type and addr_type are missing"),
        (Holepunch, b"\0\x02", "ut_holepunch: addr_type is 0 or 1"),
        (Holepunch, b"\0\0abc", "ut_holepunch: addr is too short"),
        (Holepunch, b"\0\0abcdp", "ut_holepunch: port is missing"),
        (Holepunch, b"\0\0abcd\0\0", "port 0 is not an endpoint that a peer can connect to"),
        (Holepunch, b"\x02\0abcdpp", "ut_holepunch: err_code has 4 bytes and ends the message"),
        (Holepunch, b"\x03\0abcdpp\0\0\0\0", "ut_holepunch: msg_type is 0, 1 or 2"),
    ] {
        let wrong = Extended { id: id(extension), payload }.read(&ExtensionIds::ALL).expect_err(message);
        assert_eq!(wrong.to_string(), message);
    }
    // An unknown kind is no error (BEP 9).
    let unknown = Extended { id: id(Metadata), payload: b"d8:msg_typei9e5:piecei3eex" };
    let expected = ExtendedMessage::Metadata(MetadataMessage::Unknown { kind: 9, piece: 3 });
    assert_eq!(unknown.read(&ExtensionIds::ALL), Ok(expected));
}

#[test]
fn torrents_that_cannot_be_named_are_refused() {
    for (length, piece_length) in [(0, 1), (1, 0), (0, 0), (1 << 32, 1), (u64::MAX, 1 << 14)] {
        assert_eq!(Limits::for_torrent(length, piece_length), Err(Error::Torrent { length, piece_length }));
    }
    assert_eq!(Limits::for_torrent((1 << 32) - 1, 1).unwrap().pieces(), Some(u32::MAX));
    assert_eq!(Limits::for_torrent(1, u32::MAX).unwrap().pieces(), Some(1));
}

#[test]
fn a_stream_of_blocks_takes_the_memory_of_some() {
    let mut sent = Vec::new();
    let block = |nth| Message::Piece(Piece { piece: PieceIndex(nth), begin: 0, data: &[7; 16 << 10] });
    (0..100).for_each(|nth| block(nth).encode(&mut sent));
    let mut buffer = ReceiveBuffer::new(Limits::for_torrent(100 << 14, 1 << 14).unwrap());
    let (mut left, mut came) = (&sent[..], 0);
    while !left.is_empty() {
        let space = buffer.space();
        let count = space.len().min(left.len()).min(5003);
        space[..count].copy_from_slice(&left[..count]);
        left = &left[count..];
        buffer.filled(count);
        while let Some(message) = buffer.next_message().unwrap() {
            assert_eq!(message, block(came));
            came += 1;
        }
    }
    assert!(came == 100 && buffer.capacity() <= 64 << 10, "{came} blocks, {} bytes", buffer.capacity());
}

/// libtorrent requests one for a file of 512 n + 1 pieces.
#[test]
fn a_single_hash_without_a_proof_is_read() {
    let range = HashRange::new(&[1; 32], 0, 0, 1, 0).unwrap();
    let (message, mut sent) = (Message::Hashes(Hashes::new(range, &[[2; 32]]).unwrap()), Vec::new());
    message.encode(&mut sent);
    assert_eq!(limits().decode(&mut &sent[..]), Ok(Some(message)));
}
