//! Any messages to a peer: for the fuzz target, and for the property that draws them.

use std::io::IoSlice;

use swarmkeep_peer_wire::{
    Bitfield, Block, Encode, Extended, ExtendedHandshake, ExtendedMessage, Extension, ExtensionIds,
    HashRange, Hashes, Holepunch, HolepunchError, Limits, Message, MetadataMessage, Pex, Piece, PieceIndex,
    ReceiveBuffer, SendQueue, bittorrent::Endpoint,
};

const PIECES: u32 = 77;
const PIECE_LENGTH: u32 = 1 << 15;

const ALL: [u8; 10] = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xf8];

/// The values of a message of any kind: its kind, numbers, a root, bytes, hashes, ids of extensions, IPv4 and
/// IPv6 peers, and a flag.
pub(crate) type MessageParts =
    (u8, [u32; 4], [u8; 32], Vec<u8>, Vec<[u8; 32]>, [u8; 5], Vec<[u8; 6]>, Vec<[u8; 18]>, bool);

enum BorrowedMessage<'a> {
    Message(Message<'a>),
    Extended(ExtendedMessage<'a>),
}

/// Pushes messages into a send queue, writes them in any parts and receives them in any others: they come out
/// as they went in. `steps` are the bytes of each write, its slices, and the bytes of each read, each of them
/// less one.
pub(crate) fn arrive(messages: &[MessageParts], steps: &[(u16, u8, u16)]) {
    let length = u64::from(PIECES) * u64::from(PIECE_LENGTH);
    let limits = Limits::for_torrent(length, PIECE_LENGTH).expect("a torrent");
    let messages: Vec<_> = messages.iter().filter_map(message).collect();
    let mut written = Vec::new();
    for message in &messages {
        let before = written.len();
        let len = match message {
            BorrowedMessage::Message(message) => put(message, &mut written),
            BorrowedMessage::Extended(message) => {
                put(&message.to_peer(&ExtensionIds::ALL).expect("all have ids"), &mut written)
            }
        };
        assert_eq!(written.len() - before, len);
        assert!(len <= limits.longest());
    }
    let mut queue: SendQueue<&[u8]> = SendQueue::new(100, 1000);
    let mut received = ReceiveBuffer::new(limits);
    let (mut expected, mut steps, mut sent) = (messages.iter(), steps.iter().cycle(), Vec::new());
    let mut transfer = |queue: &mut SendQueue<&[u8]>| {
        let &(write, slices, read) = steps.next().unwrap_or(&(u16::MAX, 63, u16::MAX));
        let mut places = [IoSlice::new(&[]); 64];
        let used = queue.slices(&mut places[..1 + usize::from(slices) % 64]);
        let (most, all) =
            (1 + usize::from(write), places[..used].iter().flat_map(|slice| slice.iter().copied()));
        let bytes: Vec<u8> = all.take(most).collect();
        queue.advance(bytes.len());
        sent.extend_from_slice(&bytes);
        let mut left = &bytes[..];
        while !left.is_empty() {
            let space = received.space();
            let count = space.len().min(left.len()).min(1 + usize::from(read));
            space[..count].copy_from_slice(&left[..count]);
            left = &left[count..];
            received.filled(count);
            while let Some(message) = received.next_message().expect("it was sent here") {
                match (expected.next().expect("no more than were sent"), message) {
                    (BorrowedMessage::Message(sent), message) => assert_eq!(message, *sent),
                    (BorrowedMessage::Extended(sent), Message::Extended(extended)) => {
                        assert_eq!(extended.read(&ExtensionIds::ALL), Ok(*sent));
                    }
                    (BorrowedMessage::Extended(sent), message) => panic!("{message:?} came of {sent:?}"),
                }
            }
        }
    };
    for message in &messages {
        while !match message {
            BorrowedMessage::Message(Message::Piece(piece)) => {
                queue.push_piece(piece.piece, piece.begin, piece.data).is_ok()
            }
            BorrowedMessage::Message(message) => queue.push(message).is_ok(),
            BorrowedMessage::Extended(message) => {
                queue.push(&message.to_peer(&ExtensionIds::ALL).expect("all have ids")).is_ok()
            }
        } {
            transfer(&mut queue);
        }
    }
    while !queue.is_empty() {
        transfer(&mut queue);
    }
    assert!(expected.next().is_none() && received.unread().is_empty());
    assert!(sent == written && !queue.is_full());
}

/// Writes a message. Returns how long it says that it is.
fn put(message: &impl Encode, out: &mut Vec<u8>) -> usize {
    message.encode(out);
    message.encoded_len()
}

/// The message of these values, unless they make none.
fn message(parts: &MessageParts) -> Option<BorrowedMessage<'_>> {
    let &(kind, [first, second, third, fourth], ref root, ref bytes, ref hashes, ids, ..) = parts;
    let piece = PieceIndex(first % PIECES);
    let begin = second % PIECE_LENGTH;
    let block = Block { piece, begin, length: 1 + third % (PIECE_LENGTH - begin) };
    let most = 2_u32 << (third % 9);
    let range = |length: u32| {
        let index = second - second % length.next_power_of_two();
        HashRange::new(root, first % 50, index, length, fourth % 50).expect("BEP 52 allows it")
    };
    Some(BorrowedMessage::Message(match kind % 32 {
        0 => Message::KeepAlive,
        1 => Message::Choke,
        2 => Message::Unchoke,
        3 => Message::Interested,
        4 => Message::NotInterested,
        5 => Message::Have(piece),
        6 => {
            let bitfield = Bitfield::new(bytes);
            let is_one = bitfield.check(PIECES).is_ok();
            Message::Bitfield(if is_one { bitfield } else { Bitfield::new(&ALL) })
        }
        7 => Message::Request(block),
        8 | 9 => {
            let data = &bytes[..bytes.len().min((PIECE_LENGTH - begin) as usize)];
            Message::Piece(Piece { piece, begin, data: Some(data).filter(|data| !data.is_empty())? })
        }
        10 => Message::Cancel(block),
        11 => Message::Port(first as u16),
        12 => Message::Suggest(piece),
        13 => Message::HaveAll,
        14 => Message::HaveNone,
        15 => Message::Reject(block),
        16 => Message::AllowedFast(piece),
        17 => Message::Extended(Extended { id: ids[0], payload: bytes }),
        18 => Message::HashRequest(range(most)),
        19 => Message::HashReject(range(most)),
        20 => {
            let length = most.min(hashes.len() as u32);
            let hashes = &hashes[..hashes.len().min((length + fourth % 50) as usize)];
            Message::Hashes(Hashes::new(range(length.max(1)), hashes).ok()?)
        }
        21 => Message::Unknown { id: 24 + ids[0] % 232, payload: bytes },
        kind => return extended(kind, parts).map(BorrowedMessage::Extended),
    }))
}

