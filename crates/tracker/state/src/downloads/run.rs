//! Runs: sorted, immutable files in pages of 4 KiB, and the look-up of an info hash in them.

use std::{
    cmp::Ordering,
    hash::{BuildHasher, Hasher, RandomState},
    ops::Range,
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

use parking_lot::Mutex;

use super::{
    damage::{Damage, Pages, Tolerant},
    entry::{self, Delta, ENTRY, Entry, array},
    log::{VERSION, checksum},
    names::{Name, PARTIAL},
};
use crate::{Error, File, Folder, InfoHash, Result};

/// Bytes of a page.
pub(crate) const PAGE: usize = 4096;

/// Entries of a page.
pub(crate) const ENTRIES: usize = (PAGE - 4) / ENTRY;

const MAGIC: [u8; 8] = *b"swkpdrun";

/// The position in a page of the identity of its file, for a run whose header is damaged.
const IDENTITY: usize = ENTRIES * ENTRY;

/// The position of the checksum in a page.
const CHECKSUM: usize = PAGE - 4;

/// Pages that are read or written at once when a whole run is.
const PAGES_AT_ONCE: usize = 64;

/// Bytes after which a run that is being written is synced, so that a concurrent commit does not wait for all
/// of it.
const SYNC_EVERY: u64 = 8 << 20;

/// The most pages that are searched for the identity of a run whose header is damaged.
const LOOKED_AT: u64 = 1024;

/// The most pages that the disk refuses to read before a look-up gives up.
const MOST_UNREAD: usize = 4;

/// A run that is open to be read.
pub(crate) struct Run {
    pub(crate) first: u64,
    pub(crate) last: u64,
    pub(crate) entries: u64,
    path: PathBuf,
    identity: u64,
    file: Box<dyn File>,
    /// The faults of its header and length.
    damage: Vec<Damage>,
    /// The damaged pages that were found so far.
    bad: Mutex<Pages>,
    /// Whether it is not merged any more, because a merge would lose a part of it for good.
    is_kept: AtomicBool,
    /// Whether the disk refused to read it in the latest merge.
    pub(crate) is_unread: AtomicBool,
}

impl Run {
    /// Opens a run and checks its header; its pages are checked when they are read. Faults are
    /// [noted](Self::damage), and the rest can be read.
    ///
    /// # Errors
    /// [`Error::Damaged`] if it is another file, renamed, [`Error::Version`], [`Error::Io`].
    pub(crate) fn open(folder: &dyn Folder, first: u64, last: u64) -> Result<Self> {
        let name = Name::Run(first, last).to_string();
        let path = folder.path(&name);
        let io = || Error::io("reading", path.clone());
        let file = folder.open(&name).map_err(io())?;
        let length = file.len().map_err(io())?;
        let mut page = [0; PAGE];
        let mut header = Tolerant::new(&*file);
        header.read(&mut page[..PAGE.min(length as usize)], 0);
        header.sectors_only().map_err(io())?;
        let field = |at: usize| u64::from_le_bytes(array(&page[at..at + 8]));
        let is_good =
            page[..8] == MAGIC && page[CHECKSUM..] == crc32c::crc32c(&page[..CHECKSUM]).to_le_bytes();
        let version = u16::from_le_bytes(array(&page[8..10]));
        if is_good && version != VERSION {
            return Err(Error::Version { path, found: version, known: VERSION });
        }
        if is_good && (field(16), field(24)) != (first, last) {
            return Err(Error::Damaged { path, at: 16, what: "it is the run of other numbers, renamed" });
        }
        let found = (length / PAGE as u64).saturating_sub(1);
        let entries = if is_good { field(40) } else { found * ENTRIES as u64 };
        let (damage, bad) = (Vec::new(), Mutex::default());
        let (identity, is_kept, is_unread) = (field(32), AtomicBool::new(false), AtomicBool::new(false));
        let mut run = Self { first, last, entries, path, identity, file, damage, bad, is_kept, is_unread };
        if !is_good {
            run.recover_header(found);
            run.note(0..length.min(PAGE as u64), "its header cannot be read, or fails its checksum", 0);
        }
        if length != run.bytes() {
            run.note(length..run.bytes().max(length), "its length differs from the length in its header", 0);
        }
        if found < run.pages() {
            run.add_bad(found..run.pages());
        }
        Ok(run)
    }

    /// Restores the values of the header from the pages: the identity, and the number of entries in the last
    /// page.
    fn recover_header(&mut self, pages: u64) {
        let mut page = [0; PAGE];
        for number in 0..pages.min(LOOKED_AT) {
            if self.read_bytes(number, &mut page).is_err() {
                continue;
            }
            let repeated = u64::from_le_bytes(array(&page[IDENTITY..IDENTITY + 8]));
            let good =
                [self.identity, repeated].into_iter().find(|&identity| is_good(identity, number, &page));
            if let Some(identity) = good {
                self.identity = identity;
                break;
            }
        }
        let Some(last) = pages.checked_sub(1) else { return };
        if self.read_bytes(last, &mut page).is_err() {
            // Its number of entries is unknown, even if it can be read later.
            self.add_bad(last..pages);
        } else if is_good(self.identity, last, &page) {
            let entries = page[..IDENTITY].as_chunks::<ENTRY>().0;
            let ascending = entries.windows(2).take_while(|pair| pair[0][..20] < pair[1][..20]).count();
            self.entries = last * ENTRIES as u64 + ascending as u64 + 1;
        }
    }

    /// Bytes of the file.
    pub(crate) fn bytes(&self) -> u64 {
        (self.pages() + 1).saturating_mul(PAGE as u64)
    }

    pub(crate) fn name(&self) -> String {
        Name::Run(self.first, self.last).to_string()
    }

    /// Whether it is not merged any more.
    pub(crate) fn is_kept(&self) -> bool {
        self.is_kept.load(Relaxed)
    }

    /// The damaged parts that were found so far.
    pub(crate) fn damage(&self) -> Vec<Damage> {
        let of = |pages: Range<u64>| Damage {
            file: self.name(),
            bytes: (pages.start + 1) * PAGE as u64..(pages.end + 1) * PAGE as u64,
            what: "pages there cannot be read, or fail their checksums",
            lost: pages.end.saturating_mul(ENTRIES as u64).min(self.entries) - pages.start * ENTRIES as u64,
        };
        self.damage.iter().cloned().chain(self.bad.lock().ranges().map(of)).collect()
    }

    /// Reads all of it, so that [`damage`](Self::damage) is complete.
    pub(crate) fn check(&self) {
        Entries::lenient(self).for_each(drop);
    }

    fn note(&mut self, bytes: Range<u64>, what: &'static str, lost: u64) {
        self.damage.push(Damage { file: self.name(), bytes, what, lost });
        self.is_kept.store(true, Relaxed);
    }

    fn add_bad(&self, pages: Range<u64>) {
        self.bad.lock().add(pages);
        self.is_kept.store(true, Relaxed);
    }

    /// Finds the entry of a torrent. It reads 2 or 3 pages if info hashes are spread evenly, and otherwise at
    /// most [`INTERPOLATIONS`] more than bisection; none if the page in `cursor` decides. Damaged pages are
    /// skipped, and their entries are not found.
    ///
    /// # Errors
    /// [`Error::Io`] if the torrent may be on a page that the disk refuses to read.
    pub(crate) fn find(&self, info_hash: &InfoHash, cursor: &mut Cursor) -> Result<Option<Delta>> {
        let key = prefix(info_hash);
        // The pages that may contain it, and bounds for their info hashes.
        let (mut low, mut high) = (0, self.pages());
        let (mut low_key, mut high_key) = (0, u64::MAX);
        // The first page that is known to begin after it. It may be on an unreadable page before that one.
        let mut behind = high;
        let mut unread = Vec::new();
        let mut reads = 0;
        let mut guess = cursor.held.map(|held| (held, held));
        loop {
            if let Some((number, held)) = guess {
                match cursor.compare(info_hash) {
                    Ordering::Equal => return Ok(cursor.search(info_hash)),
                    Ordering::Less => {
                        (high, high_key, behind) = (number, prefix(&cursor.info_hash(0)), held);
                    }
                    Ordering::Greater => {
                        (low, low_key) = (held + 1, prefix(&cursor.info_hash(cursor.entries - 1)));
                    }
                }
            }
            if low >= high {
                let mut unread = unread.into_iter();
                let lost = unread.find(|(page, _)| (low..behind).contains(page));
                return lost.map_or(Ok(None), |(_, error)| Err(error));
            }
            let number = if reads < INTERPOLATIONS && low_key < high_key {
                let share = u128::from(key.saturating_sub(low_key)) * u128::from(high - low);
                (low + (share / u128::from(high_key - low_key)) as u64).min(high - 1)
            } else {
                low + (high - low) / 2
            };
            guess = cursor.read(self, number..high, &mut unread)?.map(|held| (number, held));
            if guess.is_none() {
                high = number;
            }
            reads += 1;
        }
    }

    /// Pages of entries.
    fn pages(&self) -> u64 {
        self.entries.div_ceil(ENTRIES as u64)
    }

    /// How many entries the page has.
    fn entries_of(&self, page: u64) -> usize {
        (self.entries - page * ENTRIES as u64).min(ENTRIES as u64) as usize
    }

    /// Reads pages as they are.
    fn read_bytes(&self, first: u64, pages: &mut [u8]) -> Result<()> {
        let at = (first + 1) * PAGE as u64;
        self.file.read_exact_at(pages, at).map_err(Error::io("reading", self.path.clone()))
    }

    /// Whether the bytes are those of the page; notes it if they are not.
    fn check_page(&self, number: u64, page: &[u8]) -> bool {
        let is_good = is_good(self.identity, number, page);
        if !is_good {
            self.add_bad(number..number + 1);
        }
        is_good
    }
}

/// Whether a page is as it was written for this place of this file.
fn is_good(identity: u64, number: u64, page: &[u8]) -> bool {
    let flags = |entries: &[[u8; ENTRY]]| entries.iter().all(|bytes| entry::decode(bytes).is_some());
    u32::from_le_bytes(array(&page[CHECKSUM..])) == checksum(identity, number + 1, &page[..CHECKSUM])
        && flags(page[..IDENTITY].as_chunks().0)
}

/// The reads of a look-up that assume evenly spread info hashes, before it bisects: clients can choose info
/// hashes.
const INTERPOLATIONS: u32 = 4;

/// The page of a run that was read last, so that look-ups of neighbours need not read it again.
pub(crate) struct Cursor {
    page: Box<[u8; PAGE]>,
    held: Option<u64>,
    entries: usize,
}

impl Cursor {
    pub(crate) fn new() -> Self {
        Self { page: Box::new([0; PAGE]), held: None, entries: 0 }
    }

    /// Call this before it is used for another run.
    pub(crate) fn reset(&mut self) {
        self.held = None;
    }

    /// Reads the first good page of `pages`, and returns its number. Pages that the disk refuses to read are
    /// added to `unread`.
    fn read(&mut self, run: &Run, pages: Range<u64>, unread: &mut Vec<(u64, Error)>) -> Result<Option<u64>> {
        self.held = None;
        let mut number = pages.start;
        while number < pages.end {
            if let Some(end) = run.bad.lock().end_of(number) {
                number = end;
                continue;
            }
            match run.read_bytes(number, &mut self.page[..]) {
                Ok(()) if run.check_page(number, &self.page[..]) => {
                    self.held = Some(number);
                    self.entries = run.entries_of(number);
                    break;
                }
                Ok(()) => {}
                Err(error) if unread.len() < MOST_UNREAD => unread.push((number, error)),
                Err(error) => return Err(error),
            }
            number += 1;
        }
        Ok(self.held)
    }

    /// Whether the info hash lies before the page, in it, or behind it.
    fn compare(&self, info_hash: &InfoHash) -> Ordering {
        if *info_hash < self.info_hash(0) {
            Ordering::Less
        } else if *info_hash > self.info_hash(self.entries - 1) {
            Ordering::Greater
        } else {
            Ordering::Equal
        }
    }

    fn search(&self, info_hash: &InfoHash) -> Option<Delta> {
        let entries = &self.page[..].as_chunks::<ENTRY>().0[..self.entries];
        let at =
            entries.binary_search_by(|entry| entry[..InfoHash::LEN].cmp(&info_hash.as_bytes()[..])).ok()?;
        entry::decode(&entries[at]).map(|(_, delta)| delta)
    }

    fn info_hash(&self, at: usize) -> InfoHash {
        InfoHash::new(array(&self.page[at * ENTRY..at * ENTRY + InfoHash::LEN]))
    }
}

/// All entries of a run, in order. Holds 256 KiB.
pub(crate) struct Entries<'a> {
    run: &'a Run,
    next: u64,
    pages: Vec<u8>,
    /// Whether damaged pages are skipped. Otherwise the first of them ends it with an error.
    is_lenient: bool,
}

