//! A swarm of more peers than a leaf has room for: tables by family and role.

use std::iter;

use super::{
    clock::{Clock, Tick},
    hash::EndpointHash,
    room::Most,
    table::{Place, Slots, Table},
};
use crate::{
    Announce, AnnounceEvent, CompactV4, CompactV6, Cursor, Endpoint, Families, Family, PeerBuffer,
    PeerCounts, PeerRecord, Random, Role, Section, SplitMix64,
    announce::Transition,
    implement::{CursorExt as _, SectionExt as _, VISITS_PER_HOLD},
    report::NotRestored,
    sweep::Expired,
    totals::Population,
};

/// A swarm in tables. No operation on it moves more peers than two buckets hold.
#[derive(Debug)]
pub(super) struct Large {
    v4: Tables<{ CompactV4::LEN }>,
    /// Apart, since few swarms have any.
    v6: Option<Box<Tables<{ CompactV6::LEN }>>>,
    pub(super) downloaded: u32,
    /// When the latest announce was.
    pub(super) latest: Tick,
}

/// The peers of one family.
#[derive(Debug, Default)]
struct Tables<const N: usize> {
    seeders: Table<N>,
    leechers: Table<N>,
}

/// The peers of one range: endpoints, and when they announced.
#[derive(Debug, Default)]
struct Part {
    endpoints: Vec<u8>,
    ticks: Vec<Tick>,
}

/// What an announce has changed in its swarm.
#[derive(Debug, Clone, Copy)]
pub(super) struct Updated {
    pub(super) transition: Transition,
    /// The peer that was evicted to make room.
    pub(super) evicted: Population,
    /// Where the announcer is, if it is still there and until anything else changes.
    pub(super) own: Option<Own>,
}

/// Where the announcer is in the tables of its family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Own {
    role: Role,
    place: Place,
}

/// Places that a hint looks at. As about every second slot has a peer, one of so many has one in nine of ten
/// selections.
const LIKELY: usize = 3;

/// A place that was drawn from the tables that are eligible, with a peer or without.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Drawn {
    in_second: bool,
    place: Place,
}

/// The most draws of a selection; then it starts at the last one, whatever is there. The search could take
/// long in a table that most peers have left, and whose buckets no sweep has merged yet.
const MOST_DRAWS: usize = 256;

/// The place of an endpoint in the keyed order of its family.
pub(super) fn order(hash: &EndpointHash, endpoint: &Endpoint) -> u64 {
    match endpoint {
        Endpoint::V4(v4) => hash.order(v4.as_bytes()),
        Endpoint::V6(v6) => hash.order(v6.as_bytes()),
    }
}

impl Large {
    pub(super) fn new(downloaded: u32, latest: Tick) -> Self {
        Self { v4: Tables::default(), v6: None, downloaded, latest }
    }

    /// How many peers there are, by family and role. O(1).
    pub(super) fn population(&self) -> Population {
        let v6 = self.v6.as_ref().map_or_else(PeerCounts::default, |v6| v6.counts());
        Population { v4: self.v4.counts(), v6 }
    }

    /// Memory that the swarm takes, its own fields included. O(1).
    pub(super) fn bytes(&self) -> usize {
        let v6 = self.v6.as_ref().map_or(0, |v6| size_of_val(&**v6) + v6.bytes());
        size_of::<Self>() + self.v4.bytes() + v6
    }

    /// Bytes that the peers would take in a leaf's block: an endpoint and a stamp each. O(1).
    pub(super) fn block_bytes(&self) -> usize {
        let Population { v4, v6 } = self.population();
        (CompactV4::LEN + 1) * v4.peers() as usize + (CompactV6::LEN + 1) * v6.peers() as usize
    }

    // --- One peer at a time. ---

