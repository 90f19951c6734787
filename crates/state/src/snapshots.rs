//! Snapshots in files of a folder: the latest, and the one before.

use std::{
    io::{self, BufWriter, Read, Seek, SeekFrom, Write},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use swarmkeep::{
    AsyncTorrentRepository, Budget, Export, Records, Restored, Timestamp, TorrentRepository, Unavailable,
    catalog::Repository,
    snapshot::{self, Reader, Summary, Writer},
};
use tokio::runtime::Handle;

use crate::{Error, File, Folder, Result};

/// A store that is read out into snapshots, and filled from them.
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
            Repository::Sync(store) => Self::Sync(Arc::clone(store)),
            Repository::Async(store) => Self::Async(Arc::clone(store), Handle::current()),
        }
    }

    fn export(&self, export: &mut Export, now: Timestamp) -> Result<(), Unavailable> {
        match self {
            Self::Sync(store) => store.export(export, now, STEP),
            Self::Async(store, runtime) => runtime.block_on(store.export(export, now, STEP))?,
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

/// What was loaded.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Loaded {
    /// The file, and what is in it; `None` if there was none that is good.
    pub snapshot: Option<(String, Summary)>,
    /// What has become of its peers.
    pub restored: Restored,
    /// Files that were refused, and why. They are kept under another name.
    pub refused: Vec<(String, snapshot::Error)>,
    /// How long it took.
    pub took: Duration,
}

/// Visits of one step: half a millisecond of the packed store.
const STEP: Budget = Budget::peers(16_384);
/// Blocks that a store takes in together: half a million swarms of one peer.
const TOGETHER: usize = 32;
/// More threads would wait for who reads.
const MOST_LOADERS: usize = 4;

/// The latest snapshot of a folder.
pub(crate) const LATEST: &str = "swarms.snapshot";
const PREVIOUS: &str = "swarms.snapshot.previous";
const PARTIAL: &str = "swarms.snapshot.partial";
/// What is appended to the name of one that was refused.
const REFUSED: &str = ".refused";

/// Writes a snapshot beside the latest, and has it take that one's place once it is durable. Takes its time, unless that is hurried.
pub(crate) fn write(
    folder: &dyn Folder,
    store: &Store,
    clock: &dyn Fn() -> Timestamp,
    is_hurried: &AtomicBool,
) -> Result<Summary> {
    let written = write_partial(folder, store, clock, is_hurried);
    let refused = |doing, name| Error::io(doing, folder.path(name));
    let summary = match written {
        Ok(summary) => summary,
        Err(error) => {
            // The room is wanted, most likely. What cannot be removed is written over the next time.
            let _ = folder.remove(PARTIAL);
            return Err(error);
        }
    };
    match folder.rename(LATEST, PREVIOUS) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(refused("renaming", LATEST)(error));
        }
        _ => {}
    }
    folder.rename(PARTIAL, LATEST).map_err(refused("renaming", PARTIAL))?;
    folder.sync().map_err(refused("syncing", LATEST))?;
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
    getrandom::fill(&mut id).map_err(Error::NoEntropy)?;
    let file = folder.create(PARTIAL).map_err(refused("creating"))?;
    let out = BufWriter::with_capacity(1 << 20, Sequential { file: &*file, at: 0 });
    let mut writer = Writer::new(out, id, clock()).map_err(refused("writing"))?;
    let mut export = Export::new();
    while !export.is_complete() {
        let began = Instant::now();
        store.export(&mut export, clock())?;
        writer.write(export.records()).map_err(refused("writing"))?;
        if !is_hurried.load(Relaxed) {
            // A quarter of a core, while others announce.
            thread::sleep(3 * began.elapsed());
        }
    }
    let (mut out, summary) = writer.finish().map_err(refused("writing"))?;
    out.flush().map_err(refused("writing"))?;
    drop(out);
    file.sync().map_err(refused("syncing"))?;
    Ok(summary)
}

