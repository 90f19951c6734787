//! Datagram sockets, and many datagrams in one system call.

use std::{
    collections::BTreeMap,
    io::{self, IoSlice, IoSliceMut},
    net::{SocketAddr, UdpSocket},
    num::NonZero,
    os::fd::AsRawFd,
    slice,
    time::Instant,
};

use arrayvec::ArrayVec;
use nix::sys::socket::{MsgFlags, MultiHeaders, SockaddrStorage, recvmmsg};
use rustix::net::{MMsgHdr, SendAncillaryBuffer, SendFlags, SocketAddrAny, sendmmsg};
use socket2::{Domain, SockRef, Socket, Type};

use super::Batch;
use crate::{metrics::Counters, seldom::log_stranger};

/// What a socket's buffers may hold, where the system lets it: some milliseconds of a million requests a
/// second.
const SOCKET_BUFFER: usize = 4 << 20;

/// So many sockets at one address, among which the system spreads clients. An IPv6 one leaves IPv4 to its
/// neighbour.
pub(crate) fn bind(address: SocketAddr, count: NonZero<usize>) -> io::Result<Vec<UdpSocket>> {
    // Bound before it shares, the first fails where another process listens, even one that would share.
    let first = open(address)?;
    first.bind(&address.into())?;
    first.set_reuse_port(true)?;
    let first = UdpSocket::from(first);
    let address = first.local_addr()?;
    let others = (1..count.get()).map(|_| {
        let socket = open(address)?;
        socket.set_reuse_port(true)?;
        socket.bind(&address.into())?;
        Ok(socket.into())
    });
    [Ok(first)].into_iter().chain(others).collect()
}

fn open(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, None)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    prepare(SockRef::from(&socket))?;
    Ok(socket)
}

fn prepare(socket: SockRef<'_>) -> io::Result<()> {
    socket.set_nonblocking(true)?;
    // A wish: the system has limits of its own.
    drop(socket.set_recv_buffer_size(SOCKET_BUFFER));
    drop(socket.set_send_buffer_size(SOCKET_BUFFER));
    Ok(())
}

/// Makes so many sockets at each address, as [`bind`] would, of those that somebody else has opened: threads
/// share one where there are fewer.
pub(crate) fn adopt(sockets: Vec<UdpSocket>, count: NonZero<usize>) -> io::Result<Vec<Vec<UdpSocket>>> {
    let mut at: BTreeMap<SocketAddr, Vec<UdpSocket>> = BTreeMap::new();
    for socket in sockets {
        prepare(SockRef::from(&socket))?;
        at.entry(socket.local_addr()?).or_default().push(socket);
    }
    // What is more than there are threads is for the same threads, as if it were at another address.
    let shared = at.values().flat_map(|sockets| sockets.chunks(count.get()));
    shared.map(|some| some.iter().cycle().take(count.get()).map(UdpSocket::try_clone).collect()).collect()
}

/// Receives datagrams from one socket. It must stay with that one, or at least with its family: the system
/// notes in it how long addresses are, and does not look beyond that the next time.
pub(super) struct Receiver(MultiHeaders<SockaddrStorage>);

impl Receiver {
    pub(super) fn new() -> Self {
        Self(MultiHeaders::preallocate(Batch::MOST, None))
    }

    /// Replaces what is in `batch` by what is there to be received, [`Batch::MOST`] datagrams at most.
    pub(super) fn receive(&mut self, socket: &UdpSocket, batch: &mut Batch) -> io::Result<()> {
        let Batch { packets, exchanges, since, .. } = batch;
        let mut buffers = packets.each_mut().map(|packet| [IoSliceMut::new(packet)]);
        let messages = recvmmsg(socket.as_raw_fd(), &mut self.0, &mut buffers, MsgFlags::MSG_DONTWAIT, None)?;
        let received: ArrayVec<_, { Batch::MOST }> =
            messages.map(|message| (message.bytes, message.address)).collect();
        exchanges.clear();
        *since = Instant::now();
        for (len, address) in received {
            let source = address.as_ref().and_then(address_of);
            batch.received(len, source.expect("datagrams come from somewhere, over IPv4 or IPv6"));
        }
        Ok(())
    }
}

/// Sends the answers of `batch`. What the system does not take at once is lost, as datagrams may be: it would
/// hold up all others.
pub(super) fn send(socket: &UdpSocket, batch: &Batch, counters: &Counters) {
    let (mut count, mut bytes) = (0, 0);
    let answers = batch
        .answers()
        .inspect(|(answer, _)| {
            count += 1;
            bytes += answer.len() as u64;
        })
        .map(|(answer, to)| (IoSlice::new(answer), SocketAddrAny::from(to), SendAncillaryBuffer::default()));
    let mut answers: ArrayVec<_, { Batch::MOST }> = answers.collect();
    let messages = answers
        .iter_mut()
        .map(|(answer, to, control)| MMsgHdr::new_with_addr(to, slice::from_ref(answer), control));
    let mut messages: ArrayVec<_, { Batch::MOST }> = messages.collect();
    let mut rest = &mut messages[..];
    while !rest.is_empty() {
        // An error is that of the first: sending stops before a later one that fails.
        let done = sendmmsg(socket, rest, SendFlags::DONTWAIT).unwrap_or_else(|error| {
            log_stranger!(%error, "cannot send");
            1
        });
        rest = &mut rest[done..];
    }
    if count > 0 {
        counters.answered(count, bytes, batch.since.elapsed());
    }
}

fn address_of(address: &SockaddrStorage) -> Option<SocketAddr> {
    let v4 = address.as_sockaddr_in().map(|&v4| v4.into());
    v4.or_else(|| address.as_sockaddr_in6().map(|&v6| v6.into()))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// What tells one socket from another, however often it is cloned.
    fn inode(socket: &UdpSocket) -> String {
        let link = fs::read_link(format!("/proc/self/fd/{}", socket.as_raw_fd())).unwrap();
        link.to_str().unwrap().into()
    }

    #[test]
    fn each_thread_has_one_of_every_socket_that_was_opened_elsewhere_and_none_is_left_out() {
        let (two, three) = (const { NonZero::new(2).unwrap() }, const { NonZero::new(3).unwrap() });
        let many = bind("127.0.0.1:0".parse().unwrap(), three).unwrap();
        let one = UdpSocket::bind("127.0.0.2:0").unwrap();
        let all = [&many[0], &one, &many[1], &many[2]].map(|socket| socket.try_clone().unwrap());
        let adopted = adopt(all.into(), two).unwrap();
        let inodes: Vec<_> =
            adopted.iter().map(|sockets| sockets.iter().map(inode).collect::<Vec<_>>()).collect();
        let [a, b, c] = [0, 1, 2].map(|n| inode(&many[n]));
        assert_eq!(inodes, [vec![a, b], vec![c.clone(), c], vec![inode(&one); 2]]);
        let nothing = adopted[2][1].recv(&mut [0]).unwrap_err();
        assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock, "it does not block");
        assert!(adopt(Vec::new(), two).unwrap().is_empty());
    }
}
