//! The queue of messages that wait to be sent.

use std::{
    collections::VecDeque,
    fmt,
    io::{self, IoSlice, Write},
};

use crate::{Encode, PieceIndex, message::head_of_piece};

/// The messages that wait to be sent to a peer: small ones as bytes, blocks as the values that hold them.
///
/// A block is never copied: `P` is a slice, an `Arc`, `bytes::Bytes`, a part of a mapped file, or any other
/// [`AsRef<[u8]>`]. It is dropped when its last byte has been sent. [`slices`](Self::slices) returns many
/// messages for one vectored write, and [`advance`](Self::advance) removes the bytes that the socket took,
/// even if they end within a message. When the queue is as large as its content, it allocates nothing.
///
/// The queue is full from the high-water mark on until at most the low-water mark is left, so that work comes
/// in batches. Its content is bounded: blocks by the high-water mark plus one block, and copied bytes by the
/// same.
///
/// ```
/// use swarmkeep_peer_wire::{Message, PieceIndex, SendQueue};
///
/// let mut queue = SendQueue::new(16 << 10, 64 << 10);
/// let block: std::sync::Arc<[u8]> = vec![7; 16 << 10].into();
/// queue.push(&Message::Unchoke)?;
/// queue.push_piece(PieceIndex(3), 0, block)?;
/// let mut socket = Vec::new(); // or any `io::Write`
/// while !queue.is_empty() {
///     queue.write_to(&mut socket)?;
/// }
/// assert_eq!(socket.len(), 5 + 13 + (16 << 10));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct SendQueue<P> {
    /// Whatever is copied, in order; all before `sent` is gone.
    bytes: Vec<u8>,
    sent: usize,
    parts: VecDeque<Part<P>>,
    /// Bytes of blocks that are not sent.
    in_blocks: usize,
    low: usize,
    high: usize,
    full: bool,
}

const SLICES: usize = 64;

/// A part of a queue that is contiguous in memory.
enum Part<P> {
    /// The number of the next copied bytes.
    Bytes(usize),
    /// A block, and how much of it is gone.
    Block { block: P, sent: usize },
}

/// The queue is full, and took nothing.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the send queue is full: wait until it has room")]
#[non_exhaustive]
pub struct Full<P = ()>(
    /// The value that was not taken.
    pub P,
);

impl<P: AsRef<[u8]>> SendQueue<P> {
    /// The number of slices of one call of [`write_to`](Self::write_to): 32 blocks with their heads. Twice as
    /// many were not faster.
    pub const SLICES: usize = SLICES;

    /// An empty queue that becomes full at `high` bytes and stops being full at `low`. A good high-water mark
    /// is as much as the socket takes in a few milliseconds; a good low-water mark is half of it.
    pub const fn new(low: usize, high: usize) -> Self {
        Self { bytes: Vec::new(), sent: 0, parts: VecDeque::new(), in_blocks: 0, low, high, full: false }
    }

    /// Adds a message or a handshake, and copies its bytes: for everything except blocks.
    ///
    /// # Errors
    /// [`Full`] if as many copied bytes wait as the high-water mark. Blocks do not count, so that they do not
    /// delay control messages.
    #[inline]
    pub fn push(&mut self, message: &impl Encode) -> Result<(), Full> {
        if self.bytes.len() - self.sent >= self.high {
            return Err(Full(()));
        }
        let before = self.bytes.len();
        message.encode(&mut self.bytes);
        self.copied(self.bytes.len() - before);
        Ok(())
    }

    /// Adds a block.
    ///
    /// # Errors
    /// [`Full`], with the block, while [`is_full`](Self::is_full).
    ///
    /// # Panics
    /// If the length of the block does not fit in 32 bits.
    #[inline]
    pub fn push_piece(&mut self, piece: PieceIndex, begin: u32, block: P) -> Result<(), Full<P>> {
        if self.full {
            return Err(Full(block));
        }
        let len = block.as_ref().len();
        let head = head_of_piece(piece, begin, len);
        self.bytes.extend_from_slice(&head);
        self.in_blocks += len;
        self.copied(head.len());
        if len > 0 {
            self.parts.push_back(Part::Block { block, sent: 0 });
        }
        Ok(())
    }

    /// Bytes that are not sent.
    pub fn len(&self) -> usize {
        self.bytes.len() - self.sent + self.in_blocks
    }

