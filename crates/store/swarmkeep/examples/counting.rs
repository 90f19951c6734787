//! A wrapper is a repository too. This one counts the changes of its announces and forwards every call.
//!
//! Run with `cargo run -p swarmkeep --example counting`.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use swarmkeep::{
    Announce, AnnounceEvent, Announced, Changes, HashKey, InfoHash, Packed, PeerBuffer, Random,
    RepositoryConfig, Request, SplitMix64, Timestamp, TorrentRepository, implement::forward_repository,
};

/// Counts joins and finished downloads of the inner store.
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

    // Forwarded as a batch: the default loops, which would lose the speed of the inner store with batches.
    fn announce_batch(&self, batch: &mut [Request<'_>], now: Timestamp, rng: &mut dyn Random) {
        self.inner.announce_batch(batch, now, rng);
        batch.iter().filter_map(|request| request.answer.as_ref()).for_each(|answer| self.count(answer));
    }

    forward_repository! { |counting| counting.inner, except announce, announce_batch }
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
