//! Datagram sockets, and many datagrams in one system call.

use std::{
    collections::BTreeMap,
    io::{self, IoSlice, IoSliceMut},
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    num::NonZero,
    os::fd::AsRawFd,
    slice,
    time::Instant,
};

use arrayvec::ArrayVec;
use nix::{
    cmsg_space, libc,
    sys::socket::{
        ControlMessageOwned, MsgFlags, MultiHeaders, SockaddrStorage, recvmmsg, setsockopt, sockopt,
    },
};
use rustix::net::{MMsgHdr, SendAncillaryBuffer, SendFlags, SocketAddrAny, sendmmsg};
use socket2::{Domain, MsgHdr, SockRef, Socket, Type};
use swarmkeep::bittorrent::in_words;

use super::Batch;
use crate::{families, metrics::Counters, seldom::log_stranger};

/// The size of a socket's buffers, if the system allows it: some milliseconds of a million requests per
/// second.
const SOCKET_BUFFER: usize = 4 << 20;

/// Opens `count` sockets at one address, among which the system spreads clients. They are for both families
/// as [`families::choose`] says.
pub(crate) fn bind(
    address: SocketAddr,
    listening: &[SocketAddr],
    count: NonZero<usize>,
) -> io::Result<Vec<UdpSocket>> {
    // Bound before it shares the address, the first socket fails if another process listens there, even one
    // that would share it.
    let first = open(address, listening)?;
    first.bind(&address.into())?;
    first.set_reuse_port(true)?;
    let first = UdpSocket::from(first);
    let address = first.local_addr()?;
    let others = (1..count.get()).map(|_| {
        let socket = open(address, listening)?;
        socket.set_reuse_port(true)?;
        socket.bind(&address.into())?;
        Ok(socket.into())
    });
    let all: Vec<_> = [Ok(first)].into_iter().chain(others).collect::<io::Result<_>>()?;
    all.iter().try_for_each(tell_addresses)?;
    Ok(all)
}

fn open(address: SocketAddr, listening: &[SocketAddr]) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, None)?;
    families::choose(&socket, address, listening)?;
    prepare(SockRef::from(&socket))?;
    Ok(socket)
}

fn prepare(socket: SockRef<'_>) -> io::Result<()> {
    socket.set_nonblocking(true)?;
    // The limits of the system may be lower.
    drop(socket.set_recv_buffer_size(SOCKET_BUFFER));
    drop(socket.set_send_buffer_size(SOCKET_BUFFER));
    Ok(())
}

/// A local address that a datagram was sent to, and that its answer leaves from.
#[derive(Debug, Clone, Copy)]
pub(super) enum LocalAddress {
    V4(Ipv4Addr),
    /// With its interface, if the address is only valid there.
    V6(Ipv6Addr, u32),
}

impl LocalAddress {
    fn of(message: &ControlMessageOwned) -> Option<Self> {
        match message {
            ControlMessageOwned::Ipv4PacketInfo(info) => {
                Some(Self::V4(Ipv4Addr::from_bits(u32::from_be(info.ipi_spec_dst.s_addr))))
            }
            ControlMessageOwned::Ipv6PacketInfo(info) => {
                let ip = Ipv6Addr::from(info.ipi6_addr.s6_addr);
                Some(Self::V6(ip, if ip.is_unicast_link_local() { info.ipi6_ifindex } else { 0 }))
            }
            _ => None,
        }
    }

    /// The control message with which a datagram leaves from it, as the system reads it: a header of its
    /// length, level and type, and then an `in_pktinfo` or `in6_pktinfo`.
    fn control(self) -> ArrayVec<u8, 40> {
        let (level, kind, len) = match self {
            Self::V4(_) => (libc::IPPROTO_IP, libc::IP_PKTINFO, size_of::<libc::in_pktinfo>()),
            Self::V6(..) => (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, size_of::<libc::in6_pktinfo>()),
        };
        let mut control = ArrayVec::new();
        let mut put = |bytes: &[u8]| control.try_extend_from_slice(bytes).expect("there is room");
        put(&(size_of::<libc::cmsghdr>() + len).to_ne_bytes());
        put(&level.to_ne_bytes());
        put(&kind.to_ne_bytes());
        match self {
            Self::V4(ip) => {
                put(&0_u32.to_ne_bytes());
                put(&ip.octets());
                put(&[0; 4]);
            }
            Self::V6(ip, interface) => {
                put(&ip.octets());
                put(&interface.to_ne_bytes());
            }
        }
        control
    }
}

