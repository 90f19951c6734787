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
    announce::{Transition, rival},
    report::NotRestored,
    totals::Population,
};

/// A swarm in tables. No operation on it moves the peers of more than some twenty buckets.
#[derive(Debug)]
pub(super) struct Large {
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

/// The slots of a sample from which a peer is evicted: some 64 peers. Among them is one of a network that has a
/// tenth of a swarm, except once in a thousand times.
pub(super) const SAMPLED_SLOTS: u64 = 128;

/// What an announce has changed in its swarm.
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

/// The position of an endpoint in the keyed order of its family.
pub(super) fn order(hash: &EndpointHash, endpoint: &Endpoint) -> u64 {
    match endpoint {
        Endpoint::V4(v4) => hash.order(v4.as_bytes()),
        Endpoint::V6(v6) => hash.order(v6.as_bytes()),
    }
}

/// The family and role of a slot, and its number there. `lens`: the number of slots of each.
fn section_of(lens: [u64; 4], mut slot: u64) -> (Section, u64) {
    for (section, len) in Section::ALL.into_iter().zip(lens) {
        if slot < len {
            return (section, slot);
        }
        slot -= len;
    }
    (Section::ALL[0], slot)
}

fn wide<const N: usize>((endpoint, tick): (&[u8; N], Tick)) -> (&[u8], Tick) {
    (endpoint, tick)
}

/// The bytes of peers in a block: an endpoint and a stamp each.
pub(super) const fn block_bytes(Population { v4, v6 }: Population) -> usize {
    (CompactV4::LEN + 1) * v4.peers() as usize + (CompactV6::LEN + 1) * v6.peers() as usize
}

impl Large {
    pub(super) fn new(downloaded: u32, latest: Tick) -> Self {
        Self { v4: Tables::default(), v6: None, downloaded, latest }
    }

    /// The number of peers by family and role. O(1).
    pub(super) fn population(&self) -> Population {
        let v6 = self.v6.as_ref().map_or_else(PeerCounts::default, |v6| v6.counts());
        Population { v4: self.v4.counts(), v6 }
    }

    /// The memory of the swarm, including its own fields. O(1).
    pub(super) fn bytes(&self) -> usize {
        let v6 = self.v6.as_ref().map_or(0, |v6| size_of_val(&**v6) + v6.bytes());
        size_of::<Self>() + self.v4.bytes() + v6
    }

    /// The first half of an announce: updates the announcer, and counts a download.
    ///
    /// A new peer whose address or network has the maximum number of endpoints replaces the endpoint of it
    /// that has been silent longest. In a swarm with the maximum number of peers, it replaces the peer of a
    /// sample that is [worth least](crowd::least). A peer whose bucket is [full](Table::crowded) replaces
    /// another of it.
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
        let updated = match &announce.endpoint {
            Endpoint::V4(v4) => self.update_one(context, announce, v4.as_bytes(), order, now),
            Endpoint::V6(v6) => self.update_one(context, announce, v6.as_bytes(), order, now),
        };
        self.downloaded = self.downloaded.saturating_add(updated.transition.completed.into());
        updated
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
        let known = self.tables().and_then(|tables| tables.find(order, endpoint, announce.role()));
        let transition = Transition::new(announce, known.map(|own| own.role));
        let table = |own: PeerLocation| self.tables().map(|tables| tables.table(own.role).tick(own.index));
        let earlier = known.and_then(table);
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
                if let Some(rival) = self.rival(hash, endpoint, bounds.endpoints_per_address) {
                    self.tables_mut().table_mut(rival.role).remove(rival.index);
                    updated.evicted = Population::one(announce.endpoint.family(), rival.role);
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
        if announce.event == AnnounceEvent::Stopped || now > self.latest {
            return None;
        }
        match &announce.endpoint {
            Endpoint::V4(v4) => self.v4.refresh(order, v4.as_bytes(), announce, now, is_proof),
            Endpoint::V6(v6) => self.v6.as_ref()?.refresh(order, v6.as_bytes(), announce, now, is_proof),
        }
    }

