//! The replies of the servers: sequences of little-endian numbers and bytes.

use redis::Value;
use swarmkeep::{
    Announced, Changes, CompactV4, CompactV6, Cursor, Endpoint, Evicted, Family, InfoHash, PeerBuffer,
    PeerCounts, PeerRecord, Role, SwarmStats, SwarmSummary, Timestamp, Totals, Unavailable,
    implement::{CursorExt as _, SectionExt as _},
};

use crate::place::Layout;

/// An answer that is too short, or longer than it says.
#[derive(Debug)]
pub(crate) struct Garbled;

impl From<Garbled> for Unavailable {
    fn from(_: Garbled) -> Self {
        Self::new("a server's answer is shorter or longer than it says: run one version of all trackers")
    }
}

/// The error for an answer of an unexpected kind.
pub(crate) fn strange(answer: &Value) -> Unavailable {
    let shown: String = format!("{answer:?}").chars().take(200).collect();
    Unavailable::new(format!("a server sent an unexpected answer, {shown}: run one version of all trackers"))
}

pub(crate) fn bulk(answer: Value) -> Result<Vec<u8>, Unavailable> {
    match answer {
        Value::BulkString(bytes) => Ok(bytes),
        other => Err(strange(&other)),
    }
}

/// The seconds of the answer to `TIME`.
pub(crate) fn time(answer: &Value) -> Result<u64, Unavailable> {
    let seconds = match answer {
        Value::Array(parts) => parts.first().and_then(text),
        _ => None,
    };
    seconds.and_then(|seconds| seconds.parse().ok()).ok_or_else(|| strange(answer))
}

/// The names in the answer to `FUNCTION LIST`.
pub(crate) fn libraries(answer: &Value) -> Vec<String> {
    let Value::Array(libraries) = answer else { return Vec::new() };
    let name = |library: &Value| match library {
        // Names and values, in turn.
        Value::Array(fields) => {
            let at = fields.iter().position(|field| text(field) == Some("library_name"))?;
            text(fields.get(at + 1)?).map(str::to_owned)
        }
        _ => None,
    };
    libraries.iter().filter_map(name).collect()
}

fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => str::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text),
        _ => None,
    }
}

/// The counts of a swarm; `None` if it does not exist.
pub(crate) fn stats(answer: Value) -> Result<Option<SwarmStats>, Unavailable> {
    match answer {
        Value::Nil => Ok(None),
        answer => Ok(Some(Reader(&bulk(answer)?).stats()?)),
    }
}

/// The unread rest of an answer.
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

    pub(crate) fn u64(&mut self) -> Result<u64, Garbled> {
        self.array().map(u64::from_le_bytes)
    }

    /// A number of `width` bytes, at most 8.
    fn number(&mut self, width: usize) -> Result<u64, Garbled> {
        let mut number = [0; 8];
        number[..width].copy_from_slice(self.bytes(width)?);
        Ok(u64::from_le_bytes(number))
    }

    fn endpoint(&mut self, family: Family) -> Result<Endpoint, Garbled> {
        let endpoint = match family {
            Family::V4 => Endpoint::try_from(self.array::<6>()?),
            Family::V6 => Endpoint::try_from(self.array::<18>()?),
        };
        endpoint.map_err(|_| Garbled)
    }

    pub(crate) fn stats(&mut self) -> Result<SwarmStats, Garbled> {
        Ok(SwarmStats { complete: self.u32()?, incomplete: self.u32()?, downloaded: self.u32()? })
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The answer to the next of several announces. Its head says how many pieces follow.
pub(crate) fn pieces(answer: &mut impl Iterator<Item = Value>) -> Option<Vec<Value>> {
    let head = answer.next()?;
    let Value::BulkString(bytes) = &head else { return None };
    let count = usize::from(Reader(bytes).u16().ok()?);
    let mut pieces = Vec::with_capacity(1 + count);
    pieces.push(head);
    pieces.extend(answer.take(count));
    (pieces.len() == 1 + count).then_some(pieces)
}

/// Why a shard has refused a call without the flag that its layout is confirmed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unconfirmed {
    #[error("the shard is not there")]
    Missing,
    #[error("the shard is of another layout")]
    Elsewhere,
}

/// The reason, if an announce was refused because of the layout.
pub(crate) fn unconfirmed(pieces: &[Value]) -> Option<Unconfirmed> {
    let Some(Value::BulkString(head)) = pieces.first() else { return None };
    match head.get(2) {
        Some(128) => Some(Unconfirmed::Missing),
        Some(129) => Some(Unconfirmed::Elsewhere),
        _ => None,
    }
}

