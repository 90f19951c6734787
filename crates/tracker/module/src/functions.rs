//! The shards that functions in Lua keep, as hashes (`docs/formats/redis.md`): the module takes them over.

use std::collections::BTreeMap;

use swarmkeep::{InfoHash, PeerRecord, SwarmStats, SwarmSummary, Timestamp};

use crate::request::{self, IDENTITY, Malformed, Reader};

/// A shard of the functions.
pub(crate) struct Taken {
    pub(crate) newest: u32,
    pub(crate) evicted: u64,
    /// `None` if an earlier version wrote it last.
    pub(crate) identity: Option<[u8; IDENTITY]>,
    /// In the order of the info hashes, so that all servers take them in the same one.
    pub(crate) swarms: BTreeMap<InfoHash, (u32, Vec<PeerRecord>)>,
}

/// Bytes of the meta before the identity.
const META: usize = 44;
const DOWNLOADS: u8 = 16;
const LARGE: u8 = 64;
/// Kinds of the second fields of pages: the times.
const TIMES: u8 = 8;

impl Taken {
    /// From the fields of a hash, and their values; `None` without any.
    pub(crate) fn read(fields: &[(Vec<u8>, Vec<u8>)]) -> Result<Option<Self>, Malformed> {
        if fields.is_empty() {
            return Ok(None);
        }
        let of: BTreeMap<&[u8], &[u8]> =
            fields.iter().map(|(field, value)| (field.as_slice(), value.as_slice())).collect();
        let mut meta = Reader(of.get(b"m".as_slice()).ok_or(Malformed)?);
        let newest = meta.u32()?;
        meta.bytes(META - 12)?;
        // A double, of a number that has no fraction.
        let evicted = f64::from_le_bytes(meta.array()?) as u64;
        let identity = meta.0.try_into().ok();
        let mut swarms = BTreeMap::new();
        for (field, value) in &of {
            match *field {
                field if field.len() == 20 => {
                    let info_hash = InfoHash::new(Reader(field).array()?);
                    let (downloads, peers): &mut (u32, Vec<_>) = swarms.entry(info_hash).or_default();
                    read_swarm(value, downloads, peers)?;
                }
                field if field.len() == 24 && field[20] <= 4 => {
                    let mut times = field.to_vec();
                    times[20] += TIMES;
                    let times = of.get(times.as_slice()).ok_or(Malformed)?;
                    let info_hash = InfoHash::new(Reader(field).array()?);
                    let (_, peers) = swarms.entry(info_hash).or_default();
                    let count = value.len() / width(field[20]);
                    read_peers(field[20], count, &mut Reader(value), &mut Reader(times), peers)?;
                }
                _ => {}
            }
        }
        for (_, peers) in swarms.values_mut() {
            peers.sort_unstable_by_key(|peer| (peer.last_announce, peer.endpoint));
        }
        Ok(Some(Self { newest, evicted, identity, swarms }))
    }

    /// The swarms, each with its peers.
    pub(crate) fn swarms(&self) -> impl Iterator<Item = (SwarmSummary, &[PeerRecord])> {
        self.swarms.iter().map(|(&info_hash, (downloaded, peers))| {
            let stats = SwarmStats { downloaded: *downloaded, ..SwarmStats::default() };
            (SwarmSummary { info_hash, stats }, peers.as_slice())
        })
    }
}

/// The field of a swarm: its downloads, and the peers that have no pages.
fn read_swarm(value: &[u8], downloads: &mut u32, peers: &mut Vec<PeerRecord>) -> Result<(), Malformed> {
    let mut rest = Reader(value);
    let flags = rest.u8()?;
    if flags & DOWNLOADS != 0 {
        *downloads = rest.u32()?;
    }
    let is_here = |kind: u8| flags >> (kind - 1) & 1 == 1;
    let mut counts = [0_usize; 5];
    if flags & LARGE != 0 {
        // Where a sweep stands; then, of each kind, peers, pages, and the fullest page.
        rest.bytes(8)?;
        for count in &mut counts[1..] {
            *count = rest.u32()? as usize;
            rest.bytes(5)?;
        }
    } else {
        for kind in (1..=4).filter(|&kind| is_here(kind)) {
            counts[usize::from(kind)] = rest.u8()?.into();
        }
    }
    let here = || (1..=4).filter(|&kind| is_here(kind)).map(|kind| (kind, counts[usize::from(kind)]));
    let bytes = here().map(|(kind, count)| count.saturating_mul(width(kind))).sum();
    let mut endpoints = Reader(rest.bytes(bytes)?);
    for (kind, count) in here() {
        read_peers(kind, count, &mut endpoints, &mut rest, peers)?;
    }
    rest.end(())
}

fn read_peers(
    kind: u8,
    count: usize,
    endpoints: &mut Reader<'_>,
    times: &mut Reader<'_>,
    peers: &mut Vec<PeerRecord>,
) -> Result<(), Malformed> {
    for _ in 0..count {
        let (endpoint, role) = (endpoints.endpoint(width(kind))?, request::role_of(kind)?);
        let last_announce = Timestamp::from_secs(times.u32()?.into());
        peers.push(PeerRecord { endpoint, role, last_announce, details: None });
    }
    Ok(())
}

/// The length of an endpoint.
const fn width(kind: u8) -> usize {
    if kind < 3 { 6 } else { 18 }
}
