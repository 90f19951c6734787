//! Help for two peers that cannot reach each other (BEP 55).

use std::net::IpAddr;

use swarmkeep_bittorrent::{Endpoint, bencode::Sink};

use super::Extension;
use crate::Error;

/// A message to or from a peer that two other peers are connected to, the relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Holepunch {
    /// To the relay: tell the peer at this endpoint and the sender to connect.
    Rendezvous(Endpoint),
    /// From the relay, to both: connect to this endpoint now.
    Connect(Endpoint),
    /// From the relay: it failed.
    Error(Endpoint, HolepunchError),
}

/// Why a hole cannot be punched (BEP 55); codes without a name here are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct HolepunchError(pub u32);

impl HolepunchError {
    /// The endpoint is not valid.
    pub const NO_SUCH_PEER: Self = Self(1);
    /// The relay is not connected to it.
    pub const NOT_CONNECTED: Self = Self(2);
    /// The peer does not support the extension.
    pub const NO_SUPPORT: Self = Self(3);
    /// The endpoint is the relay itself.
    pub const NO_SELF: Self = Self(4);
}

impl Holepunch {
    pub(super) fn parse(payload: &[u8]) -> Result<Self, Error> {
        let wrong = |what| Error::Extension { extension: Extension::Holepunch, what };
        let Some((&[kind, family], rest)) = payload.split_first_chunk() else {
            return Err(wrong("msg_type and addr_type are missing"));
        };
        let address = match family {
            0 => rest.split_first_chunk::<4>().map(|(ip, rest)| (IpAddr::from(*ip), rest)),
            1 => rest.split_first_chunk::<16>().map(|(ip, rest)| (IpAddr::from(*ip), rest)),
            _ => return Err(wrong("addr_type is 0 or 1")),
        };
        let Some((ip, rest)) = address else { return Err(wrong("addr is too short")) };
        let Some((port, rest)) = rest.split_first_chunk() else { return Err(wrong("port is missing")) };
        let endpoint = Endpoint::new(ip, u16::from_be_bytes(*port))?;
        // Only an error needs its code; without one, it may be left out.
        let code = match (rest.first_chunk(), rest.len()) {
            (Some(code), 4) => u32::from_be_bytes(*code),
            (None, 0) if kind != 2 => 0,
            _ => return Err(wrong("err_code has 4 bytes and ends the message")),
        };
        match kind {
            0 => Ok(Self::Rendezvous(endpoint)),
            1 => Ok(Self::Connect(endpoint)),
            2 => Ok(Self::Error(endpoint, HolepunchError(code))),
            _ => Err(wrong("msg_type is 0, 1 or 2")),
        }
    }

    pub(super) fn encode<S: Sink>(&self, out: &mut S) {
        let (kind, endpoint, HolepunchError(code)) = match *self {
            Self::Rendezvous(endpoint) => (0, endpoint, HolepunchError(0)),
            Self::Connect(endpoint) => (1, endpoint, HolepunchError(0)),
            Self::Error(endpoint, error) => (2, endpoint, error),
        };
        out.put(&[kind, u8::from(endpoint.ip().is_ipv6())]);
        // The compact form: the address, then the port.
        out.put(endpoint.as_bytes());
        out.put(&code.to_be_bytes());
    }
}
