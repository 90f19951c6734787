//! `--report-to`: the announces of members, as lines of JSON.

use std::{
    convert::Infallible,
    error::Error,
    fs::{self, File, OpenOptions},
    io::{self, Read as _, Seek as _, SeekFrom, Write},
    os::unix::{
        fs::{MetadataExt as _, OpenOptionsExt as _},
        net::UnixStream,
    },
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread,
    time::Duration,
};

use serde_json::Value;
use swarmkeep_bittorrent::in_words;
use swarmkeep_tracker::{Control, MemberAnnounce, Observer};
use tracing::{info, warn};

use super::secret::warn_of_others;
use crate::settings::UNIX;

/// The most announces that wait to be written: some 15 MiB.
const MOST_WAITING: usize = 1 << 16;
/// The bytes after which a block of lines ends.
const BLOCK: usize = 1 << 16;
/// The size of a file after which another is begun.
const LARGEST: u64 = 256 << 20;

/// The reports of a running tracker. When dropped, it ends them, and waits up to a second until the announces
/// that wait are written.
pub(super) struct Reports {
    queue: Arc<Queue>,
    /// Its sender is dropped when the thread has ended.
    ended: Receiver<Infallible>,
}

impl Reports {
    /// Opens a file or, after `unix:`, a socket, and begins to report to it.
    pub(super) fn start(to: &Path, control: &Control) -> Result<Self, Box<dyn Error>> {
        let mut out = match to.to_str().and_then(|to| to.strip_prefix(UNIX)) {
            Some(path) => Output::Socket { path: path.into(), stream: None },
            None => Output::file(to, LARGEST).map_err(|error| {
                let (to, error) = (to.display(), in_words(&error));
                format!("report-to: cannot open {to}: {error}; give a file in a folder that this process may write to")
            })?,
        };
        let (queue, reports) = sync_channel(MOST_WAITING);
        let (alive, ended) = sync_channel::<Infallible>(0);
        let (dropped, is_failing) = (AtomicU64::new(0), AtomicBool::new(false));
        let queue = Arc::new(Queue { queue, to: to.to_owned(), dropped, is_failing });
        let Ok(()) = control.rules.renew(|rules| {
            let mut rules = rules.clone();
            rules.observer = Some(queue.clone());
            Ok::<_, Infallible>(rules)
        });
        let of_thread = Arc::clone(&queue);
        thread::Builder::new().name("reports".into()).spawn(move || {
            let _alive = alive;
            write_all(&reports, &mut out, &of_thread);
        })?;
        info!(to = %to.display(), "the announces of members are recorded");
        Ok(Self { queue, ended })
    }
}

impl Drop for Reports {
    fn drop(&mut self) {
        // Ends the thread. Where there is no room for it, more announces wait than it may write in time.
        let _ = self.queue.queue.try_send(None);
        let _ = self.ended.recv_timeout(Duration::from_secs(1));
    }
}

#[derive(Debug)]
struct Queue {
    queue: SyncSender<Option<MemberAnnounce>>,
    to: PathBuf,
    dropped: AtomicU64,
    /// Whether announces are dropped, and the log says so.
    is_failing: AtomicBool,
}

impl Queue {
    fn lose(&self, count: u64, error: &str) {
        self.dropped.fetch_add(count, Relaxed);
        if !self.is_failing.swap(true, Relaxed) {
            let to = self.to.display();
            warn!(%to, %error, "the announces of members are not recorded, and counted as dropped");
        }
    }
}

impl Observer for Queue {
    fn announced(&self, announce: MemberAnnounce) {
        if self.queue.try_send(Some(announce)).is_err() {
            self.lose(1, "it takes them too slowly, or not at all");
        }
    }

    fn dropped(&self) -> u64 {
        self.dropped.load(Relaxed)
    }
}

