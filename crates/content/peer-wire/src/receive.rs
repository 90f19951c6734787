//! What came from a socket and is not read yet.

use std::fmt;

use crate::{Error, Handshake, Limits, Message};

/// What came from a socket: it is filled, and gives messages that borrow from it.
///
/// Holds at most one message that is not complete, and what came with it: never more than
/// [`Limits::longest`], rounded up to a power of two. It grows only when it is full of what really came,
/// whatever a length prefix says. Once as large as the messages that come, it allocates no more.
///
/// ```no_run
/// # use std::{io::Read, net::TcpStream};
/// # use swarmkeep_peer_wire::{Limits, ReceiveBuffer};
/// # fn receive(mut stream: TcpStream, limits: Limits) -> Result<(), Box<dyn std::error::Error>> {
/// let mut received = ReceiveBuffer::new(limits);
/// loop {
///     let count = stream.read(received.space())?;
///     if count == 0 {
///         return Ok(()); // the peer is gone
///     }
///     received.filled(count);
///     while let Some(message) = received.next_message()? {
///         println!("{message:?}");
///     }
/// }
/// # }
/// ```
pub struct ReceiveBuffer {
    /// All of it initialised.
    bytes: Vec<u8>,
    start: usize,
    end: usize,
    limits: Limits,
}

impl ReceiveBuffer {
    /// Bytes at first: a block of 16 KiB, and as much again to read on.
    pub const FIRST: usize = 32 << 10;

    /// One that holds nothing yet, and has allocated nothing.
    pub const fn new(limits: Limits) -> Self {
        Self { bytes: Vec::new(), start: 0, end: 0, limits }
    }

    /// What the peer may send.
    pub const fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Says anew what the peer may send: when the metadata has come.
    pub const fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
    }

    /// Room to read into; then say how much was [filled](Self::filled). Empty only if more than
    /// [`Limits::longest`] lies unread, which is never while all complete messages are taken before it is
    /// asked for.
    pub fn space(&mut self) -> &mut [u8] {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
        // With a quarter free, reads are few and little is moved.
        let least = self.bytes.len() / 4;
        if self.start > 0 && self.bytes.len() - self.end < least {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        if self.bytes.len() - self.end <= least && self.bytes.len() < self.limits.longest() {
            let larger = (2 * self.bytes.len()).max(Self::FIRST);
            self.bytes.resize(larger, 0);
        }
        &mut self.bytes[self.end..]
    }

    /// Says that `count` bytes were read into [`space`](Self::space).
    ///
    /// # Panics
    /// If that is more than there was room for.
    pub fn filled(&mut self, count: usize) {
        assert!(count <= self.bytes.len() - self.end, "more was filled than there was room for");
        self.end += count;
    }

    /// The handshake, once it is there. It comes before any message.
    ///
    /// # Errors
    /// [`Error::Protocol`].
    pub fn next_handshake(&mut self) -> Result<Option<Handshake>, Error> {
        let mut rest = &self.bytes[self.start..self.end];
        let handshake = Handshake::decode(&mut rest)?;
        self.start = self.end - rest.len();
        Ok(handshake)
    }

    /// The next message, once it is there.
    ///
    /// # Errors
    /// What no peer may send; the connection has to end.
    #[inline]
    pub fn next_message(&mut self) -> Result<Option<Message<'_>>, Error> {
        let mut rest = &self.bytes[self.start..self.end];
        let message = self.limits.decode(&mut rest);
        self.start = self.end - rest.len();
        message
    }

    /// What has come and is not read yet.
    pub fn unread(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// Bytes that are allocated.
    pub const fn capacity(&self) -> usize {
        self.bytes.len()
    }

    /// Gives the memory back if nothing is unread: for connections that have become idle.
    pub fn shrink(&mut self) {
        if self.start == self.end {
            (self.bytes, self.start, self.end) = (Vec::new(), 0, 0);
        }
    }
}

impl fmt::Debug for ReceiveBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReceiveBuffer")
            .field("unread", &self.unread().len())
            .field("capacity", &self.capacity())
            .field("limits", &self.limits)
            .finish()
    }
}
