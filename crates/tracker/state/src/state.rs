//! A repository, and the folder in which its state survives a restart.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};
use swarmkeep::{Immediate, Timestamp, catalog::Repository, snapshot::Summary};
use tracing::{debug, error, info};

use crate::{
    CountsStatus, Downloads, Durable, Error, Folder, Loaded, Pace, Result,
    snapshots::{self, Store},
};

/// A clock: the time of day that the store uses.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// The state of a repository that survives its process: snapshots of its swarms, and [durable download
/// counts](Durable). The README has an example.
///
/// An asynchronous repository has snapshots only, and keeps its counts itself.
pub struct State {
    inner: Repository,
    durable: Option<Arc<Durable>>,
    open: Mutex<Option<OpenFolder>>,
    status: Arc<Mutex<SnapshotsStatus>>,
}

struct OpenFolder {
    taker: Arc<SnapshotTaker>,
    thread: Option<JoinHandle<()>>,
}

/// Takes snapshots, one at a time.
struct SnapshotTaker {
    store: Store,
    folder: Arc<dyn Folder>,
    clock: Clock,
    is_hurried: AtomicBool,
    /// Locked while a snapshot is taken. The name under which the latest snapshot is kept when the next one
    /// replaces it.
    one_at_a_time: Mutex<Option<String>>,
    is_ending: Mutex<bool>,
    ended: Condvar,
    status: Arc<Mutex<SnapshotsStatus>>,
}

/// The status of a [`State`].
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct StateStatus {
    /// The download counts; `None` for an asynchronous repository.
    pub counts: Option<CountsStatus>,
    /// The snapshots.
    pub snapshots: SnapshotsStatus,
}

/// The status of snapshots.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct SnapshotsStatus {
    /// The number of snapshots that were taken.
    pub taken: u64,
    /// The number of snapshots that failed.
    pub failed: u64,
    /// The number of failures since a snapshot was last taken.
    pub failed_in_a_row: u64,
    /// The reason for the latest of these failures, without paths.
    pub failure: Option<String>,
    /// The time between two snapshots, if they are taken regularly.
    pub every: Option<Duration>,
    /// A summary of the latest snapshot, and the time that it took. At first it is the loaded one.
    pub latest: Option<(Summary, Duration)>,
}

impl State {
    /// Wraps a repository, without a folder. Downloads count from now on.
    pub fn new(repository: Repository, pace: Pace) -> Self {
        let durable = match &repository {
            Repository::Sync(Immediate(store)) => Some(Arc::new(Durable::new(Arc::clone(store), pace))),
            Repository::Async(_) => None,
        };
        Self { inner: repository, durable, open: Mutex::default(), status: Arc::default() }
    }

    /// The repository to use instead of the wrapped one: it also counts downloads.
    pub fn repository(&self) -> Repository {
        match &self.durable {
            Some(durable) => Repository::Sync(Immediate(Arc::clone(durable) as _)),
            None => self.inner.clone(),
        }
    }

    /// Loads the latest valid snapshot of a folder, gives its swarms their stored download counts, and then
    /// takes a snapshot every `every`.
    ///
    /// If the counts are damaged or cannot be read, the repository works without them, and
    /// [`status`](Self::status) says so.
    ///
    /// An invalid snapshot is refused as a whole; [`Loaded::refused`] contains the reason. Without a valid
    /// snapshot the repository begins empty, except for the counts.
    ///
    /// # Errors
    /// [`Error::Older`](crate::Error::Older), [`Error::Missing`](crate::Error::Missing), or the error of the
    /// medium. The repository must not be used then.
    ///
    /// # Panics
    /// If it is already open, or for an asynchronous repository outside a runtime.
    pub fn open(&self, folder: Arc<dyn Folder>, every: Option<Duration>, clock: Clock) -> Result<Loaded> {
        let mut open = self.open.lock();
        assert!(open.is_none(), "it is open");
        let durable = self.durable.as_ref();
        let downloads = durable.map(|_| Downloads::open_or_unread(Arc::clone(&folder))).transpose()?;
        let store = Store::new(&self.inner);
        let loaded = snapshots::load(&*folder, &store, clock())?;
        if let (Some(durable), Some(downloads)) = (durable, downloads) {
            durable.open(downloads);
            // The first answer has the stored counts. The keeper logs the error if they cannot be read.
            let _ = durable.settle();
        }
        let taker = Arc::new(SnapshotTaker {
            store,
            folder,
            clock,
            is_hurried: AtomicBool::new(false),
            one_at_a_time: Mutex::new(loaded.kept.clone()),
            is_ending: Mutex::default(),
            ended: Condvar::new(),
            status: Arc::clone(&self.status),
        });
        let thread = every.map(|every| {
            let taker = Arc::clone(&taker);
            let take = move || taker.take_every(every);
            thread::Builder::new().name("snapshots".into()).spawn(take).expect("there are threads")
        });
        {
            let mut status = self.status.lock();
            status.every = every;
            status.latest = loaded.snapshot.as_ref().map(|(_, summary)| (*summary, loaded.took));
        }
        *open = Some(OpenFolder { taker, thread });
        Ok(loaded)
    }

