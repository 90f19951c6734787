//! The packed peers of one torrent.

use std::fmt;

use crate::{
    Announce, AnnounceEvent, CompactV4, Cursor, Endpoint, Evicted, Families, Family, HashKey, PeerBuffer,
    PeerCounts, PeerRecord, Random, Role, Section, Timestamp,
    announce::{Transition, share},
    map::VISITS_A_HOLD,
    packed::{
        hash::EndpointHash,
        table::{MOST_TRIES, Place, Record, Table},
    },
    swarm::{Expired, NotRestored, Population, Swarm, Update, cursor_endpoint, sealed},
};

/// What all swarms of a packed store share.
#[derive(Debug)]
pub struct Settings {
    hash: EndpointHash,
    most_peers: usize,
}

impl Settings {
    pub(super) fn new(key: HashKey, most_peers: usize) -> Self {
        Self { hash: EndpointHash::new(key), most_peers }
    }
}

/// A swarm in 16 bytes while nobody or one IPv4 peer is in it, as in two thirds of all swarms.
pub enum PackedSwarm {
    /// Nobody, or one IPv4 peer.
    One(One),
    /// Anything else.
    Many(Box<Many>),
}

/// At most one IPv4 peer, in place.
#[derive(Debug)]
pub struct One {
    downloaded: u32,
    second: u32,
    endpoint: [u8; 6],
    role: Option<Role>,
    proven: bool,
}

/// Peers of both families.
#[derive(Debug, Default)]
pub struct Many {
    v4: Tables<6>,
    /// Apart, since few swarms have any.
    v6: Option<Box<Tables<18>>>,
    downloaded: u32,
    /// The second of the latest announce.
    latest: u32,
    /// Whether the swarm has shown that it lives: a peer came back or a second one joined, here or in the snapshot that it was
    /// restored from. A flood of made-up info hashes does neither.
    proven: bool,
}

/// The peers of one family.
#[derive(Debug, Default)]
struct Tables<const N: usize> {
    seeders: Table<N>,
    leechers: Table<N>,
}

/// What a swarm is worth to a full store: flood before swarms that live, small before large, stale before fresh.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Worth {
    proven: bool,
    size: u32,
    latest: u32,
}

impl Worth {
    pub(super) fn of(swarm: &PackedSwarm) -> Self {
        match swarm {
            PackedSwarm::One(one) => {
                Self { proven: one.proven, size: one.role.is_some().into(), latest: one.second }
            }
            PackedSwarm::Many(many) => {
                // Sizes count by powers of two: among similar ones the stale goes.
                let size = many.population().peers().checked_ilog2().map_or(0, |log| log + 1);
                Self { proven: many.proven, size, latest: many.latest }
            }
        }
    }
}

impl Default for PackedSwarm {
    fn default() -> Self {
        Self::One(One { downloaded: 0, second: 0, endpoint: [0; 6], role: None, proven: false })
    }
}

impl fmt::Debug for PackedSwarm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PackedSwarm({:?})", self.stats())
    }
}

/// The store's clock: seconds since the epoch, which end in 2106.
fn second(time: Timestamp) -> u32 {
    u32::try_from(time.as_secs()).unwrap_or(u32::MAX)
}

impl sealed::Sealed for PackedSwarm {}

impl Swarm for PackedSwarm {
    type Settings = Settings;

    fn announce(
        &mut self,
        settings: &Settings,
        announce: &Announce,
        now: Timestamp,
        rng: &mut dyn Random,
        peers: &mut PeerBuffer<'_>,
        commit: impl FnOnce(&Update),
    ) {
        let (transition, evicted) = self.update(settings, announce, second(now));
        let downloaded = self.downloaded().saturating_add(transition.completed.into());
        self.set_downloaded(downloaded);
        let mut update = Update::new(announce.endpoint.family(), transition);
        update.lost += evicted;
        update.evicted = Evicted { swarms: 0, peers: evicted.peers() };
        update.stats = self.stats();
        commit(&update);

        // A swarm of one has nobody to hand out but the announcer.
        let (Some(role), Self::Many(many)) = (transition.after, self) else { return };
        let v4 = many.v4.eligible(announce, role, Families::V4);
        let v6 =
            many.v6.as_ref().map_or_else(Eligible::nobody, |v6| v6.eligible(announce, role, Families::V6));
        let (v4_count, v6_count) =
            share(announce.want, v4.len().min(peers.v4.room()), v6.len().min(peers.v6.room()));
        v4.select(v4_count, rng, &mut peers.v4);
        v6.select(v6_count, rng, &mut peers.v6);
    }

