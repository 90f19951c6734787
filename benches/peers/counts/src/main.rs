//! Databases of download counts side by side: size, time to open, time to commit, time to read, memory. `counts FOLDER [TORRENTS]` prints a table; the folder is
//! to be on a disk, with a few gigabytes free.
//!
//! Each row of numbers comes from processes of its own, so that nothing is warm but the page cache; what is "cold" is without that too, where `/proc/sys/vm/drop_caches` lets itself be written (root).

mod stores;

use std::{
    collections::BTreeMap,
    env,
    error::Error,
    fmt::Write as _,
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::{self, Command},
    time::{Duration, Instant},
};

use stores::open;
use swarmkeep::{Random, SplitMix64};

type Result<T, E = Box<dyn Error>> = std::result::Result<T, E>;

/// Names of stores; `redb-quick` is with `set_quick_repair(true)`.
const STORES: [&str; 3] = ["swarmkeep", "redb", "redb-quick"];

/// New torrents of each commit while a database is built.
const BUILD_BATCH: u64 = 50_000;

/// Commits whose latencies are measured, of each size, and lookups.
const COMMITS: usize = 40;
const LOOKUPS: usize = 20_000;

/// What a process measured, by name.
type Measured = BTreeMap<String, f64>;

fn main() -> Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        [folder] => compare(Path::new(folder), 10_000_000),
        [folder, torrents] => compare(Path::new(folder), torrents.parse()?),
        [task, store, folder, torrents] => {
            let measured = measure(task, store, Path::new(folder), torrents.parse()?)?;
            measured.iter().for_each(|(name, value)| println!("{name} {value}"));
            // Dropping the database would be to end well.
            if task.ends_with("and-die") {
                process::abort();
            }
            Ok(())
        }
        _ => Err("counts FOLDER [TORRENTS]".into()),
    }
}

