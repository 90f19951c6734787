//! Every state that a crash could leave, one after another: all flushed changes and any part of the others.
//! Then the same with each flush left out in turn.

mod judge;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    fs,
    hash::{DefaultHasher, Hash, Hasher},
    io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use parking_lot::Mutex;
use swarmkeep_kit::{
    disk::{self, Change, Entry, Image, Medium, Node, ROOT},
    draw::Draw,
};
use swarmkeep_metainfo::FileList;
use tempfile::TempDir;

use self::judge::judge;
use super::{
    Allocation, Damage, FileStore, HIDDEN,
    disk::{Disk, DiskStep, Op},
    tests::{Tap, Witness},
};
use crate::{Content, ContentConfig, ContentExt, ContentRepository, Error, InfoHash, NewTorrent, PieceBits};

const PIECE: u32 = 1000;

/// Whether a step is left out.
type LeftOut = fn(DiskStep) -> bool;
/// Whether a change arrives, by its number; called for each sector of content.
type ArrivalFilter = Box<dyn FnMut(usize) -> bool>;

/// Puts an image into a folder, and the node of each i-node there into `nodes`. The store's own folder comes
/// last, as it did.
fn materialize(image: &Image, node: Node, at: &Path, nodes: &mut HashMap<usize, Node>) {
    match image.names(node) {
        None => fs::write(at, image.read(node)).unwrap(),
        Some(names) => {
            if node != ROOT {
                fs::create_dir(at).unwrap();
            }
            let (own, others): (Vec<_>, Vec<_>) = names.iter().partition(|(name, _)| *name == HIDDEN);
            for (name, &below) in others.into_iter().chain(own) {
                materialize(image, below, &at.join(name), nodes);
            }
        }
    }
    nodes.insert(inode(at), node);
}

fn inode(path: &Path) -> usize {
    fs::metadata(path).unwrap().ino() as usize
}

/// The names of an image, and how long files are.
fn tree(image: &Image, node: Node) -> String {
    let Some(names) = image.names(node) else { return image.read(node).len().to_string() };
    let below = |(name, below): (&String, &Node)| format!("{name}: {}", tree(image, *below));
    format!("{{{}}}", names.iter().map(below).collect::<Vec<_>>().join(", "))
}

/// Records the steps, except flushes that it leaves out.
struct Recorder {
    record: disk::Recorder<Arc<Promises>>,
    /// The node of each i-node.
    nodes: Mutex<HashMap<usize, Node>>,
    left_out: LeftOut,
}

impl Recorder {
    /// Records the changes of a folder that holds an image.
    fn of(image: &Image, folder: &Path, left_out: LeftOut) -> Arc<Self> {
        let mut nodes = HashMap::new();
        materialize(image, ROOT, folder, &mut nodes);
        Arc::new(Self { record: disk::Recorder::new(image.clone()), nodes: Mutex::new(nodes), left_out })
    }
}

impl Witness for Recorder {
    fn before(&self, step: DiskStep) -> io::Result<bool> {
        Ok(!(self.left_out)(step))
    }

    fn done(&self, mut entry: Op) {
        let mut nodes = self.nodes.lock();
        if let Entry::Make(node, is_folder) = entry {
            nodes.insert(node, self.record.make(is_folder));
            return;
        }
        for node in nodes_of(&mut entry) {
            match nodes.get(node) {
                Some(&known) => *node = known,
                // Files of the judge are not of this file system.
                None => return,
            }
        }
        self.record.record(entry);
    }
}

/// The files and folders of a step.
fn nodes_of(entry: &mut Op) -> Vec<&mut Node> {
    match entry {
        Entry::Change(change) | Entry::Durable(change) => match change {
            Change::Move { from, to } => {
                let to = to.iter_mut().flat_map(|((folder, _), node)| [folder, node]);
                from.iter_mut().map(|(folder, _)| folder).chain(to).collect()
            }
            Change::Write { node, .. } | Change::Length { node, .. } => vec![node],
        },
        Entry::Make(node, _) => vec![node],
        Entry::Flush(node) => node.iter_mut().collect(),
        Entry::Note(_) => Vec::new(),
    }
}

