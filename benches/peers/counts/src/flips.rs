//! What a flipped byte costs: for each of many random places, a copy of a database with the byte there
//! flipped is opened, all its torrents are looked up, it is committed to, and looked up and opened again.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    os::unix::fs::FileExt as _,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    process::{Child, Stdio},
    thread::{self, sleep},
    time::{Duration, Instant},
};

use swarmkeep::{Random, SplitMix64};

use crate::{
    Result, run,
    stores::{Store, chosen, open},
    this_program, torrent,
};

/// Places at which a byte is flipped, one at a time.
const FLIPS: u64 = 200;

/// Commits after it, their size, half of it new torrents: enough that sorted files are merged.
const COMMITS: u64 = 60;
const COMMIT: u64 = 1_000;

/// One torrent of so many is committed to; the others keep the count 1.
const CHANGED: u64 = 10;

/// How long one copy may take.
const PATIENCE: Duration = Duration::from_secs(90);

/// All files of a folder and of the folders in it, in order.
pub(crate) fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            files.extend(self::files(&entry.path())?);
        } else {
            files.push(entry.path());
        }
    }
    files.sort();
    Ok(files)
}

/// The whole of it, for all databases at once; prints a table.
pub(crate) fn compare(folder: &Path, torrents: u64) -> Result<()> {
    let stores = chosen();
    let columns = thread::scope(|scope| {
        let flip = |store: &'static str| {
            scope.spawn(move || flip(store, folder, torrents).map_err(|failed| failed.to_string()))
        };
        let threads: Vec<_> = stores.iter().map(|&store| flip(store)).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect::<Result<Vec<_>, _>>()
    })?;
    let mut table = format!(
        "| {FLIPS} flipped bytes, {torrents} torrents | {} |\n|---|{}\n",
        stores.join(" | "),
        "--:|".repeat(stores.len())
    );
    for row in Found::ROWS {
        let cells: Vec<_> =
            columns.iter().map(|found| found.0.get(row).copied().unwrap_or(0).to_string()).collect();
        writeln!(table, "| {row} | {} |", cells.join(" | "))?;
    }
    print!("{table}");
    Ok(())
}

fn flip(store: &str, folder: &Path, torrents: u64) -> Result<Found> {
    let whole = folder.join(format!("{store}-whole"));
    fs::create_dir(&whole)?;
    let store = &format!("small-{store}");
    run("build", store, &whole, torrents)?;
    let damaged = folder.join(format!("{store}-damaged"));
    let mut found = Found::default();
    let mut rng = SplitMix64::new(7);
    for flip in 0..FLIPS {
        copy(&whole, &damaged)?;
        let place = flip_a_byte(&damaged, &mut rng)?;
        let result = look_within_patience(store, &damaged, torrents)?;
        eprintln!("{store} flip {flip} {place}: {result:?}");
        found.note(&result);
        fs::remove_dir_all(&damaged)?;
    }
    fs::remove_dir_all(&whole)?;
    Ok(found)
}

