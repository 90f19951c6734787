//! `seedkeep create`: a torrent file of a file or a folder.

use std::{
    error::Error,
    ffi::{OsStr, OsString},
    fs::{self, File, Metadata},
    io::{self, ErrorKind, Write},
    num::{NonZeroU32, NonZeroUsize},
    os::unix::{
        ffi::OsStrExt,
        fs::{FileExt, MetadataExt, PermissionsExt},
    },
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
};

use data_encoding::HEXLOWER;
use indicatif::{BinaryBytes, ProgressBar};
use rustix::fs::{Advice, fadvise};
use serde_json::json;
use swarmkeep_bittorrent::programs::bytes;
use swarmkeep_metainfo::{
    self, Creation, Error as MetainfoError, Format, Magnet, Metainfo, PieceHash, PieceHasher,
};
use tempfile::Builder;

use crate::{
    parsed, refuse,
    store::{bar, counted, print_json, say},
};

const DETAILS: &str = "\
Examples:
  seedkeep create album --tracker udp://tracker.example:6969
  seedkeep create disk.iso --tracker http://a.example/announce,http://b.example/announce
  seedkeep create album --hybrid -o /srv/torrents/album.torrent --magnet
  seedkeep create album --json | jq -r .info_hash

Which format:
  --v1      Every client reads it. The default.
  --v2      Each file has a hash tree of its own (BEP 52): the same file is known to be the same in
            two torrents, and only 16 KiB are fetched again if bytes were wrong.
            Transmission, rtorrent and aria2 do not support it.
  --hybrid  Both, in one torrent with two info hashes, hashed twice. After each file there is
            padding up to the next piece (BEP 47). Some clients that support only v1 write it to
            files in a folder .pad, Transmission 3 reads no hybrid, and aria2 1.36 computes another
            info hash.

Contents:
  All files below PATH, including hidden ones, in the order of their names. The permission of the
  owner to execute a file is kept; empty folders, owners, times and other permissions are not.
  Names go in byte for byte; where a system cannot write one, clients there write another.
  Symbolic links, sockets, devices and pipes are refused. If PATH itself is a symbolic link, it is
  followed. A file that changes while it is read is an error.

  The same files give the same torrent file, byte for byte. So it has no date unless --date is
  given. A date is not part of the info hash, and it shows when the torrent was made.

Pieces:
  By default, the least power of two from 16 KiB to 16 MiB that makes no more than 4,096 pieces, as
  in most torrents.

Exit codes:
  0  the torrent file is written
  1  the command failed
  2  the command line is wrong";

/// Make a torrent file of a file or a folder.
#[derive(Debug, clap::Args)]
#[command(after_long_help = DETAILS, after_help = "See --help for examples, formats and contents.")]
pub(crate) struct Args {
    /// The file or folder to share.
    path: PathBuf,

    /// The path of the torrent file; `-` is standard output. By default NAME.torrent in the current folder.
    #[arg(short, long, value_name = "FILE.torrent")]
    output: Option<PathBuf>,

    /// Overwrite the torrent file if there is one.
    #[arg(long)]
    force: bool,

    /// A tracker to announce to. Each --tracker is a tier, which is used when the tier before does not
    /// answer. Commas separate trackers of one tier, which are used in any order (BEP 12).
    #[arg(long, value_name = "URL[,URL…]")]
    tracker: Vec<String>,

    /// Make a v1 torrent (BEP 3). The default.
    #[arg(long, group = "format")]
    v1: bool,

    /// Make a v2 torrent (BEP 52).
    #[arg(long, group = "format")]
    v2: bool,

    /// Make a torrent for both v1 and v2.
    #[arg(long, group = "format")]
    hybrid: bool,

    /// Let peers be found through the trackers only (BEP 27).
    #[arg(long)]
    private: bool,

    /// The length of pieces, such as 256KiB or 4MiB; with --v2 and --hybrid a power of two of at least 16KiB.
    #[arg(long, value_name = "SIZE", value_parser = piece_length)]
    piece_length: Option<NonZeroU32>,

