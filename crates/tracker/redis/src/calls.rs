//! The calls to the servers, each with its key. A request is a sequence of little-endian numbers and bytes.

use std::sync::Arc;

use redis::Cmd;
use swarmkeep::{
    Announce, AnnounceEvent, Families, Family, InfoHash, PeerBuffer, PeerRecord, Role, SwarmSummary,
    Timestamp,
};

use crate::{
    bounded::ELEMENT,
    library::Operation,
    node::{CallKind, SHORT_REPLY, SlotCall},
    place::{Engine, IDENTITY, Layout, Order, slot},
};

const SEEDER: u8 = 1;
const FINISHED: u8 = 2;
const STOPPED: u8 = 4;
const IPV6: u8 = 8;
const WANTS_V4: u8 = 16;
const WANTS_V6: u8 = 32;
const SEEDERS_TOO: u8 = 64;

/// Flags of a caller. `CALLER` is always set, so that the byte is not 0, for the sake of `redis-benchmark`.
const CONFIRMED: u8 = 1;
const BOUNDED: u8 = 2;
const CALLER: u8 = 64;

/// The parts that all calls to a store have in common.
#[derive(Debug, Clone)]
pub(crate) struct Calls {
    /// Of all keys.
    pub(crate) prefix: String,
    pub(crate) layout: Layout,
    /// The key of each shard, and its slot.
    keys: Arc<[(Arc<[u8]>, u16)]>,
    /// In seconds.
    pub(crate) lifetime: u32,
    /// The most endpoints per address; 0 is no limit.
    pub(crate) limit: u16,
    /// Whether the server's clock bounds the times of calls.
    pub(crate) bounded: bool,
    /// Whether `layout` was just read from the store. Then a call replaces a shard of another layout.
    pub(crate) confirmed: bool,
}

/// An argument of each operation: the identity of the layout, and flags; and, for the module, a time, the
/// lifetime, and the limit of endpoints per address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Caller {
    bytes: [u8; IDENTITY + 11],
    pub(crate) engine: Engine,
}

impl Caller {
    pub(crate) fn as_bytes(&self) -> &[u8] {
        match self.engine {
            Engine::Functions => &self.bytes[..=IDENTITY],
            Engine::Module => &self.bytes,
        }
    }
}

/// The memory of a page: all endpoints of one address, up to the limit, may be on one page.
const PAGE_REPLY: usize = 4 << 20;
/// The memory of a list of the libraries of some fifty versions, with their functions.
const LIBRARIES_REPLY: usize = 256 << 10;

/// Seconds in the servers: 32 bits, enough until 2106. A later time counts as the largest.
pub(crate) fn seconds(time: Timestamp) -> u32 {
    u32::try_from(time.as_secs()).unwrap_or(u32::MAX)
}

/// Whether the selection of peers can depend on randomness.
pub(crate) fn draws(announce: &Announce, peers: &PeerBuffer<'_>) -> bool {
    let room = |family, room| announce.families.contains(family) && room > 0;
    announce.want > 0
        && announce.event != AnnounceEvent::Stopped
        && (room(Families::V4, peers.v4.room()) || room(Families::V6, peers.v6.room()))
}

impl Calls {
    /// Calls that are not confirmed.
    pub(crate) fn new(prefix: String, layout: Layout, lifetime: u32, limit: u16, bounded: bool) -> Self {
        let keys = keys(&prefix, &layout);
        Self { prefix, layout, keys, lifetime, limit, bounded, confirmed: false }
    }

    /// The same calls to a store of another layout.
    pub(crate) fn with_layout(&self, layout: Layout) -> Self {
        Self { keys: keys(&self.prefix, &layout), layout, ..self.clone() }
    }

    /// The same calls, after their layout was read from the store.
    pub(crate) fn as_confirmed(&self) -> Self {
        Self { confirmed: true, ..self.clone() }
    }

    /// A command for the key with this name after the prefix, which is not a shard.
    pub(crate) fn command(&self, verb: &str, name: &str, arguments: &[&str]) -> SlotCall {
        let key = format!("{}{name}", self.prefix);
        let mut cmd = Cmd::new();
        cmd.arg(verb).arg(&key).arg(arguments);
        SlotCall::new(slot(key.as_bytes()), cmd)
    }

    /// `FUNCTION` on the server that serves this slot.
    pub(crate) fn of_functions(slot: u16, arguments: &[&str]) -> SlotCall {
        let mut cmd = Cmd::new();
        cmd.arg("FUNCTION").arg(arguments);
        SlotCall { most: LIBRARIES_REPLY, ..SlotCall::new(slot, cmd) }
    }

    /// `TIME` on the server of the key with the layout.
    pub(crate) fn time(&self) -> SlotCall {
        SlotCall { kind: CallKind::Command(redis::cmd("TIME")), ..self.command("GET", "store", &[]) }
    }

