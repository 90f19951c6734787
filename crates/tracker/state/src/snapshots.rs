//! Snapshots in files of a folder: the latest and the one before it.

use std::{
    io::{self, BufWriter, Read, Seek, SeekFrom, Write},
    mem,
    path::PathBuf,
    slice,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc::{self, TrySendError},
    },
    thread,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use swarmkeep::{
    AsyncTorrentRepository, Budget, Export, Immediate, Records, Restored, Timestamp, TorrentRepository,
    Unavailable,
    catalog::Repository,
    snapshot::{self, Reader, Summary, Writer},
};
use tokio::runtime::Handle;

use crate::{Error, File, Folder, Result};

/// A store that is written to snapshots and loaded from them.
#[derive(Debug, Clone)]
pub(crate) enum Store {
    Sync(Arc<dyn TorrentRepository>),
    Async(Arc<dyn AsyncTorrentRepository>, Handle),
}

impl Store {
    /// # Panics
    /// For an asynchronous store outside a runtime.
    pub(crate) fn new(repository: &Repository) -> Self {
        match repository {
            Repository::Sync(Immediate(store)) => Self::Sync(Arc::clone(store)),
            Repository::Async(store) => Self::Async(Arc::clone(store), Handle::current()),
        }
    }

    fn export(&self, export: &mut Export, now: Timestamp, budget: Budget) -> Result<(), Unavailable> {
        match self {
            Self::Sync(store) => store.export(export, now, budget),
            Self::Async(store, runtime) => runtime.block_on(store.export(export, now, budget))?,
        }
        Ok(())
    }

    fn import(&self, records: &[Records], now: Timestamp) -> Result<Restored, Unavailable> {
        match self {
            Self::Sync(store) => Ok(store.import(records, now)),
            Self::Async(store, runtime) => runtime.block_on(store.import(records, now)),
        }
    }
}

/// The result of loading a snapshot.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Loaded {
    /// The name of the file and a summary of it. `None` if there was no valid snapshot.
    pub snapshot: Option<(String, Summary)>,
    /// How many of its peers were restored.
    pub restored: Restored,
    /// Files that were refused, with the reasons. They are kept under other names.
    pub refused: Vec<(String, snapshot::Error)>,
    /// The name under which the snapshot is kept when the next one replaces it, if more than half of its
    /// peers had expired: perhaps the clock is wrong.
    pub kept: Option<String>,
    /// The time that loading took.
    pub took: Duration,
}

/// The most visits of one step: half a millisecond for the packed store.
const STEP: Budget = Budget::peers(16_384);
/// The same in the middle of a swarm, and the pause after each such step. With a million announces per second
/// to one swarm, fewer than one in a thousand waits for a step, or for the core that the thread wakes on.
const STEP_WITHIN: Budget = Budget::peers(128);
const PAUSE_WITHIN: Duration = Duration::from_millis(2);
/// The bytes after which a snapshot in progress is synced, so that the sync at the end is short.
const SYNCED_AT_ONCE: usize = 16 << 20;
/// The bytes of one `import`: a million swarms of one peer. glibc maps allocations of this size separately,
/// and so returns them. It keeps smaller ones, because a store allocates its swarms behind them.
const TOGETHER: usize = 32 << 20;
/// More threads would wait for the one that reads.
const MOST_LOADERS: usize = 4;

/// The name of the latest snapshot.
pub(crate) const LATEST: &str = "swarms.snapshot";
const PREVIOUS: &str = "swarms.snapshot.previous";
const PARTIAL: &str = "swarms.snapshot.partial";
/// The names of refused snapshots.
const REFUSED: [&str; 2] = ["swarms.snapshot.refused", "swarms.snapshot.previous.refused"];

/// The name of a kept snapshot, before its number.
const KEPT: &str = "swarms.snapshot.kept-";
/// The most kept snapshots: the newest and the one before it, in case the clock is wrong twice.
const MOST_KEPT: usize = 2;

/// The numbers of the kept snapshots, ascending.
fn kept(folder: &dyn Folder) -> Result<Vec<u64>> {
    let names = folder.names().map_err(Error::io("listing", folder.path("")))?;
    let mut numbers: Vec<u64> =
        names.iter().filter_map(|name| name.strip_prefix(KEPT)?.parse().ok()).collect();
    numbers.sort_unstable();
    Ok(numbers)
}

/// Renames the latest snapshot, so that the next one can have its name: to the name of the previous one, or
/// to `keep_as`, which no later snapshot gets.
fn make_room(folder: &dyn Folder, keep_as: Option<&str>) -> Result<()> {
    match folder.rename(LATEST, keep_as.unwrap_or(PREVIOUS)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        renamed => renamed.map_err(Error::io("renaming", folder.path(LATEST))),
    }
}