    /// The first half of an announce: updates the announcer, and counts a download. A newcomer whose address
    /// has the most endpoints takes the place of the one that has been silent longest; to a swarm that has
    /// the most peers, of the one in a sample. Where an address's own endpoint goes, buckets split only if
    /// they may.
    ///
    /// Looks where the announced role says first: peers rarely change it.
    pub(super) fn update(
        &mut self,
        hash: &EndpointHash,
        announce: &Announce,
        order: u64,
        now: Tick,
        most: Most,
        may_split: bool,
    ) -> Updated {
        if announce.event != AnnounceEvent::Stopped {
            self.latest = self.latest.max(now);
        }
        let updated = match &announce.endpoint {
            Endpoint::V4(v4) => self.update_one(hash, announce, v4.as_bytes(), order, now, most, may_split),
            Endpoint::V6(v6) => self.update_one(hash, announce, v6.as_bytes(), order, now, most, may_split),
        };
        self.downloaded = self.downloaded.saturating_add(updated.transition.completed.into());
        updated
    }

    #[expect(clippy::too_many_arguments, reason = "those of an update")]
    fn update_one<const N: usize>(
        &mut self,
        hash: &EndpointHash,
        announce: &Announce,
        endpoint: &[u8; N],
        order: u64,
        now: Tick,
        most: Most,
        may_split: bool,
    ) -> Updated
    where
        Self: HasTables<N>,
    {
        let known = self.tables().and_then(|tables| tables.find(order, endpoint, announce.role()));
        let transition = Transition::new(announce, known.map(|own| own.role));
        let mut updated = Updated { transition, evicted: Population::default(), own: known };
        match (known, transition.after) {
            (None, None) => {}
            (None, Some(role)) => {
                let mut splits = true;
                if let Some(rival) = self.rival(hash, endpoint, most.endpoints_per_address) {
                    self.tables_mut().table_mut(rival.role).remove(rival.place);
                    updated.evicted = Population::one(announce.endpoint.family(), rival.role);
                    splits = may_split;
                } else if self.population().peers() >= most.peers_per_swarm {
                    updated.evicted = self.evict(order);
                }
                let table = self.tables_mut().table_mut(role);
                let place = match splits {
                    true => table.insert(order, endpoint, now, now, hash),
                    false => table.put(order, endpoint, now, now),
                };
                updated.own = Some(Own { role, place });
            }
            (Some(own), Some(role)) if own.role == role => {
                self.tables_mut().table_mut(role).refresh(own.place, now);
            }
            (Some(own), after) => {
                self.tables_mut().table_mut(own.role).remove(own.place);
                updated.own = after.map(|role| {
                    let place = self.tables_mut().table_mut(role).insert(order, endpoint, now, now, hash);
                    Own { role, place }
                });
                self.simplify();
            }
        }
        updated
    }

    /// The endpoint of a newcomer's address that has been silent longest, if there are `most`. Looks into the
    /// buckets of the address.
    fn rival<const N: usize>(&self, hash: &EndpointHash, endpoint: &[u8; N], most: u64) -> Option<Own>
    where
        Self: HasTables<N>,
    {
        // Where all are fewer, so are those of any address.
        let tables = self.tables().filter(|tables| tables.len() as u64 >= most)?;
        tables.rival(hash, endpoint, most)
    }

    /// Whether a newcomer takes the place of another endpoint of its address, and no bucket has to split for
    /// it.
    pub(super) fn replaces(&self, hash: &EndpointHash, announce: &Announce, most: u64) -> bool {
        match &announce.endpoint {
            Endpoint::V4(v4) => self.replaces_one(hash, announce.role(), v4.as_bytes(), most),
            Endpoint::V6(v6) => self.replaces_one(hash, announce.role(), v6.as_bytes(), most),
        }
    }

    fn replaces_one<const N: usize>(
        &self,
        hash: &EndpointHash,
        role: Role,
        endpoint: &[u8; N],
        most: u64,
    ) -> bool
    where
        Self: HasTables<N>,
    {
        let must_split = self.tables().is_some_and(|tables| tables.table(role).must_split());
        !must_split && self.rival(hash, endpoint, most).is_some()
    }

    /// The role that the announcer has, if it is in the swarm.
    pub(super) fn role_of(&self, hash: &EndpointHash, announce: &Announce) -> Option<Role> {
        let (order, role) = (order(hash, &announce.endpoint), announce.role());
        let own = match &announce.endpoint {
            Endpoint::V4(v4) => self.v4.find(order, v4.as_bytes(), role),
            Endpoint::V6(v6) => self.v6.as_ref()?.find(order, v6.as_bytes(), role),
        };
        own.map(|own| own.role)
    }

