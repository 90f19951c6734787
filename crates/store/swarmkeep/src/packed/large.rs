//! A large swarm: more peers than a leaf has room for, in tables by family and role.

pub(super) mod ranges;
pub(super) mod select;

use super::{
    clock::Tick,
    context::StoreContext,
    crowd,
    hash::EndpointHash,
    leaf::slot::Section,
    table::{BucketIndex, Table},
};
use crate::{
    Announce, AnnounceEvent, Changes, CompactV4, CompactV6, Endpoint, Family, PeerCounts, PeerRecord, Random,
    Role, SplitMix64,
    announce::{Transition, displaced},
    report::NotRestored,
    totals::Population,
};

/// A swarm in tables. No operation on it moves the peers of more than some twenty buckets.
#[derive(Debug)]
pub(super) struct LargeSwarm {
    v4: Tables<{ CompactV4::LEN }>,
    /// Boxed, since few swarms have any.
    v6: Option<Box<Tables<{ CompactV6::LEN }>>>,
    pub(super) downloaded: u32,
    /// The time of the latest announce.
    pub(super) latest: Tick,
}

/// The peers of one family.
#[derive(Debug, Default)]
struct Tables<const N: usize> {
    seeders: Table<N>,
    leechers: Table<N>,
}

/// The slots of a sample from which a peer is evicted: some 64 peers. Among them is one of a network that has
/// a tenth of a swarm, except once in a thousand times.
pub(super) const SAMPLED_SLOTS: u64 = 128;

/// The changes of an announce in its swarm.
#[derive(Debug, Clone, Copy)]
pub(super) struct Updated {
    pub(super) transition: Transition,
    /// The earlier announce of the announcer, if it was in the swarm.
    pub(super) earlier: Option<Tick>,
    /// The peer that was evicted to make room, if any.
    pub(super) evicted: Population,
    /// The location of the announcer, if it is still in the swarm. Valid until anything else changes.
    pub(super) own: Option<PeerLocation>,
}

/// Where a peer is in the tables of its family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PeerLocation {
    role: Role,
    index: BucketIndex,
}

fn wide<const N: usize>((endpoint, tick): (&[u8; N], Tick)) -> (&[u8], Tick) {
    (endpoint, tick)
}

/// The bytes of peers in a block: an endpoint and a stamp each.
pub(super) const fn block_bytes(Population { v4, v6, .. }: Population) -> usize {
    (CompactV4::LEN + 1) * v4.peers() as usize + (CompactV6::LEN + 1) * v6.peers() as usize
}

impl LargeSwarm {
    pub(super) fn new(downloaded: u32, latest: Tick) -> Self {
        Self { v4: Tables::default(), v6: None, downloaded, latest }
    }

    /// The number of peers by family and role. O(1).
    pub(super) fn population(&self) -> Population {
        Population { v4: self.v4.counts(), v6: self.v6().counts(), downloaded: 0 }
    }

    /// The memory of the swarm, including its own fields. O(1).
    pub(super) fn bytes(&self) -> usize {
        let v6 = self.v6.as_ref().map_or(0, |v6| size_of_val(&**v6) + v6.bytes());
        size_of::<Self>() + self.v4.bytes() + v6
    }

    /// The first half of an announce: updates the announcer.
    ///
    /// If its address or network has the maximum number of endpoints, a new peer replaces the endpoint of it
    /// that has been silent longest. In a swarm with the maximum number of peers, it replaces the peer of a
    /// sample that is [worth least](crowd::least). In a [full](Table::crowded) bucket, it replaces another
    /// peer of the bucket.
    ///
    /// Looks in the table of the announced role first: peers rarely change their role.
    pub(super) fn update(
        &mut self,
        context: &StoreContext,
        announce: &Announce,
        order: u64,
        now: Tick,
    ) -> Updated {
        if announce.event != AnnounceEvent::Stopped {
            self.latest = self.latest.max(now);
        }
        match &announce.endpoint {
            Endpoint::V4(v4) => self.update_one(context, announce, v4.as_bytes(), order, now),
            Endpoint::V6(v6) => self.update_one(context, announce, v6.as_bytes(), order, now),
        }
    }

