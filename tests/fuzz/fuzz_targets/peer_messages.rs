//! Any messages, pushed into a send queue, written in any parts and received in any others, come out as they
//! went in.
#![no_main]

use std::io::IoSlice;

use libfuzzer_sys::{
    arbitrary::{self, Arbitrary},
    fuzz_target,
};
use swarmkeep_peer_wire::{
    Bitfield, Block, Extended, ExtendedHandshake, ExtendedMessage, Extension, ExtensionIds, HashRange,
    Hashes, Holepunch, HolepunchError, Limits, Message, MetadataMessage, Pex, Piece, PieceIndex,
    ReceiveBuffer, SendQueue, bittorrent::Endpoint,
};

const PIECES: u32 = 77;
const PIECE_LENGTH: u32 = 1 << 15;

#[derive(Debug, Arbitrary)]
struct Input {
    messages: Vec<OwnedMessage>,
    /// The bytes of each write, its number of slices, and the bytes of each read.
    parts: Vec<(u16, u8, u16)>,
}

/// The bytes that a message borrows.
#[derive(Debug, Arbitrary)]
struct OwnedMessage {
    kind: u8,
    numbers: [u32; 4],
    root: [u8; 32],
    bytes: Vec<u8>,
    hashes: Vec<[u8; 32]>,
    ids: [u8; 5],
    v4: Vec<[u8; 6]>,
    v6: Vec<[u8; 18]>,
    flag: bool,
}