    /// Takes in an IPv4 peer that is not in the swarm.
    pub(super) fn insert_v4(
        &mut self,
        hash: &EndpointHash,
        endpoint: &[u8; CompactV4::LEN],
        role: Role,
        tick: Tick,
        now: Tick,
    ) {
        self.v4.table_mut(role).insert(hash.order(endpoint), endpoint, tick, now, hash);
    }

    /// Takes in an IPv6 peer that is not in the swarm.
    pub(super) fn insert_v6(
        &mut self,
        hash: &EndpointHash,
        endpoint: &[u8; CompactV6::LEN],
        role: Role,
        tick: Tick,
        now: Tick,
    ) {
        self.tables_mut().table_mut(role).insert(hash.order(endpoint), endpoint, tick, now, hash);
    }

    /// Takes in a peer as it was at `tick`, unless it is in the swarm already, or that or its address has the
    /// most there may be.
    pub(super) fn restore(
        &mut self,
        hash: &EndpointHash,
        peer: &PeerRecord,
        tick: Tick,
        now: Tick,
        most: Most,
    ) -> Result<(), NotRestored> {
        match &peer.endpoint {
            Endpoint::V4(v4) => self.restore_one(hash, v4.as_bytes(), peer.role, tick, now, most),
            Endpoint::V6(v6) => self.restore_one(hash, v6.as_bytes(), peer.role, tick, now, most),
        }
    }

    fn restore_one<const N: usize>(
        &mut self,
        hash: &EndpointHash,
        endpoint: &[u8; N],
        role: Role,
        tick: Tick,
        now: Tick,
        most: Most,
    ) -> Result<(), NotRestored>
    where
        Self: HasTables<N>,
    {
        let order = hash.order(endpoint);
        if self.tables().is_some_and(|tables| tables.find(order, endpoint, role).is_some()) {
            return Err(NotRestored::Known);
        }
        if self.population().peers() >= most.peers_per_swarm
            || self.rival(hash, endpoint, most.endpoints_per_address).is_some()
        {
            return Err(NotRestored::Full);
        }
        self.latest = self.latest.max(tick);
        self.tables_mut().table_mut(role).insert(order, endpoint, tick, now, hash);
        Ok(())
    }

    /// Drops the peer that has been silent longest in a sample: one bucket of each table. `order` is as good
    /// as random, and only the newcomer's.
    pub(super) fn evict(&mut self, order: u64) -> Population {
        let v4 = self.v4.stalest_near(order).map(|(tick, own)| (tick, Family::V4, own));
        let v6 = self.v6.as_ref().and_then(|v6| v6.stalest_near(order));
        let v6 = v6.map(|(tick, own)| (tick, Family::V6, own));
        let Some((_, family, own)) = v4.into_iter().chain(v6).min_by_key(|(tick, ..)| *tick) else {
            return Population::default();
        };
        match (family, &mut self.v6) {
            (Family::V6, Some(v6)) => v6.table_mut(own.role).remove(own.place),
            _ => self.v4.table_mut(own.role).remove(own.place),
        }
        self.simplify();
        Population::one(family, own.role)
    }

    fn simplify(&mut self) {
        if self.v6.as_ref().is_some_and(|v6| v6.len() == 0) {
            self.v6 = None;
        }
    }

    // --- Selecting. ---

    /// The second half of an announce: hands out the peers it asks for. Nothing may have changed since the
    /// update that said where the announcer is.
    ///
    /// In each family a window that starts at a uniformly random peer and goes around, so each peer is
    /// equally likely to be in it; the announcer is taken out before that is drawn. O(peers wanted), and
    /// copies whole buckets.
    pub(super) fn select(
        &self,
        announce: &Announce,
        own: Own,
        rng: &mut dyn Random,
        peers: &mut PeerBuffer<'_>,
    ) {
        let seed = rng.next_u64();
        let own_in = |family| (announce.endpoint.family() == family).then_some(own);
        let v4 = match announce.families.contains(Families::V4) {
            true => Eligible::of(&self.v4, own.role, own_in(Family::V4)),
            false => Eligible::NOBODY,
        };
        let v6 = match &self.v6 {
            Some(v6) if announce.families.contains(Families::V6) => {
                Eligible::of(v6, own.role, own_in(Family::V6))
            }
            _ => Eligible::NOBODY,
        };
        let (v4_count, v6_count) = peers.share(announce.want, v4.len(), v6.len());
        v4.select(v4_count, seed_of(Family::V4, seed), &mut peers.v4);
        v6.select(v6_count, seed_of(Family::V6, seed), &mut peers.v6);
    }