    fn update_one<const N: usize>(
        &mut self,
        context: &StoreContext,
        announce: &Announce,
        endpoint: &[u8; N],
        order: u64,
        now: Tick,
    ) -> Updated
    where
        Self: HasTables<N>,
    {
        let StoreContext { hash, bounds, .. } = context;
        let known = self.tables().find(order, endpoint, announce.role());
        let transition = Transition::new(announce, known.map(|own| own.role));
        let earlier = known.map(|own| self.tables().table(own.role).tick(own.index));
        let put = |tables: &mut Tables<N>, role, evicted: &mut Population| {
            let table = tables.table_mut(role);
            if let Some(crowded) = table.crowded(order, hash) {
                table.remove(crowded);
                *evicted += Population::one(announce.endpoint.family(), role);
            }
            PeerLocation { role, index: table.insert(order, endpoint, now, now, hash) }
        };
        let mut updated = Updated { transition, earlier, evicted: Population::default(), own: known };
        match (known, transition.after) {
            (None, None) => {}
            (None, Some(role)) => {
                if let Some(displaced) = self.tables().displaced(hash, endpoint, bounds.endpoints_per_address)
                {
                    self.tables_mut().table_mut(displaced.role).remove(displaced.index);
                    updated.evicted = Population::one(announce.endpoint.family(), displaced.role);
                } else if self.population().peers() >= bounds.peers_per_swarm {
                    updated.evicted = self.evict(context, now, Some(endpoint), 1);
                }
                updated.own = Some(put(self.tables_mut(), role, &mut updated.evicted));
            }
            (Some(own), Some(role)) if own.role == role => {
                self.tables_mut().table_mut(role).refresh(own.index, now);
            }
            (Some(own), after) => {
                self.tables_mut().table_mut(own.role).remove(own.index);
                updated.own = after.map(|role| put(self.tables_mut(), role, &mut updated.evicted));
                self.simplify();
            }
        }
        updated
    }

    /// An announce that only says that its peer is still there. Returns the location of the peer. `None`, and
    /// nothing has changed, for any other announce, if more than a stamp has to change, or if `is_proof` is
    /// true of the earlier announce of the peer.
    pub(super) fn refresh(
        &self,
        announce: &Announce,
        order: u64,
        now: Tick,
        is_proof: impl FnOnce(Tick) -> bool,
    ) -> Option<PeerLocation> {
        let role = announce.role();
        if announce.event == AnnounceEvent::Stopped
            || now > self.latest
            || Transition::new(announce, Some(role)).changes() != Changes::REFRESHED
        {
            return None;
        }
        let index = match &announce.endpoint {
            Endpoint::V4(v4) => self.v4.table(role).refresh_shared(order, v4.as_bytes(), now, is_proof),
            Endpoint::V6(v6) => self.v6().table(role).refresh_shared(order, v6.as_bytes(), now, is_proof),
        }?;
        Some(PeerLocation { role, index })
    }

    /// Inserts a peer that is not in the swarm.
    pub(super) fn insert(
        &mut self,
        hash: &EndpointHash,
        endpoint: &Endpoint,
        role: Role,
        tick: Tick,
        now: Tick,
    ) {
        let order = hash.order_of(endpoint);
        match endpoint {
            Endpoint::V4(v4) => self.v4.table_mut(role).insert(order, v4.as_bytes(), tick, now, hash),
            Endpoint::V6(v6) => {
                self.tables_mut().table_mut(role).insert(order, v6.as_bytes(), tick, now, hash)
            }
        };
    }

    /// Restores a peer that last announced at `tick`. Refuses it if it is in the swarm already, or if the
    /// swarm, the address or one of its networks has its maximum number.
    pub(super) fn restore(
        &mut self,
        context: &StoreContext,
        peer: &PeerRecord,
        tick: Tick,
        now: Tick,
    ) -> Result<(), NotRestored> {
        match &peer.endpoint {
            Endpoint::V4(v4) => self.restore_one(context, v4.as_bytes(), peer.role, tick, now),
            Endpoint::V6(v6) => self.restore_one(context, v6.as_bytes(), peer.role, tick, now),
        }
    }

    fn restore_one<const N: usize>(
        &mut self,
        context: &StoreContext,
        endpoint: &[u8; N],
        role: Role,
        tick: Tick,
        now: Tick,
    ) -> Result<(), NotRestored>
    where
        Self: HasTables<N>,
    {
        let StoreContext { hash, bounds, .. } = context;
        let (order, tables) = (hash.order(endpoint), self.tables());
        if tables.find(order, endpoint, role).is_some() {
            return Err(NotRestored::Known);
        }
        if self.population().peers() >= bounds.peers_per_swarm
            || tables.displaced(hash, endpoint, bounds.endpoints_per_address).is_some()
        {
            return Err(NotRestored::Full);
        }
        let table = self.tables_mut().table_mut(role);
        // If bytes are limited, there may be room only for the next peer.
        if bounds.bytes == u64::MAX {
            table.split_ahead(order, hash);
        }
        if table.crowded(order, hash).is_some() {
            return Err(NotRestored::Full);
        }
        table.insert(order, endpoint, tick, now, hash);
        self.latest = self.latest.max(tick);
        Ok(())
    }