    /// A comment for users.
    #[arg(long, value_name = "TEXT")]
    comment: Option<String>,

    /// The name of a private tracker. It is part of the info hash: another source makes another torrent.
    #[arg(long, value_name = "TEXT")]
    source: Option<String>,

    /// The date of the torrent, in seconds since 1970 (`date +%s`).
    #[arg(long, value_name = "SECONDS", value_parser = parsed::<i64>)]
    date: Option<i64>,

    /// The number of threads that read and hash. By default one per core. One thread reads a rotating disk
    /// fastest.
    #[arg(long, value_name = "N", value_parser = parsed::<NonZeroUsize>)]
    threads: Option<NonZeroUsize>,

    /// Also print the magnet link.
    #[arg(long)]
    magnet: bool,

    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Bytes per read: few enough to be still in the processor's cache when they are hashed a second time.
const READ: usize = 256 << 10;

/// The most names in the error about files that a torrent cannot have.
const NAMED: usize = 10;

pub(crate) fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    let Args { path, force, .. } = args;
    let tiers = args.tracker.iter().map(|tier| tier.split(',').map(tracker).collect());
    let tiers: Vec<Vec<&str>> = tiers.collect::<Result<_, _>>().unwrap_or_else(|error| refuse(error));
    let content = Content::find(path)?;
    let mut builder = Creation::builder(content.name.as_bytes(), args.format());
    builder.created_by(concat!("swarmkeep/", env!("CARGO_PKG_VERSION"))).private(args.private);
    for tier in tiers {
        builder.tier(tier);
    }
    if let Some(length) = args.piece_length {
        builder.piece_length(length.get());
    }
    if let Some(comment) = &args.comment {
        builder.comment(comment);
    }
    if let Some(source) = &args.source {
        builder.source(source);
    }
    if let Some(date) = args.date {
        builder.creation_date(date);
    }
    for found in &content.files {
        let names = found.path.iter().map(OsStrExt::as_bytes);
        builder.file(names, found.metadata.len(), found.metadata.permissions().mode() & 0o100 != 0);
    }
    let mut creation = builder.build().map_err(|error| match error {
        error @ (MetainfoError::Field { .. } | MetainfoError::Tracker(_)) => refuse(error.to_string()),
        error => format!("{}: {error}", path.display()),
    })?;
    let output = Output::of(args, &content)?;
    if args.private && args.tracker.is_empty() {
        eprintln!("seedkeep: private, and without a tracker: no peer will be found");
    }
    if content.empty_folders > 0 {
        let folders = counted(content.empty_folders, "empty folder");
        eprintln!("seedkeep: {folders} left out: torrents have files only");
    }

    let threads = args
        .threads
        .map_or_else(|| thread::available_parallelism().map_or(1, NonZeroUsize::get), NonZeroUsize::get);
    let bar = bar(content.bytes()).with_message(path.display().to_string());
    for hash in ContentHasher::new(&creation, &content, &bar).hash(threads)? {
        creation.set(hash);
    }
    bar.finish_and_clear();
    content.check_all()?;
    let torrent = creation.finish()?;
    // The report describes the bytes that are written.
    let metainfo = Metainfo::parse(&torrent)?;
    output.write(&torrent, *force)?;
    if output.folder.is_some() { report(args, &content, &output, &metainfo) } else { Ok(()) }
}

fn report(
    args: &Args,
    content: &Content,
    output: &Output,
    metainfo: &Metainfo,
) -> Result<(), Box<dyn Error>> {
    let info = metainfo.info();
    let file = output.path.display().to_string();
    let v2 = info.info_hash_v2().map(|hash| HEXLOWER.encode(&hash));
    // Of the files, without padding.
    let (files, bytes, magnet) = (content.files.len(), content.bytes(), Magnet::from(metainfo).to_string());
    let (pieces, piece_length) = (info.piece_count(), info.piece_length());
    if args.json {
        return print_json(&json!({
            "file": file, "name": info.name(), "info_hash": info.info_hash().to_string(), "info_hash_v2": v2,
            "bytes": bytes, "files": files, "piece_length": piece_length, "pieces": pieces,
            "private": info.is_private(), "magnet": magnet,
        }));
    }
    let [bytes, length] = [bytes, piece_length.into()].map(BinaryBytes);
    let pieces = counted(pieces as usize, "piece");
    say!("{file}: {}, {bytes} in {pieces} of {length}", counted(files, "file"));
    if info.has_v1() {
        say!("  info hash: {}", info.info_hash());
    }
    if let Some(hash) = v2 {
        say!("  info hash of v2: {hash}");
    }
    if args.magnet {
        say!("{magnet}");
    }
    Ok(())
}

