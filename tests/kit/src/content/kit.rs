//! Tools of the cases: folders to open stores in, bytes that tell where they belong, and time
//! that is bounded.

use std::{
    ops::{Deref, Range},
    process::Command,
    sync::Arc,
    time::{Duration, Instant},
};

pub(crate) use swarmkeep_conformance::common::{hash, within};
use swarmkeep_content::{
    Content, ContentConfig, ContentExt, ContentRepository, Error, Geometry, NewTorrent, Result,
};
use tempfile::TempDir;

use super::Subject;
pub(crate) use crate::draw::Draw;

pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The longest time of a race, even with rounds left.
const RACE: Duration = Duration::from_millis(400);

/// The bytes of one request of a peer, and so the least that is written.
pub(crate) const BLOCK: u64 = 1 << 14;

/// The capacity of a bounded store in a case that is not about bounds: it may allocate all of it at once.
const ROOM: u64 = 64 << 20;

/// A temporary folder in which the stores of a case are opened, one after another.
pub(crate) struct Folder<'a> {
    subject: &'a dyn Subject,
    folder: TempDir,
    capacity: Option<u64>,
}

impl<'a> Folder<'a> {
    pub(crate) fn new(subject: &'a dyn Subject) -> Self {
        Self { capacity: Some(ROOM), ..Self::unlimited(subject) }
    }

    pub(crate) fn opened(subject: &'a dyn Subject) -> (Self, Store) {
        let folder = Self::new(subject);
        let store = folder.open();
        (folder, store)
    }

    /// For stores without a capacity.
    pub(crate) fn unlimited(subject: &'a dyn Subject) -> Self {
        Self { subject, folder: scratch_folder(), capacity: None }
    }

    /// For stores of the least capacity that any store has to take; `None` if a capacity is not declared,
    /// after it was seen to be refused.
    pub(crate) fn bounded(subject: &'a dyn Subject) -> Option<Self> {
        let capabilities = Self::new(subject).open().capabilities();
        let capacity = (8 << 20).max(8 * u64::from(capabilities.stripe));
        let folder = Self { capacity: Some(capacity), ..Self::new(subject) };
        if capabilities.bounded {
            return Some(folder);
        }
        match subject.open(&folder.config()) {
            Err(Error::Unsupported(_)) => None,
            Err(other) => {
                panic!("a capacity is not declared and must be refused as Unsupported, not: {other}")
            }
            Ok(_) => panic!("a capacity is not declared, and yet not refused"),
        }
    }

    pub(crate) fn config(&self) -> ContentConfig {
        let mut config = ContentConfig::new(self.folder.path());
        config.capacity = self.capacity;
        config
    }

    pub(crate) fn capacity(&self) -> u64 {
        self.capacity.expect("it was given one")
    }

    pub(crate) fn open(&self) -> Store {
        let opened = match self.subject.open(&self.config()) {
            Err(Error::Unsupported(_)) if self.capacity == Some(ROOM) => {
                self.subject.open(&ContentConfig::new(self.folder.path()))
            }
            opened => opened,
        };
        match opened {
            Ok(store) => Store(store.into()),
            Err(error) => panic!("{:?} is refused: {error}", self.config()),
        }
    }

    /// Closes the store, of which nothing else may be open, and opens it again.
    pub(crate) fn again(&self, store: Store) -> Store {
        assert_eq!(Arc::strong_count(&store.0), 1, "the case itself has the store open");
        drop(store);
        self.open()
    }