fn open(folder: &Path, recorder: &Arc<Recorder>) -> Result<FileStore, Error> {
    let disk = Disk::default();
    *disk.tap.lock() = Some(Tap(Arc::clone(recorder) as Arc<dyn Witness>));
    FileStore::open_on(disk, &ContentConfig::new(folder), Allocation::Sparse)
}

/// The promises of a store: torrents that must exist after a crash, and torrents that may.
#[derive(Debug, Clone, Default)]
pub(super) struct Promises {
    torrents: BTreeMap<u8, PromisedTorrent>,
    /// The action in progress: it is done, or not.
    doing: Option<Action>,
    created: u64,
    /// The user has put the file there that the store will adopt.
    is_put: bool,
}

#[derive(Debug, Clone)]
struct PromisedTorrent {
    number: u64,
    pieces: BTreeMap<u32, Piece>,
}

#[derive(Debug, Clone, Default)]
struct Piece {
    /// It was flushed: it has to be complete.
    durable: bool,
    /// It was marked: it may be complete.
    marked: bool,
    /// How often it was written, each time with something else.
    version: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Create(u8),
    Delete(u8),
    Write,
    Mark(u8, u32),
    Unmark(u8, u32),
    Flush,
    /// The user removed a file, and the store is opened.
    Miss(u8),
}

fn hash(name: u8) -> InfoHash {
    InfoHash::new([name + 1; 20])
}

/// One with folders in it, one beside it, one whose place is taken, one without a list of files, and one that
/// is adopted now and then.
fn torrent(name: u8) -> NewTorrent {
    let list = |files: &[(&[&str], u64)]| {
        let mut list = FileList::builder();
        files.iter().for_each(|(path, len)| _ = list.file(path, *len, false).unwrap());
        NewTorrent::with_files(hash(name), PIECE, list.build().unwrap()).unwrap()
    };
    match name {
        0 => list(&[(&["t0", "a"], 1500), (&["t0", "b", "c"], 700)]),
        1 => list(&[(&["t1", "x", "y"], 1000), (&["t1", "z"], 1300)]),
        2 => list(&[(&["mine", "a"], 900), (&["mine", "b"], 400)]),
        ADOPTED => list(&[(&[SONG], 1300)]),
        _ => NewTorrent::new(hash(name), 2100, PIECE).unwrap(),
    }
}

const TORRENTS: u8 = 5;
const ADOPTED: u8 = 4;
const SONG: &str = "song";

fn bytes_of(number: u64, piece: u32, version: u64, len: u64) -> Vec<u8> {
    let mut draws = Draw::new(number << 32 ^ u64::from(piece) << 16 ^ version);
    (0..len).map(|_| draws.below(256) as u8).collect()
}

struct Workload {
    folder: TempDir,
    recorder: Arc<Recorder>,
    store: Option<FileStore>,
    promises: Promises,
    draws: Draw,
    /// The number of torrents in use.
    torrents: u8,
}

fn scratch() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

impl Workload {
    fn say(&mut self, doing: Option<Action>) {
        self.promises.doing = doing;
        self.recorder.done(Entry::Note(Arc::new(self.promises.clone())));
    }

    fn store(&self) -> &FileStore {
        self.store.as_ref().expect("it is open")
    }

    fn act(&mut self) {
        let name = self.draws.below(self.torrents.into()) as u8;
        let Some(torrent) = self.promises.torrents.get(&name) else { return self.create(name) };
        let pieces = self::torrent(name).geometry.pieces();
        let piece = self.draws.below(pieces.into()) as u32;
        let marked = torrent.pieces.get(&piece).is_some_and(|piece| piece.marked);
        match self.draws.below(12) {
            0 => self.delete(name),
            1 => self.miss(name),
            2 | 3 => self.flush(),
            _ if marked => self.unmark(name, piece),
            _ => self.write(name, piece),
        }
    }

    fn create(&mut self, name: u8) {
        if name == ADOPTED && self.draws.below(4) > 0 {
            return self.adopt();
        }
        self.say(Some(Action::Create(name)));
        self.store().create(&torrent(name)).unwrap();
        self.promises.created += 1;
        let number = self.promises.created;
        self.promises.torrents.insert(name, PromisedTorrent { number, pieces: BTreeMap::new() });
        self.say(None);
        if name == 1 && self.draws.below(2) == 0 {
            self.others("t1/x", "own", Some(b"own"));
        }
    }

