//! Asynchronous sweeps give way to the other tasks of a thread.

use std::{
    future::Future,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll, Wake, Waker},
};

use swarmkeep::{
    Announce, Answer, AsyncTorrentRepository, Budget, Endpoint, HashKey, InfoHash, PeerBuffer, Random as _,
    RepositoryConfig, Request, Retention, SplitMix64, Swept, Timestamp,
    btree_map::BTreeMapRepository,
    catalog,
    implement::{lock::TokioMutex, map::Awaited},
};

const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);
const SWARMS: u64 = 20_000;

/// Counts how often it is called.
#[derive(Default)]
struct Wakes(AtomicU64);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Relaxed);
    }
}

/// Polls a future until it is ready. Returns its output, and the number of polls before that. A future that
/// is not ready must have called its waker.
fn finish<T>(answer: Answer<'_, T>) -> (T, u64) {
    let (mut answer, wakes) = (pin!(answer), Arc::new(Wakes::default()));
    let waker = Waker::from(wakes.clone());
    for turns in 0.. {
        match answer.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return (output.expect("it is in this process"), turns),
            Poll::Pending => assert_eq!(wakes.0.load(Relaxed), turns + 1, "it is never polled again"),
        }
    }
    unreachable!("it ends");
}

fn fill(store: &dyn AsyncTorrentRepository) {
    let (mut rng, endpoint) = (SplitMix64::new(1), "192.0.2.1:6881".parse::<Endpoint>().unwrap());
    for _ in 0..SWARMS / 1000 {
        let announces = (0..1000).map(|_| {
            let mut info_hash = [0; 20];
            info_hash[..8].copy_from_slice(&rng.next_u64().to_le_bytes());
            Announce::new(InfoHash::new(info_hash), endpoint)
        });
        let mut batch: Vec<_> =
            announces.map(|announce| Request::new(announce, PeerBuffer::new(&mut [], &mut []))).collect();
        finish(store.announce_batch(&mut batch, NOW, &mut SplitMix64::new(2)));
    }
}

#[test]
fn a_sweep_gives_way_every_few_thousand_visits_with_the_same_result() {
    let config = RepositoryConfig::new(HashKey::from_bytes([1; 16]));
    let packed = catalog::find("packed").expect("it is always there").build(&config).unwrap();
    let btree = Awaited(BTreeMapRepository::<TokioMutex>::new(&config).unwrap());
    let stores: [&dyn AsyncTorrentRepository; 2] = [&*packed, &btree];
    for store in stores {
        fill(store);
        let step = |now, budget| finish(store.sweep(now, Retention::DropEmpty, Budget::peers(budget)));
        let (Swept { pass_complete, .. }, turns) = step(NOW, 1000);
        assert_eq!((pass_complete, turns), (false, 0), "a short step needs one turn");
        let (mut rest, turns) = step(NOW, usize::MAX);
        assert!(rest.pass_complete && rest.visited > SWARMS, "{rest:?}");
        let visits = rest.visited / (turns + 1);
        assert!((1000..10_000).contains(&visits), "{visits} visits a turn in {store:?}");
        rest = step(NOW.saturating_add(10_000), usize::MAX).0;
        assert_eq!((rest.expired, rest.swarms_removed, rest.pass_complete), (SWARMS, SWARMS, true));
    }
}
