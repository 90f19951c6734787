//! The bytes of requests. Numbers are little-endian; endpoints have their compact form.

use swarmkeep::{Announce, AnnounceEvent, Endpoint, Families, InfoHash, PeerRecord, Role, Timestamp};

use crate::shard::Shard;

/// A request has another form than its command expects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a request has another form than this command expects: are tracker and module of one version?")]
pub(crate) struct Malformed;

/// Bytes of a layout: a salt, and the other settings of all trackers of a store.
pub(crate) const IDENTITY: usize = 17;
pub(crate) const SALT: usize = 16;

/// Whether the caller has just read that its layout is the store's.
const CONFIRMED: u8 = 1;
/// Whether the server's clock bounds the caller's time.
const BOUNDED: u8 = 2;

/// The caller: the first argument of each command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Caller {
    pub(crate) identity: [u8; IDENTITY],
    pub(crate) confirmed: bool,
    pub(crate) bounded: bool,
    pub(crate) now: u32,
    pub(crate) terms: Terms,
}

/// A caller as its bytes.
pub(crate) type CallerBytes = [u8; IDENTITY + 11];

/// The terms by which the peers of a shard are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Terms {
    /// In seconds.
    pub(crate) lifetime: u32,
    /// The most endpoints per address; 0 is no limit.
    pub(crate) limit: u16,
}

impl Caller {
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut rest = Reader(bytes);
        let (identity, flags) = (rest.array()?, rest.u8()?);
        let (now, terms) = (rest.u32()?, Terms { lifetime: rest.u32()?, limit: rest.u16()? });
        let caller =
            Self { identity, confirmed: flags & CONFIRMED != 0, bounded: flags & BOUNDED != 0, now, terms };
        rest.end(caller)
    }

    /// The caller for replicas of a shard, which decide nothing again.
    pub(crate) fn of(shard: &Shard) -> CallerBytes {
        let Shard { identity, terms, newest, .. } = shard;
        let mut bytes = [0; IDENTITY + 11];
        bytes[..IDENTITY].copy_from_slice(identity);
        bytes[IDENTITY] = CONFIRMED;
        bytes[IDENTITY + 1..][..4].copy_from_slice(&newest.to_le_bytes());
        bytes[IDENTITY + 5..][..4].copy_from_slice(&terms.lifetime.to_le_bytes());
        bytes[IDENTITY + 9..].copy_from_slice(&terms.limit.to_le_bytes());
        bytes
    }
}

const SEEDER: u8 = 1;
const FINISHED: u8 = 2;
const STOPPED: u8 = 4;
const WANTS_V4: u8 = 16;
const WANTS_V6: u8 = 32;
const SEEDERS_TOO: u8 = 64;

/// An announce, and the room of its answer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AnnounceCall {
    pub(crate) announce: Announce,
    pub(crate) room: (usize, usize),
    pub(crate) random: u64,
}

impl AnnounceCall {
    /// A request without wishes comes from a master: it selects no peers.
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut rest = Reader(bytes);
        let flags = rest.u8()?;
        let selects = matches!(bytes.len(), SELECTS_V4 | SELECTS_V6);
        let (want, room, random) = match selects {
            true => (rest.u16()?, (rest.u16()?, rest.u16()?), rest.u64()?),
            false => (0, (0, 0), 0),
        };
        let info_hash = rest.info_hash()?;
        let endpoint = rest.endpoint(rest.0.len())?;
        let event = match flags & (STOPPED | FINISHED) {
            0 => AnnounceEvent::None,
            FINISHED => AnnounceEvent::Completed,
            _ => AnnounceEvent::Stopped,
        };
        let families = [(WANTS_V4, Families::V4), (WANTS_V6, Families::V6)];
        let families = families.into_iter().filter(|(flag, _)| flags & flag != 0).map(|(_, family)| family);
        let announce = Announce::new(info_hash, endpoint)
            .event(event)
            .left((flags & SEEDER == 0).into())
            .want(want.into())
            .families(families.collect())
            .seeders_too(flags & SEEDERS_TOO != 0);
        let room = (usize::from(room.0.min(want)), usize::from(room.1.min(want)));
        Ok(Self { announce, room, random })
    }

    /// The request for replicas: it selects no peers, and counts no download.
    pub(crate) fn decided(&self) -> Vec<u8> {
        let Announce { info_hash, endpoint, event, .. } = &self.announce;
        let mut bytes = Vec::with_capacity(39);
        let flag = |flag, is_set| if is_set { flag } else { 0 };
        let stopped = flag(STOPPED, *event == AnnounceEvent::Stopped);
        bytes.push(stopped | flag(SEEDER, self.announce.role().is_seeder()));
        bytes.extend(info_hash.as_bytes());
        bytes.extend(endpoint.as_bytes());
        bytes
    }
}

const SELECTS_V4: usize = 41;
const SELECTS_V6: usize = 53;

/// A peer of a snapshot.
pub(crate) fn peer(rest: &mut Reader<'_>) -> Result<PeerRecord, Malformed> {
    let (kind, time) = (rest.u8()?, rest.u32()?);
    let role = role_of(kind)?;
    let len = if kind < 3 { 6 } else { 18 };
    let last_announce = Timestamp::from_secs(time.into());
    Ok(PeerRecord { endpoint: rest.endpoint(len)?, role, last_announce, details: None })
}

/// The role of a kind: seeders and leechers over IPv4, seeders and leechers over IPv6.
pub(crate) const fn role_of(kind: u8) -> Result<Role, Malformed> {
    match kind {
        1 | 3 => Ok(Role::Seeder),
        2 | 4 => Ok(Role::Leecher),
        _ => Err(Malformed),
    }
}

/// The inverse of [`peer`].
pub(crate) fn write_peer(peer: &PeerRecord, out: &mut Vec<u8>) {
    let endpoint = peer.endpoint.as_bytes();
    out.push(if endpoint.len() == 6 { 1 } else { 3 } + u8::from(!peer.role.is_seeder()));
    out.extend(u32::try_from(peer.last_announce.as_secs()).unwrap_or(u32::MAX).to_le_bytes());
    out.extend(endpoint);
}

/// The unread rest of a request.
#[derive(Debug)]
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn bytes(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        let (bytes, rest) = self.0.split_at_checked(count).ok_or(Malformed)?;
        self.0 = rest;
        Ok(bytes)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (bytes, rest) = self.0.split_first_chunk().ok_or(Malformed)?;
        self.0 = rest;
        Ok(*bytes)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, Malformed> {
        self.array().map(u8::from_le_bytes)
    }

    pub(crate) fn u16(&mut self) -> Result<u16, Malformed> {
        self.array().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_le_bytes)
    }

    pub(crate) fn info_hash(&mut self) -> Result<InfoHash, Malformed> {
        self.array().map(InfoHash::new)
    }

    pub(crate) fn endpoint(&mut self, len: usize) -> Result<Endpoint, Malformed> {
        let endpoint = match len {
            6 => Endpoint::try_from(self.array::<6>()?),
            18 => Endpoint::try_from(self.array::<18>()?),
            _ => return Err(Malformed),
        };
        endpoint.map_err(|_| Malformed)
    }

    /// `value`, if all was read.
    pub(crate) fn end<T>(&self, value: T) -> Result<T, Malformed> {
        if self.0.is_empty() { Ok(value) } else { Err(Malformed) }
    }
}