impl Args {
    fn format(&self) -> Format {
        match (self.v2, self.hybrid) {
            (true, _) => Format::V2,
            (_, true) => Format::Hybrid,
            _ => Format::V1,
        }
    }
}

fn piece_length(text: &str) -> Result<NonZeroU32, String> {
    let bytes = bytes(text)?;
    let length =
        u32::try_from(bytes.get()).ok().filter(|length| *length <= swarmkeep_metainfo::LONGEST_PIECE);
    length.and_then(NonZeroU32::new).ok_or_else(|| "no client reads pieces of more than 1GiB".into())
}

/// Refuses a text that is no URL of a tracker.
fn tracker(url: &str) -> Result<&str, String> {
    let schemes = ["udp", "http", "https", "ws", "wss"];
    let host = url.split_once("://").filter(|(scheme, _)| schemes.contains(&&*scheme.to_ascii_lowercase()));
    match host {
        Some((_, host)) if !host.is_empty() && !host.starts_with(['/', ':', '?']) => Ok(url),
        _ => Err(format!("\"{url}\" is not the URL of a tracker, such as udp://tracker.example:6969")),
    }
}

/// The file or folder to share.
struct Content {
    /// Without symbolic links.
    root: PathBuf,
    /// Whether it is one file.
    single: bool,
    /// The name of the torrent: the last part of `called` if that is a name, and else of `root`.
    name: OsString,
    /// The path of the command line, for messages.
    called: PathBuf,
    files: Vec<FoundFile>,
    empty_folders: usize,
}

struct FoundFile {
    /// Below the root; empty for a single file.
    path: PathBuf,
    metadata: Metadata,
}

impl Content {
    fn find(called: &Path) -> Result<Self, Box<dyn Error>> {
        let wrong = |error: io::Error| format!("{}: {error}", called.display());
        let root = called.canonicalize().map_err(wrong)?;
        let metadata = root.symlink_metadata().map_err(wrong)?;
        let single = !metadata.is_dir();
        let name = called.file_name().or(root.file_name()).map(OsStr::to_owned);
        let name = name.ok_or_else(|| format!("{} has no name that a torrent could have", root.display()))?;
        let mut content =
            Self { root, single, name, called: called.to_owned(), files: Vec::new(), empty_folders: 0 };
        let mut refused = Vec::new();
        if single {
            content.take(PathBuf::new(), metadata, &mut refused);
        } else {
            content.walk(&mut refused)?;
        }
        match refused.len() {
            0 => {
                // In the torrent's order.
                content.files.sort_unstable_by(|one, other| one.path.cmp(&other.path));
                Ok(content)
            }
            count => {
                let mut words = refused[..count.min(NAMED)].join("\n  ");
                if count > NAMED {
                    words += &format!("\n  and {} more", count - NAMED);
                }
                Err(format!("torrents have files and folders only:\n  {words}").into())
            }
        }
    }

    /// Takes all files below the root.
    fn walk(&mut self, refused: &mut Vec<String>) -> Result<(), Box<dyn Error>> {
        let mut folders = vec![PathBuf::new()];
        while let Some(folder) = folders.pop() {
            let full = self.root.join(&folder);
            let wrong = |error: io::Error| format!("{}: {error}", full.display());
            let mut empty = true;
            for entry in fs::read_dir(&full).map_err(wrong)? {
                let entry = entry.map_err(wrong)?;
                let path = folder.join(entry.file_name());
                // Follows no symbolic link.
                let metadata =
                    entry.metadata().map_err(|error| format!("{}: {error}", entry.path().display()))?;
                empty = false;
                if metadata.is_dir() {
                    folders.push(path);
                } else {
                    self.take(path, metadata, refused);
                }
            }
            self.empty_folders += usize::from(empty && !folder.as_os_str().is_empty());
        }
        Ok(())
    }