/// The module's answer to the next of several announces.
pub(crate) fn announce_of_module<'a>(answer: &mut Reader<'a>) -> Result<&'a [u8], Garbled> {
    /// Before the numbers of peers.
    const HEAD: usize = 18;

    let mut head = Reader(answer.0);
    head.bytes(HEAD)?;
    let peers = usize::from(head.u16()?) * CompactV4::LEN + usize::from(head.u16()?) * CompactV6::LEN;
    answer.bytes(HEAD + 4 + peers)
}

/// Why the module has not done an announce, from its answer; `None` if it was done.
pub(crate) fn refused_by_module(answer: &[u8]) -> Option<Result<Unconfirmed, String>> {
    match answer.first() {
        Some(128) => Some(Ok(Unconfirmed::Missing)),
        Some(129) => Some(Ok(Unconfirmed::Elsewhere)),
        Some(130) => Some(Err(
            "the key of a shard holds another type of value, or the module refuses this lifetime or limit"
                .to_owned(),
        )),
        _ => None,
    }
}

fn announced_by_module(answer: &[u8], peers: &mut PeerBuffer<'_>) -> Result<(Announced, u32), Garbled> {
    let mut answer = Reader(answer);
    let changes = Changes::from_bits(answer.u8()?).ok_or(Garbled)?;
    let evicted = Evicted::peers(answer.u8()?.into());
    let (stats, newest) = (answer.stats()?, answer.u32()?);
    let (v4, v6) = (usize::from(answer.u16()?), usize::from(answer.u16()?));
    if v4 > peers.v4.room() || v6 > peers.v6.room() {
        return Err(Garbled);
    }
    peers.v4.extend(answer.bytes(v4 * CompactV4::LEN)?.as_chunks().0);
    peers.v6.extend(answer.bytes(v6 * CompactV6::LEN)?.as_chunks().0);
    Ok((Announced::new(stats, changes).evicting(evicted), newest))
}