impl<'a> Entries<'a> {
    pub(crate) fn new(run: &'a Run) -> Self {
        Self { run, next: 0, pages: Vec::new(), is_lenient: false }
    }

    pub(crate) fn lenient(run: &'a Run) -> Self {
        Self { is_lenient: true, ..Self::new(run) }
    }

    /// Reads a group of pages, from page `first` on.
    fn read(&mut self, first: u64) -> Result<()> {
        let pages = PAGES_AT_ONCE.min((self.run.pages() - first) as usize);
        self.pages.resize(pages * PAGE, 0);
        let read = self.run.read_bytes(first, &mut self.pages);
        if read.is_ok() || !self.is_lenient {
            self.run.is_unread.store(read.is_err(), Relaxed);
            return read;
        }
        for (number, page) in (first..).zip(self.pages.chunks_mut(PAGE)) {
            if self.run.read_bytes(number, page).is_err() {
                // A page of zeroes fails its checksum.
                page.fill(0);
            }
        }
        Ok(())
    }
}

impl Iterator for Entries<'_> {
    type Item = Result<Entry>;

    fn next(&mut self) -> Option<Result<Entry>> {
        while self.next < self.run.entries {
            let (page, at) = (self.next / ENTRIES as u64, (self.next % ENTRIES as u64) as usize);
            let slot = (page % PAGES_AT_ONCE as u64) as usize * PAGE;
            if at == 0
                && slot == 0
                && let Err(error) = self.read(page)
            {
                self.next = self.run.entries;
                return Some(Err(error));
            }
            if at == 0 && !self.run.check_page(page, &self.pages[slot..slot + PAGE]) {
                self.next = if self.is_lenient { (page + 1) * ENTRIES as u64 } else { self.run.entries };
                if self.is_lenient {
                    continue;
                }
                let (path, at) = (self.run.path.clone(), (page + 1) * PAGE as u64);
                return Some(Err(Error::Damaged { path, at, what: "the page there fails its checksum" }));
            }
            self.next += 1;
            let bytes = array(&self.pages[slot + at * ENTRY..slot + (at + 1) * ENTRY]);
            return Some(Ok(entry::decode(&bytes).expect("the page was checked")));
        }
        None
    }
}