    fn population(&self) -> Population {
        match self {
            Self::One(one) => {
                one.role.map_or_else(Population::default, |role| Population::one(Family::V4, role))
            }
            Self::Many(many) => many.population(),
        }
    }

    fn downloaded(&self) -> u32 {
        match self {
            Self::One(one) => one.downloaded,
            Self::Many(many) => many.downloaded,
        }
    }

    fn set_downloaded(&mut self, downloaded: u32) {
        match self {
            Self::One(one) => one.downloaded = downloaded,
            Self::Many(many) => many.downloaded = downloaded,
        }
    }

    fn expire(&mut self, settings: &Settings, oldest: Timestamp, from: Cursor, limit: usize) -> Expired {
        let (mut expired, oldest) =
            (Expired { visited: 0, gone: Population::default(), next: Cursor::END }, second(oldest));
        match self {
            Self::One(one) => {
                if let Some(role) = one.role {
                    expired.visited = 1;
                    if one.second < oldest {
                        expired.gone = Population::one(Family::V4, role);
                        (one.role, one.proven) = (None, false);
                    }
                }
            }
            Self::Many(many) => {
                many.expire(&settings.hash, oldest, from, limit, &mut expired);
                self.simplify();
            }
        }
        expired
    }

    fn peers(&self, settings: &Settings, from: Cursor, limit: usize, out: &mut Vec<PeerRecord>) -> Cursor {
        if from.is_end() || limit == 0 {
            return from;
        }
        let (hash, full) = (&settings.hash, out.len().saturating_add(limit));
        let (v4_start, v6_start) = starts(from, hash);
        let many = match self {
            Self::Many(many) => many,
            Self::One(one) => {
                // The cursor may be from a time when there were more.
                let behind =
                    v4_start.is_some_and(|start| start.is_before(hash.order(&one.endpoint), &one.endpoint));
                let shown = one.role.map(|role| Record::new(one.endpoint, one.second).show(role));
                out.extend(shown.filter(|_| behind));
                return Cursor::END;
            }
        };
        if let Some(start) = v4_start
            && let Some(next) = many.v4.list(hash, start, full, out)
        {
            return next;
        }
        match &many.v6 {
            None => Cursor::END,
            Some(_) if out.len() == full => range_cursor(Family::V6, 0),
            Some(v6) => v6.list(hash, v6_start, full, out).unwrap_or(Cursor::END),
        }
    }

    fn restore(&mut self, settings: &Settings, peer: &PeerRecord) -> Result<(), NotRestored> {
        let second = second(peer.last_announce);
        if let (Self::One(one), Endpoint::V4(v4)) = (&mut *self, &peer.endpoint)
            && one.role.is_none()
        {
            (one.endpoint, one.second) = (*v4.as_bytes(), second);
            (one.role, one.proven) = (Some(peer.role), true);
            return Ok(());
        }
        if let (Self::One(one), Endpoint::V4(v4)) = (&*self, &peer.endpoint)
            && one.endpoint == *v4.as_bytes()
        {
            return Err(NotRestored::Known);
        }
        let full = self.population().peers() >= settings.most_peers as u64;
        let restored = self.many(&settings.hash).restore(&settings.hash, peer, second, full);
        self.simplify();
        restored
    }
}

impl PackedSwarm {
    /// Applies an announce; who had to go to make room.
    fn update(&mut self, settings: &Settings, announce: &Announce, second: u32) -> (Transition, Population) {
        let nobody = Population::default();
        if let (Self::One(one), Endpoint::V4(v4)) = (&mut *self, &announce.endpoint) {
            let known = one.role.filter(|_| one.endpoint == *v4.as_bytes());
            if known.is_some() || one.role.is_none() {
                let transition = Transition::new(announce, known);
                one.role = transition.after;
                one.proven = transition.after.is_some() && (one.proven || known.is_some());
                if transition.after.is_some() {
                    (one.endpoint, one.second) = (*v4.as_bytes(), second);
                }
                return (transition, nobody);
            }
        }
        if let (Self::One(_), AnnounceEvent::Stopped) = (&*self, announce.event) {
            return (Transition::new(announce, None), nobody);
        }
        let many = self.many(&settings.hash);
        let (transition, evicted) = many.update(settings, announce, second);
        self.simplify();
        (transition, evicted)
    }