    // --- Hints for a batch: they change nothing, and may be wrong. ---

    /// Brings the headers closer that the announce will need: those of its own bucket, and of the first peers
    /// that its selection draws if its random word is `seed`.
    pub(super) fn prefetch_headers(&self, announce: &Announce, order: u64, seed: u64) {
        match (announce.endpoint.family(), &self.v6) {
            (Family::V6, Some(v6)) => v6.prefetch_headers(announce, order, seed),
            _ => self.v4.prefetch_headers(announce, order, seed),
        }
    }

    /// Brings the peers behind those headers closer. To be called when they have come, or it waits for them.
    pub(super) fn prefetch_peers(&self, announce: &Announce, order: u64, seed: u64) {
        match (announce.endpoint.family(), &self.v6) {
            (Family::V6, Some(v6)) => v6.prefetch_peers(announce, order, seed),
            _ => self.v4.prefetch_peers(announce, order, seed),
        }
    }

    // --- All peers. ---

    /// The IPv4 peers of one role, in no order.
    pub(super) fn v4(&self, role: Role) -> impl Iterator<Item = (&[u8; CompactV4::LEN], Tick)> {
        self.v4.table(role).iter()
    }

    /// The IPv6 peers of one role, in no order.
    pub(super) fn v6(&self, role: Role) -> impl Iterator<Item = (&[u8; CompactV6::LEN], Tick)> {
        self.v6.iter().flat_map(move |v6| v6.table(role).iter())
    }

    /// Shows up to `limit` peers behind a cursor, in the keyed order of their endpoints: that of a small
    /// swarm, whose cursors are good here as well. Looks at a bounded number of peers, and may show fewer and
    /// still have more.
    pub(super) fn list(
        &self,
        hash: &EndpointHash,
        clock: Clock,
        from: Cursor,
        limit: usize,
        out: &mut Vec<PeerRecord>,
    ) -> Cursor {
        if from.is_end() || limit == 0 {
            return from;
        }
        let full = out.len().saturating_add(limit);
        let (v4_start, v6_start) = starts(from, hash);
        if let Some(start) = v4_start
            && let Some(next) = self.v4.list(hash, clock, start, full, out)
        {
            return next;
        }
        match &self.v6 {
            None => Cursor::END,
            Some(_) if out.len() == full => range_cursor(Family::V6, 0),
            Some(v6) => v6.list(hash, clock, v6_start, full, out).unwrap_or(Cursor::END),
        }
    }

    /// Shows about `limit` peers from a cursor on, in parts: how many of seeders and leechers, IPv4 before
    /// IPv6, their endpoints, and when they announced. A peer that stays is shown exactly once from start to
    /// end, however it changes. Where to go on, a range.
    pub(super) fn export(
        &self,
        hash: &EndpointHash,
        from: Cursor,
        limit: usize,
        mut show: impl FnMut([u32; 4], &[u8], &[Tick]),
    ) -> Cursor {
        let (v4_start, v6_start) = starts(from, hash);
        let mut shown = 0;
        let mut part = Part::default();
        if let Some(start) = v4_start {
            let stop = self.v4.export(
                hash,
                start.order,
                limit,
                &mut shown,
                &mut part,
                |[seeders, leechers], part| {
                    show([seeders, leechers, 0, 0], &part.endpoints, &part.ticks);
                },
            );
            if let Some(order) = stop {
                return range_cursor(Family::V4, order);
            }
        }
        let Some(v6) = &self.v6 else { return Cursor::END };
        if shown >= limit {
            return range_cursor(Family::V6, v6_start.order);
        }
        let stop =
            v6.export(hash, v6_start.order, limit, &mut shown, &mut part, |[seeders, leechers], part| {
                show([0, 0, seeders, leechers], &part.endpoints, &part.ticks);
            });
        stop.map_or(Cursor::END, |order| range_cursor(Family::V6, order))
    }

