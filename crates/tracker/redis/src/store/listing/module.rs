//! Listings of a store that the module keeps: each shard lists itself.

use std::collections::BTreeMap;

use swarmkeep::{Cursor, InfoHash, PeerRecord, SwarmSummary, Unavailable, implement::CursorExt as _};

use super::{super::ABREAST, RedisRepository};
use crate::{
    calls::Calls,
    library::Operation,
    reply::{self, Garbled, Reader},
};

/// The most swarms or peers of one step.
const STEP: usize = 4096;

impl RedisRepository {
    /// A cursor is the last swarm that was returned, or the number of the next shard.
    pub(super) async fn walk_on_modules(
        &self,
        from: Cursor,
        limit: usize,
        out: &mut Vec<SwarmSummary>,
    ) -> Result<Cursor, Unavailable> {
        let calls = self.shared.calls();
        let shards = calls.layout.shards;
        let (mut shard, mut after) = match (from.info_hash(), from.bytes()) {
            (Some(last), _) => (calls.layout.place(&last).0, Some(last)),
            (None, Some(bytes)) => (Reader(bytes).u32()?, None),
            (None, None) => (0, None),
        };
        // The number of shards that are called at once doubles while they have no more than they return.
        let (mut left, mut abreast) = (limit.min(STEP), 1);
        while left > 0 && shard < shards {
            let asked = abreast.min(shards - shard);
            let each = (left / asked as usize).max(1) as u32;
            let walk = |calls: &Calls, nth: usize| {
                let after = after.as_ref().filter(|_| nth == 0);
                calls.swarms_after(Operation::Walk, shard + nth as u32, after, each)
            };
            let answers = self.shared.ask_in_parts(asked as usize, walk).await?;
            abreast = (abreast * 2).min(ABREAST);
            for answer in answers {
                let (more, found) = reply::swarms(answer)?;
                let fits = found.len().min(left);
                out.extend(&found[..fits]);
                left -= fits;
                if more || fits < found.len() {
                    after = found[..fits].last().map(|swarm| swarm.info_hash).or(after);
                    abreast = 1;
                    break;
                }
                (shard, after) = (shard + 1, None);
            }
        }
        Ok(match after {
            Some(last) => Cursor::after(last.as_bytes()),
            None if shard < shards => Cursor::after(&shard.to_le_bytes()),
            None => Cursor::END,
        })
    }

    pub(super) async fn page_on_modules(
        &self,
        after: Option<&InfoHash>,
        limit: usize,
        out: &mut Vec<SwarmSummary>,
    ) -> Result<(), Unavailable> {
        let shards = self.shared.calls().layout.shards;
        let mut asked: Vec<_> = (0..shards).map(|shard| (shard, after.copied())).collect();
        let mut smallest = BTreeMap::new();
        // Twice the average of a shard.
        let mut each = (limit / shards as usize).saturating_mul(2).saturating_add(8).min(STEP);
        while limit > 0 && !asked.is_empty() {
            let page = |calls: &Calls, nth: usize| {
                let (shard, after) = &asked[nth];
                calls.swarms_after(Operation::Names, *shard, after.as_ref(), each as u32)
            };
            let answers = self.shared.ask_in_parts(asked.len(), page).await?;
            let mut more_there = Vec::new();
            for ((shard, _), answer) in asked.into_iter().zip(answers) {
                let (more, found) = reply::swarms(answer)?;
                let last = found.last().map(|swarm| swarm.info_hash);
                smallest.extend(found.into_iter().map(|swarm| (swarm.info_hash, swarm.stats)));
                while smallest.len() > limit {
                    smallest.pop_last();
                }
                more_there.extend(last.filter(|_| more).map(|last| (shard, Some(last))));
            }
            let is_full = smallest.len() == limit;
            let largest = smallest.last_key_value().map(|(info_hash, _)| *info_hash);
            more_there.retain(|(_, last)| !is_full || *last < largest);
            asked = more_there;
            each = (each * 2).min(STEP);
        }
        out.extend(smallest.into_iter().map(|(info_hash, stats)| SwarmSummary { info_hash, stats }));
        Ok(())
    }

    pub(super) async fn peers_on_modules(
        &self,
        info_hash: &InfoHash,
        mut from: Cursor,
        limit: usize,
        out: &mut Vec<PeerRecord>,
    ) -> Result<Cursor, Unavailable> {
        let mut left = limit;
        while left > 0 && !from.is_end() {
            let most = left.min(STEP) as u32;
            let peers = |calls: &Calls| calls.peers_from(info_hash, from.bytes().unwrap_or_default(), most);
            let (next, found) = reply::peers(self.shared.ask(peers).await?)?;
            if found.is_empty() && !next.is_end() && next == from {
                return Err(Garbled.into());
            }
            left = left.saturating_sub(found.len());
            out.extend(found);
            from = next;
        }
        Ok(from)
    }
}
