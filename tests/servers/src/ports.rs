//! Pairs of free loopback ports, each reserved among all processes that use this module.

use std::{
    net::{Ipv4Addr, TcpListener},
    os::{
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr, UnixListener},
    },
    process,
    sync::atomic::{AtomicU16, Ordering},
};

use crate::{Error, Result};

/// A port and the one [`APART`](Self::APART) above it, reserved while this value exists, also while its
/// server is dead.
#[derive(Debug)]
pub(crate) struct Ports {
    first: u16,
    _reservation: UnixListener,
}

impl Ports {
    /// The default distance from the port of a Cluster's node to the port of its bus.
    pub(crate) const APART: u16 = 10_000;
    /// Both ports of all pairs are below 32768, the first port that Linux gives to outgoing connections.
    const FIRST: u16 = 11_000;
    const COUNT: u16 = 10_000;

    /// Takes a free pair.
    pub(crate) fn take() -> Result<Self> {
        static NEXT: AtomicU16 = AtomicU16::new(0);
        // Processes that start together begin far from each other.
        let start = process::id() % u32::from(Self::COUNT) * 617;
        for _ in 0..Self::COUNT {
            let next = u32::from(NEXT.fetch_add(1, Ordering::Relaxed));
            let first = Self::FIRST + u16::try_from((start + next) % u32::from(Self::COUNT)).unwrap_or(0);
            if let Some(reservation) = reserve(first)
                && is_free(first)
                && is_free(first + Self::APART)
            {
                return Ok(Self { first, _reservation: reservation });
            }
        }
        Err(Error::NoPort { first: Self::FIRST, last: Self::FIRST + Self::COUNT - 1, apart: Self::APART })
    }

    pub(crate) fn first(&self) -> u16 {
        self.first
    }

    pub(crate) fn second(&self) -> u16 {
        self.first + Self::APART
    }
}

/// Reserves a port until its server binds it, and while the server is dead: another process with this module
/// could take it. The lock is an abstract socket, which belongs to the network namespace, as ports do, and
/// ends with the process.
fn reserve(port: u16) -> Option<UnixListener> {
    let name = SocketAddr::from_abstract_name(format!("swarmkeep-servers-{port}")).ok()?;
    UnixListener::bind_addr(&name).ok()
}

fn is_free(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
}