    fn take(&mut self, path: PathBuf, metadata: Metadata, refused: &mut Vec<String>) {
        if metadata.is_file() {
            return self.files.push(FoundFile { path, metadata });
        }
        let (kind, help) = match metadata.file_type() {
            kind if kind.is_symlink() => ("a symbolic link", ": replace it by its target"),
            _ => ("a socket, a device or a pipe", ""),
        };
        let called = if self.single { self.called.clone() } else { self.called.join(path) };
        refused.push(format!("{} is {kind}{help}", called.display()));
    }

    fn bytes(&self) -> u64 {
        self.files.iter().map(|found| found.metadata.len()).sum()
    }

    fn path(&self, found: &FoundFile) -> PathBuf {
        if self.single { self.root.clone() } else { self.root.join(&found.path) }
    }

    /// Checks that a file is the one that was found, and unchanged.
    fn check(&self, found: &FoundFile, now: &Metadata) -> Result<(), String> {
        let times = |metadata: &Metadata| {
            let [modified, changed] = [metadata.mtime(), metadata.ctime()];
            (modified, metadata.mtime_nsec(), changed, metadata.ctime_nsec())
        };
        let then = &found.metadata;
        let same = found.same(now) && then.len() == now.len() && times(then) == times(now);
        if same { Ok(()) } else { Err(self.changed(found)) }
    }

    fn check_all(&self) -> Result<(), String> {
        self.files.iter().try_for_each(|found| match fs::symlink_metadata(self.path(found)) {
            Ok(now) => self.check(found, &now),
            Err(_) => Err(self.changed(found)),
        })
    }

    fn changed(&self, found: &FoundFile) -> String {
        format!("{} changed while it was read", self.path(found).display())
    }
}

impl FoundFile {
    fn same(&self, other: &Metadata) -> bool {
        (self.metadata.dev(), self.metadata.ino()) == (other.dev(), other.ino())
    }
}

/// Reads the content and hashes it, on many threads. Each takes the next piece, so all read at about the same
/// place.
struct ContentHasher<'a> {
    creation: &'a Creation,
    content: &'a Content,
    /// For each entry of the torrent the index of its file; for padding, of the next file.
    found: Vec<usize>,
    bar: &'a ProgressBar,
    next: AtomicU64,
    failed: AtomicBool,
}

impl<'a> ContentHasher<'a> {
    fn new(creation: &'a Creation, content: &'a Content, bar: &'a ProgressBar) -> Self {
        let mut before = 0;
        let entries = creation.files().iter().map(|file| {
            let found = before;
            before += usize::from(!file.is_padding());
            found
        });
        let found = entries.collect();
        Self { creation, content, found, bar, next: AtomicU64::new(0), failed: AtomicBool::new(false) }
    }

    fn hash(&self, threads: usize) -> Result<Vec<PieceHash>, String> {
        let threads = threads.min(self.creation.piece_count() as usize);
        thread::scope(|scope| {
            let threads: Vec<_> = (0..threads).map(|_| scope.spawn(|| self.pieces())).collect();
            let mut hashes = Vec::new();
            for thread in threads {
                hashes.extend(thread.join().expect("it does not panic")?);
            }
            Ok(hashes)
        })
    }

    /// The work of one thread.
    fn pieces(&self) -> Result<Vec<PieceHash>, String> {
        let (mut hashes, mut open, mut buffer) = (Vec::new(), None, vec![0; READ]);
        while !self.failed.load(Ordering::Relaxed) {
            let next = u32::try_from(self.next.fetch_add(1, Ordering::Relaxed)).ok();
            let Some((piece, hasher)) = next.and_then(|piece| Some((piece, self.creation.hasher(piece)?)))
            else {
                break;
            };
            let hash = self.piece(piece, hasher, &mut open, &mut buffer);
            if hash.is_err() {
                self.failed.store(true, Ordering::Relaxed);
            }
            hashes.push(hash?);
        }
        Ok(hashes)
    }

