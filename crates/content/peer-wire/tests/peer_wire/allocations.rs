//! Encoding and decoding allocate nothing once warm.

use std::{hint::black_box, io::IoSlice};

use swarmkeep_kit::allocations::{Counting, of_thread};
use swarmkeep_peer_wire::{
    Encode, ExtensionIds, Handshake, Limits, Message, Piece, PieceIndex, ReceiveBuffer, Reserved, SendQueue,
    bittorrent::{InfoHash, PeerId},
};

use crate::vectors::{extended, vectors};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocations_of(work: impl FnOnce()) -> u64 {
    of_thread(work).1.calls
}

/// One of each, and a block that is as long as most.
fn messages() -> Vec<Message<'static>> {
    let block = Message::Piece(Piece { piece: PieceIndex(7), begin: 1 << 14, data: &[7; 1 << 14] });
    vectors().into_iter().map(|(message, _)| message).chain([block; 3]).collect()
}

#[test]
fn encoding_into_a_warm_buffer_allocates_nothing() {
    let (messages, extended) = (messages(), extended());
    let handshake = Handshake {
        reserved: Reserved::FAST,
        info_hash: InfoHash::new([1; 20]),
        peer_id: PeerId::new([2; 20]),
    };
    let mut out = Vec::new();
    let mut round = || {
        out.clear();
        handshake.encode(&mut out);
        for message in &messages {
            assert!(message.encoded_len() >= 4);
            message.encode(&mut out);
        }
        for (message, ..) in &extended {
            message.to_peer(&ExtensionIds::ALL).unwrap().encode(&mut out);
        }
        black_box(&out);
    };
    assert!(allocations_of(&mut round) > 0, "the count counts");
    assert_eq!(allocations_of(|| (0..1000).for_each(|_| round())), 0);
}

#[test]
fn decoding_from_a_warm_buffer_allocates_nothing_not_even_errors() {
    let mut sent = Vec::new();
    for message in messages() {
        message.encode(&mut sent);
    }
    for (message, ..) in extended() {
        message.to_peer(&ExtensionIds::ALL).unwrap().encode(&mut sent);
    }
    let expected = messages().len() + extended().len();
    let mut received = ReceiveBuffer::new(Limits::new());
    let mut round = |step: usize| {
        let (mut left, mut read) = (&sent[..], 0);
        while !left.is_empty() {
            let space = received.space();
            let count = space.len().min(left.len()).min(step);
            space[..count].copy_from_slice(&left[..count]);
            left = &left[count..];
            received.filled(count);
            while let Some(message) = received.next_message().unwrap() {
                if let Message::Extended(extended) = message {
                    let _ = black_box(extended.read(&ExtensionIds::ALL));
                }
                black_box(message);
                read += 1;
            }
        }
        assert_eq!(read, expected);
    };
    let steps = [7, 1000, 1 << 20];
    assert!(allocations_of(|| steps.iter().for_each(|&step| round(step))) > 0, "the count counts");
    assert_eq!(allocations_of(|| (0..100).for_each(|nth| round(steps[nth % 3]))), 0);

    let wrong = [&[0, 0, 0, 9, 4][..], &[0xff; 4], &[0, 0, 0, 5, 4, 0xff, 0, 0, 0], &[0, 0, 0, 2, 9, 1]];
    let limits = Limits::for_torrent(1000 << 16, 1 << 16).unwrap();
    let decode =
        || wrong.iter().for_each(|bytes| assert!(black_box(limits.decode(&mut &bytes[..])).is_err()));
    assert_eq!(allocations_of(decode), 0);
}

#[test]
fn a_warm_send_queue_allocates_nothing_and_neither_does_a_piece() {
    let block = vec![7_u8; 8 << 20];
    let mut queue: SendQueue<&[u8]> = SendQueue::new(1 << 20, 64 << 20);
    let mut round = |len: usize| {
        for nth in 0..32 {
            queue.push(&Message::Have(PieceIndex(nth))).unwrap();
            queue.push_piece(PieceIndex(nth), 0, &block[..len]).unwrap_or_default();
        }
        while !queue.is_empty() {
            let mut slices = [IoSlice::new(&[]); 64];
            let used = queue.slices(&mut slices);
            let taken = slices[..used].iter().map(|slice| slice.len()).sum::<usize>();
            // Three times of four, a part of it.
            queue.advance((taken * 3 / 4).max(1));
        }
    };
    assert!(allocations_of(|| round(1 << 14)) > 0, "the count counts");
    let sizes = [1 << 14, 1 << 20, 4 << 20, 8 << 20];
    assert_eq!(allocations_of(|| (0..400).for_each(|nth| round(sizes[nth % 4]))), 0);

    let piece = Piece { piece: PieceIndex(0), begin: 0, data: &block };
    assert_eq!(allocations_of(|| assert_eq!(black_box(piece.head())[..5], [0, 0x80, 0, 9, 7])), 0);
}
