//! The trait for the sources of requests, and its implementation for sockets.

use std::{io, net::UdpSocket, os::fd::AsFd, sync::Arc};

use super::{
    Batch,
    batch::Exchanges,
    socket::{Receiver, send},
};
use crate::{Reach, metrics::Counters};

/// One of the addresses that a tracker listens at.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Listener {
    /// Its place among all of them.
    pub(crate) nth: usize,
    pub(crate) reach: Reach,
}

/// A source of requests, which also sends the answers. It belongs to one thread.
pub(crate) trait Front {
    /// A descriptor that is readable while there are requests.
    fn descriptor(&self) -> Arc<dyn AsFd>;

    /// Receives at most [`Batch::MOST`] requests, into `batch` or memory of its own, in place of the earlier
    /// ones.
    ///
    /// # Errors
    /// The error of the system; [`io::ErrorKind::WouldBlock`] if there are none.
    fn receive(&mut self, batch: &mut Batch) -> io::Result<()>;

    /// The requests that were received, each with the place of its answer.
    fn exchanges<'a>(&'a mut self, batch: &'a mut Batch) -> Exchanges<'a>;

    /// Sends the answers. Answers that the system does not take at once are lost.
    fn send(&mut self, batch: &Batch, counters: &Counters);
}

/// A socket of the system.
pub(crate) struct SocketFront {
    socket: Arc<UdpSocket>,
    listener: Listener,
    receiver: Receiver,
}

impl SocketFront {
    pub(crate) fn new(socket: Arc<UdpSocket>, listener: Listener) -> Self {
        Self { socket, listener, receiver: Receiver::new() }
    }
}

impl Front for SocketFront {
    fn descriptor(&self) -> Arc<dyn AsFd> {
        self.socket.clone()
    }

    fn receive(&mut self, batch: &mut Batch) -> io::Result<()> {
        batch.listener = self.listener;
        self.receiver.receive(&self.socket, batch)
    }

    fn exchanges<'a>(&'a mut self, batch: &'a mut Batch) -> Exchanges<'a> {
        batch.exchanges()
    }

    fn send(&mut self, batch: &Batch, counters: &Counters) {
        send(&self.socket, batch, counters);
    }
}