    /// Among the endpoints of the narrowest full network of `endpoint`, the one that has been silent longest, if
    /// an address may have `limit` endpoints. Searches the buckets of the widest.
    fn rival<const N: usize>(
        &self,
        hash: &EndpointHash,
        endpoint: &[u8; N],
        limit: u64,
    ) -> Option<PeerLocation>
    where
        Self: HasTables<N>,
    {
        // If the whole swarm has fewer peers, so has each address.
        let tables = self.tables().filter(|tables| tables.len() as u64 >= limit)?;
        tables.rival(hash, endpoint, limit)
    }

    /// Inserts an IPv4 peer that is not in the swarm.
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

    /// Inserts an IPv6 peer that is not in the swarm.
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
        let order = hash.order(endpoint);
        if self.tables().is_some_and(|tables| tables.find(order, endpoint, role).is_some()) {
            return Err(NotRestored::Known);
        }
        if self.population().peers() >= bounds.peers_per_swarm
            || self.rival(hash, endpoint, bounds.endpoints_per_address).is_some()
            || self.tables().is_some_and(|tables| tables.table(role).crowded(order, hash).is_some())
        {
            return Err(NotRestored::Full);
        }
        self.latest = self.latest.max(tick);
        self.tables_mut().table_mut(role).insert(order, endpoint, tick, now, hash);
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
        let (mut least, _) = crowd::least(context, now, newcomer, sample, most);
        if least.is_empty() {
            // Most peers have left, and the sample has met empty slots only.
            let some = self.peers().take(SAMPLED_SLOTS as usize);
            (least, _) = crowd::least(context, now, newcomer, some, most);
        }
        let mut gone = Population::default();
        for (role, endpoint) in least {
            let order = order(&context.hash, &endpoint);
            match &endpoint {
                Endpoint::V4(v4) => self.v4.table_mut(role).evict(order, v4.as_bytes()),
                Endpoint::V6(v6) => self.tables_mut().table_mut(role).evict(order, v6.as_bytes()),
            }
            gone += Population::one(endpoint.family(), role);
        }
        self.simplify();
        gone
    }

    /// The peers in `most` slots of all tables, which are drawn evenly spread: about half as many. Each peer is
    /// equally likely, and comes once.
    pub(super) fn sample(&self, seed: u64, most: u64) -> impl Iterator<Item = (Section, &[u8], Tick)> {
        let lens = self.slots();
        let all: u64 = lens.iter().sum();
        let draws = most.min(all);
        let mut rng = SplitMix64::new(seed);
        (0..draws).filter_map(move |nth| {
            let part = |nth| (u128::from(all) * u128::from(nth) / u128::from(draws)) as u64;
            let (start, end) = (part(nth), part(nth + 1));
            let (section, slot) = section_of(lens, start + rng.next_u64() % (end - start));
            let (endpoint, tick) = match (section.family(), &self.v6) {
                (Family::V6, Some(v6)) => wide(v6.table(section.role()).drawn(slot)?),
                _ => wide(self.v4.table(section.role()).drawn(slot)?),
            };
            Some((section, endpoint, tick))
        })
    }

    /// The endpoints of one family and role from a slot on, which is drawn from part `nth` of all slots. Their order
    /// is as good as random, and they are near each other in memory.
    pub(super) fn run(&self, seed: u64, nth: u64, parts: u64) -> impl Iterator<Item = &[u8]> {
        let lens = self.slots();
        let part = (lens.iter().sum::<u64>() / parts).max(1);
        let (section, slot) = section_of(lens, nth * part + seed % part);
        let role = section.role();
        let v4 = (section.family() == Family::V4).then(|| self.v4.table(role).around(slot));
        let v6 = self.v6.iter().filter(move |_| section.family() == Family::V6);
        let v6 = v6.flat_map(move |v6| v6.table(role).around(slot)).map(|peer| &peer[..]);
        v4.into_iter().flatten().map(|peer| &peer[..]).chain(v6)
    }

    /// The number of slots of each family and role.
    fn slots(&self) -> [u64; 4] {
        Section::ALL.map(|section| match (section.family(), &self.v6) {
            (Family::V4, _) => self.v4.table(section.role()).slots().len(),
            (Family::V6, Some(v6)) => v6.table(section.role()).slots().len(),
            (Family::V6, None) => 0,
        })
    }

