//! A wrapper is a repository too: this one counts what its announces changed and hands everything on.
//!
//! Run with `cargo run -p swarmkeep --example counting`.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use swarmkeep::{
    Announce, AnnounceEvent, Announced, Budget, Capabilities, Changes, Cursor, HashKey, InfoHash, MemoryUse,
    Packed, PeerBuffer, PeerRecord, Random, Removed, RepositoryConfig, Request, Restored, Retention,
    SplitMix64, SwarmStats, SwarmSummary, Swept, Timestamp, TorrentRepository, Totals,
};

/// Counts joins and finished downloads of the store inside.
#[derive(Debug)]
struct Counting<R> {
    inner: R,
    joined: AtomicU64,
    completed: AtomicU64,
}

impl<R> Counting<R> {
    fn new(inner: R) -> Self {
        Self { inner, joined: AtomicU64::new(0), completed: AtomicU64::new(0) }
    }

    fn count(&self, answer: &Announced) {
        self.joined.fetch_add(answer.changes.contains(Changes::JOINED).into(), Relaxed);
        self.completed.fetch_add(answer.changes.contains(Changes::COMPLETED).into(), Relaxed);
    }
}

impl<R: TorrentRepository> TorrentRepository for Counting<R> {
    fn announce(
        &self,
        announce: &Announce,
        now: Timestamp,
        rng: &mut dyn Random,
        peers: &mut PeerBuffer<'_>,
    ) -> Announced {
        let answer = self.inner.announce(announce, now, rng, peers);
        self.count(&answer);
        answer
    }

    // Handed on as a batch: a default that loops would undo what the store inside gains from one.
    fn announce_batch(&self, batch: &mut [Request<'_>], now: Timestamp, rng: &mut dyn Random) {
        self.inner.announce_batch(batch, now, rng);
        batch.iter().filter_map(|request| request.answer.as_ref()).for_each(|answer| self.count(answer));
    }

    fn scrape(&self, info_hash: &InfoHash) -> SwarmStats {
        self.inner.scrape(info_hash)
    }
    fn totals(&self) -> Totals {
        self.inner.totals()
    }
    fn walk(&self, from: Cursor, limit: usize, out: &mut Vec<SwarmSummary>) -> Cursor {
        self.inner.walk(from, limit, out)
    }
    fn page(&self, after: Option<&InfoHash>, limit: usize, out: &mut Vec<SwarmSummary>) {
        self.inner.page(after, limit, out);
    }
    fn peers(&self, info_hash: &InfoHash, from: Cursor, limit: usize, out: &mut Vec<PeerRecord>) -> Cursor {
        self.inner.peers(info_hash, from, limit, out)
    }
    fn sweep(&self, now: Timestamp, policy: Retention, budget: Budget) -> Swept {
        self.inner.sweep(now, policy, budget)
    }
    fn remove(&self, info_hash: &InfoHash) -> Option<SwarmStats> {
        self.inner.remove(info_hash)
    }
    fn remove_where(
        &self,
        forbidden: &(dyn Fn(&InfoHash) -> bool + Sync),
        from: Cursor,
        budget: Budget,
    ) -> Removed {
        self.inner.remove_where(forbidden, from, budget)
    }
    fn restore(&self, swarm: &SwarmSummary, peers: &[PeerRecord], now: Timestamp) -> Restored {
        self.inner.restore(swarm, peers, now)
    }
    fn add_downloads(&self, info_hash: &InfoHash, earlier: u32) -> bool {
        self.inner.add_downloads(info_hash, earlier)
    }
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }
    fn memory(&self) -> MemoryUse {
        self.inner.memory()
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let store = Counting::new(Packed::new(&RepositoryConfig::new(HashKey::from_os()?))?);
    let (now, mut rng) = (Timestamp::from_secs(1_800_000_000), SplitMix64::new(1));
    for (event, left) in
        [(AnnounceEvent::Started, 100), (AnnounceEvent::Completed, 0), (AnnounceEvent::None, 0)]
    {
        let announce =
            Announce::new(InfoHash::new([7; 20]), "192.0.2.1:6881".parse()?).event(event).left(left);
        store.announce(&announce, now, &mut rng, &mut PeerBuffer::new(&mut [], &mut []));
    }
    let (joined, completed) = (store.joined.load(Relaxed), store.completed.load(Relaxed));
    println!("{joined} peer joined, {completed} download finished");
    assert_eq!((joined, completed), (1, 1));
    Ok(())
}
