//! Where connections and datagrams come from.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use swarmkeep_bittorrent::Family;
use tokio::net::{TcpSocket, TcpStream};

/// The local address of each family, which may be unspecified. Without one, its family is not used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Source {
    v4: Option<Ipv4Addr>,
    v6: Option<Ipv6Addr>,
}

impl Source {
    /// The first address of each family.
    pub(crate) fn of(addresses: impl IntoIterator<Item = IpAddr>) -> Self {
        let mut source = Self { v4: None, v6: None };
        for address in addresses {
            match address {
                IpAddr::V4(address) => _ = source.v4.get_or_insert(address),
                IpAddr::V6(address) => _ = source.v6.get_or_insert(address),
            }
        }
        source
    }

    /// Any port at the address of a family.
    pub(crate) fn of_family(self, family: Family) -> io::Result<SocketAddr> {
        let address = match family {
            Family::V4 => self.v4.map(IpAddr::V4),
            Family::V6 => self.v6.map(IpAddr::V6),
        };
        let none = || io::Error::new(io::ErrorKind::AddrNotAvailable, "no address of that family is used");
        Ok(SocketAddr::new(address.ok_or_else(none)?, 0))
    }

    pub(crate) async fn connect(self, to: SocketAddr) -> io::Result<TcpStream> {
        let (family, socket) = match to {
            SocketAddr::V4(_) => (Family::V4, TcpSocket::new_v4()?),
            SocketAddr::V6(_) => (Family::V6, TcpSocket::new_v6()?),
        };
        let from = self.of_family(family)?;
        if !from.ip().is_unspecified() {
            socket.bind(from)?;
        }
        socket.connect(to).await
    }
}
