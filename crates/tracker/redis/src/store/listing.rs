//! Listings: of swarms, in the order of the store or of their info hashes, and of the peers of one swarm.

use std::collections::BinaryHeap;

use redis::Value;
use swarmkeep::{
    CompactV4, Cursor, Family, InfoHash, PeerRecord, Role, SwarmSummary, Unavailable,
    implement::CursorExt as _,
};

mod module;

use super::{ABREAST, RedisRepository};
use crate::{
    calls::Calls,
    library::Operation,
    place::{Engine, Order},
    reply::{Page, Reader, bulk, stats},
};

impl RedisRepository {
    /// The position at which a listing of swarms continues: a shard, a place in its order, and the last swarm
    /// that was returned there.
    fn position(&self, from: Cursor) -> Option<Position> {
        let after = from.info_hash();
        let (shard, order) = match (after, from.bytes()) {
            (Some(last), _) => {
                let (shard, hash) = self.shared.calls().layout.place(&last);
                (shard, Order::of(hash))
            }
            (None, Some(bytes)) => {
                let mut words = Reader(bytes);
                (words.u32().ok()?, Order(words.u32().ok()?))
            }
            (None, None) => (0, Order(0)),
        };
        Some(Position { shard, order, after })
    }

    pub(super) async fn walk_on(
        &self,
        from: Cursor,
        limit: usize,
        out: &mut Vec<SwarmSummary>,
    ) -> Result<Cursor, Unavailable> {
        if from.is_end() || limit == 0 {
            return Ok(from);
        }
        if self.shared.calls().layout.engine == Engine::Module {
            return self.walk_on_modules(from, limit, out).await;
        }
        let Some(mut at) = self.position(from) else { return Ok(Cursor::END) };
        let (mut left, mut abreast) = (limit, 1);
        loop {
            let layout = &self.shared.calls().layout;
            // The number of shards per step doubles while they are empty.
            let shards: Vec<_> = (at.shard..layout.shards.min(at.shard + abreast)).collect();
            if shards.is_empty() {
                return Ok(Cursor::END);
            }
            let walk = |calls: &Calls, index: usize| {
                let order = if index == 0 { at.order } else { Order(0) };
                calls.swarms_at(Operation::Walk, shards[index], order)
            };
            let answers = self.shared.ask_in_parts(shards.len(), walk).await?;
            let layout = &self.shared.calls().layout;
            abreast = (abreast * 2).min(ABREAST);
            for (shard, answer) in shards.into_iter().zip(answers) {
                if shard != at.shard {
                    at = Position { shard, order: Order(0), after: None };
                }
                let answer = bulk(answer)?;
                let mut answer = Reader(&answer);
                let behind = at.order.behind_page(answer.u32()?);
                let mut found = Vec::new();
                while !answer.is_empty() {
                    let info_hash = InfoHash::new(answer.array()?);
                    let order = Order::of(layout.place(&info_hash).1);
                    let stats = answer.stats()?;
                    if (order, Some(info_hash)) > (at.order, at.after) {
                        found.push((order, SwarmSummary { info_hash, stats }));
                    }
                }
                if !found.is_empty() {
                    abreast = 1;
                }
                found.sort_unstable_by_key(|(order, swarm)| (*order, swarm.info_hash));
                let fits = found.len().min(left);
                out.extend(found[..fits].iter().map(|(_, swarm)| *swarm));
                left -= fits;
                if fits < found.len() {
                    return Ok(Cursor::after(found[fits - 1].1.info_hash.as_bytes()));
                }
                at = match behind {
                    Some(order) => Position { shard, order, after: None },
                    None => Position { shard: shard + 1, order: Order(0), after: None },
                };
                if left == 0 {
                    return Ok(at.cursor(layout.shards));
                }
                if behind.is_some() {
                    // The next page of this shard comes before the other shards.
                    break;
                }
            }
            // One call reads one page; a step of a listing ends after about 4,096 swarms.
            if limit - left >= limit.min(4096) {
                return Ok(at.cursor(layout.shards));
            }
        }
    }

    /// The `limit` smallest info hashes after `after`, in ascending order.
    async fn smallest(&self, after: Option<&InfoHash>, limit: usize) -> Result<Vec<InfoHash>, Unavailable> {
        let mut smallest = BinaryHeap::new();
        let mut asked: Vec<_> =
            (0..self.shared.calls().layout.shards).map(|shard| (shard, Order(0))).collect();
        while !asked.is_empty() {
            let names =
                |calls: &Calls, at: usize| calls.swarms_at(Operation::Names, asked[at].0, asked[at].1);
            let answers = self.shared.ask_in_parts(asked.len(), names).await?;
            let layout = &self.shared.calls().layout;
            let mut more = Vec::new();
            for ((shard, order), answer) in asked.into_iter().zip(answers) {
                let answer = bulk(answer)?;
                let mut answer = Reader(&answer);
                more.extend(order.behind_page(answer.u32()?).map(|order| (shard, order)));
                while !answer.is_empty() {
                    let info_hash = InfoHash::new(answer.array()?);
                    // Skips the info hashes of earlier pages, which may have merged into this one.
                    let is_new = Order::of(layout.place(&info_hash).1) >= order;
                    if is_new && after.is_none_or(|after| info_hash > *after) {
                        smallest.push(info_hash);
                        if smallest.len() > limit {
                            smallest.pop();
                        }
                    }
                }
            }
            asked = more;
        }
        Ok(smallest.into_sorted_vec())
    }