    /// The swarm as tables, made of the one peer if need be.
    fn many(&mut self, hash: &EndpointHash) -> &mut Many {
        if let Self::One(one) = self {
            let (downloaded, latest, proven) = (one.downloaded, one.second, one.proven);
            let mut many = Many { downloaded, latest, proven, ..Many::default() };
            if let Some(role) = one.role {
                let record = Record::new(one.endpoint, one.second);
                many.v4.table(role).insert(hash.order(&one.endpoint), record, hash);
            }
            *self = Self::Many(Box::new(many));
        }
        match self {
            Self::Many(many) => many,
            Self::One(_) => unreachable!("just replaced"),
        }
    }

    /// Goes back to one peer in place where that is all there is.
    fn simplify(&mut self) {
        let Self::Many(many) = self else { return };
        if many.v6.as_ref().is_some_and(|v6| v6.counts().peers() == 0) {
            many.v6 = None;
        }
        if many.v6.is_some() || many.v4.counts().peers() > 1 {
            return;
        }
        let mut one =
            One { downloaded: many.downloaded, second: 0, endpoint: [0; 6], role: None, proven: false };
        for role in [Role::Seeder, Role::Leecher] {
            if let Some(record) = many.v4.table(role).from(Table::<6>::first()).next() {
                (one.endpoint, one.second) = (record.endpoint, record.second());
                (one.role, one.proven) = (Some(role), many.proven);
            }
        }
        *self = Self::One(one);
    }
}

impl Many {
    fn population(&self) -> Population {
        let v6 = self.v6.as_ref().map_or_else(PeerCounts::default, |v6| v6.counts());
        Population { v4: self.v4.counts(), v6 }
    }

    fn update(&mut self, settings: &Settings, announce: &Announce, second: u32) -> (Transition, Population) {
        let hash = &settings.hash;
        let joins = announce.event != AnnounceEvent::Stopped;
        let full = |many: &Self| joins && many.population().peers() >= settings.most_peers as u64;
        let mut evicted = Population::default();
        let transition = match announce.endpoint {
            Endpoint::V4(v4) => {
                let order = hash.order(v4.as_bytes());
                let known = self.v4.find(order, v4.as_bytes());
                if known.is_none() && full(self) {
                    evicted = self.evict(order);
                }
                self.v4.apply(hash, announce, order, known, Record::new(*v4.as_bytes(), second))
            }
            Endpoint::V6(v6) => {
                let order = hash.order(v6.as_bytes());
                let known = self.v6.as_ref().and_then(|tables| tables.find(order, v6.as_bytes()));
                if known.is_none() && full(self) {
                    evicted = self.evict(order);
                }
                let tables = self.v6.get_or_insert_default();
                tables.apply(hash, announce, order, known, Record::new(*v6.as_bytes(), second))
            }
        };
        if joins {
            self.latest = second;
            self.proven |= transition.before.is_some() || self.population().peers() > 1;
        }
        (transition, evicted)
    }

    /// Drops the peer that has been silent longest in a sample: one bucket of each table. `order` is as good as random, and
    /// only the newcomer's.
    fn evict(&mut self, order: u64) -> Population {
        let v6 = self.v6.as_deref_mut();
        let v4 = self.v4.stalest_near(order);
        let stalest_v6 = v6.as_ref().and_then(|v6| v6.stalest_near(order));
        match (v4, stalest_v6, v6) {
            (v4, Some((age, role, place)), Some(tables)) if v4.is_none_or(|(oldest, ..)| age < oldest) => {
                tables.table(role).remove(place);
                Population::one(Family::V6, role)
            }
            (Some((_, role, place)), ..) => {
                self.v4.table(role).remove(place);
                Population::one(Family::V4, role)
            }
            _ => Population::default(),
        }
    }

    fn restore(
        &mut self,
        hash: &EndpointHash,
        peer: &PeerRecord,
        second: u32,
        full: bool,
    ) -> Result<(), NotRestored> {
        self.latest = self.latest.max(second);
        self.proven = true;
        match peer.endpoint {
            Endpoint::V4(v4) => self.v4.restore(hash, Record::new(*v4.as_bytes(), second), peer.role, full),
            Endpoint::V6(v6) => {
                let tables = self.v6.get_or_insert_default();
                tables.restore(hash, Record::new(*v6.as_bytes(), second), peer.role, full)
            }
        }
    }