    /// Takes a snapshot as fast as possible. It is durable when this returns.
    ///
    /// # Errors
    /// The error of the medium or the store. The latest snapshot stays as it was.
    ///
    /// # Panics
    /// If it is not open.
    pub fn snapshot(&self) -> Result<Summary> {
        let taker = self.open.lock().as_ref().map(|open| Arc::clone(&open.taker));
        taker.expect("it is open").take(&AtomicBool::new(true))
    }

    /// As [`Durable::settle`].
    ///
    /// # Errors
    /// As [`Durable::settle`].
    pub fn settle(&self) -> Result<(), String> {
        self.durable.as_ref().map_or(Ok(()), |durable| durable.settle())
    }

    /// Takes a last snapshot, makes all counts durable, and closes the folder.
    ///
    /// # Errors
    /// The error of the medium. Both were tried.
    pub fn close(&self) -> Result<(), String> {
        let Some(OpenFolder { taker, thread }) = self.open.lock().take() else { return Ok(()) };
        taker.end(thread);
        let snapshot = taker.take(&AtomicBool::new(true)).map_err(|error| error.to_string());
        let counts = self.durable.as_ref().map_or(Ok(()), |durable| durable.close());
        match (snapshot, counts) {
            (Err(snapshot), Err(counts)) => Err(format!("{snapshot}; {counts}")),
            (snapshot, counts) => snapshot.map(|_| ()).and(counts),
        }
    }

    /// The status of snapshots and counts.
    pub fn status(&self) -> StateStatus {
        let counts = self.durable.as_ref().map(|durable| durable.status());
        StateStatus { counts, snapshots: self.status.lock().clone() }
    }
}

/// Closes the folder without a last snapshot. Counts become durable.
impl Drop for State {
    fn drop(&mut self) {
        if let Some(OpenFolder { taker, thread }) = self.open.lock().take() {
            taker.end(thread);
        }
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State")
            .field("repository", &self.inner)
            .field("status", &self.status())
            .finish_non_exhaustive()
    }
}

impl SnapshotTaker {
    fn take_every(&self, every: Duration) {
        let mut is_ending = self.is_ending.lock();
        loop {
            let next = Instant::now() + every;
            while !*is_ending && !self.ended.wait_until(&mut is_ending, next).timed_out() {}
            if *is_ending {
                return;
            }
            drop(is_ending);
            // `take` logs an error, and the next turn tries again.
            let _ = self.take(&self.is_hurried);
            is_ending = self.is_ending.lock();
        }
    }

    fn take(&self, is_hurried: &AtomicBool) -> Result<Summary> {
        let mut keep_as = self.one_at_a_time.lock();
        let began = Instant::now();
        let taken = snapshots::write(&*self.folder, &self.store, &*self.clock, is_hurried, &mut keep_as);
        let (took, mut status) = (began.elapsed(), self.status.lock());
        match &taken {
            Ok(summary) => {
                status.taken += 1;
                status.latest = Some((*summary, took));
                status.failure = None;
                if std::mem::take(&mut status.failed_in_a_row) > 0 {
                    info!("snapshots are being taken again");
                }
                let Summary { records, peers, bytes, .. } = summary;
                info!(parts = records, peers, bytes, ?took, "snapshot taken");
            }
            Err(failed) => {
                status.failed += 1;
                status.failed_in_a_row += 1;
                status.failure = Some(match failed {
                    Error::Io { source, .. } => swarmkeep::bittorrent::in_words(source),
                    failed => failed.to_string(),
                });
                if status.failed_in_a_row > 1 {
                    debug!(%failed, "again no snapshot");
                } else {
                    error!(%failed, "no snapshot could be taken; the tracker goes on, the latest one stays, and it is tried again");
                }
            }
        }
        taken
    }

    fn end(&self, thread: Option<JoinHandle<()>>) {
        self.is_hurried.store(true, Relaxed);
        *self.is_ending.lock() = true;
        self.ended.notify_all();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            error!("the thread that takes snapshots has panicked");
        }
    }
}
