//! Properties of every message, split anywhere.

use std::io::IoSlice;

use proptest::{collection::vec, option, prelude::*, sample::select};
use swarmkeep_peer_wire::{
    Bitfield, Block, Encode, Error, Extended, ExtendedHandshake, ExtendedMessage, Extension, ExtensionIds,
    Handshake, HashRange, Hashes, Holepunch, HolepunchError, Limits, Message, MetadataMessage, Pex, Piece,
    PieceIndex, ReceiveBuffer, Reserved, SendQueue,
    bittorrent::{Endpoint, InfoHash, PeerId},
};

const PIECES: u32 = 1003;
const PIECE_LENGTH: u32 = 1 << 16;
const LAST: u32 = 40_000;

fn limits() -> Limits {
    Limits::for_torrent(u64::from(PIECES - 1) * u64::from(PIECE_LENGTH) + u64::from(LAST), PIECE_LENGTH)
        .unwrap()
}

/// The values that messages borrow from.
#[derive(Debug, Clone)]
struct Owned {
    kind: u8,
    piece: u32,
    begin: u32,
    data: Vec<u8>,
    numbers: [u32; 4],
    root: [u8; 32],
    hashes: Vec<[u8; 32]>,
    ids: [u8; 5],
    peers: Vec<[u8; 6]>,
    peers6: Vec<[u8; 18]>,
    flags: bool,
    some: Option<u32>,
    endpoint: Endpoint,
}

fn owned() -> impl Strategy<Value = Owned> {
    let numbers = (0..=49_u32, 0..1_000_000_u32, 1..=9_u32, 0..=49_u32);
    let address = (any::<[u8; 16]>(), any::<bool>(), 1..=u16::MAX).prop_map(|(bytes, v4, port)| {
        let ip = if v4 { [bytes[0], bytes[1], bytes[2], bytes[3]].into() } else { bytes.into() };
        Endpoint::new(ip, port).unwrap()
    });
    let lists = (vec(any::<[u8; 6]>(), 0..5), vec(any::<[u8; 18]>(), 0..5), any::<bool>());
    (
        0..35_u8,
        (0..PIECES, 0..LAST),
        vec(any::<u8>(), 1..2000),
        numbers,
        any::<[u8; 32]>(),
        vec(any::<[u8; 32]>(), 0..50),
        any::<[u8; 5]>(),
        lists,
        option::of(any::<u32>()),
        address,
    )
        .prop_map(
            |(
                kind,
                (piece, begin),
                data,
                (base, nth, length, proof),
                root,
                mut hashes,
                ids,
                lists,
                some,
                endpoint,
            )| {
                let (length, (peers, peers6, flags)) = (1 << length, lists);
                hashes.truncate(proof as usize);
                let mut all = vec![[kind; 32]; length as usize];
                all.extend(hashes);
                let numbers = [base, nth * length, length, proof];
                Owned {
                    kind,
                    piece,
                    begin,
                    data,
                    numbers,
                    root,
                    hashes: all,
                    ids,
                    peers,
                    peers6,
                    flags,
                    some,
                    endpoint,
                }
            },
        )
}

