//! A large swarm, range by range of the keyed order: listing, exporting and expiring.

use super::{LargeSwarm, Tables};
use crate::{
    CompactV4, CompactV6, Cursor, Endpoint, Family, PeerRecord, Role,
    implement::{CursorExt as _, VISITS_PER_HOLD},
    packed::{
        clock::{Clock, Tick},
        hash::EndpointHash,
        leaf::slot::Section,
    },
    sweep::Expired,
    totals::Population,
};

impl LargeSwarm {
    /// Appends up to `limit` peers after a cursor, in the keyed order of their endpoints. Small swarms have
    /// the same order, so their cursors are valid here. Looks at a bounded number of peers: it may append
    /// fewer than `limit` although there are more.
    pub(in crate::packed) fn list(
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
        if let Some(next) = v4_start.and_then(|start| self.v4.list(hash, clock, start, full, out)) {
            return next;
        }
        match &self.v6 {
            None => Cursor::END,
            Some(_) if out.len() == full => range_cursor(Family::V6, 0),
            Some(v6) => v6.list(hash, clock, v6_start, full, out).unwrap_or(Cursor::END),
        }
    }

    /// Passes about `limit` peers from a cursor on to `show`, part by part: the counts of seeders and
    /// leechers with IPv4 before IPv6, their endpoints, and the times of their announces. Returns a cursor
    /// between two ranges. A peer that stays is shown exactly once from start to end, whatever else changes
    /// about it.
    pub(in crate::packed) fn export(
        &self,
        hash: &EndpointHash,
        from: Cursor,
        limit: usize,
        mut show: impl FnMut([u32; 4], &[u8], &[Tick]),
    ) -> Cursor {
        let (v4_start, v6_start) = starts(from, hash);
        let mut shown = 0;
        let next = v4_start.and_then(|start| self.v4.export(hash, start.order, limit, &mut shown, &mut show));
        if let Some(next) = next {
            return next;
        }
        let v6 = self.v6.as_ref();
        let next = v6.and_then(|v6| v6.export(hash, v6_start.order, limit, &mut shown, &mut show));
        next.unwrap_or(Cursor::END)
    }

    /// Visits about `limit` peers from a cursor on, in the order of a listing. Removes the peers with a last
    /// announce before `oldest`. A peer that stays is visited exactly once from start to end.
    pub(in crate::packed) fn expire(
        &mut self,
        hash: &EndpointHash,
        oldest: Tick,
        from: Cursor,
        limit: usize,
    ) -> Expired {
        let mut expired = Expired { visited: 0, gone: Population::default(), next: Cursor::END };
        let (v4_start, v6_start) = starts(from, hash);
        if let Some(start) = v4_start {
            self.v4.expire(hash, oldest, start.order, limit, &mut expired);
        }
        if let Some(v6) = self.v6.as_mut().filter(|_| expired.next.is_end()) {
            v6.expire(hash, oldest, v6_start.order, limit, &mut expired);
        }
        self.simplify();
        expired
    }
}

/// Where a listing of one family goes on: at an order, after the peer `after` of that order if it was shown
/// last.
#[derive(Debug, Clone, Copy)]
pub(in crate::packed) struct Start<const N: usize> {
    pub(in crate::packed) order: u64,
    after: Option<[u8; N]>,
}

impl<const N: usize> Start<N> {
    const FIRST: Self = Self { order: 0, after: None };

    fn behind(endpoint: &[u8; N], hash: &EndpointHash) -> Self {
        Self { order: hash.order(endpoint), after: Some(*endpoint) }
    }

    pub(in crate::packed) fn is_before(&self, order: u64, endpoint: &[u8; N]) -> bool {
        match &self.after {
            Some(after) => (order, endpoint) > (self.order, after),
            None => order >= self.order,
        }
    }
}

/// Where a cursor goes on in each family; `None` if all IPv4 peers were shown. A cursor is the endpoint that
/// was shown last, or a stop between two ranges from [`range_cursor`].
pub(in crate::packed) fn starts(
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

/// A stop between two ranges of the order of a family: nine bytes, a length that no endpoint has.
pub(in crate::packed) fn range_cursor(family: Family, order: u64) -> Cursor {
    let mut bytes = [u8::from(family == Family::V6); 9];
    bytes[1..].copy_from_slice(&order.to_be_bytes());
    Cursor::after(&bytes)
}

impl<const N: usize> Tables<N> {
    /// Visits whole ranges of the order from `start` on, until `limit` peers were visited. An empty range
    /// counts as one peer.
    fn expire(
        &mut self,
        hash: &EndpointHash,
        oldest: Tick,
        mut start: u64,
        limit: usize,
        expired: &mut Expired,
    ) {
        for ranges in 0.. {
            if expired.visited + ranges >= limit {
                expired.next = range_cursor(Self::FAMILY, start);
                return;
            }
            let end = self.range_end(start);
            let gone = match Self::FAMILY {
                Family::V4 => &mut expired.gone.v4,
                Family::V6 => &mut expired.gone.v6,
            };
            for (table, gone) in
                [(&mut self.seeders, &mut gone.seeders), (&mut self.leechers, &mut gone.leechers)]
            {
                let (seen, removed) = table.expire_within(start, end, oldest, hash);
                expired.visited += seen;
                *gone += removed as u64;
            }
            let Some(end) = end else { return };
            start = end;
        }
    }

    /// Passes whole ranges of the order from `start` on to `show`, until `limit` peers were `shown`. An empty
    /// range counts as one peer. Returns where to go on, or `None` at the end.
    fn export(
        &self,
        hash: &EndpointHash,
        mut start: u64,
        limit: usize,
        shown: &mut usize,
        show: &mut impl FnMut([u32; 4], &[u8], &[Tick]),
    ) -> Option<Cursor> {
        let (mut endpoints, mut ticks) = (Vec::new(), Vec::new());
        while *shown < limit {
            let end = self.range_end(start);
            endpoints.clear();
            ticks.clear();
            let mut counts = [0; 4];
            for role in [Role::Seeder, Role::Leecher] {
                let before = ticks.len();
                for (endpoint, tick) in self.table(role).within(start, end, hash) {
                    endpoints.extend_from_slice(endpoint);
                    ticks.push(tick);
                }
                counts[Section::of(Self::FAMILY, role).0] = (ticks.len() - before) as u32;
            }
            *shown += ticks.len().max(1);
            if !ticks.is_empty() {
                show(counts, &endpoints, &ticks);
            }
            start = end?;
        }
        Some(range_cursor(Self::FAMILY, start))
    }

    /// Appends the peers from `start` on until `out` has the length `full`. Both roles have one common order,
    /// so a change of role moves no peer. Returns where to go on, or `None` at the end. Looks at a bounded
    /// number of peers and of empty ranges.
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
                let ordered = within.map(|(endpoint, tick)| ((hash.order(endpoint), endpoint), role, tick));
                found.extend(ordered.filter(|((at, endpoint), ..)| start.is_before(*at, endpoint)));
            }
            found.sort_unstable_by_key(|(position, ..)| *position);
            visits += found.len().max(1);
            for ((_, endpoint), role, tick) in found {
                let listed = (*endpoint).try_into();
                let Ok(listed) = listed else { unreachable!("was an endpoint when it announced") };
                let last_announce = clock.time(tick);
                out.push(PeerRecord { endpoint: listed, role, last_announce, details: None });
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

    /// The end of the range around `start` that lies in one bucket of each table.
    fn range_end(&self, start: u64) -> Option<u64> {
        match (self.seeders.end_of(start), self.leechers.end_of(start)) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }
}