    /// Visits about `limit` peers from a cursor on, in the order of a listing, and removes those whose last
    /// announce was before `oldest`. A peer that stays is visited exactly once from start to end.
    pub(super) fn expire(
        &mut self,
        hash: &EndpointHash,
        oldest: Tick,
        from: Cursor,
        limit: usize,
    ) -> Expired {
        let mut expired = Expired { visited: 0, gone: Population::default(), next: Cursor::END };
        let (v4_start, v6_start) = starts(from, hash);
        let Expired { visited, gone, next } = &mut expired;
        if let Some(start) = v4_start
            && let Some(order) = self.v4.expire(hash, oldest, start.order, limit, visited, &mut gone.v4)
        {
            *next = range_cursor(Family::V4, order);
            return expired;
        }
        let Some(v6) = &mut self.v6 else { return expired };
        let stop = if *visited >= limit {
            Some(v6_start.order)
        } else {
            v6.expire(hash, oldest, v6_start.order, limit, visited, &mut gone.v6)
        };
        if let Some(order) = stop {
            *next = range_cursor(Family::V6, order);
        }
        self.simplify();
        expired
    }
}

/// The tables of the family whose endpoints have `N` bytes.
trait HasTables<const N: usize> {
    fn tables(&self) -> Option<&Tables<N>>;

    /// The same, made if there are none.
    fn tables_mut(&mut self) -> &mut Tables<N>;
}

impl HasTables<{ CompactV4::LEN }> for Large {
    fn tables(&self) -> Option<&Tables<{ CompactV4::LEN }>> {
        Some(&self.v4)
    }

    fn tables_mut(&mut self) -> &mut Tables<{ CompactV4::LEN }> {
        &mut self.v4
    }
}

impl HasTables<{ CompactV6::LEN }> for Large {
    fn tables(&self) -> Option<&Tables<{ CompactV6::LEN }>> {
        self.v6.as_deref()
    }

    fn tables_mut(&mut self) -> &mut Tables<{ CompactV6::LEN }> {
        self.v6.get_or_insert_default()
    }
}

/// Where a listing goes on in a family: at an order, behind a peer of that order if one was shown last.
#[derive(Debug, Clone, Copy)]
pub(super) struct Start<const N: usize> {
    pub(super) order: u64,
    after: Option<[u8; N]>,
}

impl<const N: usize> Start<N> {
    const FIRST: Self = Self { order: 0, after: None };

    fn behind(endpoint: &[u8; N], hash: &EndpointHash) -> Self {
        Self { order: hash.order(endpoint), after: Some(*endpoint) }
    }

    pub(super) fn is_before(&self, order: u64, endpoint: &[u8; N]) -> bool {
        match &self.after {
            Some(after) => (order, endpoint) > (self.order, after),
            None => order >= self.order,
        }
    }
}

/// Where a cursor goes on in each family; in IPv4 nowhere once that is done. A cursor is the endpoint shown
/// last, or, between two ranges, what [`range_cursor`] made.
pub(super) fn starts(
    cursor: Cursor,
    hash: &EndpointHash,
) -> (Option<Start<{ CompactV4::LEN }>>, Start<{ CompactV6::LEN }>) {
    match (cursor.endpoint(), cursor.bytes().and_then(|bytes| bytes.split_first())) {
        (Some(Endpoint::V4(last)), _) => (Some(Start::behind(last.as_bytes(), hash)), Start::FIRST),
        (Some(Endpoint::V6(last)), _) => (None, Start::behind(last.as_bytes(), hash)),
        (None, None) => (Some(Start::FIRST), Start::FIRST),
        (None, Some((in_v6, order))) => {
            let order = order.try_into().map_or(0, u64::from_be_bytes);
            match in_v6 {
                0 => (Some(Start { order, after: None }), Start::FIRST),
                _ => (None, Start { order, after: None }),
            }
        }
    }
}

/// A stop between two ranges of a family's order: nine bytes, as no endpoint has.
pub(super) fn range_cursor(family: Family, order: u64) -> Cursor {
    let mut bytes = [u8::from(family == Family::V6); 9];
    bytes[1..].copy_from_slice(&order.to_be_bytes());
    Cursor::after(&bytes)
}