    /// The user makes the file of a torrent, or all of it except its end, without a flush, and the store
    /// adopts it.
    fn adopt(&mut self) {
        let new = torrent(ADOPTED);
        let number = self.promises.created + 1;
        let (mut bytes, mut pieces) = (Vec::new(), BTreeMap::new());
        let mut right = PieceBits::none(new.geometry.pieces());
        for piece in 0..new.geometry.pieces() - self.draws.below(2) as u32 {
            let range = new.geometry.piece(piece).unwrap();
            bytes.extend(bytes_of(number, piece, 1, range.end - range.start));
            right.insert(piece);
            pieces.insert(piece, Piece { durable: false, marked: true, version: 1 });
        }
        self.put(".", SONG, Some(&bytes), false);
        self.promises.is_put = true;
        self.promises.created = number;
        self.promises.torrents.insert(ADOPTED, PromisedTorrent { number, pieces });
        self.say(Some(Action::Create(ADOPTED)));
        self.store().adopt(&new, &right, |_| true).unwrap().expect("it lies in its place");
        // It flushes.
        for piece in self.promises.torrents.values_mut().flat_map(|torrent| torrent.pieces.values_mut()) {
            piece.durable = piece.marked;
        }
        self.promises.is_put = false;
        self.say(None);
    }

    /// Another program makes or removes a file.
    fn others(&mut self, folder: &str, name: &str, bytes: Option<&[u8]>) {
        self.put(folder, name, bytes, true);
    }

    fn put(&mut self, folder: &str, name: &str, bytes: Option<&[u8]>, is_flushed: bool) {
        let above = self.folder.path().join(folder);
        let (path, name) = (above.join(name), (inode(&above), name.to_owned()));
        let Some(bytes) = bytes else {
            if path.is_dir() { fs::remove_dir(path) } else { fs::remove_file(path) }.unwrap();
            return self.recorder.done(Entry::Durable(Change::Move { from: Some(name), to: None }));
        };
        fs::write(&path, bytes).unwrap();
        let node = inode(&path);
        self.recorder.done(Entry::Make(node, false));
        self.recorder.done(Entry::Durable(Change::Move { from: None, to: Some((name, node)) }));
        let write = Change::Write { node, at: 0, bytes: bytes.into() };
        self.recorder.done(if is_flushed { Entry::Durable(write) } else { Entry::Change(write) });
    }

    fn delete(&mut self, name: u8) {
        self.say(Some(Action::Delete(name)));
        assert!(self.store().delete(&hash(name)).unwrap());
        self.promises.torrents.remove(&name);
        self.say(None);
        if name == 1 && self.folder.path().join("t1/x/own").exists() {
            // Or it could not come again under its name.
            for (above, name) in [("t1/x", "own"), ("t1", "x"), (".", "t1")] {
                self.others(above, name, None);
            }
        }
        if self.draws.below(2) == 0 {
            self.create(name);
        }
    }

    fn write(&mut self, name: u8, piece: u32) {
        let content = self.store().open(&hash(name)).unwrap();
        let range = content.geometry().piece(piece).unwrap();
        let torrent = self.promises.torrents.get_mut(&name).unwrap();
        let known = torrent.pieces.entry(piece).or_default();
        known.version += 1;
        let bytes = bytes_of(torrent.number, piece, known.version, range.end - range.start);
        self.say(Some(Action::Write));
        content.write(range.start, &bytes).unwrap();
        self.say(Some(Action::Mark(name, piece)));
        assert!(content.mark_complete(piece).unwrap());
        self.piece(name, piece).marked = true;
        self.say(None);
    }

    fn piece(&mut self, name: u8, piece: u32) -> &mut Piece {
        self.promises.torrents.get_mut(&name).unwrap().pieces.get_mut(&piece).unwrap()
    }

    fn unmark(&mut self, name: u8, piece: u32) {
        self.say(Some(Action::Unmark(name, piece)));
        assert!(self.store().open(&hash(name)).unwrap().mark_incomplete(piece).unwrap());
        let known = self.piece(name, piece);
        (known.marked, known.durable) = (false, false);
        self.say(None);
        self.write(name, piece);
    }