    /// Evicts up to `most` peers of a sample that are [worth least](crowd::least) beside `newcomer`.
    pub(super) fn evict(
        &mut self,
        context: &StoreContext,
        now: Tick,
        newcomer: Option<&[u8]>,
        most: usize,
    ) -> Population {
        let sample = self.sample(context.draw(), SAMPLED_SLOTS);
        let mut least = crowd::least(context, now, newcomer, sample, most);
        if least.is_empty() {
            // Most peers have left, and the sample has met empty slots only.
            let some = self.peers().take(SAMPLED_SLOTS as usize);
            least = crowd::least(context, now, newcomer, some, most);
        }
        let mut gone = Population::default();
        for (role, endpoint) in least {
            let order = context.hash.order_of(&endpoint);
            match &endpoint {
                Endpoint::V4(v4) => self.v4.table_mut(role).evict(order, v4.as_bytes()),
                Endpoint::V6(v6) => self.tables_mut().table_mut(role).evict(order, v6.as_bytes()),
            }
            gone += Population::one(endpoint.family(), role);
        }
        self.simplify();
        gone
    }

    /// The peers in `most` slots of all tables, which are drawn evenly spread: about half as many. Each peer
    /// is equally likely, and comes once.
    pub(super) fn sample(&self, seed: u64, most: u64) -> impl Iterator<Item = (Section, &[u8], Tick)> {
        self.draw(seed, most).filter_map(|(section, slot)| {
            let (endpoint, tick) = match section.family() {
                Family::V4 => wide(self.v4.table(section.role()).drawn(slot)?),
                Family::V6 => wide(self.v6().table(section.role()).drawn(slot)?),
            };
            Some((section, endpoint, tick))
        })
    }

    /// From each of some drawn slots on, up to `most` endpoints of one family and role. Their order is as
    /// good as random, and they are near each other in memory.
    pub(super) fn runs(&self, seed: u64, slots: u64, most: usize) -> impl Iterator<Item = &[u8]> {
        self.draw(seed, slots).flat_map(move |(section, slot)| {
            let v4 = (section.family() == Family::V4).then(|| self.v4.table(section.role()).around(slot));
            let v6 = (section.family() == Family::V6).then(|| self.v6().table(section.role()).around(slot));
            let v6 = v6.into_iter().flatten().map(|peer| &peer[..]);
            v4.into_iter().flatten().map(|peer| &peer[..]).chain(v6).take(most)
        })
    }

    /// Prefetches the headers of its first buckets; most swarms have no others.
    pub(super) fn prefetch_tables(&self) {
        self.v4.seeders.prefetch_header(BucketIndex::FIRST);
        self.v4.leechers.prefetch_header(BucketIndex::FIRST);
    }

    /// A slot from each of `parts` equal parts of all slots, or all slots if these are fewer.
    fn draw(&self, seed: u64, parts: u64) -> impl Iterator<Item = (Section, u64)> {
        let lens = Section::ALL.map(|section| match section.family() {
            Family::V4 => self.v4.table(section.role()).slots().len(),
            Family::V6 => self.v6().table(section.role()).slots().len(),
        });
        let all: u64 = lens.iter().sum();
        let (parts, mut rng) = (parts.min(all), SplitMix64::new(seed));
        (0..parts).map(move |nth| {
            let [start, end] = [nth, nth + 1].map(|nth| all * nth / parts);
            let mut slot = start + rng.next_u64() % (end - start);
            let mut sections = Section::ALL.into_iter().zip(lens);
            let section = sections.find_map(|(section, len)| {
                let behind = slot.checked_sub(len);
                slot = behind.unwrap_or(slot);
                behind.is_none().then_some(section)
            });
            (section.expect("a slot is in one"), slot)
        })
    }

    /// Merges buckets that merges without more bytes have left alone. Takes up to `spare` bytes.
    pub(super) fn merge(&mut self, mut spare: usize) {
        [&mut self.v4.seeders, &mut self.v4.leechers].into_iter().for_each(|table| table.merge(&mut spare));
        let v6 = self.v6.iter_mut().flat_map(|v6| [&mut v6.seeders, &mut v6.leechers]);
        v6.for_each(|table| table.merge(&mut spare));
    }