/// Writes a snapshot to a new file, which replaces the latest once it is durable. Pauses between steps unless
/// `is_hurried`. If `keep_as` has a name, the former latest is kept under it, and `keep_as` becomes `None`.
pub(crate) fn write(
    folder: &dyn Folder,
    store: &Store,
    clock: &dyn Fn() -> Timestamp,
    is_hurried: &AtomicBool,
    keep_as: &mut Option<String>,
) -> Result<Summary> {
    let written = write_partial(folder, store, clock, is_hurried);
    let refused = |doing, name| Error::io(doing, folder.path(name));
    // The disk may be full. If the file cannot be removed, the next snapshot overwrites it.
    let summary = written.inspect_err(|_| _ = folder.remove(PARTIAL))?;
    make_room(folder, keep_as.as_deref())?;
    let has_kept = keep_as.take().is_some();
    folder.rename(PARTIAL, LATEST).map_err(refused("renaming", PARTIAL))?;
    folder.sync().map_err(refused("syncing", LATEST))?;
    if has_kept {
        for number in kept(folder)?.into_iter().rev().skip(MOST_KEPT) {
            // If this fails, it is tried again when the next snapshot is kept.
            let _ = folder.remove(&format!("{KEPT}{number}"));
        }
    }
    Ok(summary)
}

fn write_partial(
    folder: &dyn Folder,
    store: &Store,
    clock: &dyn Fn() -> Timestamp,
    is_hurried: &AtomicBool,
) -> Result<Summary> {
    let refused = |doing| Error::io(doing, folder.path(PARTIAL));
    let mut id = [0; 16];
    getrandom::fill(&mut id).map_err(io::Error::other).map_err(Error::NoEntropy)?;
    let file = folder.create(PARTIAL).map_err(refused("creating"))?;
    let file = &*file;
    // Most blocks are larger, and are written without a copy.
    let out = BufWriter::with_capacity(64 << 10, Sequential { file, at: 0 });
    let mut writer = Writer::new(out, id, clock()).map_err(refused("writing"))?;
    thread::scope(|scope| {
        let (read, to_write) = mpsc::sync_channel::<Records>(2);
        let (written, spare) = mpsc::channel();
        let (due, to_sync) = mpsc::sync_channel::<()>(1);
        // Export, writing and the disk take equally long, so each has a thread.
        let syncing = scope.spawn(move || to_sync.iter().try_for_each(|()| file.sync()));
        let writing = scope.spawn(move || {
            let mut unsynced = 0;
            for records in to_write {
                writer.write(&records).map_err(refused("writing"))?;
                unsynced += records.as_bytes().len();
                if unsynced >= SYNCED_AT_ONCE {
                    unsynced = 0;
                    writer.get_mut().flush().map_err(refused("writing"))?;
                    if due.try_send(()) == Err(TrySendError::Disconnected(())) {
                        // The syncing thread has an error.
                        break;
                    }
                }
                // The other thread may have ended.
                let _ = written.send(records);
            }
            let (mut out, summary) = writer.finish().map_err(refused("writing"))?;
            out.flush().map_err(refused("writing"))?;
            drop((out, due));
            let synced = syncing.join().expect("a disk that refuses is no reason to panic");
            synced.and_then(|()| file.sync()).map_err(refused("syncing"))?;
            Ok(summary)
        });
        let mut export = Export::new();
        while !export.is_complete() {
            let began = Instant::now();
            let is_hurried = is_hurried.load(Relaxed);
            let budget = if export.is_within_a_swarm() && !is_hurried { STEP_WITHIN } else { STEP };
            store.export(&mut export, clock(), budget)?;
            let took = began.elapsed();
            let spare = spare.try_recv().unwrap_or(Records::new(Timestamp::default()));
            if read.send(export.take(spare)).is_err() {
                // The writing thread returns the error.
                break;
            }
            if !is_hurried {
                // The pause limits this to a quarter of a core while the tracker serves.
                let least = if export.is_within_a_swarm() { PAUSE_WITHIN } else { Duration::ZERO };
                thread::sleep(least.max(3 * took));
            }
        }
        drop(read);
        writing.join().expect("a disk that refuses is no reason to panic")
    })
}