/// How often each thing was found, by the row of the table.
#[derive(Default)]
struct Found(BTreeMap<&'static str, u64>);

impl Found {
    const ROWS: [&str; 13] = [
        "nothing noticed, nothing wrong",
        "does not open",
        "panics or hangs",
        "lookups refused",
        "most torrents refused",
        "wrong counts, silently",
        "most torrents with a wrong count",
        "tidying fails",
        "commits refused",
        "later: lookups refused",
        "later: wrong counts, silently",
        "later: most torrents with a wrong count",
        "later: does not open",
    ];

    fn note(&mut self, result: &BTreeMap<String, u64>) {
        let seen = |name: &str| result.get(name).copied().unwrap_or(0);
        let mut noticed = false;
        for (row, name) in [
            ("does not open", "refused"),
            ("panics or hangs", "panicked"),
            ("lookups refused", "lost"),
            ("wrong counts, silently", "wrong"),
            ("tidying fails", "untidy"),
            ("commits refused", "uncommitted"),
            ("later: lookups refused", "later lost"),
            ("later: wrong counts, silently", "later wrong"),
            ("later: does not open", "later refused"),
        ] {
            if seen(name) > 0 {
                *self.0.entry(row).or_default() += 1;
                noticed = true;
            }
        }
        for (row, name) in [
            ("most torrents refused", "lost"),
            ("most torrents with a wrong count", "wrong"),
            ("later: most torrents with a wrong count", "later wrong"),
        ] {
            let most = self.0.entry(row).or_default();
            *most = (*most).max(seen(name));
        }
        if !noticed {
            *self.0.entry("nothing noticed, nothing wrong").or_default() += 1;
        }
    }
}

/// The work of the process that meets a damaged copy; prints what it found.
pub(crate) fn look(store: &str, folder: &Path, torrents: u64) -> Result<()> {
    let mut seen = BTreeMap::<&str, u64>::new();
    let damaged = catch_unwind(AssertUnwindSafe(|| look_at(store, folder, torrents, &mut seen)));
    if damaged.is_err() {
        seen.insert("panicked", 1);
    }
    seen.iter().for_each(|(name, times)| println!("{name} {times}"));
    // A database that panicked may not be dropped in peace.
    std::process::exit(0);
}

fn look_at(store: &str, folder: &Path, torrents: u64, seen: &mut BTreeMap<&str, u64>) {
    let Ok(mut database) = open(store, folder) else {
        seen.insert("refused", 1);
        return;
    };
    // In order, so that a page is read once.
    let mut all: Vec<_> = (0..torrents).map(|n| (torrent(n), n)).collect();
    all.sort_unstable();
    let (lost, wrong) = look_up(&*database, &all);
    (seen.insert("lost", lost), seen.insert("wrong", wrong));
    let mut new = (1 << 32..).map(torrent);
    let mut rng = SplitMix64::new(1);
    let (mut uncommitted, mut untidy) = (0, 0);
    for _ in 0..COMMITS {
        let mut changes = Vec::new();
        for _ in 0..COMMIT / 2 {
            changes.push(torrent((rng.next_u64() >> 16) % (torrents / CHANGED) * CHANGED));
            changes.extend(new.next());
        }
        uncommitted += u64::from(database.commit(&changes).is_err());
        untidy += u64::from(database.tidy().is_err());
    }
    untidy += u64::from(database.settle().is_err());
    (seen.insert("uncommitted", uncommitted), seen.insert("untidy", untidy));
    all.retain(|(_, n)| n % CHANGED != 0);
    let (lost, wrong) = look_up(&*database, &all);
    (seen.insert("later lost", lost), seen.insert("later wrong", wrong));
    drop(database);
    seen.insert("later refused", u64::from(open(store, folder).is_err()));
}

/// How many lookups failed, and how many found another count than 1.
fn look_up(database: &dyn Store, torrents: &[([u8; 20], u64)]) -> (u64, u64) {
    let (mut lost, mut wrong) = (0, 0);
    for (torrent, _) in torrents {
        match database.get(torrent) {
            Ok(count) => wrong += u64::from(count != 1),
            Err(_) => lost += 1,
        }
    }
    (lost, wrong)
}

fn look_within_patience(store: &str, folder: &Path, torrents: u64) -> Result<BTreeMap<String, u64>> {
    let mut command = this_program("flipped", store, folder, torrents)?;
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    if !ends(&mut child)? {
        child.kill()?;
        child.wait()?;
        return Ok([("panicked".to_owned(), 1)].into());
    }
    let text = String::from_utf8(child.wait_with_output()?.stdout)?;
    let line =
        |line: &str| Some((line.rsplit_once(' ')?.0.to_owned(), line.rsplit_once(' ')?.1.parse().ok()?));
    let seen: BTreeMap<_, _> = text.lines().filter_map(line).collect();
    // It was ended by a signal, before it could say anything.
    Ok(if seen.is_empty() { [("panicked".to_owned(), 1)].into() } else { seen })
}

fn ends(child: &mut Child) -> Result<bool> {
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end {
        if child.try_wait()?.is_some() {
            return Ok(true);
        }
        sleep(Duration::from_millis(10));
    }
    Ok(false)
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

/// Flips a bit of a random byte that is not zero: what was never written is zero. Says which.
fn flip_a_byte(folder: &Path, rng: &mut SplitMix64) -> Result<String> {
    let files = files(folder)?;
    let lengths: Vec<u64> = files.iter().map(|file| Ok(fs::metadata(file)?.len())).collect::<Result<_>>()?;
    let all: u64 = lengths.iter().sum();
    loop {
        let mut at = (rng.next_u64() >> 16) % all;
        let mut which = 0;
        while at >= lengths[which] {
            at -= lengths[which];
            which += 1;
        }
        let file = fs::File::options().read(true).write(true).open(&files[which])?;
        let mut byte = [0];
        file.read_exact_at(&mut byte, at)?;
        if byte[0] != 0 {
            byte[0] ^= 1 << (rng.next_u64() >> 61);
            file.write_all_at(&byte, at)?;
            return Ok(format!("{}:{at}", files[which].strip_prefix(folder)?.display()));
        }
    }
}
