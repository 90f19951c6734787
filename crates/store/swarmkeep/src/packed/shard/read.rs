//! Reading: scrapes, listings of swarms and of peers, and exports.

use std::mem;

use super::{Operation, ResumePoint, Shard};
use crate::{
    Cursor, Endpoint, Family, PeerRecord, Records, SwarmStats, Timestamp,
    implement::CursorExt as _,
    packed::{
        context::StoreContext,
        hash::Key,
        large::ranges::starts,
        leaf::{
            Leaf,
            slot::{Prefix, SlotContent},
        },
    },
};

impl Shard {
    pub(in crate::packed) fn scrape(&self, op: &Operation<'_>) -> Option<SwarmStats> {
        self.find(op).map(|at| self.stats(at))
    }

    /// Passes up to `limit` swarms after the key `after` to `show`, in the order of their keys. Returns the
    /// last key if there are more.
    pub(in crate::packed) fn list(
        &self,
        home: Prefix,
        after: Option<&Key>,
        limit: usize,
        mut show: impl FnMut(Key, SwarmStats),
    ) -> Option<Key> {
        let first = home.first_key();
        let mut last = None;
        let swarms = self.swarms_from(home, *after.unwrap_or(&first));
        let keyed = swarms.map(|(prefix, at)| (self.leaves[at.leaf].key(prefix, at.slot), at));
        for (shown, (key, at)) in keyed.filter(|(key, _)| Some(key) != after).enumerate() {
            if shown == limit {
                return last;
            }
            show(key, self.stats(at));
            last = Some(key);
        }
        None
    }

    /// Appends about `limit` peers and swarms of shard `nth` to `records`, from `from` on, with times up to
    /// `latest`. Each leaf after the first counts as one visit. Returns the number of visits, and where to go
    /// on, or `None` at the end.
    pub(in crate::packed) fn export(
        &self,
        context: &StoreContext,
        nth: usize,
        (from, limit): (Option<ResumePoint>, usize),
        latest: Timestamp,
        records: &mut Records,
    ) -> (usize, Option<ResumePoint>) {
        let (placement, clock) = (context.placement.of_shard(nth), context.clock);
        let home = context.placement.home();
        let from = from.unwrap_or(ResumePoint::first(home));
        let mut visited = 0;
        let mut is_first = true;
        let mut leaves = self.leaves_from(home, from.key).peekable();
        while let Some((number, prefix)) = leaves.next() {
            let leaf = &self.leaves[number];
            let (mut slot, mut within) = (Leaf::first(prefix), Cursor::START);
            if mem::take(&mut is_first) {
                // The swarm in which the export stopped is the first one, or it is gone.
                (slot, within) = match leaf.find(prefix, &from.key) {
                    Ok(slot) => (slot, from.within),
                    Err(slot) => (slot, Cursor::START),
                };
            } else {
                // Sweeps merge empty leaves. Until then there may be any number of them.
                if visited >= limit {
                    return (visited, Some(ResumePoint::first(prefix)));
                }
                visited += 1;
            }
            // With each swarm a part of the next leaf: a processor has room for few cache lines on their way.
            let next = leaves.peek().map_or(leaf, |&(next, _)| &self.leaves[next]);
            let part = next.used().div_ceil(leaf.swarms().max(1));
            let mut ahead = slot.index * part;
            while slot.index < leaf.swarms() {
                ahead = next.prefetch(ahead, (slot.index + 1) * part);
                let key = leaf.key(prefix, slot);
                if visited >= limit {
                    return (visited, Some(ResumePoint { key, within }));
                }
                visited += 1;
                let info_hash = placement.info_hash(&key);
                let content = leaf.content(slot);
                if let SlotContent::One(one) = content {
                    visited += 1;
                    let time = clock.time(leaf.base().tick(one.stamp())).min(latest);
                    records.push_one(&info_hash, one.downloaded(), one.role(), one.endpoint(), time);
                } else if let SlotContent::Large(number) = content {
                    let large = self.large(number);
                    let (left, before) = ((limit - visited).max(1), visited);
                    let next = large.export(&context.hash, within, left, |counts, endpoints, ticks| {
                        visited += ticks.len();
                        let times = ticks.iter().map(|&tick| clock.time(tick).min(latest));
                        records.push_sections(&info_hash, large.downloaded, counts, endpoints, times);
                    });
                    if !next.is_end() {
                        return (visited, Some(ResumePoint { key, within: next }));
                    }
                    // Even if all of its peers have gone since the export began.
                    if visited == before && large.downloaded > 0 {
                        records.push(&info_hash, large.downloaded, &[]);
                    }
                } else {
                    let (counts, endpoints, stamps) = leaf.sections(slot);
                    let downloaded = leaf.downloaded(slot);
                    visited += stamps.len();
                    if !stamps.is_empty() || downloaded > 0 {
                        let times =
                            stamps.iter().map(|&stamp| clock.time(leaf.base().tick(stamp)).min(latest));
                        let counts = counts.map(u32::from);
                        records.push_sections(&info_hash, downloaded, counts, endpoints, times);
                    }
                }
                (slot, within) = (slot.next(), Cursor::START);
            }
        }
        (visited, None)
    }

    /// Appends up to `limit` peers of a swarm from `from` on. Returns where to go on.
    pub(in crate::packed) fn peers(
        &self,
        op: &Operation<'_>,
        from: Cursor,
        limit: usize,
        out: &mut Vec<PeerRecord>,
    ) -> Cursor {
        let Some(at) = self.find(op) else { return Cursor::END };
        let (hash, clock) = (&op.context.hash, op.context.clock);
        if let SlotContent::Large(number) = self.content(at) {
            return self.large(number).list(hash, clock, from, limit, out);
        }
        if from.is_end() || limit == 0 {
            return from;
        }
        // In the order of a large swarm: the swarm may become one.
        let leaf = &self.leaves[at.leaf];
        let (v4_start, v6_start) = starts(from, hash);
        let mut found: Vec<_> = leaf
            .peers(at.slot)
            .filter_map(|(section, endpoint, stamp)| {
                let peer = section.endpoint(endpoint);
                let order = hash.order_of(&peer);
                let behind = match &peer {
                    Endpoint::V4(v4) => v4_start.is_some_and(|start| start.is_before(order, v4.as_bytes())),
                    Endpoint::V6(v6) => v6_start.is_before(order, v6.as_bytes()),
                };
                behind.then_some((section, order, endpoint, stamp))
            })
            .collect();
        found.sort_unstable_by_key(|&(section, order, endpoint, _)| {
            (section.family() == Family::V6, order, endpoint)
        });
        let more = found.len() > limit;
        found.truncate(limit);
        out.extend(found.iter().map(|&(section, _, endpoint, stamp)| PeerRecord {
            endpoint: section.endpoint(endpoint),
            role: section.role(),
            last_announce: clock.time(leaf.base().tick(stamp)),
            details: None,
        }));
        match found.last() {
            Some(&(_, _, last, _)) if more => Cursor::after(last),
            _ => Cursor::END,
        }
    }
}
