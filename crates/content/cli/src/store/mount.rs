//! `seedkeep store mount`: the torrents' files, to be read by any program.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    error::Error,
    ffi::OsStr,
    fs::{self, File},
    io::{self, Read, Seek},
    os::unix::fs::MetadataExt,
    path::PathBuf,
    process::{self, ExitCode},
    sync::{Arc, Condvar, Mutex, MutexGuard, mpsc},
    thread,
    time::{Duration, SystemTime},
};

use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, LockOwner,
    MountOption, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen,
    ReplyStatfs, Request, Session, SessionACL,
};
use indexmap::IndexMap;
use rustix::{
    event::{PollFd, PollFlags},
    io::retry_on_intr,
    mount::UnmountFlags,
};
use swarmkeep_bittorrent::in_words;
use swarmkeep_content::{
    Content, ContentExt, ContentRepository, Error as StoreError, InfoHash, Statistics, Verified,
    stripe_cache::{StripeCache, StripeCacheOptions},
};
use swarmkeep_metainfo::Metainfo;
use tokio::signal::unix::SignalKind;

use super::{
    StoreArg, counted,
    opened::{Access, StoredTorrent},
    say,
};
use crate::{Signals, cache::Cache};

/// How long the kernel may cache attributes and entries. They do not change: the store is not written to.
const FOR_EVER: Duration = Duration::from_secs(24 * 60 * 60);

/// The unit of sizes that are reported to the kernel.
const UNIT: u32 = 4096;

/// Mount the torrents' files read-only in a folder.
///
/// Torrents appear under their names; if several have the same name, each is in a folder that is named by its
/// info hash. An incomplete file can be read up to its first missing byte. The program runs until the folder
/// is unmounted (`umount FOLDER`), or it is interrupted (Ctrl-C), and all files are closed.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    store: StoreArg,

    /// An empty folder.
    folder: PathBuf,

    #[command(flatten)]
    cache: Cache,

    /// Let other users read, too. Users other than root need `user_allow_other` in /etc/fuse.conf.
    #[arg(long)]
    allow_other: bool,
}

const MOUNTS: &str = "/proc/self/mountinfo";

