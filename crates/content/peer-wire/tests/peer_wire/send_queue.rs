//! The send queue: its marks, its bounds, and writers that fail.

use std::{
    io::{self, IoSlice, Write},
    sync::Arc,
};

use swarmkeep_peer_wire::{Message, PieceIndex, SendQueue};

const BLOCK: usize = 16 << 10;

fn block(nth: u32) -> Arc<[u8]> {
    (0..BLOCK).map(|at| (at as u32 ^ (nth * 31)) as u8).collect()
}

#[test]
fn it_is_full_from_the_high_mark_until_the_low_one() {
    let mut queue = SendQueue::new(2 * BLOCK, 4 * BLOCK);
    let mut taken = 0;
    while queue.push_piece(PieceIndex(taken), 0, block(taken)).is_ok() {
        taken += 1;
    }
    assert_eq!(taken, 4, "the block that reaches the mark is taken");
    assert!(queue.is_full());
    let full = queue.push_piece(PieceIndex(9), 0, block(9)).expect_err("it is full");
    assert_eq!(full.0, block(9), "it is given back");
    queue.advance(queue.len() - 2 * BLOCK - 1);
    assert!(queue.is_full() && queue.push_piece(PieceIndex(9), 0, block(9)).is_err());
    queue.advance(1);
    assert!(!queue.is_full() && queue.push_piece(PieceIndex(9), 0, block(9)).is_ok());
}

#[test]
fn messages_are_taken_while_blocks_wait_but_not_without_end() {
    let mut queue = SendQueue::new(BLOCK, 2 * BLOCK);
    while queue.push_piece(PieceIndex(0), 0, block(0)).is_ok() {}
    let mut taken = 0;
    while queue.push(&Message::Choke).is_ok() {
        taken += 1;
    }
    assert!(taken * 5 >= 2 * BLOCK - 100 && taken * 5 <= 2 * BLOCK, "{taken} messages of 5 bytes");
    assert!(queue.capacity() <= 4 * BLOCK + 1000, "{} bytes are allocated", queue.capacity());
}

#[test]
fn a_block_is_let_go_of_with_its_last_byte_and_never_copied() {
    let block = block(1);
    let mut queue = SendQueue::new(0, 1 << 20);
    queue.push_piece(PieceIndex(1), 0, Arc::clone(&block)).unwrap();
    queue.push(&Message::Unchoke).unwrap();
    {
        let mut slices = [IoSlice::new(&[]); 8];
        assert_eq!(queue.slices(&mut slices), 3);
        assert_eq!(slices[1].as_ptr(), block.as_ptr());
    }
    queue.advance(13 + BLOCK - 1);
    assert_eq!(Arc::strong_count(&block), 2);
    queue.advance(1);
    assert_eq!(Arc::strong_count(&block), 1);
    assert_eq!(queue.len(), 5);
}

#[test]
fn many_messages_between_blocks_are_one_slice() {
    let mut queue = SendQueue::new(0, 1 << 20);
    for nth in 0..3 {
        queue.push(&Message::Have(PieceIndex(nth))).unwrap();
        queue.push(&Message::KeepAlive).unwrap();
        queue.push_piece(PieceIndex(nth), 0, block(nth)).unwrap();
    }
    let mut slices = [IoSlice::new(&[]); 64];
    let used = queue.slices(&mut slices);
    let lens: Vec<usize> = slices[..used].iter().map(|slice| slice.len()).collect();
    assert_eq!(lens, [26, BLOCK, 26, BLOCK, 26, BLOCK]);
}

#[test]
fn copied_bytes_do_not_pile_up_while_the_queue_is_never_empty() {
    let mut queue = SendQueue::new(0, 1 << 20);
    for nth in 0..10_000 {
        queue.push_piece(PieceIndex(nth), 0, block(nth % 7)).unwrap();
        if nth >= 2 {
            queue.advance(13 + BLOCK);
        }
    }
    assert!(queue.capacity() < 32 << 10, "{} bytes are allocated", queue.capacity());
}

#[test]
fn an_empty_block_is_sent_and_not_kept() {
    let mut queue = SendQueue::new(0, 100);
    let empty: Arc<[u8]> = Arc::new([]);
    queue.push_piece(PieceIndex(0), 0, Arc::clone(&empty)).unwrap();
    assert_eq!((queue.len(), Arc::strong_count(&empty)), (13, 1));
}

#[test]
fn a_writer_that_fails_or_takes_nothing_loses_nothing() {
    struct Broken(io::Result<usize>);
    impl Write for Broken {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            match &self.0 {
                Ok(count) => Ok(*count),
                Err(error) => Err(error.kind().into()),
            }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut queue: SendQueue<Vec<u8>> = SendQueue::new(0, 100);
    assert_eq!(queue.write_to(&mut Broken(Ok(0))).unwrap(), 0, "there is nothing to write");
    queue.push(&Message::Unchoke).unwrap();
    for broken in [Ok(0), Err(io::ErrorKind::WouldBlock.into())] {
        assert!(queue.write_to(&mut Broken(broken)).is_err());
        assert_eq!(queue.len(), 5);
    }
}