fn extended(kind: u8, parts: &MessageParts) -> Option<ExtendedMessage<'_>> {
    let &(_, [first, second, ..], _, ref bytes, _, ids, ref v4, ref v6, flag) = parts;
    let endpoint = Endpoint::try_from(v6.first().copied().unwrap_or([7; 18])).ok()?;
    Some(match kind {
        22 => ExtendedMessage::Metadata(MetadataMessage::Request { piece: first }),
        23 => ExtendedMessage::Metadata(MetadataMessage::Reject { piece: first }),
        24 => {
            let piece = first % 1000;
            let data = bytes.get(..bytes.len().min(16383)).filter(|data| !data.is_empty())?;
            let total_size = (piece << 14) + data.len() as u32;
            ExtendedMessage::Metadata(MetadataMessage::Data { piece, total_size, data })
        }
        25 => ExtendedMessage::DontHave(PieceIndex(first % PIECES)),
        26 => ExtendedMessage::UploadOnly(flag),
        27 => ExtendedMessage::Holepunch(Holepunch::Rendezvous(endpoint)),
        28 => ExtendedMessage::Holepunch(Holepunch::Connect(endpoint)),
        29 => ExtendedMessage::Holepunch(Holepunch::Error(endpoint, HolepunchError(first))),
        30 => {
            let mut pex = Pex::default();
            (pex.added, pex.dropped) = (v4, v4);
            (pex.added6, pex.dropped6) = (v6, v6);
            if flag && bytes.len() >= v4.len().max(v6.len()) {
                pex.added_flags = &bytes[..v4.len()];
                pex.added6_flags = &bytes[..v6.len()];
            }
            ExtendedMessage::Pex(pex)
        }
        _ => {
            let ids = Extension::NEGOTIATED.into_iter().zip(ids);
            let ids = ids.fold(ExtensionIds::NONE, |ids, (extension, id)| ids.with(extension, id));
            let mut handshake = ExtendedHandshake::new(ids);
            handshake.client = Some(&bytes[..]).filter(|_| flag);
            handshake.port = Some(first as u16).filter(|port| port % 2 == 0);
            handshake.your_ip = Some(endpoint.ip()).filter(|_| flag);
            handshake.ipv4 = v4.first().and_then(|v4| v4.first_chunk()).map(|ip: &[u8; 4]| (*ip).into());
            handshake.ipv6 = v6.first().and_then(|v6| v6.first_chunk()).map(|ip: &[u8; 16]| (*ip).into());
            handshake.metadata_size = Some(second).filter(|size| size % 2 == 0);
            handshake.request_queue = Some(first).filter(|_| !flag);
            handshake.upload_only = (second % 3 > 0).then_some(flag);
            handshake.complete_ago = Some(i64::from(first) - i64::from(second));
            ExtendedMessage::Handshake(handshake)
        }
    })
}