/// Fills a store from the latest snapshot that is good. One that is not is given another name, so that none takes the place of a good one
/// because of it.
///
/// # Errors
/// If the medium or the store refuses half-way. The store holds a part then.
pub(crate) fn load(folder: &dyn Folder, store: &Store, now: Timestamp) -> Result<Loaded> {
    let (began, mut loaded) = (Instant::now(), Loaded::default());
    for name in [LATEST, PREVIOUS] {
        let file = match folder.open(name) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(Error::io("opening", folder.path(name))(error)),
        };
        match Reader::new(Sequential { file: &*file, at: 0 }) {
            Ok(mut reader) => {
                loaded.restored = fill(&mut reader, store, now).map_err(|error| match error {
                    Unfilled::Snapshot(error) => {
                        Error::Snapshot { path: folder.path(name), error: Box::new(error) }
                    }
                    Unfilled::Store(unavailable) => unavailable.into(),
                })?;
                loaded.snapshot = Some((name.into(), reader.summary()));
                break;
            }
            Err(error) => {
                // What cannot be read now can be read the next time, perhaps.
                if !matches!(error, snapshot::Error::Io { .. }) {
                    // In a folder that cannot be written to, it is refused again the next time.
                    let _ = folder.rename(name, &format!("{name}{REFUSED}")).and_then(|()| folder.sync());
                }
                loaded.refused.push((name.into(), error));
            }
        }
    }
    loaded.took = began.elapsed();
    Ok(loaded)
}

enum Unfilled {
    Snapshot(snapshot::Error),
    Store(Unavailable),
}

/// Reads on while threads take in what was read.
fn fill<R: Read + Seek + Send>(
    reader: &mut Reader<R>,
    store: &Store,
    now: Timestamp,
) -> Result<Restored, Unfilled> {
    let loaders = match store {
        Store::Sync(_) => thread::available_parallelism().map_or(1, |cores| cores.get().min(MOST_LOADERS)),
        Store::Async(..) => 1,
    };
    let (full, filled) = mpsc::sync_channel::<Vec<Records>>(1);
    let (used, spare) = mpsc::channel();
    let filled = Mutex::new(filled);
    let load = |used: mpsc::Sender<Vec<Records>>| {
        let mut restored = Ok(Restored::default());
        loop {
            let next = filled.lock().unwrap_or_else(PoisonError::into_inner).recv();
            let Ok(records) = next else { return restored };
            // After an error the rest is taken away all the same, for who reads waits for that.
            if let Ok(sum) = &mut restored {
                match store.import(&records, now) {
                    Ok(more) => *sum += more,
                    Err(unavailable) => restored = Err(unavailable),
                }
            }
            // Nobody reads any more, perhaps.
            let _ = used.send(records);
        }
    };
    let load = &load;
    thread::scope(|scope| {
        let loaders: Vec<_> = (0..loaders)
            .map(|_| {
                let used = used.clone();
                scope.spawn(move || load(used))
            })
            .collect();
        let read = read_all(reader, now, full, &spare);
        let mut restored = Restored::default();
        for loader in loaders {
            restored += loader.join().expect("a store does not panic").map_err(Unfilled::Store)?;
        }
        read.map_err(Unfilled::Snapshot).map(|()| restored)
    })
}

fn read_all<R: Read + Seek>(
    reader: &mut Reader<R>,
    now: Timestamp,
    full: mpsc::SyncSender<Vec<Records>>,
    spare: &mpsc::Receiver<Vec<Records>>,
) -> Result<(), snapshot::Error> {
    let mut more = true;
    while more {
        let mut group = spare.try_recv().unwrap_or_default();
        let mut read = 0;
        while more && read < TOGETHER {
            if read == group.len() {
                group.push(Records::new(now));
            }
            more = reader.next(&mut group[read], now)?;
            read += usize::from(more);
        }
        group.truncate(read);
        // Loaders end when this does.
        let _ = full.send(group);
    }
    Ok(())
}

/// A file from its beginning to its end.
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