    fn expire(
        &mut self,
        hash: &EndpointHash,
        oldest: u32,
        from: Cursor,
        limit: usize,
        expired: &mut Expired,
    ) {
        let (v4_start, v6_start) = starts(from, hash);
        let Expired { visited, gone, next } = expired;
        if let Some(start) = v4_start
            && let Some(order) = self.v4.expire(hash, oldest, start.order, limit, visited, &mut gone.v4)
        {
            *next = range_cursor(Family::V4, order);
            return;
        }
        let Some(v6) = &mut self.v6 else { return };
        let stop = if *visited >= limit {
            Some(v6_start.order)
        } else {
            v6.expire(hash, oldest, v6_start.order, limit, visited, &mut gone.v6)
        };
        if let Some(order) = stop {
            *next = range_cursor(Family::V6, order);
        }
    }
}

/// Where a listing goes on in a family: at an order, behind a peer of that order if one was shown last.
#[derive(Debug, Clone, Copy)]
struct Start<const N: usize> {
    order: u64,
    after: Option<[u8; N]>,
}

impl<const N: usize> Start<N> {
    const FIRST: Self = Self { order: 0, after: None };

    fn behind(endpoint: &[u8; N], hash: &EndpointHash) -> Self {
        Self { order: hash.order(endpoint), after: Some(*endpoint) }
    }

    fn is_before(&self, order: u64, endpoint: &[u8; N]) -> bool {
        match &self.after {
            Some(after) => (order, endpoint) > (self.order, after),
            None => order >= self.order,
        }
    }
}

/// Where a cursor goes on in each family; in IPv4 nowhere once that is done. A cursor is the endpoint shown last, or, between
/// two ranges, what [`range_cursor`] made.
fn starts(cursor: Cursor, hash: &EndpointHash) -> (Option<Start<6>>, Start<18>) {
    match (cursor_endpoint(cursor), cursor.bytes().and_then(|bytes| bytes.split_first())) {
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
fn range_cursor(family: Family, order: u64) -> Cursor {
    let mut bytes = [u8::from(family == Family::V6); 9];
    bytes[1..].copy_from_slice(&order.to_be_bytes());
    Cursor::after(&bytes)
}

impl<const N: usize> Tables<N> {
    fn counts(&self) -> PeerCounts {
        PeerCounts { seeders: self.seeders.len() as u64, leechers: self.leechers.len() as u64 }
    }

    fn table(&mut self, role: Role) -> &mut Table<N> {
        match role {
            Role::Seeder => &mut self.seeders,
            Role::Leecher => &mut self.leechers,
        }
    }

    fn find(&self, order: u64, endpoint: &[u8; N]) -> Option<(Role, Place)> {
        let leecher = || self.leechers.find(order, endpoint).map(|place| (Role::Leecher, place));
        self.seeders.find(order, endpoint).map(|place| (Role::Seeder, place)).or_else(leecher)
    }

    fn apply(
        &mut self,
        hash: &EndpointHash,
        announce: &Announce,
        order: u64,
        known: Option<(Role, Place)>,
        record: Record<N>,
    ) -> Transition {
        let transition = Transition::new(announce, known.map(|(role, _)| role));
        match (known, transition.after) {
            (Some((role, place)), Some(after)) if role == after => {
                self.table(role).refresh(place, record.second())
            }
            (known, after) => {
                if let Some((role, place)) = known {
                    self.table(role).remove(place);
                }
                if let Some(role) = after {
                    self.table(role).insert(order, record, hash);
                }
            }
        }
        transition
    }

    fn restore(
        &mut self,
        hash: &EndpointHash,
        record: Record<N>,
        role: Role,
        full: bool,
    ) -> Result<(), NotRestored> {
        let order = hash.order(&record.endpoint);
        if self.find(order, &record.endpoint).is_some() {
            return Err(NotRestored::Known);
        }
        if full {
            return Err(NotRestored::Full);
        }
        self.table(role).insert(order, record, hash);
        Ok(())
    }

    fn stalest_near(&self, order: u64) -> Option<(u32, Role, Place)> {
        let of =
            |role, table: &Table<N>| table.stalest_near(order).map(|(second, place)| (second, role, place));
        let (seeder, leecher) = (of(Role::Seeder, &self.seeders), of(Role::Leecher, &self.leechers));
        seeder.into_iter().chain(leecher).min_by_key(|(second, ..)| *second)
    }

    /// Visits whole ranges of the order from `start` on until `limit` peers were seen, an empty range counting as one; where to
    /// go on, unless that was the end.
    fn expire(
        &mut self,
        hash: &EndpointHash,
        oldest: u32,
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
                let (seen, removed) =
                    table.expire_within(start, end, hash, |record| record.second() < oldest);
                *visited += seen;
                *gone += removed as u64;
            }
            start = end?;
            if *visited + ranges >= limit {
                return Some(start);
            }
        }
    }

    /// Shows the peers from `start` on until `out` has `full`, both roles in one order, so that a change of role moves nobody;
    /// where to go on, unless that was the end. Looks at a bounded number of them and of empty ranges.
    fn list(
        &self,
        hash: &EndpointHash,
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
            for (role, table) in [(Role::Seeder, &self.seeders), (Role::Leecher, &self.leechers)] {
                let behind =
                    table.within(order, end, hash).filter(|(at, peer)| start.is_before(*at, &peer.endpoint));
                found.extend(behind.map(|(at, peer)| ((at, peer.endpoint), peer.show(role))));
            }
            found.sort_unstable_by_key(|(place, _)| *place);
            visits += found.len().max(1);
            for ((_, last), peer) in found {
                out.push(peer);
                if out.len() == full {
                    return Some(Cursor::after(&last));
                }
            }
            order = end?;
            if visits >= VISITS_A_HOLD {
                return Some(range_cursor(if N == CompactV4::LEN { Family::V4 } else { Family::V6 }, order));
            }
        }
    }

    /// The end of the range that one bucket of each table covers around `start`.
    fn range_end(&self, start: u64) -> Option<u64> {
        match (self.seeders.reach(start).end, self.leechers.reach(start).end) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    fn eligible(&self, announce: &Announce, role: Role, family: Families) -> Eligible<'_, N> {
        if !announce.families.contains(family) {
            return Eligible::nobody();
        }
        // A seeder is not among the leechers it is shown.
        let own = <&[u8; N]>::try_from(announce.endpoint.as_bytes()).ok().copied();
        match role {
            Role::Seeder => Eligible { tables: [None, Some(&self.leechers)], except: None },
            Role::Leecher => Eligible { tables: [Some(&self.seeders), Some(&self.leechers)], except: own },
        }
    }
}