/// Lets the system give the destination of each datagram, if the socket listens on all addresses.
fn tell_addresses(socket: &UdpSocket) -> io::Result<()> {
    let address = socket.local_addr()?;
    match address.ip().is_unspecified() {
        true if address.is_ipv4() => Ok(setsockopt(socket, sockopt::Ipv4PacketInfo, &true)?),
        true => Ok(setsockopt(socket, sockopt::Ipv6RecvPacketInfo, &true)?),
        false => Ok(()),
    }
}

/// Returns `count` sockets per address, as [`bind`] does, from sockets that were opened elsewhere. If there
/// are fewer, threads share them.
pub(crate) fn adopt(sockets: Vec<UdpSocket>, count: NonZero<usize>) -> io::Result<Vec<Vec<UdpSocket>>> {
    let mut at: BTreeMap<SocketAddr, Vec<UdpSocket>> = BTreeMap::new();
    for socket in sockets {
        prepare(SockRef::from(&socket))?;
        tell_addresses(&socket)?;
        at.entry(socket.local_addr()?).or_default().push(socket);
    }
    // More sockets than threads are for the same threads, as if they were at another address.
    let shared = at.values().flat_map(|sockets| sockets.chunks(count.get()));
    shared.map(|some| some.iter().cycle().take(count.get()).map(UdpSocket::try_clone).collect()).collect()
}

/// Receives datagrams from one socket. It must stay with that socket, or at least with its family: the system
/// stores the length of addresses in it, and reads no more of them the next time.
pub(super) struct Receiver(MultiHeaders<SockaddrStorage>);

impl Receiver {
    pub(super) fn new() -> Self {
        Self(MultiHeaders::preallocate(Batch::MOST, Some(cmsg_space!(libc::in6_pktinfo))))
    }

    /// Replaces the contents of `batch` by the datagrams in the socket, at most [`Batch::MOST`].
    pub(super) fn receive(&mut self, socket: &UdpSocket, batch: &mut Batch) -> io::Result<()> {
        let Batch { packets, received: before, since, .. } = batch;
        let mut buffers = packets.each_mut().map(|packet| [IoSliceMut::new(packet)]);
        let messages = recvmmsg(socket.as_raw_fd(), &mut self.0, &mut buffers, MsgFlags::MSG_DONTWAIT, None)?;
        let received: ArrayVec<_, { Batch::MOST }> = messages
            .map(|message| {
                let asked = message.cmsgs().ok().and_then(|mut messages| LocalAddress::of(&messages.next()?));
                (message.bytes, message.address, asked)
            })
            .collect();
        before.clear();
        *since = Instant::now();
        for (len, address, asked) in received {
            let source = address.as_ref().and_then(address_of);
            batch.count(len, source.expect("datagrams come from somewhere, over IPv4 or IPv6"), asked);
        }
        Ok(())
    }
}

/// Sends the answers of `batch`. Answers that the system does not take at once are lost, as datagrams may be:
/// they would delay all others.
pub(super) fn send(socket: &UdpSocket, batch: &Batch, counters: &Counters) {
    let (mut count, mut bytes) = (0, 0);
    let mut answers = ArrayVec::<_, { Batch::MOST }>::new();
    for (answer, to, from) in batch.answers_from() {
        count += 1;
        bytes += answer.len() as u64;
        let Some(from) = from else {
            answers.push((IoSlice::new(answer), SocketAddrAny::from(to), SendAncillaryBuffer::default()));
            continue;
        };
        let (to, control) = (to.into(), from.control());
        let slices = [IoSlice::new(answer)];
        let message = MsgHdr::new().with_addr(&to).with_buffers(&slices).with_control(&control);
        if let Err(error) = SockRef::from(socket).sendmsg(&message, 0) {
            log_stranger!(error = %in_words(&error), "cannot send");
        }
    }
    let messages = answers
        .iter_mut()
        .map(|(answer, to, control)| MMsgHdr::new_with_addr(to, slice::from_ref(answer), control));
    let mut messages: ArrayVec<_, { Batch::MOST }> = messages.collect();
    let mut rest = &mut messages[..];
    while !rest.is_empty() {
        // An error concerns the first: sending stops before a later one that fails.
        let done = sendmmsg(socket, rest, SendFlags::DONTWAIT).unwrap_or_else(|error| {
            log_stranger!(error = %in_words(&error), "cannot send");
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

    /// Identifies a socket and its clones.
    fn inode(socket: &UdpSocket) -> String {
        let link = fs::read_link(format!("/proc/self/fd/{}", socket.as_raw_fd())).unwrap();
        link.to_str().unwrap().into()
    }

    #[test]
    fn each_thread_has_one_of_every_socket_that_was_opened_elsewhere_and_none_is_left_out() {
        let (two, three) = (const { NonZero::new(2).unwrap() }, const { NonZero::new(3).unwrap() });
        let many = bind("127.0.0.1:0".parse().unwrap(), &[], three).unwrap();
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
