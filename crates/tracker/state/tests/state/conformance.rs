//! The durability suite over repositories with a state folder.

use std::{
    error::Error,
    fs, io,
    ops::Range,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use swarmkeep::{RepositoryConfig, Timestamp, TorrentRepository, catalog};
use swarmkeep_state::{Directory, Pace, State};

use crate::durability::{Persistent, PersistentSubject};

/// By its name.
struct CatalogStore(&'static str);

durability_suite!(packed, CatalogStore("packed"));
durability_suite!(btreemap, CatalogStore("btreemap-rwlock-parking-lot-mutex-std"));

struct OpenState {
    state: State,
    store: Arc<dyn TorrentRepository>,
    clock: Arc<AtomicU64>,
}

impl PersistentSubject for CatalogStore {
    fn open(
        &self,
        folder: &Path,
        config: &RepositoryConfig,
        now: Timestamp,
    ) -> Result<Box<dyn Persistent>, Box<dyn Error>> {
        // Few shards, since there are few swarms.
        let store = catalog::find(self.0).expect("in the catalog").build(&config.clone().shards(16))?;
        let mut pace = Pace::default();
        pace.every = Duration::from_millis(20);
        let state = State::new(store, pace);
        let clock = Arc::new(AtomicU64::new(now.as_secs()));
        let told = Arc::clone(&clock);
        let folder = Arc::new(Directory::open(folder)?);
        state.open(folder, None, Arc::new(move || Timestamp::from_secs(told.load(Relaxed))))?;
        let store = state.repository().as_sync().cloned().expect("it is synchronous");
        Ok(Box::new(OpenState { state, store, clock }))
    }

    fn latest_snapshot(&self, folder: &Path) -> Option<PathBuf> {
        Some(folder.join("swarms.snapshot")).filter(|file| file.exists())
    }

    fn leave_unfinished_snapshot(&self, folder: &Path, bytes: &[u8]) -> io::Result<()> {
        fs::write(folder.join("swarms.snapshot.partial"), bytes)
    }

    fn blocks(&self, snapshot: &[u8]) -> Vec<Range<usize>> {
        let (mut blocks, mut at) = (Vec::new(), 64);
        blocks.push(0..at);
        while snapshot.get(at..at + 4) == Some(b"blok") {
            let bytes = snapshot[at + 8..].first_chunk().expect("a header is longer");
            let end = at + 40 + u64::from_le_bytes(*bytes) as usize;
            blocks.push(at..end);
            at = end;
        }
        blocks.push(at..snapshot.len());
        blocks
    }
}

impl Persistent for OpenState {
    fn store(&self) -> &dyn TorrentRepository {
        &*self.store
    }

    fn snapshot(&self, now: Timestamp) -> Result<(), Box<dyn Error>> {
        self.clock.fetch_max(now.as_secs(), Relaxed);
        Ok(self.state.snapshot().map(drop)?)
    }

    fn settle(&self) {
        self.state.settle().expect("the disk is well");
    }

    fn stop(self: Box<Self>, now: Timestamp) {
        self.clock.fetch_max(now.as_secs(), Relaxed);
        self.state.close().expect("the disk is well");
    }

    fn kill(self: Box<Self>) {
        self.state.abandon();
    }
}
