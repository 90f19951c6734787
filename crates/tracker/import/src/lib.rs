//! Imports the download counts of another tracker from its files into the state of this one.

use std::{
    error::Error,
    fmt,
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
    sync::Arc,
};

use flate2::read::MultiGzDecoder;
use indicatif::{HumanCount, ProgressBar};
use serde::Serialize;
use swarmkeep_bittorrent::{InfoHash, counted, in_words, programs::bar};
use swarmkeep_state::{Directory, Downloads};

pub use reading::Wrong;

use input::Input;
use reading::{Entries, Stop};

mod aquatic;
mod input;
mod lines;
mod opentracker;
mod reading;
mod scrape;

/// The files to read, and the place for the counts.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// The files of the other tracker. `-` is standard input, at most once.
    pub files: Vec<PathBuf>,
    /// The state folder of this tracker. Without it, nothing is imported.
    pub state: Option<PathBuf>,
    /// The format of the files. Without it, the format is recognized from the beginning of each file.
    pub from: Option<Format>,
    /// Whether wrong entries are skipped. Otherwise nothing is imported if anything is wrong.
    pub skip_bad: bool,
}

/// The format of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Format {
    /// The answer to an HTTP scrape (BEP 48).
    Scrape,
    /// opentracker's `/stats?mode=statedump`.
    OpentrackerState,
    /// opentracker's `/stats?mode=tpbs&format=txtp`.
    OpentrackerTxtp,
    /// An info hash and a number per line.
    Lines,
}

impl Format {
    /// Every format.
    pub const ALL: [Self; 4] = [Self::Scrape, Self::OpentrackerState, Self::OpentrackerTxtp, Self::Lines];

