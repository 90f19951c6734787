//! The address families that a socket serves.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
};

use arrayvec::ArrayVec;
use socket2::{SockRef, Socket};

/// Lets a socket for all interfaces of IPv6 serve both families, unless one of `listening` serves IPv4 at its
/// port.
pub(crate) fn choose(socket: &Socket, address: SocketAddr, listening: &[SocketAddr]) -> io::Result<()> {
    if address.is_ipv4() {
        return Ok(());
    }
    // Each socket at port 0 gets another one.
    let is_v4 = |other: &SocketAddr| other.is_ipv4() && other.port() == address.port() && other.port() != 0;
    socket.set_only_v6(address.ip() != Ipv6Addr::UNSPECIFIED || listening.iter().any(is_v4))
}

/// The addresses of a bound socket: two if it serves both families, which a socket from elsewhere may.
pub(crate) fn addresses(socket: &SockRef<'_>) -> io::Result<ArrayVec<SocketAddr, 2>> {
    let address = socket.local_addr()?.as_socket().ok_or(io::ErrorKind::Unsupported)?;
    let mut addresses = ArrayVec::from_iter([address]);
    if address.ip() == Ipv6Addr::UNSPECIFIED && !socket.only_v6()? {
        addresses.push((Ipv4Addr::UNSPECIFIED, address.port()).into());
    }
    Ok(addresses)
}
