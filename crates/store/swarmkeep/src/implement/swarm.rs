//! The peers of one swarm for the map-backed stores: whole records in an array.

use std::{
    collections::BTreeMap,
    ops::{Bound, Range},
};

use crate::{
    Announce, CompactV4, CompactV6, Cursor, Endpoint, Families, Family, PeerBuffer, PeerCounts, PeerDetails,
    PeerId, PeerRecord, Random, Retention, Role, Section, SwarmStats, Timestamp,
    announce::{Transition, displaced, widest_network},
    implement::{CursorExt as _, SectionExt as _},
    report::NotRestored,
    sweep::Expired,
    totals::Population,
};

/// A swarm that keeps whole peer records: peer id, bytes uploaded, downloaded and left, and the time of the
/// last announce. It takes 64 bytes per IPv4 peer, and has an index of the endpoints if there are more than a
/// few.
#[derive(Debug, Default)]
pub struct RecordSwarm {
    v4: Records<CompactV4>,
    v6: Records<CompactV6>,
    downloaded: u32,
}

/// The result of [`RecordSwarm::update`].
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Updated {
    /// The effect of the announce on its peer.
    pub transition: Transition,
    /// The place of the peer in the swarm, as an argument of [`select`](RecordSwarm::select); `None` if the
    /// peer has left.
    pub place: Option<usize>,
    /// The role of the evicted endpoint of the same address or network; `None` if none was evicted.
    pub evicted: Option<Role>,
}

impl RecordSwarm {
    /// About the number of bytes per IPv4 and IPv6 peer: a record of 64 or 80 bytes, spare room for a third
    /// more, and in larger swarms a place in the index.
    pub(crate) const BYTES_PER_PEER: [u64; 2] = [88, 120];

    /// Applies an announce: inserts, refreshes or removes its peer, and counts a finished download.
    ///
    /// If an address may have `most_per_address` endpoints in the swarm, and a network of a new endpoint is
    /// full, the endpoint of it that announced least recently is evicted.
    pub fn update(&mut self, announce: &Announce, now: Timestamp, most_per_address: usize) -> Updated {
        let updated = match announce.endpoint {
            Endpoint::V4(endpoint) => self.v4.update(endpoint, announce, now, most_per_address),
            Endpoint::V6(endpoint) => self.v6.update(endpoint, announce, now, most_per_address),
        };
        self.downloaded = self.downloaded.saturating_add(updated.transition.completed.into());
        updated
    }

    /// Selects peers for the peer at `place`, which [`update`](Self::update) returned, by the rules of
    /// [`TorrentRepository::announce`](crate::TorrentRepository::announce).
    pub fn select(
        &self,
        announce: &Announce,
        place: usize,
        rng: &mut dyn Random,
        peers: &mut PeerBuffer<'_>,
    ) {
        let seeders_too = announce.takes_seeders();
        let asked = |which| announce.families.contains(which);
        let own = |which| (announce.endpoint.family() == which).then_some(place);
        let v4 = self.v4.eligible(asked(Families::V4), seeders_too, own(Family::V4));
        let v6 = self.v6.eligible(asked(Families::V6), seeders_too, own(Family::V6));
        let (v4_count, v6_count) = peers.share(announce.want, v4.len(), v6.len());
        self.v4.select(v4, v4_count, rng, &mut peers.v4);
        self.v6.select(v6, v6_count, rng, &mut peers.v6);
    }

    /// Returns the number of peers by family and role, and of downloads.
    pub fn population(&self) -> Population {
        Population { v4: self.v4.counts(), v6: self.v6.counts(), downloaded: self.downloaded.into() }
    }

    /// Returns the counts as a scrape shows them.
    pub fn stats(&self) -> SwarmStats {
        self.population().stats(self.downloaded)
    }

    /// Returns whether a sweep with `policy` removes the swarm.
    pub fn is_idle(&self, policy: Retention) -> bool {
        let keeps_count = policy == Retention::KeepDownloaded && self.downloaded > 0;
        self.population().peers() == 0 && !keeps_count
    }

