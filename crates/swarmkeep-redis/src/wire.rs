//! What the functions inside the servers are asked and what they answer: little-endian numbers one behind the other, and bytes.

use redis::{Cmd, Value};
use swarmkeep::{
    Announce, AnnounceEvent, Announced, Changes, Endpoint, Evicted, Families, Family, InfoHash, PeerBuffer,
    PeerCounts, PeerRecord, Role, SwarmStats, Timestamp, Totals,
};

use crate::place::Layout;

/// Seconds in the servers: 32 bits, enough until 2106. Later counts as that.
pub(crate) fn seconds(time: Timestamp) -> u32 {
    u32::try_from(time.as_secs()).unwrap_or(u32::MAX)
}

/// An answer that is too short, or longer than it says.
#[derive(Debug)]
pub(crate) struct Garbled;

/// What is left to read of an answer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn bytes(&mut self, count: usize) -> Result<&'a [u8], Garbled> {
        let (bytes, rest) = self.0.split_at_checked(count).ok_or(Garbled)?;
        self.0 = rest;
        Ok(bytes)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], Garbled> {
        Ok(self.bytes(N)?.try_into().expect("as many as were asked for"))
    }

    pub(crate) fn u8(&mut self) -> Result<u8, Garbled> {
        self.array().map(u8::from_le_bytes)
    }

    fn u16(&mut self) -> Result<u16, Garbled> {
        self.array().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Garbled> {
        self.array().map(u32::from_le_bytes)
    }

    fn f64(&mut self) -> Result<f64, Garbled> {
        self.array().map(f64::from_le_bytes)
    }

    pub(crate) fn stats(&mut self) -> Result<SwarmStats, Garbled> {
        Ok(SwarmStats { complete: self.u32()?, incomplete: self.u32()?, downloaded: self.u32()? })
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// A call of a function on one key.
pub(crate) fn call(function: &str, key: &[u8], request: &[u8]) -> Cmd {
    let mut cmd = Cmd::with_capacity(5, function.len() + key.len() + request.len() + 32);
    cmd.arg("FCALL").arg(function).arg("1").arg(key).arg(request);
    cmd
}

/// Announces as one call of a function.
pub(crate) fn announces<'a, I>(function: &str, announces: impl Fn() -> I) -> Cmd
where
    I: Iterator<Item = (&'a Vec<u8>, &'a Vec<u8>)>,
{
    let (count, bytes) = announces()
        .fold((0, 0), |(count, bytes), (key, request)| (count + 1, bytes + key.len() + request.len()));
    let mut cmd = Cmd::with_capacity(3 + 2 * count, function.len() + bytes + 16);
    cmd.arg("FCALL").arg(function).arg(count);
    announces().for_each(|(key, _)| {
        cmd.arg(key.as_slice());
    });
    announces().for_each(|(_, request)| {
        cmd.arg(request.as_slice());
    });
    cmd
}

/// The answer to the next one of several announces: what comes first says how many pieces follow.
pub(crate) fn pieces(answer: &mut impl Iterator<Item = Value>) -> Option<Vec<Value>> {
    let head = answer.next()?;
    let Value::BulkString(bytes) = &head else { return None };
    let count = usize::from(Reader(bytes).u16().ok()?);
    let mut pieces = Vec::with_capacity(1 + count);
    pieces.push(head);
    pieces.extend(answer.take(count));
    (pieces.len() == 1 + count).then_some(pieces)
}

/// What is the same in all announces of a store.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Terms {
    pub(crate) now: u32,
    pub(crate) lifetime: u32,
    /// Endpoints an address; 0 is any number.
    pub(crate) limit: u16,
}

const SEEDER: u8 = 1;
const FINISHED: u8 = 2;
const STOPPED: u8 = 4;
const IPV6: u8 = 8;
const WANTS_V4: u8 = 16;
const WANTS_V6: u8 = 32;

/// Whether what is handed out can depend on randomness.
pub(crate) fn draws(announce: &Announce, peers: &PeerBuffer<'_>) -> bool {
    let room = |family, room| announce.families.contains(family) && room > 0;
    announce.want > 0
        && announce.event != AnnounceEvent::Stopped
        && (room(Families::V4, peers.v4.room()) || room(Families::V6, peers.v6.room()))
}

/// An announce into a buffer that is empty.
pub(crate) fn announce(
    announce: &Announce,
    place: u32,
    Terms { now, lifetime, limit }: Terms,
    layout: &Layout,
    peers: &PeerBuffer<'_>,
    random: u64,
) -> Vec<u8> {
    let flag = |flag, set| if set { flag } else { 0 };
    let flags = flag(SEEDER, announce.left == 0)
        | flag(FINISHED, announce.event == AnnounceEvent::Completed)
        | flag(STOPPED, announce.event == AnnounceEvent::Stopped)
        | flag(IPV6, announce.endpoint.family() == Family::V6)
        | flag(WANTS_V4, announce.families.contains(Families::V4))
        | flag(WANTS_V6, announce.families.contains(Families::V6));
    let short = |number: usize| u16::try_from(number).unwrap_or(u16::MAX).to_le_bytes();
    let mut bytes = Vec::with_capacity(88);
    bytes.extend(announce.info_hash.as_bytes());
    bytes.extend(place.to_le_bytes());
    bytes.extend(layout.hash_of_peer(announce.endpoint.as_bytes()).to_le_bytes());
    bytes.push(flags);
    bytes.extend(now.to_le_bytes());
    bytes.extend(lifetime.to_le_bytes());
    bytes.extend(short(announce.want));
    bytes.extend(short(peers.v4.room()));
    bytes.extend(short(peers.v6.room()));
    bytes.extend(limit.to_le_bytes());
    bytes.extend(random.to_le_bytes());
    bytes.extend(layout.salt);
    bytes.extend(announce.endpoint.as_bytes());
    bytes
}

/// The answer to an announce, its peers into the buffer; and the time that counts in that shard.
pub(crate) fn announced(answer: &Value, peers: &mut PeerBuffer<'_>) -> Result<(Announced, u32), Garbled> {
    let Value::Array(pieces) = answer else { return Err(Garbled) };
    let mut pieces = pieces.iter().map(|piece| match piece {
        Value::BulkString(bytes) => Ok(bytes.as_slice()),
        _ => Err(Garbled),
    });
    let mut head = Reader(pieces.next().ok_or(Garbled)??);
    let _pieces = head.u16()?;
    let changes = Changes::from_bits(head.u8()?).ok_or(Garbled)?;
    let stats = head.stats()?;
    let newest = head.u32()?;
    let evicted = Evicted { swarms: 0, peers: head.u8()?.into() };
    let mut left = usize::from(head.u16()?);
    for piece in pieces {
        // A piece is of one family: first come those of IPv4.
        let piece = piece?;
        let rest = if left > 0 {
            let (v4, rest) = piece.as_chunks();
            left = left.checked_sub(v4.len()).ok_or(Garbled)?;
            if v4.len() > peers.v4.room() {
                return Err(Garbled);
            }
            peers.v4.extend(v4);
            rest
        } else {
            let (v6, rest) = piece.as_chunks();
            if v6.len() > peers.v6.room() {
                return Err(Garbled);
            }
            peers.v6.extend(v6);
            rest
        };
        if !rest.is_empty() {
            return Err(Garbled);
        }
    }
    if left > 0 {
        return Err(Garbled);
    }
    Ok((Announced::new(stats, changes).evicting(evicted), newest))
}

/// The counts of a shard, from its field `m`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shard {
    pub(crate) newest: u32,
    pub(crate) totals: Totals,
    pub(crate) kept: u32,
    /// When the first of its swarms is due to be looked at.
    pub(crate) due: u32,
}