/// Writes announces in blocks until the end.
fn write_all(reports: &Receiver<Option<MemberAnnounce>>, out: &mut Output, queue: &Queue) {
    let mut block = Vec::with_capacity(2 * BLOCK);
    while let Ok(Some(first)) = reports.recv() {
        block.clear();
        let (mut next, mut count) = (Some(Some(first)), 0);
        while let Some(Some(report)) = next {
            let _ = writeln!(block, "{}", line(report));
            count += 1;
            next = if block.len() < BLOCK { reports.try_recv().ok() } else { None };
        }
        match out.write(&block) {
            Err(error) => queue.lose(count, &in_words(&error)),
            // Not while others wait: a slow disk would fill the log.
            Ok(()) if block.len() < BLOCK && queue.is_failing.swap(false, Relaxed) => {
                info!(to = %queue.to.display(), "the announces of members are recorded again");
            }
            Ok(()) => {}
        }
        if next.is_some() {
            return;
        }
    }
}

fn line(report: MemberAnnounce) -> String {
    let MemberAnnounce { time, member, peer_id, info_hash, event, endpoint, .. } = report;
    let [uploaded, downloaded, left] = [report.uploaded, report.downloaded, report.left].map(Value::from);
    format!(
        r#"{{"time":{},"name":{},"peer_id":"{peer_id}","info_hash":"{info_hash}","uploaded":{uploaded},"downloaded":{downloaded},"left":{left},"event":"{event}","endpoint":"{endpoint}"}}"#,
        time.as_secs(),
        Value::from(member)
    )
}

/// A place that takes blocks of whole lines.
enum Output {
    /// A file, and the one before it, with `.1` behind its name.
    File { path: PathBuf, file: File, largest: u64 },
    /// A socket on which another program listens.
    Socket { path: PathBuf, stream: Option<UnixStream> },
}

impl Output {
    fn file(path: &Path, largest: u64) -> io::Result<Self> {
        Ok(Self::File { path: path.to_owned(), file: open(path)?, largest })
    }

    fn write(&mut self, block: &[u8]) -> io::Result<()> {
        match self {
            Self::File { path, file, largest } => {
                let ours = file.metadata()?;
                let is_there = || fs::metadata(&*path).is_ok_and(|there| there.ino() == ours.ino());
                if ours.len() >= *largest && is_there() {
                    fs::rename(&*path, path.with_added_extension("1"))?;
                }
                if !is_there() {
                    *file = open(path)?;
                }
                // A crash or a full disk may have left half a line. An empty file has no last byte.
                let mut last = [b'\n'];
                let _ = file.seek(SeekFrom::End(-1)).and_then(|_| file.read_exact(&mut last));
                if last != *b"\n" {
                    file.write_all(b"\n")?;
                }
                file.write_all(block)
            }
            Self::Socket { path, stream } => {
                if stream.as_mut().is_some_and(|open| open.write_all(block).is_ok()) {
                    return Ok(());
                }
                // The other program may have been started again.
                stream.insert(UnixStream::connect(path)?).write_all(block)
            }
        }
    }
}

fn open(path: &Path) -> io::Result<File> {
    // Opening a pipe would wait for its other end.
    if fs::metadata(path).is_ok_and(|there| !there.is_file()) {
        return Err(io::Error::other("it is not a regular file"));
    }
    let file = OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(path)?;
    warn_of_others(path, "the announces of members");
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_or_moved_file_is_begun_anew() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("reports");
        let read = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap_or_default();
        fs::write(&path, "half").expect("a folder of ours");
        let mut file = Output::file(&path, 13).expect("a folder of ours");
        for block in ["one\n", "two\n", "three\nfour\nfive\n"] {
            file.write(block.as_bytes()).expect("room");
        }
        assert_eq!([read("reports.1"), read("reports")], ["half\none\ntwo\n", "three\nfour\nfive\n"]);
        // Also one that is too large.
        fs::rename(&path, folder.path().join("moved")).expect("ours");
        file.write(b"six\n").expect("room");
        assert_eq!([read("moved"), read("reports")], ["three\nfour\nfive\n", "six\n"]);
        assert!(open(Path::new("/dev/null")).is_err() && open(folder.path()).is_err());
    }
}
