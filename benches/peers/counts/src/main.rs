//! Databases of download counts side by side: size, time to open, time to commit, time to read, memory, and
//! what a flipped byte costs. `counts FOLDER [TORRENTS [SMALL]]` prints two tables; the folder is to be on a
//! disk, with a few gigabytes free. `SMALL` torrents (50,000) are in the databases of which a byte is
//! flipped; their folder is `COUNTS_FLIPS`, if that is set: best one in memory. `COUNTS_STORES=redb,fjall`
//! leaves others out.
//!
//! Each row of numbers comes from processes of its own, so that nothing is warm but the page cache; what is
//! "cold" is without that too.

mod flips;
mod stores;

use std::{
    collections::BTreeMap,
    env,
    error::Error,
    fmt::Write as _,
    fs,
    io::{BufRead as _, BufReader},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::{Command, Stdio, id},
    thread::sleep,
    time::{Duration, Instant},
};

use stores::{chosen, open};
use swarmkeep::{Random, SplitMix64};

type Result<T, E = Box<dyn Error>> = std::result::Result<T, E>;

/// New torrents of each commit while a database is built.
const BUILD_BATCH: u64 = 50_000;

/// Torrents that are added last, in small commits, so that a log is not empty.
const LAST: u64 = 20_000;

/// Commits that are timed, their size, and lookups that are timed.
const COMMITS: usize = 1_000;
const COMMIT: usize = 1_000;
const LOOKUPS: usize = 20_000;

/// How often a process is killed between two commits or in one, and the next is timed.
const KILLS: u64 = 5;

/// What a process measured, by name.
type Measured = BTreeMap<String, f64>;

fn main() -> Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        [folder] => all(Path::new(folder), 10_000_000, 50_000),
        [folder, torrents] => all(Path::new(folder), torrents.parse()?, 50_000),
        [folder, torrents, small] => all(Path::new(folder), torrents.parse()?, small.parse()?),
        ["flipped", store, folder, torrents] => flips::look(store, Path::new(folder), torrents.parse()?),
        [task, store, folder, torrents] => {
            let measured = measure(task, store, Path::new(folder), torrents.parse()?)?;
            measured.iter().for_each(|(name, value)| println!("{name} {value}"));
            Ok(())
        }
        _ => Err("counts FOLDER [TORRENTS [SMALL]]".into()),
    }
}

fn all(folder: &Path, torrents: u64, small: u64) -> Result<()> {
    if torrents > 0 {
        compare(folder, torrents)?;
    }
    if small > 0 {
        let flips = env::var_os("COUNTS_FLIPS").map_or(folder.to_owned(), PathBuf::from);
        flips::compare(&flips, small)?;
    }
    Ok(())
}

/// One task in this process.
fn measure(task: &str, store: &str, folder: &Path, torrents: u64) -> Result<Measured> {
    let mut measured = Measured::new();
    let (at_first, started) = (memory("VmRSS:")?, Instant::now());
    let mut database = open(store, folder)?;
    let found = database.get(&torrent(torrents / 2))?;
    measured.insert("open ms".into(), milliseconds(started.elapsed()));
    let mut rng = SplitMix64::new(u64::from(id()));
    let mut known = || torrent((rng.next_u64() >> 16) % torrents);
    // New ones have higher numbers, others in each process.
    let mut new = (u64::from(id()) << 32..).map(torrent);
    let mut half_known = || -> Vec<_> {
        (0..COMMIT).map(|n| if n % 2 == 0 { known() } else { new.next().expect("it has no end") }).collect()
    };
    match task {
        "build" => {
            let last = torrents - LAST.min(torrents / 16);
            let batch = BUILD_BATCH.min(torrents / 10);
            for (from, to, batch) in [(0, last, batch), (last, torrents, COMMIT as u64)] {
                for from in (from..to).step_by(batch as usize) {
                    let batch: Vec<_> = (from..to.min(from + batch)).map(torrent).collect();
                    database.commit(&batch)?;
                    database.tidy()?;
                }
                if to == last {
                    database.settle()?;
                }
            }
        }
        "open" => assert!(found > 0, "the torrent was counted"),
        "commit" => {
            let mut times = Vec::new();
            for _ in 0..COMMITS {
                let changes = half_known();
                let started = Instant::now();
                database.commit(&changes)?;
                database.tidy()?;
                times.push(milliseconds(started.elapsed()));
            }
            times.sort_by(f64::total_cmp);
            measured.insert("commit ms".into(), times[COMMITS / 2]);
            measured.insert("commit ms p99".into(), times[COMMITS * 99 / 100]);
            measured.insert("commit ms worst".into(), times[COMMITS - 1]);
            database.settle()?;
        }
        "commit-until-killed" => {
            println!("begun");
            loop {
                database.commit(&half_known())?;
                database.tidy()?;
            }
        }
        "get" => {
            let mut times = Vec::new();
            for _ in 0..LOOKUPS {
                let known = known();
                let started = Instant::now();
                assert!(database.get(&known)? > 0, "the torrent was counted");
                times.push(started.elapsed().as_secs_f64() * 1e6);
            }
            times.sort_by(f64::total_cmp);
            measured.insert("get us".into(), times[LOOKUPS / 2]);
            measured.insert("get us p99".into(), times[LOOKUPS * 99 / 100]);
        }
        _ => return Err(format!("no task {task}").into()),
    }
    measured.insert("grown MiB".into(), memory("VmHWM:")? - at_first);
    measured.insert("seconds".into(), started.elapsed().as_secs_f64());
    Ok(measured)
}