    /// An announce with the room of `peers`, a buffer that is empty.
    pub(crate) fn announce(
        &self,
        announce: &Announce,
        now: u32,
        peers: &PeerBuffer<'_>,
        random: u64,
    ) -> SlotCall {
        let (shard, place) = self.layout.place(&announce.info_hash);
        let flag = |flag, set| if set { flag } else { 0 };
        let flags = flag(SEEDER, announce.left == 0)
            | flag(FINISHED, announce.event == AnnounceEvent::Completed)
            | flag(STOPPED, announce.event == AnnounceEvent::Stopped)
            | flag(IPV6, announce.endpoint.family() == Family::V6)
            | flag(WANTS_V4, announce.families.contains(Families::V4))
            | flag(WANTS_V6, announce.families.contains(Families::V6))
            | flag(SEEDERS_TOO, announce.seeders_too);
        let short = |number: usize| u16::try_from(number).unwrap_or(u16::MAX).to_le_bytes();
        let wants = [announce.want, peers.v4.room(), peers.v6.room()].map(short);
        let endpoint = announce.endpoint.as_bytes();
        let mut request = Vec::with_capacity(72);
        match self.layout.engine {
            Engine::Functions => {
                request.extend(announce.info_hash.as_bytes());
                request.extend(place.to_le_bytes());
                request.extend(self.layout.hash_of_peer(endpoint).to_le_bytes());
                request.push(flags);
                request.extend(now.to_le_bytes());
                request.extend(self.lifetime.to_le_bytes());
                request.extend(wants.as_flattened());
                request.extend(self.limit.to_le_bytes());
                request.extend(random.to_le_bytes());
            }
            Engine::Module => {
                request.push(flags);
                request.extend(wants.as_flattened());
                request.extend(random.to_le_bytes());
                request.extend(announce.info_hash.as_bytes());
            }
        }
        request.extend(endpoint);
        let (key, slot) = self.key(shard);
        let room = |room: usize, peer| room.min(announce.want) * peer;
        SlotCall {
            slot,
            kind: CallKind::Announce {
                key: Arc::clone(key),
                request,
                caller: self.caller(now),
                leaves: announce.event == AnnounceEvent::Stopped,
            },
            // Each peer may come in a piece of its own.
            most: SHORT_REPLY + room(peers.v4.room(), ELEMENT + 6) + room(peers.v6.room(), ELEMENT + 18),
            repeatable: true,
            confirmed: self.confirmed,
        }
    }

    /// The counts of a shard, its newest time and its layout. Nil if the shard does not exist.
    pub(crate) fn counts(&self, shard: u32) -> SlotCall {
        let (key, slot) = self.key(shard);
        let mut cmd = Cmd::new();
        match self.layout.engine {
            Engine::Functions => cmd.arg("HGET").arg(&**key).arg("m"),
            Engine::Module => cmd.arg("swarmkeep.meta").arg(self.caller(0).as_bytes()).arg(&**key),
        };
        SlotCall::new(slot, cmd)
    }

    /// `GET` of a shard: nil, or an error, since a shard is no string.
    pub(crate) fn get(&self, shard: u32) -> SlotCall {
        let (key, slot) = self.key(shard);
        let mut cmd = Cmd::new();
        cmd.arg("GET").arg(&**key);
        SlotCall::new(slot, cmd)
    }

    /// The counts of a swarm.
    pub(crate) fn scrape(&self, info_hash: &InfoHash) -> SlotCall {
        let (shard, _) = self.layout.place(info_hash);
        self.operation(Operation::Scrape, shard, 0, info_hash.as_bytes())
    }

    /// With functions: the swarms on the page of a shard's directory that contains `at`, as info hashes or
    /// with their counts, by `operation`.
    pub(crate) fn swarms_at(&self, operation: Operation, shard: u32, at: Order) -> SlotCall {
        self.page(operation, shard, &at.hash().to_le_bytes())
    }

    /// With functions: the peers of a family on the pages of a swarm that contain `at`.
    pub(crate) fn list(&self, info_hash: &InfoHash, family: Family, at: Order) -> SlotCall {
        let (shard, _) = self.layout.place(info_hash);
        let mut request = info_hash.as_bytes().to_vec();
        request.push(if family == Family::V4 { 1 } else { 3 });
        request.extend(at.hash().to_le_bytes());
        self.page(Operation::List, shard, &request)
    }

    /// With the module: up to `limit` swarms of a shard after one, in the order of `operation`.
    pub(crate) fn swarms_after(
        &self,
        operation: Operation,
        shard: u32,
        after: Option<&InfoHash>,
        limit: u32,
    ) -> SlotCall {
        let mut request = limit.to_le_bytes().to_vec();
        request.extend(after.iter().flat_map(|after| after.as_bytes()));
        self.page(operation, shard, &request)
    }

    /// With the module: up to `limit` peers of a swarm from the position `from` on.
    pub(crate) fn peers_from(&self, info_hash: &InfoHash, from: &[u8], limit: u32) -> SlotCall {
        let (shard, _) = self.layout.place(info_hash);
        let request = [info_hash.as_bytes().as_slice(), &limit.to_le_bytes(), from].concat();
        self.page(Operation::List, shard, &request)
    }