    /// Merges buckets that merges without more bytes have left alone. Takes up to `spare` bytes.
    pub(super) fn merge(&mut self, mut spare: usize) {
        let Self { v4, v6, .. } = self;
        [&mut v4.seeders, &mut v4.leechers].into_iter().for_each(|table| table.merge(&mut spare));
        let v6 = v6.iter_mut().flat_map(|v6| [&mut v6.seeders, &mut v6.leechers]);
        v6.for_each(|table| table.merge(&mut spare));
    }

    fn simplify(&mut self) {
        if self.v6.as_ref().is_some_and(|v6| v6.len() == 0) {
            self.v6 = None;
        }
    }

    /// All peers, in unspecified order.
    pub(super) fn peers(&self) -> impl Iterator<Item = (Section, &[u8], Tick)> {
        const ROLES: [Role; 2] = [Role::Seeder, Role::Leecher];
        let v4 = ROLES.into_iter().flat_map(|role| {
            let peers = self.v4.table(role).iter();
            peers.map(move |(endpoint, tick)| (Section::of(Family::V4, role), &endpoint[..], tick))
        });
        let v6 = self.v6.iter().flat_map(|v6| {
            ROLES.into_iter().flat_map(|role| {
                let peers = v6.table(role).iter();
                peers.map(move |(endpoint, tick)| (Section::of(Family::V6, role), &endpoint[..], tick))
            })
        });
        v4.chain(v6)
    }
}

/// The tables of the family whose endpoints have `N` bytes.
trait HasTables<const N: usize> {
    fn tables(&self) -> Option<&Tables<N>>;

    /// The same, created if they do not exist.
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

    fn find(&self, order: u64, endpoint: &[u8; N], first: Role) -> Option<PeerLocation> {
        let second = if first.is_seeder() { Role::Leecher } else { Role::Seeder };
        let within = |role| {
            let index = self.table(role).find(order, endpoint)?;
            Some(PeerLocation { role, index })
        };
        within(first).or_else(|| within(second))
    }

    fn refresh(
        &self,
        order: u64,
        endpoint: &[u8; N],
        announce: &Announce,
        now: Tick,
        is_proof: impl FnOnce(Tick) -> bool,
    ) -> Option<PeerLocation> {
        let role = announce.role();
        if Transition::new(announce, Some(role)).changes() != Changes::REFRESHED {
            return None;
        }
        let index = self.table(role).refresh_shared(order, endpoint, now, is_proof)?;
        Some(PeerLocation { role, index })
    }

    #[inline(never)]
    fn rival(&self, hash: &EndpointHash, endpoint: &[u8; N], limit: u64) -> Option<PeerLocation> {
        let own = [Role::Seeder, Role::Leecher].into_iter().flat_map(|role| {
            let own = self.table(role).of_network(endpoint, hash);
            own.map(move |(peer, tick, index)| (&peer[..], tick, PeerLocation { role, index }))
        });
        rival(endpoint, own, limit)
    }
}

#[cfg(test)]
impl Large {
    pub(super) fn buckets(&self) -> usize {
        let v6 = self.v6.as_ref().map_or(0, |v6| v6.seeders.buckets() + v6.leechers.buckets());
        self.v4.seeders.buckets() + self.v4.leechers.buckets() + v6
    }

    pub(super) fn fullest_bucket(&self) -> usize {
        let v6 = self.v6.iter().flat_map(|v6| [v6.seeders.fullest_bucket(), v6.leechers.fullest_bucket()]);
        let v4 = [self.v4.seeders.fullest_bucket(), self.v4.leechers.fullest_bucket()];
        v6.chain(v4).max().unwrap_or(0)
    }

    /// What [`bytes`](Self::bytes) should return, counted piece by piece.
    pub(super) fn recount(&self) -> usize {
        let v4 = self.v4.seeders.recount() + self.v4.leechers.recount();
        let v6 = self.v6.as_ref();
        let v6 = v6.map_or(0, |v6| size_of_val(&**v6) + v6.seeders.recount() + v6.leechers.recount());
        size_of::<Self>() + v4 + v6
    }
}
