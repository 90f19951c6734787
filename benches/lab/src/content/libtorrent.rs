//! libtorrent as a store: its own disk I/O, through its bindings for Python.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, IoSlice, IoSliceMut, Write},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::Arc,
};

use parking_lot::Mutex;
use swarmkeep_content::{
    Capabilities, Content, ContentRepository, Error, Geometry, InfoHash, NewTorrent, PieceBits, Result,
    Statistics, Summary,
};

use crate::content::trace::number;

/// The distribution's own Python, for which its bindings are built.
const PYTHON: &str = "/usr/bin/python3";

/// Whether libtorrent is installed.
pub(crate) fn is_there() -> bool {
    let import = Command::new(PYTHON).args(["-c", "import libtorrent"]).stderr(Stdio::null()).status();
    import.is_ok_and(|status| status.success())
}

/// A session of libtorrent, which writes pieces to files in a folder.
#[derive(Debug, Clone)]
pub(crate) struct Libtorrent {
    folder: PathBuf,
    process: Arc<Process>,
    torrents: Arc<Mutex<Vec<NewTorrent>>>,
}

#[derive(Debug)]
struct Process {
    child: Mutex<Child>,
    pipes: Mutex<(ChildStdin, BufReader<ChildStdout>)>,
}

impl Libtorrent {
    /// Starts it with default settings, or tuned with a queue of `queue` bytes. Returns its version too.
    pub(crate) fn start(folder: &Path, queue: Option<u64>) -> Result<(Self, String)> {
        let mut command = Command::new(PYTHON);
        command.args(["-c", include_str!("libtorrent.py")]).arg(folder);
        command.args(queue.map(|bytes| bytes.to_string()));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(Error::io("starting Python"))?;
        let pipes = child.stdin.take().zip(child.stdout.take()).expect("they are piped");
        let pipes = Mutex::new((pipes.0, BufReader::new(pipes.1)));
        let process = Arc::new(Process { child: Mutex::new(child), pipes });
        let version = process.line()?;
        Ok((Self { folder: folder.to_owned(), process, torrents: Arc::default() }, version))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.child.lock().id()
    }

    pub(crate) fn path(&self, number: u32) -> PathBuf {
        self.folder.join(number.to_string())
    }
}

impl Process {
    fn say(&self, line: &str, bytes: &[IoSlice<'_>]) -> Result<()> {
        let (input, _) = &mut *self.pipes.lock();
        writeln!(input, "{line}")
            .and_then(|()| bytes.iter().try_for_each(|part| input.write_all(part)))
            .map_err(Error::io("handing a piece to libtorrent"))
    }

    fn line(&self) -> Result<String> {
        let mut line = String::new();
        let read = self.pipes.lock().1.read_line(&mut line).map_err(Error::io("hearing from libtorrent"))?;
        if read == 0 {
            return Err(Error::Io { what: "libtorrent", source: io::ErrorKind::UnexpectedEof.into() });
        }
        Ok(line.trim().to_owned())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let child = self.child.get_mut();
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// The error of a call that libtorrent's process does not know.
fn no_call() -> Error {
    Error::Io { what: "libtorrent", source: io::ErrorKind::Unsupported.into() }
}

impl ContentRepository for Libtorrent {
    fn create(&self, torrent: &NewTorrent) -> Result<Arc<dyn Content>> {
        let (number, geometry) = (number(&torrent.info_hash), torrent.geometry);
        self.process.say(&format!("create {number} {} {}", geometry.len(), geometry.piece_length()), &[])?;
        self.torrents.lock().push(torrent.clone());
        self.open(&torrent.info_hash)
    }

    fn open(&self, info_hash: &InfoHash) -> Result<Arc<dyn Content>> {
        let torrents = self.torrents.lock();
        let torrent = torrents.iter().find(|torrent| torrent.info_hash == *info_hash);
        let geometry = torrent.ok_or(Error::NotFound(*info_hash))?.geometry;
        Ok(Arc::new(LibtorrentContent { number: number(info_hash), geometry, session: self.clone() }))
    }

    fn list(&self) -> Result<Vec<Summary>> {
        Err(no_call())
    }

    fn delete(&self, _: &InfoHash) -> Result<bool> {
        Err(no_call())
    }

    /// Passes everything to the kernel. libtorrent flushes nothing to the disk.
    fn flush(&self) -> Result<()> {
        self.process.say("flush", &[])?;
        self.process.line()?;
        Ok(())
    }

    fn statistics(&self) -> Statistics {
        Statistics::default()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::new(16 << 10)
    }
}

#[derive(Debug)]
struct LibtorrentContent {
    number: u32,
    geometry: Geometry,
    session: Libtorrent,
}

impl Content for LibtorrentContent {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn write_at(&self, offset: u64, buffers: &[IoSlice<'_>]) -> Result<()> {
        let piece = offset / u64::from(self.geometry.piece_length());
        let len: usize = buffers.iter().map(|buffer| buffer.len()).sum();
        self.session.process.say(&format!("piece {} {piece} {len}", self.number), buffers)
    }

    fn read_at(&self, offset: u64, buffers: &mut [IoSliceMut<'_>]) -> Result<()> {
        let read = |file: File| {
            let mut at = offset;
            buffers.iter_mut().try_for_each(|buffer| {
                file.read_exact_at(buffer, at)?;
                at += buffer.len() as u64;
                Ok(())
            })
        };
        let file = File::open(self.session.path(self.number));
        file.and_then(read).map_err(Error::io("reading a file of libtorrent"))
    }

    fn mark_complete(&self, _: u32) -> Result<bool> {
        Ok(true)
    }

    fn mark_incomplete(&self, _: u32) -> Result<bool> {
        Err(no_call())
    }

    /// All pieces: libtorrent answers a flush when it has finished each of them.
    fn pieces(&self) -> Result<PieceBits> {
        let mut all = PieceBits::none(self.geometry.pieces());
        (0..self.geometry.pieces()).for_each(|piece| _ = all.insert(piece));
        Ok(all)
    }
}