/// Peers that may be selected: the tables, less the announcer.
struct Eligible<'a, const N: usize> {
    tables: [Option<&'a Table<N>>; 2],
    except: Option<[u8; N]>,
}

impl<'a, const N: usize> Eligible<'a, N> {
    const fn nobody() -> Self {
        Self { tables: [None, None], except: None }
    }

    fn with_announcer(&self) -> usize {
        self.tables.iter().flatten().map(|table| table.len()).sum()
    }

    fn len(&self) -> usize {
        self.with_announcer() - usize::from(self.except.is_some())
    }

    /// Copies `count` of them: all table after table, bucket after bucket, from a uniformly random one on and around, so
    /// each is equally likely to be among them.
    fn select(&self, count: usize, rng: &mut dyn Random, section: &mut Section<'_, N>) {
        if count == 0 {
            return;
        }
        let (first, place) =
            if count < self.len() { self.random_place(rng) } else { (0, Table::<N>::first()) };
        let behind =
            |table: usize, place| self.tables[table].into_iter().flat_map(move |table| table.from(place));
        let start = Table::<N>::first();
        // The wrapped round ends where it began: `count` never exceeds one round.
        let round = behind(first, place)
            .chain((first + 1..2).flat_map(|table| behind(table, start)))
            .chain((0..2).flat_map(|table| behind(table, start)));
        let others = round.filter(|record| self.except != Some(record.endpoint));
        others.take(count).for_each(|record| section.push(&record.endpoint));
    }

    /// The place of a uniformly random peer that is not the announcer.
    fn random_place(&self, rng: &mut dyn Random) -> (usize, Place) {
        let first = self.tables[0].map_or(0, Table::len);
        // A caller's randomness that always hits the announcer must not hold the lock for ever.
        for _ in 0..MOST_TRIES {
            let which = usize::from(rng.below(self.with_announcer()) >= first);
            let table = self.tables[which].expect("a table with peers");
            let place = table.random_place(rng);
            if table.from(place).next().is_some_and(|record| self.except != Some(record.endpoint)) {
                return (which, place);
            }
        }
        (0, Table::<N>::first())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_swarm_of_one_takes_16_bytes() {
        assert_eq!(size_of::<PackedSwarm>(), 16);
        assert_eq!(size_of::<Record<6>>(), 10);
        assert_eq!(size_of::<Record<18>>(), 22);
    }
}
