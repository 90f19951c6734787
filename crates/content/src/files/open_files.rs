//! The files that are open: few, whatever there are.

use std::{collections::HashMap, fs::File, io, mem, sync::Arc};

use parking_lot::Mutex;

/// Files that are kept open at most. Half of the 1,024 that a process may have open where nobody said otherwise (`RLIMIT_NOFILE`) are more than what
/// reads and writes at the same time; the rest is left to sockets.
pub(super) const MOST: usize = 256;

/// Open files by torrent and number; those that were not used for longest make place.
#[derive(Debug, Default)]
pub(super) struct OpenFiles(Mutex<Held>);

#[derive(Debug, Default)]
struct Held {
    files: HashMap<(u64, u32), Slot>,
    uses: u64,
}

#[derive(Debug)]
struct Slot {
    file: Arc<File>,
    writable: bool,
    used: u64,
}

impl OpenFiles {
    /// A file, which `open` opens if it is not open, or not for writing where that is wanted.
    pub(super) fn get(
        &self,
        torrent: u64,
        index: u32,
        writable: bool,
        open: impl FnOnce() -> io::Result<File>,
    ) -> io::Result<Arc<File>> {
        let key = (torrent, index);
        {
            let mut held = self.0.lock();
            held.uses += 1;
            let now = held.uses;
            if let Some(slot) = held.files.get_mut(&key).filter(|slot| slot.writable || !writable) {
                slot.used = now;
                return Ok(Arc::clone(&slot.file));
            }
        }
        let file = Arc::new(open()?);
        let mut held = self.0.lock();
        let used = held.uses;
        // Closed when nothing is locked any more: a file system may take its time.
        let mut closed = Vec::new();
        closed.extend(held.files.insert(key, Slot { file: Arc::clone(&file), writable, used }));
        if held.files.len() > MOST {
            let oldest = held.files.iter().min_by_key(|(_, slot)| slot.used).map(|(&key, _)| key);
            closed.extend(oldest.and_then(|key| held.files.remove(&key)));
        }
        drop(held);
        drop(closed);
        Ok(file)
    }

    /// Closes the files of a torrent.
    pub(super) fn close(&self, torrent: u64) {
        let mut held = self.0.lock();
        let (gone, stay) = mem::take(&mut held.files).into_iter().partition(|((of, _), _)| *of == torrent);
        held.files = stay;
        drop(held);
        drop::<HashMap<_, _>>(gone);
    }
}