    /// Visits about `limit` peers after the cursor `from`, in a stable order, and removes the peers with a
    /// last announce before `oldest`. From the start to the end, a peer that stays is visited exactly once.
    pub fn expire(&mut self, oldest: Timestamp, from: Cursor, limit: usize) -> Expired {
        let mut expired = Expired { visited: 0, gone: Population::default(), next: Cursor::END };
        let after = from.endpoint();
        if !matches!(after, Some(Endpoint::V6(_))) {
            let after = v4_of(after);
            if let Some(last) =
                self.v4.expire(after, oldest, limit, &mut expired.visited, &mut expired.gone.v4)
            {
                return Expired { next: Cursor::after(last.as_bytes()), ..expired };
            }
        }
        let left = limit.saturating_sub(expired.visited);
        if let Some(last) =
            self.v6.expire(v6_of(after), oldest, left, &mut expired.visited, &mut expired.gone.v6)
        {
            expired.next = Cursor::after(last.as_bytes());
        }
        expired
    }

    /// See [`peers`](crate::TorrentRepository::peers).
    pub fn peers(&self, from: Cursor, limit: usize, out: &mut Vec<PeerRecord>) -> Cursor {
        if from.is_end() || limit == 0 {
            return from;
        }
        let (after, end) = (from.endpoint(), out.len().saturating_add(limit));
        if !matches!(after, Some(Endpoint::V6(_))) {
            self.v4.list(v4_of(after), limit, |peer, role| out.push(peer.record(role)));
        }
        self.v6.list(v6_of(after), end - out.len(), |peer, role| out.push(peer.record(role)));
        match out.last() {
            Some(last) if out.len() == end => Cursor::after(last.endpoint.as_bytes()),
            _ => Cursor::END,
        }
    }

    /// Inserts a peer of a snapshot.
    ///
    /// # Errors
    /// [`NotRestored`] if the peer is in the swarm already, or if its address or one of its
    /// networks has its maximum number of endpoints, which is `most_per_address` for an address.
    pub fn restore(&mut self, peer: &PeerRecord, most_per_address: usize) -> Result<(), NotRestored> {
        match peer.endpoint {
            Endpoint::V4(endpoint) => self.v4.insert_new(endpoint, peer, most_per_address),
            Endpoint::V6(endpoint) => self.v6.insert_new(endpoint, peer, most_per_address),
        }
    }

    /// Raises the download count to `downloaded` if it is lower.
    pub fn restore_downloads(&mut self, downloaded: u32) {
        self.downloaded = self.downloaded.max(downloaded);
    }

    /// Adds downloads that were counted earlier.
    pub fn add_downloads(&mut self, earlier: u32) {
        self.downloaded = self.downloaded.saturating_add(earlier);
    }
}

fn v4_of(endpoint: Option<Endpoint>) -> Option<CompactV4> {
    if let Some(Endpoint::V4(compact)) = endpoint { Some(compact) } else { None }
}

fn v6_of(endpoint: Option<Endpoint>) -> Option<CompactV6> {
    if let Some(Endpoint::V6(compact)) = endpoint { Some(compact) } else { None }
}

/// The peers of one family, seeders first, so that the eligible peers of any announce are one range.
#[derive(Debug)]
struct Records<E> {
    records: Vec<Record<E>>,
    seeders: usize,
    /// The place of each endpoint in `records`, in a stable order. Empty while there are so few records that
    /// a linear search is faster.
    index: BTreeMap<E, u32>,
}

#[derive(Debug, Clone, Copy)]
struct Record<E> {
    endpoint: E,
    last_announce: Timestamp,
    details: PeerDetails,
    /// Whether `details` are known. They are not if the peer was restored from a store without details.
    has_details: bool,
}

/// The peers that may be selected: a range of records without the announcing peer.
struct Eligible {
    range: Range<usize>,
    except: Option<usize>,
}

impl Eligible {
    fn len(&self) -> usize {
        self.range.len() - usize::from(self.except.is_some())
    }
}

/// An endpoint of one family.
trait Compact: Copy + Ord + Into<Endpoint> {
    fn bytes(&self) -> &[u8];
}

impl Compact for CompactV4 {
    fn bytes(&self) -> &[u8] {
        self.as_bytes()
    }
}

impl Compact for CompactV6 {
    fn bytes(&self) -> &[u8] {
        self.as_bytes()
    }
}

impl<E> Default for Records<E> {
    fn default() -> Self {
        Self { records: Vec::new(), seeders: 0, index: BTreeMap::new() }
    }
}

impl<E: Compact> Records<E> {
    /// The maximum number of peers that are searched one by one. A B-tree costs as much at this size.
    const FEW: usize = 16;