impl Drawn {
    const FIRST: Self = Self { in_second: false, place: Place::FIRST };

    fn table(self) -> usize {
        self.in_second.into()
    }
}

impl<const N: usize> Tables<N> {
    const FAMILY: Family = if N == CompactV4::LEN { Family::V4 } else { Family::V6 };

    fn counts(&self) -> PeerCounts {
        PeerCounts { seeders: self.seeders.len() as u64, leechers: self.leechers.len() as u64 }
    }

    const fn len(&self) -> usize {
        self.seeders.len() + self.leechers.len()
    }

    const fn bytes(&self) -> usize {
        self.seeders.bytes() + self.leechers.bytes()
    }

    const fn table(&self, role: Role) -> &Table<N> {
        match role {
            Role::Seeder => &self.seeders,
            Role::Leecher => &self.leechers,
        }
    }

    const fn table_mut(&mut self, role: Role) -> &mut Table<N> {
        match role {
            Role::Seeder => &mut self.seeders,
            Role::Leecher => &mut self.leechers,
        }
    }

    fn find(&self, order: u64, endpoint: &[u8; N], first: Role) -> Option<Own> {
        let second = if first.is_seeder() { Role::Leecher } else { Role::Seeder };
        let within = |role| {
            let place = self.table(role).find(order, endpoint)?;
            Some(Own { role, place })
        };
        within(first).or_else(|| within(second))
    }

    #[inline(never)]
    fn rival(&self, hash: &EndpointHash, endpoint: &[u8; N], most: u64) -> Option<Own> {
        let count = |order| {
            [&self.seeders, &self.leechers].map(|table| table.count_of_address(order, endpoint, hash))
        };
        let held: usize = hash.places_of_address(endpoint).flat_map(count).sum();
        if (held as u64) < most {
            return None;
        }
        let stalest = |order| {
            [Role::Seeder, Role::Leecher].map(|role| {
                let (tick, place) = self.table(role).stalest_of_address(order, endpoint, hash)?;
                Some((tick, Own { role, place }))
            })
        };
        let all = hash.places_of_address(endpoint).flat_map(stalest).flatten();
        all.min_by_key(|(tick, _)| *tick).map(|(_, own)| own)
    }

    fn stalest_near(&self, order: u64) -> Option<(Tick, Own)> {
        let within = |role| {
            let (tick, place) = self.table(role).stalest_near(order)?;
            Some((tick, Own { role, place }))
        };
        [Role::Seeder, Role::Leecher].into_iter().filter_map(within).min_by_key(|(tick, _)| *tick)
    }

    fn prefetch_headers(&self, announce: &Announce, order: u64, seed: u64) {
        let table = self.table(announce.role());
        table.prefetch_header(table.start_of(order));
        Eligible::of(self, announce.role(), None).prefetch_headers(seed_of(Self::FAMILY, seed));
    }

    fn prefetch_peers(&self, announce: &Announce, order: u64, seed: u64) {
        let table = self.table(announce.role());
        table.prefetch_bucket(table.start_of(order));
        Eligible::of(self, announce.role(), None).prefetch_window(seed_of(Self::FAMILY, seed));
    }

    /// Visits whole ranges of the order from `start` on until `limit` peers were seen, an empty range
    /// counting as one; where to go on, unless that was the end.
    fn expire(
        &mut self,
        hash: &EndpointHash,
        oldest: Tick,
        mut start: u64,
        limit: usize,
        visited: &mut usize,
        gone: &mut PeerCounts,
    ) -> Option<u64> {
        let mut ranges = 0;
        loop {
            let end = self.range_end(start);
            ranges += 1;
            for (table, gone) in
                [(&mut self.seeders, &mut gone.seeders), (&mut self.leechers, &mut gone.leechers)]
            {
                let (seen, removed) = table.expire_within(start, end, oldest, hash);
                *visited += seen;
                *gone += removed as u64;
            }
            start = end?;
            if *visited + ranges >= limit {
                return Some(start);
            }
        }
    }

