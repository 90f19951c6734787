//! Peers that a peer knows (BEP 11).

use bitflags::bitflags;
use swarmkeep_bittorrent::{
    Endpoint,
    bencode::{Sink, Value, Writer},
};

use super::{Extension, Fields};
use crate::Error;

/// The peers that the sender has connected to, and disconnected from, since its last such message. Endpoints
/// are in compact form.
///
/// Only the frame bounds their number: BEP 11 allows 50 of each per minute, and more in the first message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Pex<'a> {
    /// IPv4 peers.
    pub added: &'a [[u8; 6]],
    /// [`PexFlags`] for each of `added`, or nothing.
    pub added_flags: &'a [u8],
    /// IPv6 peers.
    pub added6: &'a [[u8; 18]],
    /// [`PexFlags`] for each of `added6`, or nothing.
    pub added6_flags: &'a [u8],
    /// IPv4 peers that are gone.
    pub dropped: &'a [[u8; 6]],
    /// IPv6 peers that are gone.
    pub dropped6: &'a [[u8; 18]],
}

/// A peer in the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PexPeer {
    /// The endpoint where it listens.
    pub endpoint: Endpoint,
    /// Facts that the sender knows about it.
    pub flags: PexFlags,
}

bitflags! {
    /// Facts that a peer knows about another. Bits without a name here are kept as they are.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct PexFlags: u8 {
        /// Prefers encryption.
        const ENCRYPTION = 0x01;
        /// Is a seeder, or wants no pieces (BEP 21).
        const SEEDER = 0x02;
        /// Can do uTP (BEP 29).
        const UTP = 0x04;
        /// Supports hole punching (BEP 55).
        const HOLEPUNCH = 0x08;
        /// A connection to it succeeded: its port is right.
        const REACHABLE = 0x10;
        /// Anything else that clients set.
        const _ = !0;
    }
}

impl<'a> Pex<'a> {
    /// Peers to connect to, IPv4 first, without those at port 0.
    pub fn added(&self) -> impl Iterator<Item = PexPeer> + use<'a> {
        let v4 = with_flags(self.added, self.added_flags);
        v4.chain(with_flags(self.added6, self.added6_flags))
    }

    /// Peers that are gone, IPv4 first.
    pub fn dropped(&self) -> impl Iterator<Item = Endpoint> + use<'a> {
        let peers = with_flags(self.dropped, &[]).chain(with_flags(self.dropped6, &[]));
        peers.map(|peer| peer.endpoint)
    }

    pub(super) fn parse(payload: &'a [u8]) -> Result<Self, Error> {
        let fields = Fields::of(Value::parse(payload)?, Extension::Pex)?;
        let bytes =
            |key| fields.bytes(key, "a list of peers is no byte string").map(Option::unwrap_or_default);
        let v4 = |key| match bytemuck::try_cast_slice(bytes(key)?) {
            Ok(peers) => Ok(peers),
            Err(_) => Err(fields.wrong("added and dropped have 6 bytes per peer")),
        };
        let v6 = |key| match bytemuck::try_cast_slice(bytes(key)?) {
            Ok(peers) => Ok(peers),
            Err(_) => Err(fields.wrong("added6 and dropped6 have 18 bytes per peer")),
        };
        let pex = Self {
            added: v4("added")?,
            added_flags: bytes("added.f")?,
            added6: v6("added6")?,
            added6_flags: bytes("added6.f")?,
            dropped: v4("dropped")?,
            dropped6: v6("dropped6")?,
        };
        let flags = [(pex.added.len(), pex.added_flags), (pex.added6.len(), pex.added6_flags)];
        if flags.iter().any(|(peers, flags)| ![0, *peers].contains(&flags.len())) {
            return Err(fields.wrong("added.f and added6.f have a byte a peer"));
        }
        Ok(pex)
    }

    pub(super) fn encode<S: Sink>(&self, out: &mut S) {
        let lists: [(&[u8], &[u8]); 6] = [
            (b"added", self.added.as_flattened()),
            (b"added.f", self.added_flags),
            (b"added6", self.added6.as_flattened()),
            (b"added6.f", self.added6_flags),
            (b"dropped", self.dropped.as_flattened()),
            (b"dropped6", self.dropped6.as_flattened()),
        ];
        let mut writer = Writer::new(out);
        writer.dict();
        for (key, list) in lists {
            if !list.is_empty() {
                writer.bytes(key).bytes(list);
            }
        }
        writer.end();
    }
}

fn with_flags<'a, const N: usize>(
    peers: &'a [[u8; N]],
    flags: &'a [u8],
) -> impl Iterator<Item = PexPeer> + use<'a, N>
where
    Endpoint: TryFrom<[u8; N]>,
{
    let flags = flags.iter().copied().chain(std::iter::repeat(0));
    peers.iter().zip(flags).filter_map(|(&peer, flags)| {
        let endpoint = Endpoint::try_from(peer).ok()?;
        Some(PexPeer { endpoint, flags: PexFlags::from_bits_retain(flags) })
    })
}