    /// A copy of the folder as it is now, as the next process finds it. The store that is open in it must be
    /// idle.
    pub(crate) fn copy(&self) -> Self {
        let copy = Self { capacity: self.capacity, ..Self::new(self.subject) };
        // A store may lie in a large file that has few bytes.
        let mut cp = Command::new("cp");
        cp.args(["-r", "--sparse=always"]).arg(self.folder.path().join(".")).arg(copy.folder.path());
        assert!(cp.status().is_ok_and(|status| status.success()), "the folder is copied");
        copy
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Store(Arc<dyn ContentRepository>);

impl Deref for Store {
    type Target = dyn ContentRepository;

    fn deref(&self) -> &Self::Target {
        &*self.0
    }
}

impl Store {
    pub(crate) fn new_torrent(&self, n: u64, length: u64, piece_length: u32) -> Arc<dyn Content> {
        self.create(&torrent(n, length, piece_length))
            .unwrap_or_else(|error| panic!("a torrent of {length} in pieces of {piece_length}: {error}"))
    }

    pub(crate) fn torrent(&self, n: u64) -> Arc<dyn Content> {
        self.open(&hash(n)).unwrap_or_else(|error| panic!("torrent {n} is not opened: {error}"))
    }

    pub(crate) fn stripe(&self) -> u64 {
        self.capabilities().stripe.into()
    }

    pub(crate) fn is_durable(&self) -> bool {
        self.capabilities().durable
    }

    /// Asserts that nothing is there, as it must be in a store that is not durable when it is opened again.
    pub(crate) fn assert_empty(&self) {
        assert_eq!(self.list().unwrap(), [], "the store is not declared durable");
        assert!(matches!(self.open(&hash(1)), Err(Error::NotFound(_))), "the store is not declared durable");
    }
}

pub(crate) fn torrent(n: u64, length: u64, piece_length: u32) -> NewTorrent {
    NewTorrent::new(hash(n), length, piece_length).expect("such torrents exist")
}

/// Lengths and piece lengths of torrents: powers of two, odd ones, pieces of one byte, and pieces longer than
/// the torrent.
pub(crate) const MEASURES: [(u64, u32); 12] = [
    (1, 1),
    (1, 1 << 14),
    (100, 1),
    (1000, 7),
    (4096, 512),
    (12_345, 513),
    (70_000, 4096),
    (100_001, 1 << 14),
    (300_000, 99_999),
    (5000, 1 << 20),
    (1 << 19, 1 << 18),
    (262_145, 1 << 15),
];

/// The same, and torrents whose pieces are as long as the stripe or longer.
pub(crate) fn measures(store: &Store) -> Vec<(u64, u32)> {
    let stripe = store.stripe();
    let long = [(2 * stripe + 12_345, stripe as u32), (stripe + stripe / 2 + 77, (stripe + 4099) as u32)];
    MEASURES.into_iter().chain(long).collect()
}

/// Bytes that are a function of the pattern and of where they lie, so that one that is out of place is
/// recognised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pattern(pub(crate) u16);

impl Pattern {
    const MARK: u64 = 0xb17e;
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

    pub(crate) fn bytes(self, range: Range<u64>) -> Vec<u8> {
        let mut bytes = vec![0; (range.end - range.start) as usize];
        let (mut at, mut rest) = (range.start, &mut bytes[..]);
        while !rest.is_empty() {
            let within = (at % 8) as usize;
            let word = &self.word(at / 8).to_le_bytes()[within..];
            let (now, later) = rest.split_at_mut(word.len().min(rest.len()));
            now.copy_from_slice(&word[..now.len()]);
            (at, rest) = (at + now.len() as u64, later);
        }
        bytes
    }

    fn word(self, n: u64) -> u64 {
        let plain = Self::MARK << 48 | u64::from(self.0 & 0xfff) << 36 | n & 0xf_ffff_ffff;
        let mixed = plain.wrapping_mul(Self::FACTOR);
        (mixed ^ mixed >> 32).wrapping_mul(Self::FACTOR)
    }

    /// The pattern of two words, and where they belong.
    fn of(words: &[u8]) -> Option<(Self, u64)> {
        let decode = |bytes: &[u8]| {
            let mixed = u64::from_le_bytes(bytes.try_into().expect("8 bytes")).wrapping_mul(INVERSE);
            (mixed ^ mixed >> 32).wrapping_mul(INVERSE)
        };
        let first = decode(&words[..8]);
        let number = first & 0xf_ffff_ffff;
        (first >> 48 == Self::MARK && decode(&words[8..16]) == first + 1)
            .then_some((Self((first >> 36 & 0xfff) as u16), 8 * number))
    }

    /// The first bytes of a pattern for which `wanted` is true: their place, their pattern, and the offset
    /// where they belong.
    fn find(bytes: &[u8], wanted: impl Fn(Self) -> bool) -> Option<(usize, Self, u64)> {
        bytes.windows(16).enumerate().find_map(|(at, words)| {
            Self::of(words).filter(|(pattern, _)| wanted(*pattern)).map(|(pattern, home)| (at, pattern, home))
        })
    }
}

/// The inverse of [`Pattern::FACTOR`], found by Newton's iteration.
const INVERSE: u64 = {
    let mut inverse = Pattern::FACTOR;
    let mut step = 0;
    while step < 6 {
        inverse = inverse.wrapping_mul(2_u64.wrapping_sub(Pattern::FACTOR.wrapping_mul(inverse)));
        step += 1;
    }
    inverse
};

pub(crate) fn put(content: &dyn Content, range: Range<u64>, pattern: Pattern) {
    let result = content.write(range.start, &pattern.bytes(range.clone()));
    result.unwrap_or_else(|error| panic!("a write to {range:?} of {:?}: {error}", content.geometry()));
}

pub(crate) fn complete(content: &dyn Content, piece: u32, pattern: Pattern) {
    put(content, content.geometry().piece(piece).unwrap(), pattern);
    assert!(content.mark_complete(piece).unwrap(), "piece {piece} was written and not marked");
}

/// Asserts that a range reads as the pattern.
#[track_caller]
pub(crate) fn assert_reads(content: &dyn Content, range: Range<u64>, pattern: Pattern) {
    let mut bytes = vec![0xa5; (range.end - range.start) as usize];
    if let Err(error) = content.read(range.start, &mut bytes) {
        panic!("a read of {range:?} of {:?}: {error}", content.geometry());
    }
    assert_bytes(&bytes, range.start, pattern);
}

/// Asserts that these bytes, found at `start`, are the pattern's.
#[track_caller]
pub(crate) fn assert_bytes(bytes: &[u8], start: u64, pattern: Pattern) {
    let expected = pattern.bytes(start..start + bytes.len() as u64);
    if bytes == expected {
        return;
    }
    let at = (0..bytes.len()).find(|&at| bytes[at] != expected[at]).expect("they differ");
    let (near, shown) = (&bytes[at.saturating_sub(7)..], &bytes[at..bytes.len().min(at + 16)]);
    let origin = match Pattern::find(&near[..near.len().min(64)], |_| true) {
        Some((_, found, home)) => format!("of {found:?}, from about byte {home}"),
        None if shown.iter().all(|&byte| byte == 0) => "zeroes".into(),
        None if shown.iter().all(|&byte| byte == 0xa5) => "left as the buffer was".into(),
        None => "of no pattern".into(),
    };
    panic!("byte {} is not {pattern:?}'s: {shown:02x?}, {origin}", start + at as u64);
}

/// Asserts that a range cannot be read because byte `first` was not written, and that the buffer shows
/// nothing of others' patterns.
#[track_caller]
pub(crate) fn assert_missing(content: &dyn Content, range: Range<u64>, first: u64, own: &[Pattern]) {
    let mut bytes = vec![0xa5; (range.end - range.start) as usize];
    match content.read(range.start, &mut bytes) {
        Err(Error::NotWritten { at }) if at == first => {}
        Err(error) => panic!("byte {first} of {range:?} was not written: {error:?}"),
        Ok(()) => {
            let shown = &bytes[(first - range.start) as usize..];
            panic!("byte {first} of {range:?} was not written: {:02x?}", &shown[..shown.len().min(16)]);
        }
    }
    assert_nothing_of_others(&bytes, own);
}

/// Asserts that there are no bytes of other patterns than these.
#[track_caller]
pub(crate) fn assert_nothing_of_others(bytes: &[u8], own: &[Pattern]) {
    if let Some((at, pattern, home)) = Pattern::find(bytes, |pattern| !own.contains(&pattern)) {
        panic!("byte {at} of a buffer is {pattern:?}'s, from byte {home}");
    }
}

/// Asserts that nothing of a torrent is written or complete, as far as some hundreds of its bytes tell.
#[track_caller]
pub(crate) fn assert_untouched(content: &dyn Content) {
    let geometry = content.geometry();
    assert_eq!(content.pieces().unwrap().count(), 0);
    for range in [0..1, 0..geometry.len().min(1 << 20), geometry.len() - 1..geometry.len()] {
        assert_missing(content, range.clone(), range.start, &[]);
    }
    for at in (0..geometry.len()).step_by((geometry.len() / 256).max(1) as usize) {
        assert_missing(content, at..at + 1, at, &[]);
    }
}

pub(crate) fn complete_pieces(content: &dyn Content) -> Vec<u32> {
    content.pieces().unwrap().iter().collect()
}

/// Offsets at which a store may begin something new: its stripes, pieces, sectors and pages, the end; and
/// their neighbours.
pub(crate) fn boundaries(geometry: Geometry, stripe: u64) -> Vec<u64> {
    let piece = u64::from(geometry.piece_length());
    let around = [0, 512, 4096, BLOCK, piece, 2 * piece, stripe, geometry.len()];
    let mut all: Vec<_> = around
        .iter()
        .flat_map(|&at| [at.saturating_sub(1), at, at + 1])
        .filter(|&at| at <= geometry.len())
        .collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// The numbers of a race's rounds: `most` of them, or as many as there is time for on a slow store, and one
/// in any case.
pub(crate) fn rounds(most: u64) -> impl Iterator<Item = u64> {
    let began = Instant::now();
    (0..most).take_while(move |&round| round == 0 || began.elapsed() < RACE)
}

macro_rules! assert_error {
    ($result:expr, $error:pat $(if $guard:expr)? $(,)?) => {
        match $result {
            Err($error) $(if $guard)? => {}
            other => panic!("not {}: {other:?}", stringify!($error $(if $guard)?)),
        }
    };
}
pub(crate) use assert_error;

pub(crate) fn said<T>(result: Result<T>) -> Result<T, String> {
    result.map_err(|error| error.to_string())
}

/// A folder for a case: in memory where the system has such a place, since many flushes are slow on a busy
/// disk.
fn scratch_folder() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a temporary folder")
}
