//! The buffer for bytes that came from a socket.

use std::fmt;

use crate::{Error, Handshake, Limits, Message};

/// A buffer that the caller fills from a socket, and that returns messages that borrow from it.
///
/// It holds at most one incomplete message and the bytes that came with it: never more than
/// [`Limits::longest`], rounded up to a power of two. It grows only when it is full of received bytes; a
/// length prefix alone does not make it grow. When it is as large as the messages that come, it allocates
/// nothing.
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
    /// The initial capacity in bytes: twice a block of 16 KiB.
    pub const FIRST: usize = 32 << 10;

    /// An empty buffer that has allocated nothing.
    pub const fn new(limits: Limits) -> Self {
        Self { bytes: Vec::new(), start: 0, end: 0, limits }
    }

    /// The limits of the peer's messages.
    pub const fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Changes the limits: when the metadata has come.
    pub const fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
    }

    /// The space to read into; the caller then calls [`filled`](Self::filled). It is empty only if more than
    /// [`Limits::longest`] bytes are unread, which cannot happen if all complete messages are taken before.
    pub fn space(&mut self) -> &mut [u8] {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
        // With a quarter free, reads are few and little is moved.
        let least = self.bytes.len() / 4;
        if self.start > 0 && self.bytes.len() - self.end <= least {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        if self.bytes.len() - self.end <= least && self.bytes.len() < self.limits.longest() {
            let larger = (2 * self.bytes.len()).max(Self::FIRST);
            self.bytes.resize(larger, 0);
        }
        &mut self.bytes[self.end..]
    }

    /// Records that `count` bytes were read into [`space`](Self::space).
    ///
    /// # Panics
    /// If `count` is more than the length of the space.
    pub fn filled(&mut self, count: usize) {
        assert!(count <= self.bytes.len() - self.end, "more was filled than there was room for");
        self.end += count;
    }

    /// The handshake, if it is complete. It comes before any message.
    ///
    /// # Errors
    /// [`Error::Protocol`].
    pub fn next_handshake(&mut self) -> Result<Option<Handshake>, Error> {
        let mut rest = &self.bytes[self.start..self.end];
        let handshake = Handshake::decode(&mut rest)?;
        self.start = self.end - rest.len();
        Ok(handshake)
    }

    /// The next message, if it is complete.
    ///
    /// # Errors
    /// The error of the message; the connection has to end.
    #[inline]
    pub fn next_message(&mut self) -> Result<Option<Message<'_>>, Error> {
        let mut rest = &self.bytes[self.start..self.end];
        let message = self.limits.decode(&mut rest);
        self.start = self.end - rest.len();
        message
    }

    /// The bytes that are not read yet.
    pub fn unread(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// Bytes that are allocated.
    pub fn capacity(&self) -> usize {
        self.bytes.len()
    }

    /// Frees the memory if nothing is unread: for idle connections.
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