enum BorrowedMessage<'a> {
    Message(Message<'a>),
    Extended(ExtendedMessage<'a>),
}

impl OwnedMessage {
    /// The message that it describes, if it describes one that may be sent.
    fn message(&self) -> Option<BorrowedMessage<'_>> {
        let [first, second, third, fourth] = self.numbers;
        let piece = PieceIndex(first % PIECES);
        let begin = second % PIECE_LENGTH;
        let length = 1 + third % (PIECE_LENGTH - begin);
        let block = Block { piece, begin, length };
        let range = || HashRange::new(&self.root, first % 50, second, 2 << (third % 9), fourth % 50).ok();
        let endpoint = || Endpoint::try_from(self.v6.first().copied().unwrap_or([7; 18])).ok();
        Some(BorrowedMessage::Message(match self.kind % 32 {
            0 => Message::KeepAlive,
            1 => Message::Choke,
            2 => Message::Unchoke,
            3 => Message::Interested,
            4 => Message::NotInterested,
            5 => Message::Have(piece),
            6 => {
                let bitfield = Bitfield::new(&self.bytes);
                bitfield.check(PIECES).ok()?;
                Message::Bitfield(bitfield)
            }
            7 => Message::Request(block),
            8 | 9 => {
                let len = self.bytes.len().min((PIECE_LENGTH - begin) as usize);
                Message::Piece(Piece {
                    piece,
                    begin,
                    data: self.bytes.get(..len).filter(|data| !data.is_empty())?,
                })
            }
            10 => Message::Cancel(block),
            11 => Message::Port(first as u16),
            12 => Message::Suggest(piece),
            13 => Message::HaveAll,
            14 => Message::HaveNone,
            15 => Message::Reject(block),
            16 => Message::AllowedFast(piece),
            17 => Message::Extended(Extended { id: self.ids[0], payload: &self.bytes }),
            18 => Message::HashRequest(range()?),
            19 => Message::HashReject(range()?),
            20 => Message::Hashes(Hashes::new(range()?, &self.hashes).ok()?),
            21 => Message::Unknown { id: 24 + self.ids[0] % 232, payload: &self.bytes },
            kind => return self.extended(kind, piece, endpoint()?).map(BorrowedMessage::Extended),
        }))
    }

    fn extended(&self, kind: u8, piece: PieceIndex, endpoint: Endpoint) -> Option<ExtendedMessage<'_>> {
        let [first, second, ..] = self.numbers;
        Some(match kind {
            22 => ExtendedMessage::Metadata(MetadataMessage::Request { piece: first }),
            23 => ExtendedMessage::Metadata(MetadataMessage::Reject { piece: first }),
            24 => {
                let piece = first % 1000;
                let data = self.bytes.get(..self.bytes.len().min(16383)).filter(|data| !data.is_empty())?;
                let total_size = (piece << 14) + data.len() as u32;
                ExtendedMessage::Metadata(MetadataMessage::Data { piece, total_size, data })
            }
            25 => ExtendedMessage::DontHave(piece),
            26 => ExtendedMessage::UploadOnly(self.flag),
            27 => ExtendedMessage::Holepunch(Holepunch::Rendezvous(endpoint)),
            28 => ExtendedMessage::Holepunch(Holepunch::Connect(endpoint)),
            29 => ExtendedMessage::Holepunch(Holepunch::Error(endpoint, HolepunchError(first))),
            30 => {
                let mut pex = Pex::default();
                (pex.added, pex.dropped) = (&self.v4, &self.v4);
                (pex.added6, pex.dropped6) = (&self.v6, &self.v6);
                if self.flag && self.bytes.len() >= self.v4.len().max(self.v6.len()) {
                    pex.added_flags = &self.bytes[..self.v4.len()];
                    pex.added6_flags = &self.bytes[..self.v6.len()];
                }
                ExtendedMessage::Pex(pex)
            }
            _ => {
                let ids = Extension::NEGOTIATED.into_iter().zip(self.ids);
                let ids = ids.fold(ExtensionIds::NONE, |ids, (extension, id)| ids.with(extension, id));
                let mut handshake = ExtendedHandshake::new(ids);
                handshake.client = Some(&self.bytes[..]).filter(|_| self.flag);
                handshake.port = Some(first as u16).filter(|port| port % 2 == 0);
                handshake.your_ip = Some(endpoint.ip()).filter(|_| self.flag);
                handshake.ipv4 =
                    self.v4.first().and_then(|v4| v4.first_chunk()).map(|ip: &[u8; 4]| (*ip).into());
                handshake.metadata_size = Some(second).filter(|size| size % 2 == 0);
                handshake.request_queue = Some(first).filter(|_| !self.flag);
                handshake.upload_only = (second % 3 > 0).then_some(self.flag);
                handshake.complete_ago = Some(i64::from(first) - i64::from(second));
                ExtendedMessage::Handshake(handshake)
            }
        })
    }
}

fuzz_target!(|input: Input| {
    let limits =
        Limits::for_torrent(u64::from(PIECES) * u64::from(PIECE_LENGTH), PIECE_LENGTH).expect("a torrent");
    let messages: Vec<_> = input.messages.iter().filter_map(OwnedMessage::message).collect();
    let mut queue: SendQueue<&[u8]> = SendQueue::new(100, 1000);
    let mut received = ReceiveBuffer::new(limits);
    let (mut expected, mut parts) = (messages.iter(), input.parts.iter().cycle());
    let mut transfer = |queue: &mut SendQueue<&[u8]>| {
        let &(write, slices, read) = parts.next().unwrap_or(&(u16::MAX, 63, u16::MAX));
        let mut places = [IoSlice::new(&[]); 64];
        let used = queue.slices(&mut places[..1 + usize::from(slices) % 64]);
        let sent: Vec<u8> = places[..used]
            .iter()
            .flat_map(|slice| slice.iter().copied())
            .take(1 + usize::from(write))
            .collect();
        queue.advance(sent.len());
        let mut left = &sent[..];
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
                queue.push(&message.to_peer(&ExtensionIds::ALL).expect("known")).is_ok()
            }
        } {
            transfer(&mut queue);
        }
    }
    while !queue.is_empty() {
        transfer(&mut queue);
    }
    assert!(expected.next().is_none() && received.unread().is_empty());
});