    fn flush(&mut self) {
        self.say(Some(Action::Flush));
        self.store().flush().unwrap();
        for piece in self.promises.torrents.values_mut().flat_map(|torrent| torrent.pieces.values_mut()) {
            piece.durable = piece.marked;
        }
        self.say(None);
    }

    /// A file is gone while the store is not open.
    fn miss(&mut self, name: u8) {
        let new = torrent(name);
        // If all of its files are gone, a torrent is unavailable.
        let Some(files) = new.files.as_deref().filter(|_| name != ADOPTED) else { return };
        self.flush();
        let (index, path) = self.store().paths(&hash(name)).unwrap().remove(0);
        let root = self.folder.path().canonicalize().unwrap();
        let path = path.strip_prefix(root).unwrap();
        let folder = path.parent().unwrap().to_str().unwrap().to_owned();
        let file = path.file_name().unwrap().to_str().unwrap().to_owned();
        self.store = None;
        for piece in new.geometry.pieces_of(&files.get(index).unwrap().range()) {
            if let Some(known) = self.promises.torrents.get_mut(&name).unwrap().pieces.get_mut(&piece) {
                (known.marked, known.durable) = (false, false);
            }
        }
        self.others(&folder, &file, None);
        self.say(Some(Action::Miss(name)));
        self.store = Some(open(self.folder.path(), &self.recorder).unwrap());
        self.say(None);
    }
}

#[derive(Default)]
struct Explored {
    states: u64,
    distinct: HashSet<u64>,
    /// The first contradiction.
    found: Option<String>,
}

/// Runs a store, crashes it at every possible moment, and judges the rest, until there is a contradiction.
fn explore(seed: u64, actions: u32, torrents: u8, left_out: LeftOut, explored: &mut Explored) {
    let folder = scratch();
    let mut base = Image::default();
    let (mine, precious) = (base.make(true), base.make(false));
    for change in [
        Change::Move { from: None, to: Some(((ROOT, "mine".to_owned()), mine)) },
        Change::Move { from: None, to: Some(((mine, "precious".to_owned()), precious)) },
        Change::Write { node: precious, at: 0, bytes: b"precious".as_slice().into() },
    ] {
        base.apply(&change, &mut || true);
    }
    let recorder = Recorder::of(&base, folder.path(), left_out);
    let store = open(folder.path(), &recorder).unwrap();
    let promises = Promises::default();
    let mut work =
        Workload { folder, recorder, store: Some(store), promises, draws: Draw::new(seed), torrents };
    work.say(None);
    (0..actions).for_each(|_| work.act());
    work.flush();
    let mut explorer = Explorer { explored, left_out, draws: Draw::new(seed ^ 0xabcd), again: true };
    explorer.crashes(base, Arc::default(), work.recorder.record.take_log(), &format!("seed {seed}"));
}

struct Explorer<'a> {
    explored: &'a mut Explored,
    left_out: LeftOut,
    draws: Draw,
    /// Whether crashes of the store that is opened then are looked into.
    again: bool,
}