    fn update(
        &mut self,
        endpoint: E,
        announce: &Announce,
        now: Timestamp,
        most_per_address: usize,
    ) -> Updated {
        let place = self.find(&endpoint);
        let transition = Transition::new(announce, place.map(|place| self.role(place)));
        let details = PeerDetails {
            peer_id: announce.peer_id,
            uploaded: announce.uploaded,
            downloaded: announce.downloaded,
            left: announce.left,
        };
        let record = Record { endpoint, last_announce: now, details, has_details: true };
        let mut evicted = None;
        let place = match (place, transition.after) {
            (None, None) => None,
            (None, Some(role)) => {
                if let Some(displaced) = self.displaced(&endpoint, most_per_address) {
                    evicted = Some(self.role(displaced));
                    self.remove(displaced);
                }
                Some(self.insert(record, role))
            }
            (Some(place), None) => {
                self.remove(place);
                None
            }
            (Some(place), Some(role)) => {
                self.records[place] = record;
                Some(self.set_role(place, role))
            }
        };
        Updated { transition, place, evicted }
    }

    fn insert_new(
        &mut self,
        endpoint: E,
        peer: &PeerRecord,
        most_per_address: usize,
    ) -> Result<(), NotRestored> {
        if self.find(&endpoint).is_some() {
            return Err(NotRestored::Known);
        }
        if self.displaced(&endpoint, most_per_address).is_some() {
            return Err(NotRestored::Full);
        }
        let unknown = PeerDetails { peer_id: PeerId::default(), uploaded: 0, downloaded: 0, left: 0 };
        let (details, has_details) = (peer.details.unwrap_or(unknown), peer.details.is_some());
        let record = Record { endpoint, last_announce: peer.last_announce, details, has_details };
        self.insert(record, peer.role);
        Ok(())
    }

    /// Returns the place of the peer that announced least recently in the narrowest full network of
    /// `newcomer`, if an address may have `most` endpoints. O(most) and a look-up.
    fn displaced(&self, newcomer: &E, most: usize) -> Option<usize> {
        // With fewer than `most` peers in total, no address has `most`.
        if self.records.len() < most {
            return None;
        }
        let widest = widest_network(newcomer.bytes());
        // The endpoints of a network are one range of the index.
        let is_own = |endpoint: &E| endpoint.bytes().starts_with(widest);
        let all = if self.index.is_empty() { &self.records[..] } else { &[] };
        let few = (0..).zip(all).map(|(place, record)| (&record.endpoint, place));
        let before = self.index.range(..newcomer).rev().take_while(|(endpoint, _)| is_own(endpoint));
        let behind = self.index.range(newcomer..).take_while(|(endpoint, _)| is_own(endpoint));
        let own = few.chain(before.chain(behind).map(|(endpoint, &place)| (endpoint, place as usize)));
        let own = own.map(|(endpoint, place)| (endpoint.bytes(), self.records[place].last_announce, place));
        displaced(newcomer.bytes(), own, most as u64)
    }

    fn counts(&self) -> PeerCounts {
        let seeders = self.seeders as u64;
        PeerCounts { seeders, leechers: self.records.len() as u64 - seeders }
    }

    fn eligible(&self, asked: bool, seeders_too: bool, own: Option<usize>) -> Eligible {
        let range = match (asked, seeders_too) {
            (false, _) => 0..0,
            (true, false) => self.seeders..self.records.len(),
            (true, true) => 0..self.records.len(),
        };
        let except = own.filter(|place| range.contains(place));
        Eligible { range, except }
    }

    /// Copies `count` consecutive eligible peers, starting at a random one; the first follows the last. Each
    /// eligible peer is selected with the same probability.
    fn select<const N: usize>(
        &self,
        eligible: Eligible,
        count: usize,
        rng: &mut dyn Random,
        section: &mut Section<'_, N>,
    ) where
        E: AsRef<[u8; N]>,
    {
        let len = eligible.len();
        let start = if count < len && count > 0 { rng.below(len) } else { 0 };
        let first = eligible.range.start;
        // The announcing peer is excluded before the start is drawn. Otherwise the peers after it would be
        // selected more often.
        let except = eligible.except.map_or(usize::MAX, |place| place - first);
        for nth in (start..len).chain(0..start).take(count) {
            let place = first + nth + usize::from(nth >= except);
            section.push(self.records[place].endpoint.as_ref());
        }
    }