/// Reads the answer to an announce, and its peers into `peers`. Also returns the time that counts in the
/// shard.
pub(crate) fn announced(answer: &Value, peers: &mut PeerBuffer<'_>) -> Result<(Announced, u32), Garbled> {
    let pieces = match answer {
        Value::BulkString(answer) => return announced_by_module(answer, peers),
        Value::Array(pieces) => pieces,
        _ => return Err(Garbled),
    };
    let mut pieces = pieces.iter().map(|piece| match piece {
        Value::BulkString(bytes) => Ok(bytes.as_slice()),
        _ => Err(Garbled),
    });
    let mut head = Reader(pieces.next().ok_or(Garbled)??);
    let _pieces = head.u16()?;
    let changes = Changes::from_bits(head.u8()?).ok_or(Garbled)?;
    let stats = head.stats()?;
    let newest = head.u32()?;
    let evicted = Evicted::peers(head.u8()?.into());
    let mut left = usize::from(head.u16()?);
    for piece in pieces {
        // A piece has one family. Pieces of IPv4 come first.
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

/// The counts of a shard.
#[derive(Debug, Clone)]
pub(crate) struct Shard {
    pub(crate) newest: u32,
    pub(crate) totals: Totals,
    pub(crate) kept: u32,
    /// When the first of its swarms is due.
    pub(crate) due: u32,
    /// The layout under which it was created; `None` for an older one.
    pub(crate) layout: Option<Layout>,
}

impl Shard {
    /// From the answer to [`counts`](crate::calls::Calls::counts); `None` if the shard does not exist.
    pub(crate) fn of(answer: Value) -> Result<Option<Self>, Unavailable> {
        if answer == Value::Nil {
            return Ok(None);
        }
        let answer = bulk(answer)?;
        match answer.len() {
            64 => Ok(Some(Self::read(&answer)?)),
            85 => Ok(Some(Self::read_of_module(&answer)?)),
            // Nothing else is read of an older shard.
            44 | 61 => Ok(Some(Self { layout: None, ..Self::read(&[0; 64])? })),
            _ => Err(Garbled.into()),
        }
    }

    fn read_of_module(bytes: &[u8]) -> Result<Self, Garbled> {
        let mut meta = Reader(bytes);
        let layout = Layout::of_identity(&meta.array()?);
        let newest = meta.u32()?;
        let mut numbers = [0; NUMBERS];
        for number in &mut numbers {
            *number = meta.u64()?;
        }
        let totals = totals_of(numbers);
        // It keeps no list of due swarms: a sweep looks at all.
        let due = if totals.swarms > 0 { 0 } else { u32::MAX };
        Ok(Self { newest, totals, kept: 0, due, layout })
    }

    fn read(bytes: &[u8]) -> Result<Self, Garbled> {
        let mut meta = Reader(bytes);
        let newest = meta.u32()?;
        let mut numbers = [0; 10];
        for (number, width) in numbers.iter_mut().zip([4, 4, 4, 4, 4, 4, 3, 4, 5, 7]) {
            *number = meta.number(width)?;
        }
        let [swarms, a, b, c, d, kept, _pages, due, evicted, downloaded] = numbers;
        let totals = totals_of([swarms, a, b, c, d, evicted, downloaded]);
        let layout = Layout::of_identity(&meta.array()?);
        Ok(Self { newest, totals, kept: kept as u32, due: due as u32, layout })
    }
}

/// The number of [`numbers_of`].
pub(crate) const NUMBERS: usize = 7;

/// Totals in the order in which they are stored: swarms, seeders and leechers over IPv4, over IPv6, evicted
/// peers, and downloads.
pub(crate) const fn numbers_of(totals: &Totals) -> [u64; NUMBERS] {
    let Totals { swarms, v4, v6, evicted, downloaded, .. } = totals;
    [*swarms, v4.seeders, v4.leechers, v6.seeders, v6.leechers, evicted.peers, *downloaded]
}

/// The inverse of [`numbers_of`].
pub(crate) fn totals_of(numbers: [u64; NUMBERS]) -> Totals {
    let [swarms, v4_seeders, v4_leechers, v6_seeders, v6_leechers, evicted, downloaded] = numbers;
    let mut totals = Totals::default();
    (totals.swarms, totals.evicted.peers, totals.downloaded) = (swarms, evicted, downloaded);
    totals.v4 = PeerCounts { seeders: v4_seeders, leechers: v4_leechers };
    totals.v6 = PeerCounts { seeders: v6_seeders, leechers: v6_leechers };
    totals
}

/// Totals as text, in the form that is stored.
pub(crate) fn totals_to_text(totals: &Totals) -> String {
    numbers_of(totals).map(|number| number.to_string()).join(" ")
}

/// Reads stored totals; `None` if the text has another form.
pub(crate) fn totals(text: &[u8]) -> Option<Totals> {
    let numbers: Vec<u64> =
        str::from_utf8(text).ok()?.split(' ').map(str::parse).collect::<Result<_, _>>().ok()?;
    numbers.try_into().ok().map(totals_of)
}

/// The module's list of swarms: whether there are more, and the swarms.
pub(crate) fn swarms(answer: Value) -> Result<(bool, Vec<SwarmSummary>), Unavailable> {
    let answer = bulk(answer)?;
    let mut answer = Reader(&answer);
    let more = answer.u8()? == 1;
    let mut found = Vec::with_capacity(answer.0.len() / 32);
    while !answer.is_empty() {
        found.push(SwarmSummary { info_hash: InfoHash::new(answer.array()?), stats: answer.stats()? });
    }
    // Else a listing would never end.
    if more && found.is_empty() {
        return Err(Garbled.into());
    }
    Ok((more, found))
}

/// The module's list of peers: where to go on, and the peers.
pub(crate) fn peers(answer: Value) -> Result<(Cursor, Vec<PeerRecord>), Unavailable> {
    let answer = bulk(answer)?;
    let mut answer = Reader(&answer);
    let next = match answer.u8()? {
        u8::MAX => Cursor::END,
        0 => Cursor::START,
        len @ 1..=24 => Cursor::after(answer.bytes(len.into())?),
        _ => return Err(Garbled.into()),
    };
    let mut found = Vec::with_capacity(answer.0.len() / 11);
    while !answer.is_empty() {
        let (kind, time) = (answer.u8()?, answer.u32()?);
        let role = if kind % 2 == 1 { Role::Seeder } else { Role::Leecher };
        let endpoint = match kind {
            1 | 2 => answer.endpoint(Family::V4)?,
            3 | 4 => answer.endpoint(Family::V6)?,
            _ => return Err(Garbled.into()),
        };
        let last_announce = Timestamp::from_secs(time.into());
        found.push(PeerRecord { endpoint, role, last_announce, details: None });
    }
    Ok((next, found))
}

/// The seeders or the leechers of a family, on the requested page.
#[derive(Debug)]
pub(crate) struct Page {
    /// The number of pages of these peers in the swarm.
    pub(crate) pages: u32,
    pub(crate) peers: Vec<PeerRecord>,
}

impl Page {
    pub(crate) fn read(answer: &mut Reader<'_>, family: Family, role: Role) -> Result<Self, Garbled> {
        let (pages, count) = (answer.u32()?, answer.u32()? as usize);
        let width = if family == Family::V4 { CompactV4::LEN } else { CompactV6::LEN };
        let mut endpoints = Reader(answer.bytes(count.checked_mul(width).ok_or(Garbled)?)?);
        let mut times = Reader(answer.bytes(count * 4)?);
        let peer = |_| {
            let (endpoint, time) = (endpoints.endpoint(family)?, times.u32()?);
            let last_announce = Timestamp::from_secs(time.into());
            Ok(PeerRecord { endpoint, role, last_announce, details: None })
        };
        Ok(Self { pages, peers: (0..count).map(peer).collect::<Result<_, _>>()? })
    }
}