/// Fills a store from the latest valid snapshot. An invalid one is renamed, so that it never replaces the
/// valid one as the previous snapshot.
///
/// # Errors
/// If the medium or the store fails half-way. The store then contains a part.
pub(crate) fn load(folder: &dyn Folder, store: &Store, now: Timestamp) -> Result<Loaded> {
    let (began, mut loaded) = (Instant::now(), Loaded::default());
    for (name, refused) in [LATEST, PREVIOUS].into_iter().zip(REFUSED) {
        let file = match folder.open(name) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(Error::io("opening", folder.path(name))(error)),
        };
        match Reader::new(Sequential { file: &*file, at: 0 }) {
            Ok(mut reader) => {
                loaded.restored = fill(&mut reader, folder.path(name), store, now)?;
                loaded.snapshot = Some((name.into(), reader.summary()));
                let Restored { added, known, expired, refused, .. } = loaded.restored;
                if expired > added + known + refused {
                    let number = kept(folder)?.last().map_or(1, |last| last.saturating_add(1));
                    loaded.kept = Some(format!("{KEPT}{number}"));
                    if name == PREVIOUS {
                        // There is no latest one. This one gets its name, because the latest is the one that
                        // is kept.
                        let _ = folder.rename(PREVIOUS, LATEST);
                    }
                }
                break;
            }
            Err(error) => {
                // If the folder cannot be written to, the next start refuses the snapshot again.
                let _ = folder.rename(name, refused).and_then(|()| folder.sync());
                loaded.refused.push((name.into(), error));
            }
        }
    }
    loaded.took = began.elapsed();
    Ok(loaded)
}

/// Reads all snapshots of a folder completely, the latest first and the kept ones last. Returns a summary of
/// each, or the reason for its refusal.
///
/// # Errors
/// The error of the medium.
pub fn look_at_snapshots(folder: &dyn Folder) -> Result<Vec<(String, Result<Summary, snapshot::Error>)>> {
    let mut found = Vec::new();
    let kept = kept(folder)?.into_iter().map(|number| format!("{KEPT}{number}"));
    for name in [LATEST, PREVIOUS].into_iter().chain(REFUSED).map(String::from).chain(kept) {
        match folder.open(&name) {
            Ok(file) => {
                let reader = Reader::new(Sequential { file: &*file, at: 0 });
                found.push((name, reader.map(|reader| reader.summary())));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(Error::io("opening", folder.path(&name))(error)),
        }
    }
    Ok(found)
}

/// Imports all records. Each thread reads some in its turn, while the others import theirs.
fn fill<R: Read + Seek + Send>(
    reader: &mut Reader<R>,
    path: PathBuf,
    store: &Store,
    now: Timestamp,
) -> Result<Restored> {
    let threads = match store {
        Store::Sync(_) => {
            thread::available_parallelism().map_or(2, |cores| cores.get().min(MOST_LOADERS) + 1)
        }
        Store::Async(..) => 1,
    };
    let blocks = Mutex::new(Blocks { reader, block: Records::new(now), is_pending: false, is_over: false });
    let load = || -> Result<Restored> {
        let (mut records, mut restored) = (Records::with_capacity(TOGETHER), Restored::default());
        let failed = |error| Error::Snapshot { path: path.clone(), error: Box::new(error) };
        while blocks.lock().read(&mut records, now).map_err(failed)? {
            restored += store.import(slice::from_ref(&records), now)?;
        }
        Ok(restored)
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(load)).collect();
        threads.into_iter().try_fold(Restored::default(), |mut sum, thread| {
            sum += thread.join().expect("a store does not panic")?;
            Ok(sum)
        })
    })
}

struct Blocks<'a, R> {
    reader: &'a mut Reader<R>,
    block: Records,
    /// Whether the block is read, and not given yet.
    is_pending: bool,
    /// Whether a read has failed: the next one would have an error that only follows from it.
    is_over: bool,
}

impl<R: Read + Seek> Blocks<'_, R> {
    /// Reads blocks together, as long as their ages are relative to the same second. Returns false if there
    /// are no more, or a read has failed.
    fn read(&mut self, together: &mut Records, now: Timestamp) -> Result<bool, snapshot::Error> {
        if mem::replace(&mut self.is_over, true) {
            return Ok(false);
        }
        together.begin(now);
        let mut has_read = self.is_pending;
        while self.is_pending || self.reader.next(&mut self.block, now)? {
            (has_read, self.is_pending) = (true, true);
            let fits =
                together.is_empty() || together.as_bytes().len() + self.block.as_bytes().len() <= TOGETHER;
            if !(fits && together.append(&self.block)) {
                break;
            }
            self.is_pending = false;
        }
        self.is_over = false;
        Ok(has_read)
    }
}

/// A file that is read or written from its beginning to its end.
struct Sequential<'a> {
    file: &'a dyn File,
    at: u64,
}

impl Write for Sequential<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write_all_at(bytes, self.at)?;
        self.at += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for Sequential<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let left = self.file.len()?.saturating_sub(self.at);
        let len = bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        self.file.read_exact_at(&mut bytes[..len], self.at)?;
        self.at += len as u64;
        Ok(len)
    }
}

impl Seek for Sequential<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let to = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
            SeekFrom::End(by) => self.file.len()?.checked_add_signed(by),
        };
        self.at = to.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.at)
    }
}