    /// Shows whole ranges of the order from `start` on until `limit` peers were shown, an empty range
    /// counting as one; where to go on, unless that was the end.
    fn export(
        &self,
        hash: &EndpointHash,
        mut start: u64,
        limit: usize,
        shown: &mut usize,
        part: &mut Part,
        mut show: impl FnMut([u32; 2], &Part),
    ) -> Option<u64> {
        loop {
            let end = self.range_end(start);
            part.endpoints.clear();
            part.ticks.clear();
            let counts = [&self.seeders, &self.leechers].map(|table| {
                let before = part.ticks.len();
                for (endpoint, tick) in table.all_within(start, end, hash) {
                    part.endpoints.extend_from_slice(endpoint);
                    part.ticks.push(tick);
                }
                (part.ticks.len() - before) as u32
            });
            *shown += part.ticks.len().max(1);
            if !part.ticks.is_empty() {
                show(counts, part);
            }
            start = end?;
            if *shown >= limit {
                return Some(start);
            }
        }
    }

    /// Shows the peers from `start` on until `out` has `full`, both roles in one order, so that a change of
    /// role moves no peer; where to go on, unless that was the end. Looks at a bounded number of them and of
    /// empty ranges.
    fn list(
        &self,
        hash: &EndpointHash,
        clock: Clock,
        start: Start<N>,
        full: usize,
        out: &mut Vec<PeerRecord>,
    ) -> Option<Cursor>
    where
        Endpoint: TryFrom<[u8; N]>,
    {
        let (mut order, mut visits) = (start.order, 0);
        loop {
            let end = self.range_end(order);
            let mut found = Vec::new();
            for role in [Role::Seeder, Role::Leecher] {
                let within = self.table(role).within(order, end, hash);
                let behind = within.filter(|(at, endpoint, _)| start.is_before(*at, endpoint));
                found.extend(behind.map(|(at, endpoint, tick)| ((at, endpoint), role, tick)));
            }
            found.sort_unstable_by_key(|(place, ..)| *place);
            visits += found.len().max(1);
            for ((_, endpoint), role, tick) in found {
                out.push(record(endpoint, role, clock, tick));
                if out.len() == full {
                    return Some(Cursor::after(endpoint));
                }
            }
            order = end?;
            if visits >= VISITS_PER_HOLD {
                return Some(range_cursor(Self::FAMILY, order));
            }
        }
    }

    /// The end of the range that one bucket of each table covers around `start`.
    fn range_end(&self, start: u64) -> Option<u64> {
        match (self.seeders.end_of(start), self.leechers.end_of(start)) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }
}

/// A peer as it is shown.
fn record<const N: usize>(endpoint: &[u8; N], role: Role, clock: Clock, tick: Tick) -> PeerRecord
where
    Endpoint: TryFrom<[u8; N]>,
{
    let Ok(endpoint) = (*endpoint).try_into() else { unreachable!("was an endpoint when it announced") };
    PeerRecord { endpoint, role, last_announce: clock.time(tick), details: None }
}

/// What a family's selection is drawn from, if that of both is drawn from `seed`.
const fn seed_of(family: Family, seed: u64) -> u64 {
    match family {
        Family::V4 => seed,
        Family::V6 => !seed,
    }
}

/// Peers of one family that may be selected: those of some tables, less the announcer.
#[derive(Debug)]
struct Eligible<'a, const N: usize> {
    tables: [Option<&'a Table<N>>; 2],
    except: Option<Drawn>,
}

impl<'a, const N: usize> Eligible<'a, N> {
    const NOBODY: Self = Self { tables: [None, None], except: None };

    fn of(tables: &'a Tables<N>, role: Role, own: Option<Own>) -> Self {
        match role {
            // A seeder is not among the leechers it is shown.
            Role::Seeder => Self { tables: [None, Some(&tables.leechers)], except: None },
            Role::Leecher => Self {
                tables: [Some(&tables.seeders), Some(&tables.leechers)],
                except: own.map(|own| Drawn { in_second: own.role == Role::Leecher, place: own.place }),
            },
        }
    }

    fn len(&self) -> usize {
        let all: usize = self.tables.iter().flatten().map(|table| table.len()).sum();
        all - usize::from(self.except.is_some())
    }