impl Shard {
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, Garbled> {
        let mut meta = Reader(bytes);
        let newest = meta.u32()?;
        let mut totals = Totals::default();
        totals.swarms = meta.u32()?.into();
        let mut counts = || Ok(PeerCounts { seeders: meta.u32()?.into(), leechers: meta.u32()?.into() });
        (totals.v4, totals.v6) = (counts()?, counts()?);
        let kept = meta.u32()?;
        let _pages = meta.u32()?;
        let due = meta.u32()?;
        totals.evicted.peers = meta.f64()? as u64;
        Ok(Self { newest, totals, kept, due })
    }
}

/// One kind of peers of a family, on the page that was asked about.
#[derive(Debug)]
pub(crate) struct Page<'a> {
    /// How many pages there are of that kind.
    pub(crate) pages: u32,
    role: Role,
    endpoints: &'a [u8],
    times: &'a [u8],
}

impl<'a> Page<'a> {
    pub(crate) fn read(answer: &mut Reader<'a>, family: Family, role: Role) -> Result<Self, Garbled> {
        let (pages, count) = (answer.u32()?, answer.u32()? as usize);
        let width = if family == Family::V4 { 6 } else { 18 };
        let endpoints = answer.bytes(count.checked_mul(width).ok_or(Garbled)?)?;
        Ok(Self { pages, role, endpoints, times: answer.bytes(count * 4)? })
    }

    pub(crate) fn peers(&self, family: Family) -> impl Iterator<Item = Result<PeerRecord, Garbled>> {
        let width = if family == Family::V4 { 6 } else { 18 };
        let times = self.times.as_chunks().0.iter().map(|&time| u32::from_le_bytes(time));
        self.endpoints.chunks_exact(width).zip(times).map(move |(compact, time)| {
            let endpoint = match family {
                Family::V4 => compact.try_into().ok().map(|v4: [u8; 6]| Endpoint::try_from(v4)),
                Family::V6 => compact.try_into().ok().map(|v6: [u8; 18]| Endpoint::try_from(v6)),
            };
            let endpoint = endpoint.and_then(Result::ok).ok_or(Garbled)?;
            let last_announce = Timestamp::from_secs(time.into());
            Ok(PeerRecord { endpoint, role: self.role, last_announce, details: None })
        })
    }
}

/// The beginning of what restores a swarm, before its peers.
pub(crate) fn restore(
    info_hash: &InfoHash,
    place: u32,
    Terms { now, lifetime, limit }: Terms,
    downloaded: u32,
    layout: &Layout,
) -> Vec<u8> {
    let mut bytes = info_hash.as_bytes().to_vec();
    for number in [place, now, lifetime, downloaded] {
        bytes.extend(number.to_le_bytes());
    }
    bytes.extend(limit.to_le_bytes());
    bytes.extend(layout.salt);
    bytes
}

/// One peer of it.
pub(crate) fn push_record(bytes: &mut Vec<u8>, peer: &PeerRecord, layout: &Layout) {
    let kind = match (peer.endpoint.family(), peer.role) {
        (Family::V4, Role::Seeder) => 1,
        (Family::V4, Role::Leecher) => 2,
        (Family::V6, Role::Seeder) => 3,
        (Family::V6, Role::Leecher) => 4,
    };
    bytes.push(kind);
    bytes.extend(seconds(peer.last_announce).to_le_bytes());
    bytes.extend(layout.hash_of_peer(peer.endpoint.as_bytes()).to_le_bytes());
    bytes.extend(peer.endpoint.as_bytes());
}