impl Owned {
    /// A message of any kind; or the extended one that it is.
    fn message(&self) -> Result<Message<'_>, ExtendedMessage<'_>> {
        let piece = PieceIndex(self.piece);
        let length = self.data.len().min((LAST - self.begin) as usize);
        let block = Block { piece, begin: self.begin, length: length as u32 };
        let [base, index, count, proof] = self.numbers;
        let range = HashRange::new(&self.root, base, index, count, proof).expect("made so");
        let small = u32::from(self.data[0]);
        Ok(match self.kind {
            0 => Message::KeepAlive,
            1 => Message::Choke,
            2 => Message::Unchoke,
            3 => Message::Interested,
            4 => Message::NotInterested,
            5 => Message::Have(piece),
            6 => Message::Request(block),
            7 | 8 => Message::Piece(Piece { piece, begin: self.begin, data: &self.data[..length] }),
            9 => Message::Cancel(block),
            10 => Message::Port(self.begin as u16),
            11 => Message::Suggest(piece),
            12 => Message::HaveAll,
            13 => Message::HaveNone,
            14 => Message::Reject(block),
            15 => Message::AllowedFast(piece),
            16 => Message::Extended(Extended { id: self.ids[0], payload: &self.data }),
            17 => Message::HashRequest(range),
            18 => Message::Hashes(Hashes::new(range, &self.hashes).expect("made so")),
            19 => Message::HashReject(range),
            20 => Message::Unknown { id: 24 + self.ids[0] % 200, payload: &self.data[1..] },
            21 => {
                // As many bytes as the torrent has, of which the last ends with zeroes.
                const BITS: [&[u8]; 2] = [&[0xff; Bitfield::bytes_for(PIECES - 3)], &[0xe0]];
                static ALL: std::sync::LazyLock<Vec<u8>> = std::sync::LazyLock::new(|| BITS.concat());
                Message::Bitfield(Bitfield::new(&ALL))
            }
            22 => return Err(ExtendedMessage::Metadata(MetadataMessage::Request { piece: self.begin })),
            23 => return Err(ExtendedMessage::Metadata(MetadataMessage::Reject { piece: self.begin })),
            24 => {
                let total_size = 3 * (16 << 10) + self.data.len() as u32;
                return Err(ExtendedMessage::Metadata(MetadataMessage::Data {
                    piece: 3,
                    total_size,
                    data: &self.data,
                }));
            }
            25 => return Err(ExtendedMessage::DontHave(PieceIndex(self.begin))),
            26 => return Err(ExtendedMessage::UploadOnly(self.flags)),
            27 => return Err(ExtendedMessage::Holepunch(Holepunch::Rendezvous(self.endpoint))),
            28 => return Err(ExtendedMessage::Holepunch(Holepunch::Connect(self.endpoint))),
            29 => {
                return Err(ExtendedMessage::Holepunch(Holepunch::Error(
                    self.endpoint,
                    HolepunchError(small),
                )));
            }
            30 | 31 => {
                let mut pex = Pex::default();
                (pex.added, pex.added6) = (&self.peers, &self.peers6);
                (pex.dropped, pex.dropped6) = (&self.peers, &self.peers6);
                if self.flags && self.data.len() > 10 {
                    pex.added_flags = &self.data[..self.peers.len()];
                    pex.added6_flags = &self.data[..self.peers6.len()];
                }
                return Err(ExtendedMessage::Pex(pex));
            }
            _ => {
                let ids = Extension::NEGOTIATED.into_iter().zip(self.ids);
                let ids = ids.fold(ExtensionIds::NONE, |ids, (extension, id)| ids.with(extension, id));
                let mut handshake = ExtendedHandshake::new(ids);
                handshake.client = self.flags.then_some(&self.data);
                handshake.port = self.some.map(|some| some as u16);
                handshake.your_ip = self.some.map(|_| self.endpoint.ip());
                handshake.ipv6 = self.some.map(|_| [self.ids[0]; 16].into());
                handshake.request_queue = self.some;
                handshake.metadata_size = Some(self.begin).filter(|_| self.flags);
                handshake.upload_only = self.some.map(|some| some % 2 == 0);
                handshake.complete_ago = self.some.map(|some| i64::from(some) - (1 << 31));
                return Err(ExtendedMessage::Handshake(handshake));
            }
        })
    }

    fn encode(&self, out: &mut Vec<u8>) {
        match self.message() {
            Ok(message) => message.encode(out),
            Err(extended) => extended.to_peer(&ExtensionIds::ALL).expect("all are known").encode(out),
        }
    }

