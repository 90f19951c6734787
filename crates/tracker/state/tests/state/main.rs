//! The contents of a folder after crashes, damage and restarts.

mod calls;
mod counts;
mod downloads;
mod snapshots;

use std::{
    sync::{Arc, atomic},
    time::Duration,
};

use swarmkeep::{
    Announce, Announced, Endpoint, InfoHash, PeerBuffer, Retention, SplitMix64, TorrentRepository,
    TorrentRepositoryExt as _, catalog,
};
use swarmkeep_conformance::kit::{self, at, completed, config, hash, stopped};
use swarmkeep_kit::folder::Simulated;
use swarmkeep_state::{Downloads, Loaded, Pace, Result, State};

/// Two stores of the catalog, one with a coarse clock.
const STORES: [&str; 2] = ["packed", "btreemap-rwlock-parking-lot-mutex-std"];

/// A repository and its folder.
struct StateTest {
    state: State,
    store: Arc<dyn TorrentRepository>,
    loaded: Loaded,
    folder: Simulated,
    seconds: u64,
}

impl StateTest {
    fn open(folder: &Simulated) -> Self {
        Self::with(STORES[0], folder, 0).expect("it serves")
    }

    fn with(name: &str, folder: &Simulated, seconds: u64) -> Result<Self> {
        let repository = catalog::find(name).expect("in the catalog").build(&config().shards(16));
        let state = State::new(repository.expect("no limits"), pace());
        // It ticks, so that the records of a snapshot are relative to several times.
        let ticks = atomic::AtomicU64::new(seconds);
        let clock = Arc::new(move || at(ticks.fetch_add(1, atomic::Ordering::Relaxed)));
        let loaded = state.open(Arc::new(folder.clone()), None, clock)?;
        let store = state.repository().as_sync().cloned().expect("it is synchronous");
        Ok(Self { state, store, loaded, folder: folder.clone(), seconds })
    }

    fn tell(&self, announce: Announce) -> Announced {
        tell_at(&*self.store, self.seconds, announce)
    }
}

fn pace() -> Pace {
    let mut pace = Pace::default();
    pace.every = Duration::from_millis(5);
    pace
}

/// Endpoint `n`, in a /24 of its own.
fn v4(n: u32) -> Endpoint {
    kit::v4(n << 8)
}

fn tell_at(store: &dyn TorrentRepository, seconds: u64, announce: Announce) -> Announced {
    let (mut rng, mut none) = (SplitMix64::new(1), PeerBuffer::new(&mut [], &mut []));
    store.announce(&announce.want(0), at(seconds), &mut rng, &mut none)
}

fn tell(store: &dyn TorrentRepository, announce: Announce) -> Announced {
    tell_at(store, 0, announce)
}

/// Peers of two prefixes finish.
fn twice(store: &dyn TorrentRepository, torrent: u64) {
    (1..=2).for_each(|peer| _ = tell(store, completed(hash(torrent), v4(peer))));
}

/// All peers leave a torrent, and its swarm goes.
fn leave(store: &dyn TorrentRepository, info_hash: &InfoHash) {
    for peer in store.all_peers(info_hash) {
        tell(store, stopped(*info_hash, peer.endpoint));
    }
    store.sweep_all(at(0), Retention::DropEmpty);
}

/// The count of a torrent in the folder, for the next process.
fn stored(folder: &Simulated, torrent: u64) -> u32 {
    Downloads::open(Arc::new(folder.after_kill())).unwrap().get(&hash(torrent)).unwrap()
}
