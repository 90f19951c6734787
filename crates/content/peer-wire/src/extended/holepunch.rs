//! Help for two peers who cannot reach each other (BEP 55).

use std::net::IpAddr;

use swarmkeep_bittorrent::{Endpoint, bencode::Sink};

use super::Extension;
use crate::Error;

/// A message to, from or through a peer that two others are connected to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Holepunch {
    /// To the one in between: tell the peer at that endpoint and me to connect.
    Rendezvous(Endpoint),
    /// From the one in between, to both: connect to that endpoint now.
    Connect(Endpoint),
    /// From the one in between: it cannot be done.
    Error(Endpoint, HolepunchError),
}

/// Why a hole cannot be punched (BEP 55); codes without a name here are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct HolepunchError(pub u32);

impl HolepunchError {
    /// The endpoint is not one that can be.
    pub const NO_SUCH_PEER: Self = Self(1);
    /// The one in between is not connected to it.
    pub const NOT_CONNECTED: Self = Self(2);
    /// It does not know the extension.
    pub const NO_SUPPORT: Self = Self(3);
    /// It is the one in between.
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