    /// Copies `count` of them: all table after table, bucket after bucket, from a uniformly random one on and
    /// around.
    fn select(&self, count: usize, seed: u64, section: &mut Section<'_, N>) {
        if count == 0 {
            return;
        }
        let start = if count < self.len() { self.random_place(seed) } else { Drawn::FIRST };
        if let Some(table) = self.tables[start.table()] {
            table.prefetch_window(start.place);
        }
        let mut left = count;
        // The round ends where it began: `count` never exceeds one.
        for (in_second, from) in [
            (start.in_second, start.place),
            (!start.in_second, Place::FIRST),
            (start.in_second, Place::FIRST),
        ] {
            if left > 0 {
                self.copy(in_second, from, &mut left, section);
            }
        }
    }

    /// Copies up to `left` of them from one table, run by run; that of the announcer in two parts.
    fn copy(&self, in_second: bool, from: Place, left: &mut usize, section: &mut Section<'_, N>) {
        let Some(table) = self.tables[usize::from(in_second)] else { return };
        let except = self.except.filter(|except| except.in_second == in_second);
        for (place, run) in table.runs(from) {
            if *left == 0 {
                return;
            }
            let mut write = |run: &[[u8; N]]| {
                let count = run.len().min(*left);
                section.extend(&run[..count]);
                *left -= count;
            };
            match except.and_then(|except| except.place.behind(place)) {
                Some(own) if own < run.len() => {
                    write(&run[..own]);
                    write(&run[own + 1..]);
                }
                _ => write(run),
            }
        }
    }

    /// The place of a uniformly random one of them.
    fn random_place(&self, seed: u64) -> Drawn {
        let mut last = Drawn::FIRST;
        for drawn in self.draws(seed).take(MOST_DRAWS) {
            last = drawn;
            if self.holds(&drawn) && self.except != Some(drawn) {
                break;
            }
        }
        last
    }

    /// Uniformly random slots, as many as are asked for.
    fn draws(&self, seed: u64) -> impl Iterator<Item = Drawn> {
        let (slots, mut words) = (self.slots(), SplitMix64::new(seed));
        iter::repeat_with(move || self.slot(slots, words.next_u64()))
    }

    fn slots(&self) -> [Slots; 2] {
        self.tables.map(|table| table.map_or_else(Slots::default, Table::slots))
    }

    /// The slot that a random word draws, as likely as any other but for slots / 2^64.
    fn slot(&self, slots: [Slots; 2], word: u64) -> Drawn {
        let [first, second] = slots.map(Slots::len);
        let slot = ((u128::from(word) * u128::from(first + second)) >> 64) as u64;
        // Without a branch, since none could be predicted.
        let in_second = slot >= first;
        let (which, slot) = (usize::from(in_second), slot - first * u64::from(in_second));
        let place = self.tables[which].map_or(Place::FIRST, |table| table.at_slot(slots[which], slot));
        Drawn { in_second, place }
    }

    fn holds(&self, drawn: &Drawn) -> bool {
        self.tables[drawn.table()].is_some_and(|table| table.holds(drawn.place))
    }

    fn prefetch_headers(&self, seed: u64) {
        for drawn in self.draws(seed).take(LIKELY) {
            if let Some(table) = self.tables[drawn.table()] {
                table.prefetch_header(drawn.place);
            }
        }
    }

    fn prefetch_window(&self, seed: u64) {
        if let Some(drawn) = self.draws(seed).take(LIKELY).find(|drawn| self.holds(drawn))
            && let Some(table) = self.tables[drawn.table()]
        {
            table.prefetch_window(drawn.place);
        }
    }
}

#[cfg(test)]
impl Large {
    pub(super) fn fullest_bucket(&self) -> usize {
        let v6 = self.v6.iter().flat_map(|v6| [v6.seeders.fullest_bucket(), v6.leechers.fullest_bucket()]);
        let v4 = [self.v4.seeders.fullest_bucket(), self.v4.leechers.fullest_bucket()];
        v6.chain(v4).max().unwrap_or(0)
    }

    /// What [`bytes`](Self::bytes) should be, looked at piece by piece.
    pub(super) fn recount(&self) -> usize {
        let v4 = self.v4.seeders.recount() + self.v4.leechers.recount();
        let v6 = self.v6.as_ref();
        let v6 = v6.map_or(0, |v6| size_of_val(&**v6) + v6.seeders.recount() + v6.leechers.recount());
        size_of::<Self>() + v4 + v6
    }
}
