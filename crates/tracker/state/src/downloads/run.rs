//! Runs: sorted, immutable files in pages of 4 KiB, and how an info hash is found in one.

use std::{
    cmp::Ordering,
    hash::{BuildHasher, Hasher, RandomState},
    path::PathBuf,
};

use super::{
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

const STRANGE_FLAGS: &str = "the entry there has flags that version 1 does not have";

/// Where the checksum of a page stands.
const CHECKSUM: usize = PAGE - 4;

/// Pages that are written or read at once by what goes through a whole run.
const PAGES_AT_ONCE: usize = 64;

/// Bytes after which a run that is being written is synced, so that commits beside it do not wait for all of
/// it.
const SYNC_EVERY: u64 = 8 << 20;

/// A run that is open to be read.
pub(crate) struct Run {
    pub(crate) first: u64,
    pub(crate) last: u64,
    pub(crate) entries: u64,
    path: PathBuf,
    identity: u64,
    file: Box<dyn File>,
}

impl Run {
    /// Opens a run and checks its header; its pages are checked when they are read.
    ///
    /// # Errors
    /// [`Error::Damaged`], [`Error::Version`], [`Error::Io`].
    pub(crate) fn open(folder: &dyn Folder, first: u64, last: u64) -> Result<Self> {
        let name = Name::Run(first, last).to_string();
        let path = folder.path(&name);
        let io = || Error::io("reading", path.clone());
        let damaged = |at, what| Error::Damaged { path: path.clone(), at, what };
        let file = folder.open(&name).map_err(io())?;
        let length = file.len().map_err(io())?;
        if length < PAGE as u64 {
            return Err(damaged(length, "it ends within its header"));
        }
        let mut page = [0; PAGE];
        file.read_exact_at(&mut page, 0).map_err(io())?;
        if page[..8] != MAGIC {
            return Err(damaged(0, "it does not begin as a run does"));
        }
        let version = u16::from_le_bytes(array(&page[8..10]));
        if version != VERSION {
            return Err(Error::Version { path, found: version, known: VERSION });
        }
        let field = |at: usize| u64::from_le_bytes(array(&page[at..at + 8]));
        let (identity, entries) = (field(32), field(40));
        if page != header(field(16), field(24), identity, entries) {
            return Err(damaged(0, "its header fails its checksum"));
        }
        if (field(16), field(24)) != (first, last) {
            return Err(damaged(16, "it is the run of other numbers, renamed"));
        }
        let pages = entries.div_ceil(ENTRIES as u64);
        if pages.checked_add(1).and_then(|pages| pages.checked_mul(PAGE as u64)) != Some(length) {
            return Err(damaged(length, "it has not the length that its header says"));
        }
        Ok(Self { first, last, entries, path, identity, file })
    }

    /// Bytes of the file.
    pub(crate) fn bytes(&self) -> u64 {
        (self.pages() + 1) * PAGE as u64
    }

    pub(crate) fn name(&self) -> String {
        Name::Run(self.first, self.last).to_string()
    }

    /// What it says of a torrent. Costs 2 or 3 pages read where info hashes are spread evenly, and where they
    /// are not, at most [`INTERPOLATIONS`] more than bisection does; none if the page that `cursor` holds
    /// decides.
    ///
    /// # Errors
    /// [`Error::Damaged`] if a page that was read fails its checksum, [`Error::Io`].
    pub(crate) fn find(&self, info_hash: &InfoHash, cursor: &mut Cursor) -> Result<Option<Delta>> {
        let key = prefix(info_hash);
        // The pages in which it may be, and what is known of the info hashes around them.
        let (mut low, mut high) = (0, self.pages());
        let (mut low_key, mut high_key) = (0, u64::MAX);
        let mut reads = 0;
        let mut guess = cursor.held;
        loop {
            if let Some(number) = guess {
                match cursor.compare(info_hash) {
                    Ordering::Equal => {
                        let Some(at) = cursor.search(info_hash) else { return Ok(None) };
                        let byte = (number + 1) * PAGE as u64 + (at * ENTRY) as u64;
                        let entry = entry::decode(&cursor.entry(at))
                            .ok_or_else(|| self.damaged(byte, STRANGE_FLAGS))?;
                        return Ok(Some(entry.1));
                    }
                    Ordering::Less => (high, high_key) = (number, prefix(&cursor.info_hash(0))),
                    Ordering::Greater => {
                        (low, low_key) = (number + 1, prefix(&cursor.info_hash(cursor.entries - 1)));
                    }
                }
            }
            if low >= high {
                return Ok(None);
            }
            let number = if reads < INTERPOLATIONS && low_key < high_key {
                let share = u128::from(key.saturating_sub(low_key)) * u128::from(high - low);
                (low + (share / u128::from(high_key - low_key)) as u64).min(high - 1)
            } else {
                low + (high - low) / 2
            };
            cursor.read(self, number)?;
            reads += 1;
            guess = Some(number);
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

    /// Reads pages and checks them.
    fn read(&self, first: u64, pages: &mut [u8]) -> Result<()> {
        let at = (first + 1) * PAGE as u64;
        self.file.read_exact_at(pages, at).map_err(Error::io("reading", self.path.clone()))?;
        for (number, page) in (first + 1..).zip(pages.chunks(PAGE)) {
            if u32::from_le_bytes(array(&page[CHECKSUM..]))
                != checksum(self.identity, number, &page[..CHECKSUM])
            {
                return Err(self.damaged(number * PAGE as u64, "the page there fails its checksum"));
            }
        }
        Ok(())
    }

    fn damaged(&self, at: u64, what: &'static str) -> Error {
        Error::Damaged { path: self.path.clone(), at, what }
    }
}

/// Reads of a lookup that guess from how info hashes are spread, before it bisects: strangers choose them.
const INTERPOLATIONS: u32 = 4;

/// The page of a run that was read last, so that neighbours need not read it again.
pub(crate) struct Cursor {
    page: Box<[u8; PAGE]>,
    held: Option<u64>,
    entries: usize,
}

impl Cursor {
    pub(crate) fn new() -> Self {
        Self { page: Box::new([0; PAGE]), held: None, entries: 0 }
    }

    /// Before it is used for another run.
    pub(crate) fn reset(&mut self) {
        self.held = None;
    }

    fn read(&mut self, run: &Run, number: u64) -> Result<()> {
        self.held = None;
        run.read(number, &mut self.page[..])?;
        self.held = Some(number);
        self.entries = run.entries_of(number);
        Ok(())
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

    fn search(&self, info_hash: &InfoHash) -> Option<usize> {
        let entries = &self.page[..].as_chunks::<ENTRY>().0[..self.entries];
        entries.binary_search_by(|entry| entry[..InfoHash::LEN].cmp(&info_hash.as_bytes()[..])).ok()
    }

    fn entry(&self, at: usize) -> [u8; ENTRY] {
        array(&self.page[at * ENTRY..(at + 1) * ENTRY])
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
}

impl<'a> Entries<'a> {
    pub(crate) fn new(run: &'a Run) -> Self {
        Self { run, next: 0, pages: Vec::new() }
    }
}

impl Iterator for Entries<'_> {
    type Item = Result<Entry>;

    fn next(&mut self) -> Option<Result<Entry>> {
        if self.next == self.run.entries {
            return None;
        }
        let (page, at) = (self.next / ENTRIES as u64, (self.next % ENTRIES as u64) as usize);
        let slot = (page % PAGES_AT_ONCE as u64) as usize * PAGE;
        if slot == 0 && at == 0 {
            let pages = PAGES_AT_ONCE.min((self.run.pages() - page) as usize);
            self.pages.resize(pages * PAGE, 0);
            if let Err(error) = self.run.read(page, &mut self.pages) {
                self.next = self.run.entries;
                return Some(Err(error));
            }
        }
        self.next += 1;
        let entry = entry::decode(&array(&self.pages[slot + at * ENTRY..slot + (at + 1) * ENTRY]));
        let at = (page + 1) * PAGE as u64 + (at * ENTRY) as u64;
        Some(entry.ok_or_else(|| self.run.damaged(at, STRANGE_FLAGS)))
    }
}

/// Why a run was not made.
#[derive(Debug)]
pub(crate) struct Failed {
    pub(crate) error: Error,
    /// The run's name, if it may have it now, or may have it after a crash.
    pub(crate) appeared: Option<String>,
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self { error, appeared: None }
    }
}

/// Writes a run of ascending entries, for logs `first` to `last`; durable when it returns. If there is
/// nothing `older`, only counts are kept: there is nothing to forget. Holds 256 KiB.
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
        Ok(file) => Ok(Run { first, last, entries, path, identity, file }),
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
    /// Pages that are not written yet, and where they go. The last one has room for another entry.
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

    /// The identity and the number of entries of what is now durable, though not under its name.
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