/// All tasks on all stores, each in a process of its own.
fn compare(folder: &Path, torrents: u64) -> Result<()> {
    let mut rows: Vec<(String, Vec<String>)> = Vec::new();
    let mut cell = |row: &str, text: String| match rows.iter_mut().find(|(name, _)| name == row) {
        Some((_, cells)) => cells.push(text),
        None => rows.push((row.to_owned(), vec![text])),
    };
    let stores = chosen();
    for &store in &stores {
        let place = folder.join(store);
        fs::create_dir(&place)?;
        let run = |task: &str| run(task, store, &place, torrents);
        let bytes = || Ok::<_, Box<dyn Error>>(format!("{:.1}", on_disk(&place)? as f64 / torrents as f64));
        let built = run("build")?;
        cell("built by commits of 50,000, s", format!("{:.0}", built["seconds"]));
        cell("memory while building, MiB", format!("{:.0}", built["grown MiB"]));
        cell("bytes per torrent on disk", bytes()?);
        cell("open after a clean stop, ms", format!("{:.1}", run("open")?["open ms"]));
        let committed = run("commit")?;
        let times = ["commit ms", "commit ms p99", "commit ms worst"].map(|name| committed[name]);
        let times = times.map(|time| format!("{time:.1}")).join(", ");
        cell("commit of 1,000 counts, ms (median, 99 %, worst)", times);
        cell("memory after 1,000 of these, MiB", format!("{:.0}", committed["grown MiB"]));
        cell("bytes per torrent (of 10 million) after these", bytes()?);
        let got = run("get")?;
        let times = format!("{:.1}, {:.1}", got["get us"], got["get us p99"]);
        cell("lookup, µs (median, 99 %)", times);
        cell("memory after 20,000 lookups, MiB", format!("{:.0}", got["grown MiB"]));
        let mut opened = Vec::new();
        for kill in 0..KILLS {
            commit_and_kill(store, &place, torrents, Duration::from_millis(1_500 + 370 * kill))?;
            let after = run("open")?;
            opened.push((after["open ms"], after["grown MiB"]));
        }
        let worst = |at: fn(&(f64, f64)) -> f64| opened.iter().map(at).fold(0.0, f64::max);
        cell("open after a kill, ms (worst of 5)", format!("{:.1}", worst(|opened| opened.0)));
        cell("memory of this, MiB", format!("{:.0}", worst(|opened| opened.1)));
        commit_and_kill(store, &place, torrents, Duration::from_secs(3))?;
        for file in flips::files(&place)? {
            evict(&file)?;
        }
        cell("open after a kill, cold, ms", format!("{:.1}", run("open")?["open ms"]));
        if store == "redb" {
            let checked = self::run("open", "redb-checked", &place, torrents)?;
            eprintln!("redb, checked when it is opened: {:.0} ms", checked["open ms"]);
        }
        fs::remove_dir_all(&place)?;
    }
    let mut table =
        format!("| {torrents} torrents | {} |\n|---|{}\n", stores.join(" | "), "--:|".repeat(stores.len()));
    for (name, cells) in &rows {
        writeln!(table, "| {name} | {} |", cells.join(" | "))?;
    }
    print!("{table}");
    Ok(())
}

fn this_program(task: &str, store: &str, folder: &Path, torrents: u64) -> Result<Command> {
    let mut command = Command::new(env::current_exe()?);
    command.args([task, store]).arg(folder).arg(torrents.to_string());
    Ok(command)
}

fn run(task: &str, store: &str, folder: &Path, torrents: u64) -> Result<Measured> {
    let output = this_program(task, store, folder, torrents)?.output()?;
    let text = String::from_utf8(output.stdout)?;
    eprintln!("{store} {task}: {}", text.trim().replace('\n', ", "));
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into());
    }
    let line =
        |line: &str| Some((line.rsplit_once(' ')?.0.to_owned(), line.rsplit_once(' ')?.1.parse().ok()?));
    Ok(text.lines().filter_map(line).collect())
}

/// Lets a process commit for some time, and kills it.
fn commit_and_kill(store: &str, folder: &Path, torrents: u64, after: Duration) -> Result<()> {
    let mut command = this_program("commit-until-killed", store, folder, torrents)?;
    let mut child = command.stdout(Stdio::piped()).spawn()?;
    let begun = BufReader::new(child.stdout.take().ok_or("no output")?).lines().next();
    sleep(after);
    child.kill()?;
    child.wait()?;
    begun.ok_or("it did not begin")??;
    Ok(())
}

/// Torrent number `n`, in no order.
fn torrent(n: u64) -> [u8; 20] {
    let mut rng = SplitMix64::new(n.wrapping_mul(0xd134_2543_de82_ef95));
    let mut bytes = [0; 20];
    bytes.chunks_mut(8).for_each(|chunk| chunk.copy_from_slice(&rng.next_u64().to_be_bytes()[..chunk.len()]));
    bytes
}

/// Bytes that a folder takes.
fn on_disk(folder: &Path) -> Result<u64> {
    let blocks = flips::files(folder)?.into_iter().map(|file| Ok(fs::metadata(file)?.blocks()));
    Ok(blocks.sum::<Result<u64>>()? * 512)
}

/// A line of `/proc/self/status`, in MiB: `VmRSS:` is what this process has in memory, `VmHWM:` what it had
/// at most.
fn memory(name: &str) -> Result<f64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix(name)).ok_or("no such line")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<f64>()? / 1024.0)
}

/// Has the file out of the page cache.
fn evict(file: &Path) -> Result<()> {
    let mut of = std::ffi::OsString::from("of=");
    of.push(file);
    let status = Command::new("dd")
        .arg(of)
        .args(["oflag=nocache", "conv=notrunc,fdatasync", "count=0", "status=none"])
        .status()?;
    if status.success() { Ok(()) } else { Err("dd failed".into()) }
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