    pub(super) async fn page_on(
        &self,
        after: Option<&InfoHash>,
        limit: usize,
        out: &mut Vec<SwarmSummary>,
    ) -> Result<(), Unavailable> {
        if self.shared.calls().layout.engine == Engine::Module {
            return self.page_on_modules(after, limit, out).await;
        }
        let (mut after, mut left) = (after.copied(), limit);
        while left > 0 {
            let names = self.smallest(after.as_ref(), left).await?;
            let asked = names.len();
            let answers = self.shared.ask_in_parts(asked, |calls, index| calls.scrape(&names[index])).await?;
            for (info_hash, answer) in names.into_iter().zip(answers) {
                after = Some(info_hash);
                // The swarm may have been removed in between.
                if let Some(stats) = stats(answer)? {
                    out.push(SwarmSummary { info_hash, stats });
                    left -= 1;
                }
            }
            if asked == 0 {
                break;
            }
        }
        Ok(())
    }

    pub(super) async fn peers_on(
        &self,
        info_hash: &InfoHash,
        from: Cursor,
        limit: usize,
        out: &mut Vec<PeerRecord>,
    ) -> Result<Cursor, Unavailable> {
        if from.is_end() || limit == 0 {
            return Ok(from);
        }
        if self.shared.calls().layout.engine == Engine::Module {
            return self.peers_on_modules(info_hash, from, limit, out).await;
        }
        let order_of = |compact: &[u8]| Order::of(self.shared.calls().layout.hash_of_peer(compact));
        let family_of = |v6: bool| if v6 { Family::V6 } else { Family::V4 };
        let (mut family, mut order, mut after) = match from.bytes() {
            None => (Family::V4, Order(0), Vec::new()),
            Some([v6, order @ ..]) if order.len() == 4 => {
                (family_of(*v6 == 1), Order(Reader(order).u32()?), Vec::new())
            }
            Some(compact) => (family_of(compact.len() > CompactV4::LEN), order_of(compact), compact.to_vec()),
        };
        let mut left = limit;
        loop {
            let answer = self.shared.ask(|calls| calls.list(info_hash, family, order)).await?;
            if answer == Value::Nil {
                return Ok(Cursor::END);
            }
            let answer = bulk(answer)?;
            let mut answer = Reader(&answer);
            let kinds = [
                Page::read(&mut answer, family, Role::Seeder)?,
                Page::read(&mut answer, family, Role::Leecher)?,
            ];
            // The end of the part that both pages cover: `None` is the end of the table.
            let behind = kinds.iter().filter_map(|page| order.behind_page(page.pages)).min();
            let mut found = Vec::new();
            for record in kinds.into_iter().flat_map(|page| page.peers) {
                let at = order_of(record.endpoint.as_bytes());
                let seen = (at, record.endpoint.as_bytes()) <= (order, after.as_slice()) && !after.is_empty();
                if at >= order && !seen && behind.is_none_or(|behind| at < behind) {
                    found.push((at, record));
                }
            }
            found.sort_unstable_by_key(|(at, record)| (*at, record.endpoint));
            let fits = found.len().min(left);
            out.extend(found[..fits].iter().map(|(_, record)| *record));
            left -= fits;
            if fits < found.len() {
                return Ok(Cursor::after(found[fits - 1].1.endpoint.as_bytes()));
            }
            (family, order) = match (behind, family) {
                (Some(behind), family) => (family, behind),
                (None, Family::V4) => (Family::V6, Order(0)),
                (None, Family::V6) => return Ok(Cursor::END),
            };
            after.clear();
            if left == 0 {
                let mut cursor = vec![u8::from(family == Family::V6)];
                cursor.extend(order.0.to_le_bytes());
                return Ok(Cursor::after(&cursor));
            }
        }
    }
}

/// Where a listing of swarms stands.
#[derive(Debug, Clone, Copy)]
struct Position {
    shard: u32,
    order: Order,
    /// The last swarm that was returned, at that place of the order.
    after: Option<InfoHash>,
}

impl Position {
    fn cursor(&self, shards: u32) -> Cursor {
        if self.shard >= shards {
            return Cursor::END;
        }
        let mut bytes = [0; 8];
        bytes[..4].copy_from_slice(&self.shard.to_le_bytes());
        bytes[4..].copy_from_slice(&self.order.0.to_le_bytes());
        Cursor::after(&bytes)
    }
}
