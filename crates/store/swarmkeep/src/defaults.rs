//! The default implementations of methods in terms of other methods, for both traits.

use crate::{
    AsyncTorrentRepository, Budget, Cursor, InfoHash, Random, Removed, Request, SwarmSummary, Timestamp,
    Unavailable,
};

/// The number of swarms that a page in info-hash order reads at once.
const SWARMS_PER_LOOK: usize = 8192;

/// [`announce_batch`](crate::TorrentRepository::announce_batch) by `announce`.
pub(crate) async fn announce_one_by_one(
    store: &(impl AsyncTorrentRepository + ?Sized),
    batch: &mut [Request<'_>],
    now: Timestamp,
    rng: &mut dyn Random,
) -> Result<(), Unavailable> {
    batch.iter_mut().for_each(Request::clear);
    for Request { announce, peers, answer } in batch {
        *answer = Some(store.announce(announce, now, rng, peers).await?);
    }
    Ok(())
}

/// [`page`](crate::TorrentRepository::page) by `walk` over the whole store.
pub(crate) async fn page_by_walking(
    store: &(impl AsyncTorrentRepository + ?Sized),
    after: Option<&InfoHash>,
    limit: usize,
    out: &mut Vec<SwarmSummary>,
) -> Result<(), Unavailable> {
    let (start, mut cursor, mut shown) = (out.len(), Cursor::START, Vec::new());
    while !cursor.is_end() && limit > 0 {
        cursor = store.walk(cursor, SWARMS_PER_LOOK, &mut shown).await?;
        out.extend(shown.drain(..).filter(|swarm| after.is_none_or(|after| swarm.info_hash > *after)));
        let found = out.len() - start;
        if found > limit && (found - limit > limit.max(SWARMS_PER_LOOK) || cursor.is_end()) {
            out[start..].select_nth_unstable_by_key(limit, |swarm| swarm.info_hash);
            out.truncate(start + limit);
        }
    }
    out[start..].sort_unstable_by_key(|swarm| swarm.info_hash);
    Ok(())
}

/// [`remove_where`](crate::TorrentRepository::remove_where) by `walk` and `remove`.
pub(crate) async fn remove_by_walking(
    store: &(impl AsyncTorrentRepository + ?Sized),
    forbidden: &(dyn Fn(&InfoHash) -> bool + Sync),
    from: Cursor,
    budget: Budget,
) -> Result<Removed, Unavailable> {
    let (mut shown, mut removed) = (Vec::new(), Vec::new());
    let next = store.walk(from, budget.get(), &mut shown).await?;
    shown.retain(|swarm| forbidden(&swarm.info_hash));
    for SwarmSummary { info_hash, .. } in shown {
        if let Some(stats) = store.remove(&info_hash).await? {
            removed.push(SwarmSummary { info_hash, stats });
        }
    }
    Ok(Removed::new(removed, next))
}