    /// Its name on command lines and in JSON.
    pub const fn name(self) -> &'static str {
        ["scrape", "opentracker-state", "opentracker-txtp", "lines"][self as usize]
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A torrent and its downloads.
type Count = (InfoHash, u32);

/// Opens the counts of a tracker, before anything is read.
fn open(state: &Path) -> Result<Downloads, Box<dyn Error>> {
    fs::create_dir_all(state)
        .map_err(|error| format!("cannot make the folder {}: {error}", state.display()))?;
    Ok(Downloads::open(Arc::new(Directory::open(state)?))?)
}

/// The counts of all files together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[non_exhaustive]
pub struct Totals {
    /// The number of different torrents.
    pub torrents: u64,
    /// The number of torrents with downloads.
    pub with_downloads: u64,
    /// The number of downloads.
    pub downloads: u64,
    /// The number of counts for torrents that already had one.
    pub duplicates: u64,
    /// The number of torrents with a lower stored count, if there is a state folder.
    pub raised: Option<u64>,
}

impl Totals {
    /// Leaves the highest count of each torrent, and none of zero, in ascending order.
    fn of(counts: &mut Vec<Count>) -> Self {
        let read = counts.len();
        counts.sort_unstable_by(|one, other| other.cmp(one));
        counts.dedup_by_key(|(info_hash, _)| *info_hash);
        counts.reverse();
        let torrents = counts.len();
        counts.retain(|(_, downloads)| *downloads > 0);
        Self {
            torrents: torrents as u64,
            with_downloads: counts.len() as u64,
            downloads: counts.iter().map(|(_, downloads)| u64::from(*downloads)).sum(),
            duplicates: (read - torrents) as u64,
            raised: None,
        }
    }
}

/// The result of an import.
#[derive(Debug, Serialize)]
#[non_exhaustive]
pub struct Imported {
    /// Whether nothing was imported because there is no state folder.
    pub dry_run: bool,
    /// The files, in the given order.
    pub files: Vec<Taken>,
    /// Of all files.
    #[serde(flatten)]
    pub totals: Totals,
    /// Of all files.
    pub refused: u64,
    /// The reason why the imported counts were not copied.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_copied: Option<String>,
}

/// The result of one file.
#[derive(Debug, Serialize)]
#[non_exhaustive]
pub struct Taken {
    /// Its name.
    pub file: String,
    /// Its format.
    pub format: Format,
    /// Whether it is compressed.
    pub gzip: bool,
    /// The number of counts that were read.
    pub read: u64,
    /// The number of wrong entries.
    pub refused: u64,
    /// The first wrong entries.
    pub wrong: Vec<Wrong>,
}

/// Reads all files, raises the counts in the state to those in the files, and copies the state's counts.
///
/// # Errors
/// The first error and its position. Nothing is then imported; after a write that failed, perhaps everything.
pub fn run(options: &Options) -> Result<Imported, Box<dyn Error>> {
    let mut downloads = options.state.as_deref().map(open).transpose()?;
    let mut counts = Vec::new();
    let files = options.files.iter().map(|file| read_file(file, options, &mut counts));
    let files: Vec<Taken> = files.collect::<Result<_, _>>()?;
    let (mut totals, mut not_copied) = (Totals::of(&mut counts), None);
    if let Some(downloads) = &mut downloads {
        totals.raised = Some(downloads.raise(&counts)?);
        not_copied = downloads.copy().err().map(|error| error.to_string());
    }
    let refused = files.iter().map(|file| file.refused).sum();
    Ok(Imported { dry_run: downloads.is_none(), files, totals, refused, not_copied })
}

fn is_stdin(file: &Path) -> bool {
    file.as_os_str() == "-"
}

/// Reads a whole file.
fn read_file(file: &Path, options: &Options, counts: &mut Vec<Count>) -> Result<Taken, Box<dyn Error>> {
    let name = if is_stdin(file) { "standard input".to_owned() } else { file.display().to_string() };
    let wrong = |error: &dyn fmt::Display| format!("{name}: {}", in_words(error));
    let (from, bar): (Box<dyn Read>, _) = if is_stdin(file) {
        (Box::new(io::stdin().lock()), ProgressBar::hidden())
    } else {
        let from = File::open(file).map_err(|error| wrong(&error))?;
        let metadata = from.metadata().map_err(|error| wrong(&error))?;
        if metadata.is_dir() {
            return Err(wrong(&"it is a folder").into());
        }
        (Box::new(from), bar(metadata.len()).with_message(name.clone()))
    };
    let mut input = Input::new(bar.wrap_read(from));
    let gzip = input.head(GZIP.len()).map_err(|error| wrong(&error))? == GZIP;
    if gzip {
        input = Input::new(MultiGzDecoder::new(input));
    }
    let format = match options.from {
        Some(format) => format,
        None => guess(&mut input).map_err(|error| wrong(&error))?,
    };
    let mut entries = Entries::new(counts);
    let done = read(format, &mut input, &mut entries);
    bar.finish_and_clear();
    match done {
        Ok(()) => {}
        Err(Stop::Broken(broken)) => entries.refuse(broken.at, broken.what),
        Err(Stop::Failed(error)) => return Err(wrong(&error).into()),
    }
    let Entries { read, refused, wrong, .. } = entries;
    let taken = Taken { file: name, format, gzip, read, refused, wrong };
    if refused > 0 && !options.skip_bad {
        let (good, bad) =
            (counted(HumanCount(read), "good count"), counted(HumanCount(refused), "wrong one"));
        let named = taken.named();
        return Err(format!(
            "{}: {good} and {bad}, so nothing is imported; --skip-bad leaves these out:{named}",
            taken.file
        )
        .into());
    }
    Ok(taken)
}

const GZIP: &[u8] = &[0x1f, 0x8b];
/// Other compressions, by the beginning of their files.
const COMPRESSED: [(&[u8], &str); 3] =
    [(&[0x28, 0xb5, 0x2f, 0xfd], "zstd"), (b"BZh", "bzip2"), (b"\xfd7zXZ\0", "xz")];
const SQLITE: &[u8] = b"SQLite format 3\0";

/// Recognizes the format of a file from its beginning.
fn guess(input: &mut Input<'_>) -> Result<Format, String> {
    let head = input.head(lines::LONGEST).map_err(|error| error.to_string())?;
    if head.is_empty() {
        return Err("it is empty".into());
    }
    if let Some((_, program)) = COMPRESSED.iter().find(|(magic, _)| head.starts_with(magic)) {
        return Err(format!(
            "it is compressed by {program}: `{program} -dc FILE | swarmkeep import … -` reads it"
        ));
    }
    if head.starts_with(SQLITE) {
        return Err(
            "it is a database of SQLite: `sqlite3 -readonly FILE 'SELECT info_hash, completed FROM torrents' | swarmkeep import … -` reads the one of torrust-tracker"
                .into(),
        );
    }
    if let Some(rest) = head.strip_prefix(b"d") {
        // Fewer digits than in an info hash.
        let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        if ((1..39).contains(&digits) && rest.get(digits) == Some(&b':')) || rest.trim_ascii_end() == b"e" {
            return Ok(Format::Scrape);
        }
    }
    let line = head.split(|byte| *byte == b'\n').next().unwrap_or_default().trim_ascii_end();
    if aquatic::is_export(line) {
        return Err(format!("this is {}", aquatic::NO_DOWNLOADS));
    }
    let colons = |rest: &[u8]| rest.iter().filter(|byte| **byte == b':').count();
    match lines::info_hash(line) {
        Ok((_, rest)) if colons(rest) == 3 => Ok(Format::OpentrackerTxtp),
        Ok((_, rest)) if colons(rest) == 2 => Ok(Format::OpentrackerState),
        Ok((_, rest)) if rest.first().is_some_and(|between| lines::BETWEEN.contains(between)) => {
            Ok(Format::Lines)
        }
        _ => {
            let line = line.get(..60).unwrap_or(line).escape_ascii();
            Err(format!(
                "no known file of a tracker begins with \"{line}\"; --from FORMAT names its format, --help lists the formats"
            ))
        }
    }
}

fn read(format: Format, input: &mut Input<'_>, entries: &mut Entries<'_>) -> Result<(), Stop> {
    match format {
        Format::Scrape => scrape::read(input, entries),
        Format::OpentrackerState => opentracker::read_state(input, entries),
        Format::OpentrackerTxtp => opentracker::read_txtp(input, entries),
        Format::Lines => lines::read(input, entries),
    }
}

impl Taken {
    /// The first wrong entries, one per line.
    pub fn named(&self) -> String {
        let mut words: String =
            self.wrong.iter().map(|Wrong { at, what }| format!("\n  {at}: {what}")).collect();
        let more = self.refused - self.wrong.len() as u64;
        if more > 0 {
            words += &format!("\n  and {} more", HumanCount(more));
        }
        words
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::{Compression, write::GzEncoder};
    use proptest::prelude::*;

    use super::*;

    /// The result of a reader.
    pub(super) struct Read {
        pub(super) counts: Vec<Count>,
        pub(super) refused: Vec<String>,
        pub(super) broken: Option<String>,
    }

    pub(super) fn read(format: Format, bytes: &[u8]) -> Read {
        read_with(|entries| super::read(format, &mut Input::new(bytes), entries))
    }

    pub(super) fn read_with(reader: impl FnOnce(&mut Entries<'_>) -> Result<(), Stop>) -> Read {
        let mut counts = Vec::new();
        let mut entries = Entries::new(&mut counts);
        let broken = match reader(&mut entries) {
            Ok(()) => None,
            Err(Stop::Broken(Wrong { at, what })) => Some(format!("{at}: {what}")),
            Err(Stop::Failed(error)) => Some(error),
        };
        let refused = entries.wrong.iter().map(|Wrong { at, what }| format!("{at}: {what}")).collect();
        Read { counts, refused, broken }
    }

    const HASH: &str = "deadbeef001122334455667788990011223344ff";

    #[test]
    fn formats_are_recognized_from_the_beginning_of_files() {
        let guess = |bytes: &[u8]| guess(&mut Input::new(bytes));
        let line = |rest: &str| format!("{HASH}{rest}\n").into_bytes();
        assert_eq!(guess(b"d5:filesd20:"), Ok(Format::Scrape));
        assert_eq!(guess(b"d14:failure reason2:noe"), Ok(Format::Scrape));
        assert_eq!(guess(b"de"), Ok(Format::Scrape));
        assert_eq!(guess(&line(":29912345:1")), Ok(Format::OpentrackerState));
        assert_eq!(guess(&line(":1:2:3")), Ok(Format::OpentrackerTxtp));
        for rest in [":1", "\t1", ",1", "|1", " 1", " 1\r"] {
            assert_eq!(guess(&line(rest)), Ok(Format::Lines), "{rest}");
        }
        // The digits of this info hash could be the length of a key.
        assert_eq!(guess(format!("d{}:1\n", "5".repeat(39)).as_bytes()), Ok(Format::Lines));
    }

    #[test]
    fn a_file_of_no_known_tracker_is_named() {
        let guess = |bytes: &[u8]| guess(&mut Input::new(bytes)).unwrap_err();
        assert_eq!(guess(b""), "it is empty");
        assert!(guess(b"\x28\xb5\x2f\xfd\0").contains("zstd -dc"));
        assert!(guess(b"SQLite format 3\0\x10\0").contains("sqlite3 -readonly"));
        assert!(guess(format!("4 {HASH} 1 2\n").as_bytes()).contains("aquatic counts no downloads"));
        assert!(guess(b"<html>\nno").starts_with("no known file of a tracker begins with \"<html>\";"));
        assert!(guess(&[0xff; 1000]).contains(r"\xff"));
        assert!(guess(b"d").contains("begins with \"d\""));
    }

    #[test]
    fn of_each_torrent_the_highest_count_is_taken_in_ascending_order() {
        let torrent = |n: u8| InfoHash::new([n; 20]);
        let mut counts: Vec<Count> = [(3, 1), (1, 0), (2, 5), (3, 7), (3, 2), (2, 5)]
            .map(|(n, downloads)| (torrent(n), downloads))
            .into();
        let totals = Totals::of(&mut counts);
        let expected = Totals { torrents: 3, with_downloads: 2, downloads: 12, duplicates: 3, raised: None };
        assert_eq!((totals, counts), (expected, vec![(torrent(2), 5), (torrent(3), 7)]));
        assert_eq!(Totals::of(&mut Vec::new()), Totals::default());
    }

    #[test]
    fn compressed_bytes_that_are_cut_off_are_noticed() {
        let lines = format!("{HASH}:29912345:1\n").repeat(100);
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(lines.as_bytes()).unwrap();
        let whole = encoder.finish().unwrap();
        let read = |bytes: &[u8]| {
            read_with(|entries| {
                super::read(Format::OpentrackerState, &mut Input::new(MultiGzDecoder::new(bytes)), entries)
            })
        };
        assert_eq!((read(&whole).counts.len(), read(&whole).broken), (100, None));
        // Parts of one answer, each compressed by itself.
        assert_eq!(read(&whole.repeat(2)).counts.len(), 200);
        let mut wrong = whole.clone();
        *wrong.last_mut().unwrap() ^= 1;
        for bytes in [&whole[..whole.len() - 1], &whole[..12], &wrong] {
            let read = read(bytes);
            assert!(
                read.broken.is_some_and(|broken| broken.contains("gzip: ")),
                "{} counts",
                read.counts.len()
            );
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes: Vec<u8>, line in "[0-9a-f]{38,41}[:,\t ]-?[0-9]{0,12}[:]?[0-9]{0,12}\r?\n?") {
            for bytes in [&*bytes, line.as_bytes(), &[line.as_bytes(), &bytes].concat(), &[&bytes, line.as_bytes()].concat()] {
                _ = guess(&mut Input::new(bytes));
                for format in [Format::Scrape, Format::OpentrackerState, Format::OpentrackerTxtp, Format::Lines] {
                    read(format, bytes);
                }
                read_with(|entries| super::read(Format::Lines, &mut Input::new(MultiGzDecoder::new(bytes)), entries));
            }
        }
    }
}