/// Why a run was not made.
#[derive(Debug)]
pub(crate) struct Failed {
    pub(crate) error: Error,
    /// The name of the run, if a file may have it now or after a crash.
    pub(crate) appeared: Option<String>,
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self { error, appeared: None }
    }
}

/// Writes a run of ascending entries, for logs `first` to `last`; durable when it returns. Without `older`
/// runs, only counts are written: there is nothing to forget. Holds 256 KiB.
///
/// # Errors
/// [`Error::NotAscending`], [`Error::Io`], and those of `entries`.
pub(crate) fn write(
    folder: &dyn Folder,
    (first, last): (u64, u64),
    older: bool,
    entries: impl Iterator<Item = Result<Entry>>,
) -> Result<Run, Failed> {
    let name = Name::Run(first, last).to_string();
    let partial = format!("{name}{PARTIAL}");
    let path = folder.path(&name);
    let io = || Error::io("writing", path.clone());
    let result = Writer::create(folder, &partial).map_err(io()).and_then(|mut writer| {
        for entry in entries {
            let (info_hash, mut delta) = entry?;
            delta.forget &= older;
            if !delta.is_empty() {
                writer.push(&(info_hash, delta), &path)?;
            }
        }
        writer.finish(first, last).map_err(io())
    });
    let (identity, entries) = match result {
        Ok(written) => written,
        Err(error) => {
            let _ = folder.remove(&partial);
            return Err(error.into());
        }
    };
    let appear = || {
        folder.rename(&partial, &name)?;
        folder.sync()?;
        folder.open(&name)
    };
    match appear() {
        Ok(file) => {
            let (damage, bad) = (Vec::new(), Mutex::default());
            let (is_kept, is_unread) = (AtomicBool::new(false), AtomicBool::new(false));
            Ok(Run { first, last, entries, path, identity, file, damage, bad, is_kept, is_unread })
        }
        Err(error) => {
            let _ = folder.remove(&partial);
            Err(Failed { error: io()(error), appeared: Some(name) })
        }
    }
}