    fn piece(
        &self,
        piece: u32,
        mut hasher: PieceHasher,
        open: &mut Option<(usize, File)>,
        buffer: &mut [u8],
    ) -> Result<PieceHash, String> {
        for segment in self.creation.segments(piece) {
            let nth = self.found[segment.file];
            let found = &self.content.files[nth];
            let wrong = |error: io::Error| match error.kind() {
                ErrorKind::UnexpectedEof => self.content.changed(found),
                _ => format!("{}: {error}", self.content.path(found).display()),
            };
            let file = match open {
                Some((at, file)) if *at == nth => file,
                _ => {
                    let file = File::open(self.content.path(found)).map_err(wrong)?;
                    self.content.check(found, &file.metadata().map_err(wrong)?)?;
                    // Without it, reading is slower, but right.
                    _ = fadvise(&file, 0, None, Advice::Sequential);
                    &mut open.insert((nth, file)).1
                }
            };
            let end = segment.offset + segment.length;
            let mut at = segment.offset;
            while at < end {
                let part = &mut buffer[..(end - at).min(READ as u64) as usize];
                file.read_exact_at(part, at).map_err(wrong)?;
                hasher.update(part);
                at += part.len() as u64;
                self.bar.inc(part.len() as u64);
            }
        }
        Ok(hasher.finish().expect("all bytes of its segments came"))
    }
}

struct Output {
    path: PathBuf,
    /// None is standard output.
    folder: Option<PathBuf>,
}

impl Output {
    /// Checks that the torrent file can be written, before content is read.
    fn of(args: &Args, content: &Content) -> Result<Self, Box<dyn Error>> {
        let path = args.output.clone().unwrap_or_else(|| {
            let mut name = content.name.clone();
            name.push(".torrent");
            name.into()
        });
        if path == Path::new("-") {
            if args.json || args.magnet {
                refuse("-o - prints the torrent file: leave --json and --magnet out".to_owned());
            }
            return Ok(Self { path, folder: None });
        }
        let shown = path.display();
        if path.file_name().is_none() {
            return Err(format!("{shown} is no name of a file").into());
        }
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new(".")).canonicalize();
        let folder = folder.map_err(|error| format!("the folder of {shown}: {error}"))?;
        if !content.single && folder.starts_with(&content.root) {
            return Err(
                format!("{shown} would lie in the folder that is shared: say with -o where else").into()
            );
        }
        match path.symlink_metadata() {
            Ok(metadata) if !metadata.is_file() => Err(format!("{shown} is there, and is no file"))?,
            Ok(metadata) if content.files.iter().any(|found| found.same(&metadata)) => {
                Err(format!("{shown} is part of the content"))?;
            }
            Ok(_) if !args.force => Err(format!("{shown} is there already: --force overwrites it"))?,
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => Err(format!("{shown}: {error}"))?,
        }
        Ok(Self { path, folder: Some(folder) })
    }

    /// Writes the whole file, or none of it.
    fn write(&self, torrent: &[u8], force: bool) -> Result<(), Box<dyn Error>> {
        let Some(folder) = &self.folder else {
            let mut out = io::stdout();
            return Ok(out.write_all(torrent).and_then(|()| out.flush())?);
        };
        let wrong = |error: io::Error| format!("{}: {error}", self.path.display());
        // As for any new file, less the bits of umask.
        let readable = fs::Permissions::from_mode(0o666);
        let mut file =
            Builder::new().prefix(".swarmkeep-").permissions(readable).tempfile_in(folder).map_err(wrong)?;
        file.write_all(torrent).and_then(|()| file.as_file().sync_all()).map_err(wrong)?;
        let kept = if force { file.persist(&self.path) } else { file.persist_noclobber(&self.path) };
        Ok(kept.map(drop).map_err(|error| wrong(error.error))?)
    }
}