    pub(crate) fn sweep(&self, shard: u32, now: u32, drops_empty: bool, budget: u64) -> SlotCall {
        let mut request = Vec::with_capacity(13);
        if self.layout.engine == Engine::Functions {
            request.extend(now.to_le_bytes());
            request.extend(self.lifetime.to_le_bytes());
        }
        request.push(drops_empty.into());
        request.extend(u32::try_from(budget).unwrap_or(u32::MAX).to_le_bytes());
        self.operation(Operation::Sweep, shard, now, &request)
    }

    pub(crate) fn remove(&self, info_hash: &InfoHash) -> SlotCall {
        let (shard, place) = self.layout.place(info_hash);
        let mut request = info_hash.as_bytes().to_vec();
        if self.layout.engine == Engine::Functions {
            request.extend(place.to_le_bytes());
        }
        SlotCall { repeatable: false, ..self.operation(Operation::Remove, shard, 0, &request) }
    }

    pub(crate) fn add_downloads(&self, info_hash: &InfoHash, earlier: u32) -> SlotCall {
        let (shard, _) = self.layout.place(info_hash);
        let mut request = info_hash.as_bytes().to_vec();
        request.extend(earlier.to_le_bytes());
        SlotCall { repeatable: false, ..self.operation(Operation::AddDownloads, shard, 0, &request) }
    }

    /// Restores some peers of a swarm, and its downloads.
    pub(crate) fn restore(&self, swarm: &SwarmSummary, peers: &[PeerRecord], now: u32) -> SlotCall {
        let (shard, place) = self.layout.place(&swarm.info_hash);
        let is_of_module = self.layout.engine == Engine::Module;
        let mut request = swarm.info_hash.as_bytes().to_vec();
        let numbers = [place, now, self.lifetime, swarm.stats.downloaded];
        for number in &numbers[if is_of_module { 3 } else { 0 }..] {
            request.extend(number.to_le_bytes());
        }
        if !is_of_module {
            request.extend(self.limit.to_le_bytes());
        }
        for peer in peers {
            request.push(match (peer.endpoint.family(), peer.role) {
                (Family::V4, Role::Seeder) => 1,
                (Family::V4, Role::Leecher) => 2,
                (Family::V6, Role::Seeder) => 3,
                (Family::V6, Role::Leecher) => 4,
            });
            request.extend(seconds(peer.last_announce).to_le_bytes());
            if !is_of_module {
                request.extend(self.layout.hash_of_peer(peer.endpoint.as_bytes()).to_le_bytes());
            }
            request.extend(peer.endpoint.as_bytes());
        }
        self.operation(Operation::Restore, shard, now, &request)
    }

    /// `now` is the time of the call; 0 if it has none.
    fn caller(&self, now: u32) -> Caller {
        let Layout { engine, .. } = self.layout;
        let flags =
            CALLER | if self.confirmed { CONFIRMED } else { 0 } | if self.bounded { BOUNDED } else { 0 };
        let mut bytes = [0; IDENTITY + 11];
        bytes[..IDENTITY].copy_from_slice(&self.layout.identity());
        bytes[IDENTITY] = flags;
        if engine == Engine::Module {
            bytes[IDENTITY + 1..][..4].copy_from_slice(&now.to_le_bytes());
            bytes[IDENTITY + 5..][..4].copy_from_slice(&self.lifetime.to_le_bytes());
            bytes[IDENTITY + 9..].copy_from_slice(&self.limit.to_le_bytes());
        }
        Caller { bytes, engine }
    }

    fn key(&self, shard: u32) -> (&Arc<[u8]>, u16) {
        let (key, slot) = &self.keys[shard as usize];
        (key, *slot)
    }

    fn page(&self, operation: Operation, shard: u32, request: &[u8]) -> SlotCall {
        SlotCall { most: SHORT_REPLY + PAGE_REPLY, ..self.operation(operation, shard, 0, request) }
    }

    fn operation(&self, operation: Operation, shard: u32, now: u32, request: &[u8]) -> SlotCall {
        let ((key, slot), caller) = (self.key(shard), self.caller(now));
        let name = operation.name(caller.engine);
        let mut cmd = Cmd::with_capacity(6, name.len() + key.len() + request.len() + 52);
        match caller.engine {
            Engine::Functions => {
                cmd.arg("FCALL").arg(name).arg("1").arg(&**key).arg(request).arg(caller.as_bytes())
            }
            Engine::Module => cmd.arg(name).arg(caller.as_bytes()).arg(&**key).arg(request),
        };
        SlotCall { confirmed: self.confirmed, ..SlotCall::new(slot, cmd) }
    }
}

fn keys(prefix: &str, layout: &Layout) -> Arc<[(Arc<[u8]>, u16)]> {
    (0..layout.shards)
        .map(|shard| {
            let key = layout.key(prefix, shard);
            let slot = slot(&key);
            (key.into(), slot)
        })
        .collect()
}