struct Writer {
    file: Box<dyn File>,
    identity: u64,
    entries: u64,
    /// Pages that are not written yet, and their position. The last one has room for another entry.
    pages: Vec<u8>,
    at: u64,
    unsynced: u64,
    previous: Option<InfoHash>,
}

impl Writer {
    fn create(folder: &dyn Folder, partial: &str) -> std::io::Result<Self> {
        Ok(Self {
            file: folder.create(partial)?,
            identity: RandomState::new().build_hasher().finish(),
            entries: 0,
            pages: Vec::with_capacity(PAGES_AT_ONCE * PAGE),
            at: PAGE as u64,
            unsynced: 0,
            previous: None,
        })
    }

    fn push(&mut self, entry: &Entry, path: &std::path::Path) -> Result<()> {
        if self.previous.is_some_and(|previous| previous >= entry.0) {
            return Err(Error::NotAscending { info_hash: entry.0 });
        }
        self.previous = Some(entry.0);
        self.pages.extend(entry::encode(entry));
        self.entries += 1;
        if self.entries.is_multiple_of(ENTRIES as u64) {
            self.end_page();
            if self.pages.len() == PAGES_AT_ONCE * PAGE {
                self.flush().map_err(Error::io("writing", path.to_owned()))?;
            }
        }
        Ok(())
    }