    /// Whether everything is sent.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether blocks are refused: from the high-water mark on, until at most the low-water mark is left.
    pub const fn is_full(&self) -> bool {
        self.full
    }

    /// Puts the next slices to send into `out`, in order; returns their number.
    #[inline]
    pub fn slices<'a>(&'a self, out: &mut [IoSlice<'a>]) -> usize {
        let mut at = self.sent;
        let mut used = 0;
        for (place, part) in out.iter_mut().zip(&self.parts) {
            *place = IoSlice::new(match part {
                Part::Bytes(len) => {
                    at += len;
                    &self.bytes[at - len..at]
                }
                Part::Block { block, sent } => &block.as_ref()[*sent..],
            });
            used += 1;
        }
        used
    }

    /// Removes the next `count` bytes, which were sent. Blocks that are sent are dropped.
    ///
    /// # Panics
    /// If `count` is more than [`len`](Self::len).
    #[inline]
    pub fn advance(&mut self, mut count: usize) {
        assert!(count <= self.len(), "more was sent than there was");
        while count > 0 {
            match self.parts.front_mut().expect("parts hold as many bytes as `len` says") {
                Part::Bytes(len) => {
                    let taken = count.min(*len);
                    *len -= taken;
                    self.sent += taken;
                    count -= taken;
                    if *len > 0 {
                        break;
                    }
                }
                Part::Block { block, sent } => {
                    let left = block.as_ref().len() - *sent;
                    let taken = count.min(left);
                    *sent += taken;
                    self.in_blocks -= taken;
                    count -= taken;
                    if taken < left {
                        break;
                    }
                }
            }
            self.parts.pop_front();
        }
        self.forget();
        self.full &= self.len() > self.low;
    }

    /// Writes the next bytes with one call of the writer; returns how many it took.
    ///
    /// # Errors
    /// Those of the writer; then nothing is removed. If the writer takes nothing,
    /// [`io::ErrorKind::WriteZero`].
    pub fn write_to<W: Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<usize> {
        let mut slices = [IoSlice::new(&[]); SLICES];
        let used = self.slices(&mut slices);
        if used == 0 {
            return Ok(0);
        }
        match writer.write_vectored(&slices[..used])? {
            0 => Err(io::ErrorKind::WriteZero.into()),
            count => {
                self.advance(count);
                Ok(count)
            }
        }
    }

    /// Bytes that are allocated, without those of blocks.
    pub fn capacity(&self) -> usize {
        self.bytes.capacity() + self.parts.capacity() * size_of::<Part<P>>()
    }

    /// Frees the memory if nothing waits: for idle connections.
    pub fn shrink(&mut self) {
        if self.is_empty() {
            (self.bytes, self.parts) = (Vec::new(), VecDeque::new());
        }
    }

    #[inline]
    fn copied(&mut self, count: usize) {
        match self.parts.back_mut() {
            Some(Part::Bytes(len)) => *len += count,
            _ => self.parts.push_back(Part::Bytes(count)),
        }
        self.full |= self.len() >= self.high;
    }

    /// Frees the copied bytes that are sent: at once if all are, else when they are as many as the others.
    #[inline]
    fn forget(&mut self) {
        let left = self.bytes.len() - self.sent;
        if left == 0 {
            self.bytes.clear();
            self.sent = 0;
        } else if self.sent >= left.max(4096) {
            self.bytes.drain(..self.sent);
            self.sent = 0;
        }
    }
}

impl<P> fmt::Debug for SendQueue<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendQueue")
            .field("copied", &(self.bytes.len() - self.sent))
            .field("in_blocks", &self.in_blocks)
            .field("full", &self.full)
            .finish()
    }
}

impl<P> fmt::Debug for Full<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Full")
    }
}

/// `AsyncWriteExt::write_buf` of tokio then makes one vectored write of many messages.
impl<P: AsRef<[u8]>> bytes::Buf for SendQueue<P> {
    fn remaining(&self) -> usize {
        self.len()
    }

    fn chunk(&self) -> &[u8] {
        match self.parts.front() {
            None => &[],
            Some(Part::Bytes(len)) => &self.bytes[self.sent..self.sent + len],
            Some(Part::Block { block, sent }) => &block.as_ref()[*sent..],
        }
    }

    fn chunks_vectored<'a>(&'a self, out: &mut [IoSlice<'a>]) -> usize {
        self.slices(out)
    }

    fn advance(&mut self, count: usize) {
        Self::advance(self, count);
    }
}
