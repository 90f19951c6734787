//! The calls to the servers, each with its key. A request is a sequence of little-endian numbers and bytes.

use redis::Cmd;
use swarmkeep::{
    Announce, AnnounceEvent, Families, Family, InfoHash, PeerBuffer, PeerRecord, Role, SwarmSummary,
    Timestamp,
};

use crate::{
    library::LIBRARY,
    node::{SlotCall, What},
    place::{IDENTITY, Layout, Order, slot},
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
    /// In seconds.
    pub(crate) lifetime: u32,
    /// The most endpoints per address; 0 is no limit.
    pub(crate) limit: u16,
    /// Whether the server's clock bounds the times of calls.
    pub(crate) bounded: bool,
    /// Whether `layout` was just read from the store. Then a call replaces a shard of another layout.
    pub(crate) confirmed: bool,
}

/// The last argument of each function: the identity of the layout, and flags.
pub(crate) type Caller = [u8; IDENTITY + 1];

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
    /// A command for the key with this name after the prefix, which is not a shard.
    pub(crate) fn command(&self, verb: &str, name: &str, arguments: &[&str]) -> SlotCall {
        let key = format!("{}{name}", self.prefix);
        let mut cmd = Cmd::new();
        cmd.arg(verb).arg(&key).arg(arguments);
        SlotCall { slot: slot(key.as_bytes()), what: What::Command(cmd), repeatable: true, confirmed: false }
    }

    /// `FUNCTION` on the server that serves this slot.
    pub(crate) fn of_functions(slot: u16, arguments: &[&str]) -> SlotCall {
        let mut cmd = Cmd::new();
        cmd.arg("FUNCTION").arg(arguments);
        SlotCall { slot, what: What::Command(cmd), repeatable: true, confirmed: false }
    }

    /// `TIME` on the server of the key with the layout.
    pub(crate) fn time(&self) -> SlotCall {
        let mut cmd = Cmd::new();
        cmd.arg("TIME");
        SlotCall { what: What::Command(cmd), ..self.command("GET", "store", &[]) }
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
        let mut request = Vec::with_capacity(72);
        request.extend(announce.info_hash.as_bytes());
        request.extend(place.to_le_bytes());
        request.extend(self.layout.hash_of_peer(announce.endpoint.as_bytes()).to_le_bytes());
        request.push(flags);
        request.extend(now.to_le_bytes());
        request.extend(self.lifetime.to_le_bytes());
        request.extend(short(announce.want));
        request.extend(short(peers.v4.room()));
        request.extend(short(peers.v6.room()));
        request.extend(self.limit.to_le_bytes());
        request.extend(random.to_le_bytes());
        request.extend(announce.endpoint.as_bytes());
        let key = self.key(shard);
        SlotCall {
            slot: slot(&key),
            what: What::Announce {
                key,
                request,
                caller: self.caller(),
                leaves: announce.event == AnnounceEvent::Stopped,
                room: (peers.v4.room().min(announce.want), peers.v6.room().min(announce.want)),
            },
            repeatable: true,
            confirmed: self.confirmed,
        }
    }

    /// The meta of a shard: its counts, its newest time and its layout. Nil if the shard does not exist.
    pub(crate) fn counts(&self, shard: u32) -> SlotCall {
        let key = self.key(shard);
        let mut cmd = Cmd::new();
        cmd.arg("HGET").arg(&key).arg("m");
        SlotCall { slot: slot(&key), what: What::Command(cmd), repeatable: true, confirmed: false }
    }

    /// The counts of a swarm.
    pub(crate) fn scrape(&self, info_hash: &InfoHash) -> SlotCall {
        let (shard, _) = self.layout.place(info_hash);
        self.function(&LIBRARY.scrape, shard, info_hash.as_bytes())
    }

    /// The info hashes on the page of a shard's directory that contains `at`.
    pub(crate) fn names(&self, shard: u32, at: Order) -> SlotCall {
        self.function(&LIBRARY.names, shard, &at.hash().to_le_bytes())
    }

    /// The same, with the counts of each swarm.
    pub(crate) fn walk(&self, shard: u32, at: Order) -> SlotCall {
        self.function(&LIBRARY.walk, shard, &at.hash().to_le_bytes())
    }

    /// The peers of a family on the pages of a swarm that contain `at`.
    pub(crate) fn list(&self, info_hash: &InfoHash, family: Family, at: Order) -> SlotCall {
        let (shard, _) = self.layout.place(info_hash);
        let mut request = info_hash.as_bytes().to_vec();
        request.push(if family == Family::V4 { 1 } else { 3 });
        request.extend(at.hash().to_le_bytes());
        self.function(&LIBRARY.list, shard, &request)
    }

    /// One step of a sweep.
    pub(crate) fn sweep(&self, shard: u32, now: u32, drops_empty: bool, budget: u64) -> SlotCall {
        let mut request = Vec::with_capacity(13);
        request.extend(now.to_le_bytes());
        request.extend(self.lifetime.to_le_bytes());
        request.push(drops_empty.into());
        request.extend(u32::try_from(budget).unwrap_or(u32::MAX).to_le_bytes());
        self.function(&LIBRARY.sweep, shard, &request)
    }

    pub(crate) fn remove(&self, info_hash: &InfoHash) -> SlotCall {
        let (shard, place) = self.layout.place(info_hash);
        let mut request = info_hash.as_bytes().to_vec();
        request.extend(place.to_le_bytes());
        SlotCall { repeatable: false, ..self.function(&LIBRARY.remove, shard, &request) }
    }

    pub(crate) fn add_downloads(&self, info_hash: &InfoHash, earlier: u32) -> SlotCall {
        let (shard, _) = self.layout.place(info_hash);
        let mut request = info_hash.as_bytes().to_vec();
        request.extend(earlier.to_le_bytes());
        SlotCall { repeatable: false, ..self.function(&LIBRARY.add_downloads, shard, &request) }
    }

    /// Restores some peers of a swarm, and its downloads.
    pub(crate) fn restore(&self, swarm: &SwarmSummary, peers: &[PeerRecord], now: u32) -> SlotCall {
        let (shard, place) = self.layout.place(&swarm.info_hash);
        let mut request = swarm.info_hash.as_bytes().to_vec();
        for number in [place, now, self.lifetime, swarm.stats.downloaded] {
            request.extend(number.to_le_bytes());
        }
        request.extend(self.limit.to_le_bytes());
        for peer in peers {
            request.push(match (peer.endpoint.family(), peer.role) {
                (Family::V4, Role::Seeder) => 1,
                (Family::V4, Role::Leecher) => 2,
                (Family::V6, Role::Seeder) => 3,
                (Family::V6, Role::Leecher) => 4,
            });
            request.extend(seconds(peer.last_announce).to_le_bytes());
            request.extend(self.layout.hash_of_peer(peer.endpoint.as_bytes()).to_le_bytes());
            request.extend(peer.endpoint.as_bytes());
        }
        self.function(&LIBRARY.restore, shard, &request)
    }

    fn caller(&self) -> Caller {
        let mut caller = [0; IDENTITY + 1];
        caller[..IDENTITY].copy_from_slice(&self.layout.identity());
        caller[IDENTITY] =
            CALLER | if self.confirmed { CONFIRMED } else { 0 } | if self.bounded { BOUNDED } else { 0 };
        caller
    }

    fn key(&self, shard: u32) -> Vec<u8> {
        format!("{}{{{shard}}}", self.prefix).into_bytes()
    }

    fn function(&self, function: &str, shard: u32, request: &[u8]) -> SlotCall {
        let key = self.key(shard);
        let mut cmd = Cmd::with_capacity(6, function.len() + key.len() + request.len() + 52);
        cmd.arg("FCALL").arg(function).arg("1").arg(&key).arg(request).arg(&self.caller()[..]);
        SlotCall { slot: slot(&key), what: What::Command(cmd), repeatable: true, confirmed: self.confirmed }
    }
}
