//! The handshake that both sides send first: 68 bytes (BEP 3).

use std::fmt;

use bitflags::bitflags;
use swarmkeep_bittorrent::{InfoHash, PeerId, bencode::Sink};

use crate::{Encode, Error};

/// Length and name of the protocol, as they stand on the wire.
const PROTOCOL: &[u8; 20] = b"\x13BitTorrent protocol";

/// The handshake: the torrent, the peer id, and the extensions of the sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Handshake {
    /// The extensions of the sender.
    pub reserved: Reserved,
    /// The torrent. For a hybrid, peers that set [`Reserved::V2`] may use the hash of v1 or of v2 (BEP 52).
    pub info_hash: InfoHash,
    /// The peer id of the sender.
    pub peer_id: PeerId,
}

bitflags! {
    /// The reserved bytes of a handshake, as one number in network order. Bits without a name here are kept
    /// as they are.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct Reserved: u64 {
        /// Messages of id 20 (BEP 10): byte 5, 0x10.
        const EXTENSIONS = 1 << 20;
        /// The sender has a DHT node; its port comes as [`Message::Port`](crate::Message::Port) (BEP 5): byte
        /// 7, 0x01.
        const DHT = 1;
        /// Messages of ids 13 to 17 (BEP 6): byte 7, 0x04.
        const FAST = 1 << 2;
        /// Supports the v2 torrent, too (BEP 52): byte 7, 0x10.
        const V2 = 1 << 4;
        /// Anything else that clients set.
        const _ = !0;
    }
}

impl Handshake {
    /// Length in bytes.
    pub const LEN: usize = 68;
    /// Bytes up to the info hash: they are enough to answer an incoming handshake.
    const WITHOUT_PEER_ID: usize = 48;

    /// Takes a handshake from the front of `bytes`; `None` while it is not complete.
    ///
    /// # Errors
    /// [`Error::Protocol`], by the first byte that is wrong.
    pub fn decode(bytes: &mut &[u8]) -> Result<Option<Self>, Error> {
        let Some((reserved, info_hash)) = Self::peek(bytes)? else { return Ok(None) };
        let Some((handshake, rest)) = bytes.split_first_chunk::<{ Self::LEN }>() else { return Ok(None) };
        let peer_id = handshake.last_chunk::<20>().expect("68 bytes end with 20");
        *bytes = rest;
        Ok(Some(Self { reserved, info_hash, peer_id: PeerId::new(*peer_id) }))
    }

    /// The extensions and the torrent of a caller, from the first 48 bytes. A peer that serves many torrents
    /// can answer before the caller's peer id has come; callers may wait for the answer before they send it
    /// (BEP 3).
    ///
    /// # Errors
    /// [`Error::Protocol`], by the first byte that is wrong.
    pub fn peek(bytes: &[u8]) -> Result<Option<(Reserved, InfoHash)>, Error> {
        let known = bytes.len().min(PROTOCOL.len());
        if bytes[..known] != PROTOCOL[..known] {
            return Err(Error::Protocol);
        }
        Ok(bytes.first_chunk::<{ Self::WITHOUT_PEER_ID }>().map(|head| {
            let [reserved, info_hash] = [20..28, 28..48].map(|field| &head[field]);
            let reserved = reserved.first_chunk().expect("8 bytes");
            let info_hash = info_hash.first_chunk().expect("20 bytes");
            (Reserved::from_bits_retain(u64::from_be_bytes(*reserved)), InfoHash::new(*info_hash))
        }))
    }
}

impl Encode for Handshake {
    fn encode<S: Sink>(&self, out: &mut S) {
        let mut bytes = [0; Self::LEN];
        bytes[..20].copy_from_slice(PROTOCOL);
        bytes[20..28].copy_from_slice(&self.reserved.bits().to_be_bytes());
        bytes[28..48].copy_from_slice(self.info_hash.as_bytes());
        bytes[48..].copy_from_slice(self.peer_id.as_bytes());
        out.put(&bytes);
    }
}

impl fmt::Debug for Reserved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reserved({:016x})", self.bits())
    }
}