    /// The peers of IPv6, of which there may be none.
    fn v6(&self) -> &Tables<{ CompactV6::LEN }> {
        static NONE: Tables<{ CompactV6::LEN }> = Tables { seeders: Table::EMPTY, leechers: Table::EMPTY };
        self.v6.as_deref().unwrap_or(&NONE)
    }

    fn simplify(&mut self) {
        if self.v6.as_ref().is_some_and(|v6| v6.counts().peers() == 0) {
            self.v6 = None;
        }
    }

    /// All peers, in unspecified order.
    pub(super) fn peers(&self) -> impl Iterator<Item = (Section, &[u8], Tick)> {
        self.v4.peers().chain(self.v6().peers())
    }
}

/// The tables of the family with endpoints of `N` bytes.
trait HasTables<const N: usize> {
    fn tables(&self) -> &Tables<N>;

    /// The same, created if they do not exist.
    fn tables_mut(&mut self) -> &mut Tables<N>;
}

impl HasTables<{ CompactV4::LEN }> for LargeSwarm {
    fn tables(&self) -> &Tables<{ CompactV4::LEN }> {
        &self.v4
    }

    fn tables_mut(&mut self) -> &mut Tables<{ CompactV4::LEN }> {
        &mut self.v4
    }
}

impl HasTables<{ CompactV6::LEN }> for LargeSwarm {
    fn tables(&self) -> &Tables<{ CompactV6::LEN }> {
        self.v6()
    }

    fn tables_mut(&mut self) -> &mut Tables<{ CompactV6::LEN }> {
        self.v6.get_or_insert_default()
    }
}

impl<const N: usize> Tables<N> {
    const FAMILY: Family = if N == CompactV4::LEN { Family::V4 } else { Family::V6 };

    fn counts(&self) -> PeerCounts {
        PeerCounts { seeders: self.seeders.len() as u64, leechers: self.leechers.len() as u64 }
    }

    fn peers(&self) -> impl Iterator<Item = (Section, &[u8], Tick)> {
        [Role::Seeder, Role::Leecher].into_iter().flat_map(|role| {
            let peers = self.table(role).iter().map(wide);
            peers.map(move |(endpoint, tick)| (Section::of(Self::FAMILY, role), endpoint, tick))
        })
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

    fn find(&self, order: u64, endpoint: &[u8; N], first: Role) -> Option<PeerLocation> {
        let second = if first.is_seeder() { Role::Leecher } else { Role::Seeder };
        let within = |role| {
            let index = self.table(role).find(order, endpoint)?;
            Some(PeerLocation { role, index })
        };
        within(first).or_else(|| within(second))
    }

    /// Among the endpoints of the narrowest full network of `endpoint`, the one that has been silent longest,
    /// if an address may have `limit` endpoints. Searches the buckets of the widest.
    #[inline(never)]
    fn displaced(&self, hash: &EndpointHash, endpoint: &[u8; N], limit: u64) -> Option<PeerLocation> {
        // If the whole swarm has fewer peers, so has each address.
        if self.counts().peers() < limit {
            return None;
        }
        let own = [Role::Seeder, Role::Leecher].into_iter().flat_map(|role| {
            let own = self.table(role).of_network(endpoint, hash);
            own.map(move |(peer, tick, index)| (&peer[..], tick, PeerLocation { role, index }))
        });
        displaced(endpoint, own, limit)
    }
}

#[cfg(test)]
impl LargeSwarm {
    /// The number of buckets, and of peers in the fullest one.
    pub(super) fn buckets(&self) -> (usize, usize) {
        let v4 = [&self.v4.seeders, &self.v4.leechers].map(|table| table.buckets());
        let v6 = [&self.v6().seeders, &self.v6().leechers].map(|table| table.buckets());
        let all = v4.into_iter().chain(v6);
        all.fold((0, 0), |(all, fullest), (buckets, peers)| (all + buckets, fullest.max(peers)))
    }

    /// The expected [`bytes`](Self::bytes), counted piece by piece.
    pub(super) fn recount(&self) -> usize {
        let v4 = self.v4.seeders.recount() + self.v4.leechers.recount();
        let v6 = self.v6().seeders.recount() + self.v6().leechers.recount();
        size_of::<Self>() + v4 + v6 + self.v6.as_ref().map_or(0, |v6| size_of_val(&**v6))
    }
}