pub(super) fn run(args: &Args) -> Result<ExitCode, Box<dyn Error>> {
    let shown = args.folder.display();
    if fs::read_dir(&args.folder).map_err(|error| format!("{shown}: {error}"))?.next().is_some() {
        return Err(format!("{shown} is not empty: its content would be hidden").into());
    }
    let store = args.store.open(Access::Reading)?;
    if let Some(missing) = store.missing_torrent_files()? {
        say!("{missing}");
    }
    let torrents = store.torrents()?;
    // Files are mostly read from one end to the other.
    let mut options = StripeCacheOptions::new();
    (options.write_memory, options.read_memory) = (0, args.cache.bytes());
    let named = Arc::<Mutex<HashSet<_>>>::default();
    let (library, known) = (Arc::clone(&store.torrents), Arc::clone(&named));
    // Hashes are read again when they are needed: all of them would use much memory.
    let hashes = move |info_hash: &InfoHash| match library.metainfo(info_hash)? {
        None if known.lock().expect("no panics").contains(info_hash) => Err(StoreError::Unavailable {
            info_hash: *info_hash,
            why: "its torrent file cannot be read any more".to_owned(),
        }),
        metainfo => Ok(metainfo.map(Metainfo::into_info)),
    };
    let verified = Verified::new(Arc::clone(&store.repository), hashes);
    let cache = StripeCache::new(Arc::new(verified), options)?;
    let time = args.store.path.metadata()?.modified()?;
    let metainfo = |info_hash: &InfoHash| {
        let metainfo = store.metainfo(info_hash)?;
        if metainfo.is_some() {
            named.lock().expect("no panics").insert(*info_hash);
        }
        Ok(metainfo)
    };
    let view = View::of(&cache, &torrents, metainfo, time)?;
    let count = torrents.len();
    drop(torrents);
    let files = view.nodes.iter().filter(|node| matches!(node.kind, NodeKind::File(_))).count();
    let mut config = fuser::Config::default();
    config.mount_options = vec![
        MountOption::RO,
        MountOption::NoDev,
        MountOption::NoSuid,
        MountOption::DefaultPermissions,
        MountOption::FSName(args.store.path.display().to_string()),
        MountOption::Subtype("swarmkeep".into()),
    ];
    config.acl = if args.allow_other { SessionACL::All } else { SessionACL::Owner };
    config.n_threads = Some(4);
    // Opened before the mount, so that no change is missed.
    let mounts = File::open(MOUNTS);
    let users = Arc::clone(&view.users);
    let mut session =
        Session::new(view, &args.folder, &config).map_err(|error| format!("mounting at {shown}: {error}"))?;
    let mut unmounter = session.unmount_callable();
    let folder = args.folder.clone();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let inside = runtime.enter();
    let mut signals = Signals::new([SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()])?;
    drop(inside);
    thread::spawn(move || {
        let mut told = || runtime.block_on(signals.any());
        told();
        if let Err(error) = unmounter.unmount() {
            eprintln!("seedkeep: unmounting: {}; a second signal unmounts it lazily", in_words(&error));
            told();
            // Open files stay readable until they are closed.
            if let Err(error) = rustix::mount::unmount(&folder, UnmountFlags::DETACH) {
                eprintln!("seedkeep: unmounting: {}", in_words(&io::Error::from(error)));
                process::exit(1);
            }
        }
    });
    let (mut undo, folder) = (session.unmount_callable(), &args.folder);
    let (end, ended) = mpsc::channel();
    let session_ends = end.clone();
    thread::spawn(move || session_ends.send(session.run()));
    // The session answers requests now, so `metadata` returns. Until the line is printed, no user unmounts.
    let ready = || {
        let device = folder.metadata()?.dev();
        say!("{} of {} at {shown}", counted(files, "file"), counted(count, "torrent"));
        Ok::<_, Box<dyn Error>>(device)
    };
    let device = ready().inspect_err(|_| _ = undo.unmount())?;
    thread::spawn(move || {
        // Without /proc the end of the session, if it comes, still ends the program.
        if mounts.and_then(|mounts| wait_until_unmounted(&mounts, device)).is_ok() {
            users.wait_until_none();
            let _ = end.send(Ok(()));
        }
    });
    // A namespace made since then may have a copy of the mount, which ends with this process.
    match ended.recv()? {
        // Linux 6.18 may end the connection of an unmounted file system with this error.
        Err(error)
            if error.kind() == io::ErrorKind::ConnectionAborted
                && !is_mounted(&File::open(MOUNTS)?, device)? => {}
        ended => ended?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns whether a file system is mounted anywhere in the namespace of this process.
fn is_mounted(mut mounts: &File, device: u64) -> io::Result<bool> {
    let number = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    let mut all = Vec::new();
    mounts.rewind()?;
    mounts.read_to_end(&mut all)?;
    let mut of_mounts = all.split(|byte| *byte == b'\n').map(|line| line.split(|byte| *byte == b' ').nth(2));
    Ok(of_mounts.any(|of_mount| of_mount == Some(number.as_bytes())))
}

fn wait_until_unmounted(mounts: &File, device: u64) -> io::Result<()> {
    while is_mounted(mounts, device)? {
        let mut change = [PollFd::new(&mounts, PollFlags::PRI | PollFlags::ERR)];
        retry_on_intr(|| rustix::event::poll(&mut change, None))?;
    }
    Ok(())
}

/// The number of open files. They can be read to their ends, unmounted or not.
#[derive(Default)]
struct Users {
    count: Mutex<u64>,
    fewer: Condvar,
}

impl Users {
    fn count(&self) -> MutexGuard<'_, u64> {
        self.count.lock().expect("no panics")
    }

    fn wait_until_none(&self) {
        let _none = self.fewer.wait_while(self.count(), |count| *count > 0).expect("no panics");
    }
}

/// The files and folders, numbered from 1 on, the root first.
struct View {
    nodes: Vec<Node>,
    /// With their titles.
    contents: Vec<(String, Arc<dyn Content>)>,
    /// Wrong pieces that were reported already.
    wrong: Mutex<BTreeSet<(usize, u32)>>,
    users: Arc<Users>,
    statistics: Statistics,
    time: SystemTime,
    owner: (u32, u32),
}

struct Node {
    parent: u64,
    kind: NodeKind,
}

enum NodeKind {
    Folder(IndexMap<String, u64>),
    File(Part),
}

/// A file of a torrent.
#[derive(Clone, Copy)]
struct Part {
    content: usize,
    offset: u64,
    length: u64,
    executable: bool,
    /// Whether all of its pieces are complete.
    whole: bool,
}

impl View {
    fn of(
        store: &dyn ContentRepository,
        torrents: &[StoredTorrent],
        metainfo: impl Fn(&InfoHash) -> Result<Option<Metainfo>, StoreError>,
        time: SystemTime,
    ) -> Result<Self, StoreError> {
        let mut view = Self {
            nodes: vec![Node { parent: 1, kind: NodeKind::Folder(IndexMap::new()) }],
            contents: Vec::new(),
            wrong: Mutex::default(),
            users: Arc::default(),
            statistics: store.statistics(),
            time,
            owner: (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw()),
        };
        let mut tops = BTreeMap::<_, u32>::new();
        for torrent in torrents {
            if let Some(name) = torrent.name() {
                *tops.entry(name.to_owned()).or_default() += 1;
            }
            // A torrent's name may be the info hash of another, and so its folder.
            *tops.entry(torrent.info_hash().to_string()).or_default() += 1;
        }
        for torrent in torrents {
            let content = store.open(&torrent.info_hash())?;
            let complete = content.pieces()?;
            let geometry = content.geometry();
            let at = view.contents.len();
            view.contents.push((torrent.title(), content));
            let part = |offset: u64, length: u64, executable| Part {
                content: at,
                offset,
                length,
                executable,
                whole: geometry.pieces_of(&(offset..offset + length)).all(|piece| complete.contains(piece)),
            };
            let hash = torrent.info_hash().to_string();
            let Some(metainfo) = metainfo(&torrent.info_hash())? else {
                view.add(&[&hash], part(0, geometry.len(), false));
                continue;
            };
            // Puts files without a folder of their own, and torrents whose name is not unique, into a folder.
            let files = metainfo.info().files();
            let mut names = files.iter().filter(|file| !file.is_padding()).map(|file| file.path());
            let name = metainfo.info().name();
            let apart = torrent.name() != Some(name) || tops[name] > 1 || names.any(|path| path[0] != name);
            for file in files.iter().filter(|file| !file.is_padding()) {
                let mut path = file.path();
                if apart {
                    path.insert(0, &hash);
                }
                view.add(&path, part(file.offset(), file.length(), file.is_executable()));
            }
        }
        Ok(view)
    }

    /// Adds a file and its folders.
    fn add(&mut self, path: &[&str], part: Part) {
        let mut parent = 1;
        for (at, name) in path.iter().enumerate() {
            let next = self.nodes.len() as u64 + 1;
            let NodeKind::Folder(entries) = &mut self.nodes[parent as usize - 1].kind else { return };
            let number = *entries.entry((*name).to_owned()).or_insert(next);
            if number == next {
                let last = at + 1 == path.len();
                let kind = if last { NodeKind::File(part) } else { NodeKind::Folder(IndexMap::new()) };
                self.nodes.push(Node { parent, kind });
            }
            parent = number;
        }
    }

    fn node(&self, number: INodeNo) -> Option<&Node> {
        self.nodes.get(usize::try_from(number.0).ok()?.checked_sub(1)?)
    }

    fn attributes(&self, number: INodeNo, node: &Node) -> FileAttr {
        let (size, kind, perm, nlink) = match &node.kind {
            NodeKind::Folder(entries) => (0, FileType::Directory, 0o555, 2 + entries.len() as u32),
            NodeKind::File(part) => {
                (part.length, FileType::RegularFile, if part.executable { 0o555 } else { 0o444 }, 1)
            }
        };
        FileAttr {
            ino: number,
            size,
            blocks: size.div_ceil(512),
            atime: self.time,
            mtime: self.time,
            ctime: self.time,
            crtime: self.time,
            kind,
            perm,
            nlink,
            uid: self.owner.0,
            gid: self.owner.1,
            rdev: 0,
            blksize: UNIT,
            flags: 0,
        }
    }

    /// Bytes of a file, up to the first missing one.
    fn bytes(&self, part: &Part, offset: u64, size: u32) -> Result<Vec<u8>, Errno> {
        let length = part.length.saturating_sub(offset).min(size.into()) as usize;
        if length == 0 {
            return Ok(Vec::new());
        }
        let mut bytes = vec![0; length];
        let start = part.offset + offset;
        let (title, content) = &self.contents[part.content];
        let read = match content.read(start, &mut bytes) {
            Err(StoreError::NotWritten { at }) if at > start => {
                bytes.truncate((at - start) as usize);
                content.read(start, &mut bytes)
            }
            read => read,
        };
        if let Err(StoreError::Wrong { piece }) = read
            && self.wrong.lock().expect("no panics").insert((part.content, piece))
        {
            let title = title.escape_debug();
            eprintln!(
                "seedkeep: {title}: piece {piece} is wrong; `seedkeep store repair` marks it as missing"
            );
        }
        read.map(|()| bytes).map_err(|_| Errno::EIO)
    }
}

impl Filesystem for View {
    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let found = self.node(parent).and_then(|node| match &node.kind {
            NodeKind::Folder(entries) => entries.get(name.to_str()?).copied(),
            NodeKind::File(_) => None,
        });
        match found.and_then(|number| Some((INodeNo(number), self.node(INodeNo(number))?))) {
            Some((number, node)) => {
                reply.entry(&FOR_EVER, &self.attributes(number, node), Generation(0));
            }
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, number: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.node(number) {
            Some(node) => reply.attr(&FOR_EVER, &self.attributes(number, node)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn open(&self, _: &Request, number: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let flags = match self.node(number).map(|node| &node.kind) {
            Some(NodeKind::File(part)) if part.whole => FopenFlags::FOPEN_KEEP_CACHE,
            // The page cache would take a short read for the end of the file, and a copy would be short
            // without an error.
            Some(NodeKind::File(_)) => FopenFlags::FOPEN_DIRECT_IO,
            Some(NodeKind::Folder(_)) => return reply.error(Errno::EISDIR),
            None => return reply.error(Errno::ENOENT),
        };
        *self.users.count() += 1;
        reply.opened(FileHandle(0), flags);
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        *self.users.count() -= 1;
        self.users.fewer.notify_all();
        reply.ok();
    }

    fn read(
        &self,
        _: &Request,
        number: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match self.node(number).map(|node| &node.kind) {
            Some(NodeKind::File(part)) => match self.bytes(part, offset, size) {
                Ok(bytes) => reply.data(&bytes),
                Err(error) => reply.error(error),
            },
            _ => reply.error(Errno::ENOENT),
        }
    }

    fn readdir(&self, _: &Request, number: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let Some(Node { parent, kind: NodeKind::Folder(entries) }) = self.node(number) else {
            return reply.error(Errno::ENOTDIR);
        };
        let own = [(".", number.0), ("..", *parent)];
        let entry = |at: usize| match at.checked_sub(own.len()) {
            None => Some(own[at]),
            Some(at) => entries.get_index(at).map(|(name, number)| (name.as_str(), *number)),
        };
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        for (at, (name, number)) in (offset + 1..).zip((from..).map_while(entry)) {
            let kind = match self.node(INodeNo(number)).map(|node| &node.kind) {
                Some(NodeKind::File(_)) => FileType::RegularFile,
                _ => FileType::Directory,
            };
            if reply.add(INodeNo(number), at, kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        let unit = u64::from(UNIT);
        let (used, free) = (self.statistics.used / unit, self.statistics.free.unwrap_or(0) / unit);
        reply.statfs(used + free, free, 0, self.nodes.len() as u64, 0, UNIT, 255, UNIT);
    }
}