    /// Makes the file durable, still under its partial name. Returns its identity and its number of entries.
    fn finish(mut self, first: u64, last: u64) -> std::io::Result<(u64, u64)> {
        if !self.entries.is_multiple_of(ENTRIES as u64) {
            self.end_page();
        }
        self.flush()?;
        self.file.write_all_at(&header(first, last, self.identity, self.entries), 0)?;
        self.file.sync()?;
        Ok((self.identity, self.entries))
    }

    fn end_page(&mut self) {
        let length = self.pages.len().next_multiple_of(PAGE);
        self.pages.resize(length, 0);
        let number = (self.at + length as u64) / PAGE as u64 - 1;
        let page = &mut self.pages[length - PAGE..];
        page[IDENTITY..IDENTITY + 8].copy_from_slice(&self.identity.to_le_bytes());
        let checksum = checksum(self.identity, number, &page[..CHECKSUM]);
        page[CHECKSUM..].copy_from_slice(&checksum.to_le_bytes());
    }

    fn flush(&mut self) -> std::io::Result<()> {
        if self.pages.is_empty() {
            return Ok(());
        }
        self.file.write_all_at(&self.pages, self.at)?;
        self.at += self.pages.len() as u64;
        self.unsynced += self.pages.len() as u64;
        self.pages.clear();
        if self.unsynced >= SYNC_EVERY {
            self.unsynced = 0;
            self.file.sync()?;
        }
        Ok(())
    }
}

fn header(first: u64, last: u64, identity: u64, entries: u64) -> [u8; PAGE] {
    let mut page = [0; PAGE];
    page[..8].copy_from_slice(&MAGIC);
    page[8..10].copy_from_slice(&VERSION.to_le_bytes());
    page[16..24].copy_from_slice(&first.to_le_bytes());
    page[24..32].copy_from_slice(&last.to_le_bytes());
    page[32..40].copy_from_slice(&identity.to_le_bytes());
    page[40..48].copy_from_slice(&entries.to_le_bytes());
    let checksum = crc32c::crc32c(&page[..CHECKSUM]);
    page[CHECKSUM..].copy_from_slice(&checksum.to_le_bytes());
    page
}

fn prefix(info_hash: &InfoHash) -> u64 {
    u64::from_be_bytes(array(&info_hash.as_bytes()[..8]))
}