impl Explorer<'_> {
    /// Replays the record on a file system, and crashes before every flush and between any two steps.
    fn crashes(&mut self, base: Image, mut promises: Arc<Promises>, log: Vec<Op>, place: &str) {
        let mut medium = Medium::new(base);
        for (step, entry) in log.into_iter().enumerate() {
            if self.explored.found.is_some() {
                return;
            }
            let place = format!("{place}, step {step}");
            match &entry {
                Entry::Note(said) => {
                    promises = Arc::clone(said);
                    self.epoch(&medium, &promises, 1, &place);
                }
                Entry::Flush(_) => self.epoch(&medium, &promises, 3, &place),
                _ => {}
            }
            medium.play(entry);
        }
        self.epoch(&medium, &promises, 3, place);
    }

    /// The possible states after a crash now: all and none of the unflushed changes, each alone, each
    /// missing, and `some` subsets of them.
    fn epoch(&mut self, medium: &Medium, promises: &Promises, some: u64, place: &str) {
        let pending = medium.pending();
        let mut kept: Vec<(String, ArrivalFilter)> = Vec::new();
        kept.push(("nothing of the rest".to_owned(), Box::new(|_| false)));
        kept.push(("all of the rest".to_owned(), Box::new(|_| true)));
        // The latest changes were not checked before.
        for one in (0..pending.len()).rev().take(3) {
            kept.push((format!("all but {}", pending[one]), Box::new(move |change| change != one)));
            kept.push((format!("{} alone", pending[one]), Box::new(move |change| change == one)));
        }
        for _ in 0..some {
            let seed = self.draws.below(1 << 30);
            let bias = 1 + self.draws.below(7);
            let kept_too = move |change| Draw::new(seed ^ change as u64).below(8) < bias;
            kept.push((format!("some, {seed}"), Box::new(kept_too)));
            let mut draws = Draw::new(seed);
            kept.push((format!("torn, {seed}"), Box::new(move |_| draws.below(8) < bias)));
        }
        for (what, mut kept) in kept {
            self.state(medium.crash(&mut kept), promises, &format!("{place}: {what}"));
        }
    }

    fn state(&mut self, image: Image, promises: &Promises, place: &str) {
        self.explored.states += 1;
        let content = image.fingerprint();
        let mut hasher = DefaultHasher::new();
        (content, format!("{promises:?}")).hash(&mut hasher);
        if self.explored.found.is_some() || !self.explored.distinct.insert(hasher.finish()) {
            return;
        }
        let again = self.again && content.is_multiple_of(32);
        let folder = scratch();
        let recorder = Recorder::of(&image, folder.path(), self.left_out);
        match judge(folder.path(), promises, &recorder, content.is_multiple_of(8)) {
            Err(what) => {
                let tree = tree(&image, ROOT);
                self.explored.found =
                    Some(format!("{place}\n    {what}\n    of {tree}\n    promised: {promises:?}"));
            }
            Ok(log) if again => {
                self.again = false;
                self.crashes(image, Arc::new(promises.clone()), log, &format!("{place}; opened"));
                self.again = true;
            }
            Ok(_) => {}
        }
    }
}

#[test]
fn every_crash_keeps_the_promises() {
    let mut explored = Explored::default();
    for seed in 0..5 {
        explore(seed, 30, TORRENTS, |_| false, &mut explored);
        if let Some(found) = explored.found {
            panic!("{found}");
        }
    }
    println!("{} crash states, {} distinct", explored.states, explored.distinct.len());
    assert!(explored.distinct.len() > 3000);
}

#[test]
fn each_flush_that_is_left_out_is_a_mutant_that_is_noticed() {
    let mutants: &[(&str, LeftOut)] = &[
        ("content", |step| matches!(step, DiskStep::Flush(_))),
        ("have-bits", |step| step == DiskStep::FlushBits),
        ("a new state", |step| step == DiskStep::FlushState),
        ("the name of a state", |step| step == DiskStep::SyncState),
        ("how long new files are", |step| step == DiskStep::FlushMade),
        ("the names of new files", |step| step == DiskStep::SyncMade),
        ("where files are made", |step| step == DiskStep::SyncMaking),
        ("that files are in their place", |step| step == DiskStep::SyncPlaced),
        ("that a torrent is deleted", |step| step == DiskStep::SyncDeleted),
        ("names in folders that stay", |step| step == DiskStep::SyncStaying),
        ("that files are removed", |step| step == DiskStep::SyncRemoved),
        ("that nothing is left to remove", |step| step == DiskStep::SyncForgotten),
        ("that there are folders for states", |step| step == DiskStep::SyncHidden),
        ("that there is a store", |step| step == DiskStep::SyncStore),
        ("that an unfinished torrent is none", |step| step == DiskStep::SyncUnmade),
        ("the names of files made anew", |step| step == DiskStep::SyncMended),
        ("files that are adopted", |step| step == DiskStep::FlushAdopted),
    ];
    let missed: Vec<_> = mutants
        .iter()
        .filter(|(what, left_out)| {
            let mut explored = Explored::default();
            for seed in 0..20 {
                // Fewer torrents have more done to them.
                let torrents = if left_out(DiskStep::FlushAdopted) { TORRENTS } else { ADOPTED };
                explore(seed, 30, torrents, *left_out, &mut explored);
                if let Some(found) = &explored.found {
                    println!("without a flush of {what}, state {}: {found}", explored.states);
                    return false;
                }
            }
            println!("without a flush of {what}: NOTHING in {} states", explored.states);
            true
        })
        .map(|(what, _)| what)
        .collect();
    assert!(missed.is_empty(), "{missed:?}");
}