    fn assert_is(&self, read: Message<'_>) {
        match (self.message(), read) {
            (Ok(message), read) => assert_eq!(read, message),
            (Err(extended), Message::Extended(frame)) => {
                assert_eq!(frame.read(&ExtensionIds::ALL), Ok(extended));
            }
            mismatch => panic!("{mismatch:?}"),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn what_is_written_is_read_as_the_same_under_any_split(
        messages in vec(owned(), 1..12),
        steps in vec(select(vec![1_usize, 2, 3, 5, 13, 17, 100, 1000, 100_000]), 1..40),
    ) {
        let mut sent = Vec::new();
        for message in &messages {
            let before = sent.len();
            message.encode(&mut sent);
            let len = match message.message() {
                Ok(message) => message.encoded_len(),
                Err(extended) => extended.to_peer(&ExtensionIds::ALL).unwrap().encoded_len(),
            };
            prop_assert_eq!(len, sent.len() - before);
            prop_assert!(len <= limits().longest());
        }
        let mut received = ReceiveBuffer::new(limits());
        let (mut left, mut steps, mut expected) = (&sent[..], steps.iter().cycle(), messages.iter());
        while !left.is_empty() {
            let space = received.space();
            let count = space.len().min(left.len()).min(*steps.next().unwrap());
            space[..count].copy_from_slice(&left[..count]);
            left = &left[count..];
            received.filled(count);
            while let Some(message) = received.next_message().expect("it was written here") {
                expected.next().expect("no more than were sent").assert_is(message);
            }
        }
        prop_assert_eq!(expected.count(), 0, "all have come");
        prop_assert!(received.unread().is_empty());
    }

    #[test]
    fn a_queue_sends_what_was_pushed_wherever_writes_end(
        messages in vec(owned(), 1..30),
        writes in vec((0..300_usize, 1..5_usize), 1..30),
    ) {
        let mut expected = Vec::new();
        let mut queue: SendQueue<Vec<u8>> = SendQueue::new(1000, 4000);
        // One at least takes something.
        let (mut sent, mut writes) = (Vec::new(), writes.iter().chain([&(1, 1)]).cycle());
        let mut write = |queue: &mut SendQueue<Vec<u8>>| {
            let &(most, slices) = writes.next().unwrap();
            let mut places = vec![IoSlice::new(&[]); slices];
            let used = queue.slices(&mut places);
            let all = places[..used].iter().flat_map(|slice| slice.iter().copied());
            let bytes: Vec<u8> = match queue.lone_block() {
                Some(lone) => {
                    let all = [lone.before, &lone.block[lone.sent..]].concat();
                    assert_eq!(all.len(), queue.len(), "nothing else waits");
                    all.into_iter().take(most).collect()
                }
                None => all.take(most).collect(),
            };
            queue.advance(bytes.len());
            sent.extend(bytes);
        };
        for message in &messages {
            message.encode(&mut expected);
            loop {
                let pushed = match message.message() {
                    Ok(Message::Piece(piece)) => {
                        queue.push_piece(piece.piece, piece.begin, piece.data.to_vec()).is_ok()
                    }
                    Ok(message) => queue.push(&message).is_ok(),
                    Err(extended) => queue.push(&extended.to_peer(&ExtensionIds::ALL).unwrap()).is_ok(),
                };
                if pushed {
                    break;
                }
                write(&mut queue);
            }
        }
        let mut turns = 0;
        while !queue.is_empty() {
            write(&mut queue);
            turns += 1;
            prop_assert!(turns < 1_000_000, "a write of nothing ends nothing");
        }
        prop_assert!(sent == expected);
        prop_assert!(!queue.is_full());
    }

    #[test]
    fn any_bytes_are_messages_an_error_or_the_beginning_of_one(bytes in vec(any::<u8>(), 0..300)) {
        for limits in [limits(), Limits::new()] {
            let mut rest = &bytes[..];
            loop {
                let before = rest;
                match limits.decode(&mut rest) {
                    Ok(Some(message)) => {
                        let mut again = Vec::new();
                        message.encode(&mut again);
                        let used = before.len() - rest.len();
                        prop_assert_eq!(&again[..], &before[..used], "written as it was read");
                        if let Message::Extended(extended) = message {
                            let _ = extended.read(&ExtensionIds::ALL);
                        }
                    }
                    Ok(None) | Err(_) => {
                        prop_assert_eq!(rest, before);
                        break;
                    }
                }
            }
        }
    }

    #[test]
    fn any_handshake_is_read_as_it_was_written(reserved: u64, info_hash: [u8; 20], peer_id: [u8; 20], split in 0..68_usize) {
        let handshake = Handshake {
            reserved: Reserved::from_bits_retain(reserved),
            info_hash: InfoHash::new(info_hash),
            peer_id: PeerId::new(peer_id),
        };
        let mut sent = Vec::new();
        handshake.encode(&mut sent);
        let mut received = ReceiveBuffer::new(limits());
        for (part, expected) in [(&sent[..split], None), (&sent[split..], Some(handshake))] {
            received.space()[..part.len()].copy_from_slice(part);
            received.filled(part.len());
            prop_assert_eq!(received.next_handshake(), Ok::<_, Error>(expected));
        }
    }
}