    /// Visits up to `limit` peers after `after` and removes the expired ones. Returns the last one visited;
    /// `None` at the end.
    fn expire(
        &mut self,
        after: Option<E>,
        oldest: Timestamp,
        limit: usize,
        visited: &mut usize,
        gone: &mut PeerCounts,
    ) -> Option<E> {
        let (mut last, mut seen, mut expired) = (after, 0, Vec::new());
        self.list(after, limit, |record, _| {
            seen += 1;
            last = Some(record.endpoint);
            if record.last_announce < oldest {
                expired.push(record.endpoint);
            }
        });
        for endpoint in expired {
            let place = self.find(&endpoint).expect("just listed");
            match self.role(place) {
                Role::Seeder => gone.seeders += 1,
                Role::Leecher => gone.leechers += 1,
            }
            self.remove(place);
        }
        // Memory is freed if more than three quarters of it are unused.
        if self.records.len() < self.records.capacity() / 4 {
            self.records.shrink_to(self.records.len() * 2);
        }
        *visited += seen;
        if seen == limit { last } else { None }
    }

    /// Shows up to `limit` records after `after`, in endpoint order.
    fn list(&self, after: Option<E>, limit: usize, mut show: impl FnMut(&Record<E>, Role)) {
        if self.index.is_empty() {
            let behind = |place: &usize| after.is_none_or(|after| self.records[*place].endpoint > after);
            let mut few: Vec<usize> = (0..self.records.len()).filter(behind).collect();
            few.sort_unstable_by_key(|&place| self.records[place].endpoint);
            few.into_iter().take(limit).for_each(|place| show(&self.records[place], self.role(place)));
        } else {
            let behind = (after.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
            let places = self.index.range(behind).take(limit).map(|(_, &place)| place as usize);
            places.for_each(|place| show(&self.records[place], self.role(place)));
        }
    }

    fn find(&self, endpoint: &E) -> Option<usize> {
        if self.index.is_empty() {
            self.records.iter().position(|record| record.endpoint == *endpoint)
        } else {
            self.index.get(endpoint).map(|&place| place as usize)
        }
    }

    fn role(&self, place: usize) -> Role {
        if place < self.seeders { Role::Seeder } else { Role::Leecher }
    }

    fn insert(&mut self, record: Record<E>, role: Role) -> usize {
        let place = self.records.len();
        if place == 0 {
            // Most swarms never see a second peer.
            self.records.reserve_exact(1);
        }
        self.records.push(record);
        if !self.index.is_empty() {
            self.index.insert(record.endpoint, place as u32);
        } else if self.records.len() > Self::FEW {
            self.index =
                self.records.iter().zip(0..).map(|(record, place)| (record.endpoint, place)).collect();
        }
        self.set_role(place, role)
    }

    /// Moves the peer among the seeders or the leechers if its role changed; returns its new place.
    fn set_role(&mut self, place: usize, role: Role) -> usize {
        match (self.role(place), role) {
            (Role::Leecher, Role::Seeder) => {
                self.seeders += 1;
                self.swap(place, self.seeders - 1)
            }
            (Role::Seeder, Role::Leecher) => {
                self.seeders -= 1;
                self.swap(place, self.seeders)
            }
            _ => place,
        }
    }

    fn remove(&mut self, place: usize) {
        // Among the leechers the record can be swapped with the last one, which leaves no gap.
        let place = self.set_role(place, Role::Leecher);
        self.swap(place, self.records.len() - 1);
        let gone = self.records.pop().expect("just moved there");
        self.index.remove(&gone.endpoint);
        if self.records.len() < Self::FEW / 2 {
            self.index.clear();
        }
    }

    /// Swaps two records; returns `b`, the new place of the first.
    fn swap(&mut self, a: usize, b: usize) -> usize {
        self.records.swap(a, b);
        if !self.index.is_empty() {
            for place in [a, b] {
                self.index.insert(self.records[place].endpoint, place as u32);
            }
        }
        b
    }
}

impl<E: Compact> Record<E> {
    fn record(&self, role: Role) -> PeerRecord {
        PeerRecord {
            endpoint: self.endpoint.into(),
            role,
            last_announce: self.last_announce,
            details: self.has_details.then_some(self.details),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_pointer_width = "64")]
    #[test]
    fn an_ipv4_record_takes_one_cache_line() {
        assert_eq!(size_of::<Record<CompactV4>>(), 64);
        assert_eq!(size_of::<Record<CompactV6>>(), 80);
    }
}