/// One task in this process. It aborts rather than return where it is to end badly.
fn measure(task: &str, store: &str, folder: &Path, torrents: u64) -> Result<Measured> {
    let mut measured = Measured::new();
    let started = Instant::now();
    let mut database = open(store, folder)?;
    let probe = torrent(torrents / 2);
    let found = database.get(&probe)?;
    measured.insert("open ms".into(), milliseconds(started.elapsed()));
    let mut rng = SplitMix64::new(u64::from(process::id()));
    match task {
        "build" => {
            for from in (0..torrents).step_by(BUILD_BATCH as usize) {
                let batch: Vec<_> = (from..torrents.min(from + BUILD_BATCH)).map(torrent).collect();
                database.commit(&batch)?;
            }
            database.settle()?;
        }
        "open" | "open-and-die" => {
            assert!(found > 0, "the torrent was counted");
            if task == "open-and-die" {
                database.commit(&[probe])?;
            }
        }
        "commit" => {
            for size in [1_000, 10_000] {
                let mut times = Vec::new();
                for _ in 0..COMMITS {
                    let known = || torrent((rng.next_u64() >> 16) % torrents);
                    let changes: Vec<_> = std::iter::repeat_with(known).take(size).collect();
                    let started = Instant::now();
                    database.commit(&changes)?;
                    times.push(milliseconds(started.elapsed()));
                }
                times.sort_by(f64::total_cmp);
                measured.insert(format!("commit {size} ms"), times[COMMITS / 2]);
                measured.insert(format!("commit {size} ms worst"), times[COMMITS - 1]);
            }
            database.settle()?;
        }
        "get" => {
            let mut times = Vec::new();
            for _ in 0..LOOKUPS {
                let known = torrent((rng.next_u64() >> 16) % torrents);
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
    measured.insert("resident MiB".into(), resident()?);
    measured.insert("seconds".into(), started.elapsed().as_secs_f64());
    if task.ends_with("and-die") {
        std::mem::forget(database);
    }
    Ok(measured)
}

/// All tasks on all stores, each in a process of its own.
fn compare(folder: &Path, torrents: u64) -> Result<()> {
    let mut rows: Vec<(String, Vec<String>)> = Vec::new();
    let mut cell = |row: &str, text: String| match rows.iter_mut().find(|(name, _)| name == row) {
        Some((_, cells)) => cells.push(text),
        None => rows.push((row.to_owned(), vec![text])),
    };
    for store in STORES {
        let place = folder.join(store);
        fs::create_dir(&place)?;
        let run = |task: &str| run(task, store, &place, torrents);
        let bytes = || Ok::<_, Box<dyn Error>>(format!("{:.1}", on_disk(&place)? as f64 / torrents as f64));
        let built = run("build")?;
        cell("built by commits of 50,000, s", format!("{:.0}", built["seconds"]));
        cell("resident while building, MiB", format!("{:.0}", built["resident MiB"]));
        cell("bytes a torrent on disk", bytes()?);
        cell("open after a clean stop, ms", format!("{:.1}", run("open")?["open ms"]));
        drop_caches();
        cell("open after a clean stop, cold, ms", format!("{:.1}", run("open")?["open ms"]));
        run("open-and-die")?;
        cell("open after a kill, ms", format!("{:.1}", run("open-and-die")?["open ms"]));
        drop_caches();
        let opened = run("open")?;
        cell("open after a kill, cold, ms", format!("{:.1}", opened["open ms"]));
        cell("resident after opening after a kill, MiB", format!("{:.0}", opened["resident MiB"]));
        warm(&place)?;
        let committed = run("commit")?;
        for (size, text) in [(1_000, "1,000"), (10_000, "10,000")] {
            let (middle, worst) = (format!("commit {size} ms"), format!("commit {size} ms worst"));
            let text = format!("commit of {text} counts, ms (median, worst of {COMMITS})");
            cell(&text, format!("{:.1}, {:.1}", committed[&middle], committed[&worst]));
        }
        cell("resident after these, MiB", format!("{:.0}", committed["resident MiB"]));
        cell("bytes a torrent after these", bytes()?);
        let got = run("get")?;
        cell(
            "lookup, µs (median, 99th percentile)",
            format!("{:.1}, {:.1}", got["get us"], got["get us p99"]),
        );
        cell("resident after 20,000 lookups, MiB", format!("{:.0}", got["resident MiB"]));
        fs::remove_dir_all(&place)?;
    }
    let mut table =
        format!("| {torrents} torrents | {} |\n|---|{}\n", STORES.join(" | "), "--:|".repeat(STORES.len()));
    for (name, cells) in &rows {
        writeln!(table, "| {name} | {} |", cells.join(" | "))?;
    }
    print!("{table}");
    Ok(())
}

fn run(task: &str, store: &str, folder: &Path, torrents: u64) -> Result<Measured> {
    let output = Command::new(env::current_exe()?)
        .args([task, store])
        .arg(folder)
        .arg(torrents.to_string())
        .output()?;
    let text = String::from_utf8(output.stdout)?;
    eprintln!("{store} {task}: {}", text.trim().replace('\n', ", "));
    if !output.status.success() && !task.ends_with("and-die") {
        return Err(String::from_utf8_lossy(&output.stderr).into());
    }
    let line =
        |line: &str| Some((line.rsplit_once(' ')?.0.to_owned(), line.rsplit_once(' ')?.1.parse().ok()?));
    Ok(text.lines().filter_map(line).collect())
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
    let blocks = fs::read_dir(folder)?.map(|entry| Ok(entry?.metadata()?.blocks()));
    Ok(blocks.sum::<Result<u64>>()? * 512)
}

/// What this process has in memory now, in MiB.
fn resident() -> Result<f64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<f64>()? / 1024.0)
}

/// Has the whole folder in the page cache.
fn warm(folder: &Path) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        std::io::copy(&mut fs::File::open(entry?.path())?, &mut std::io::sink())?;
    }
    Ok(())
}

fn drop_caches() {
    let _ = Command::new("sync").status();
    if fs::write("/proc/sys/vm/drop_caches", "3").is_err() {
        eprintln!("page cache cannot be dropped: \"cold\" is warm");
    }
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Where a store of one file has it.
fn file(folder: &Path) -> PathBuf {
    folder.join("counts.redb")
}
