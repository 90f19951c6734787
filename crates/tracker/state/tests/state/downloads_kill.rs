//! A real process, killed at any moment while it commits: each acknowledged commit is there.

use std::{
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use swarmkeep::{Random, SplitMix64};
use swarmkeep_state::{Change, Directory, Downloads, InfoHash};

const FOLDER: &str = "SWARMKEEP_KILLED_FOLDER";

/// Torrents of a commit; every commit counts the next ones, round and round.
const EACH: u64 = 40;
const TORRENTS: u64 = 1000;

fn open(folder: &Path) -> Downloads {
    Downloads::open(Arc::new(Directory::open(folder).unwrap())).unwrap()
}

fn torrent(n: u64) -> InfoHash {
    let mut bytes = [0; 20];
    bytes[..8].copy_from_slice(&SplitMix64::new(n % TORRENTS).next_u64().to_be_bytes());
    InfoHash::new(bytes)
}

fn counts(downloads: &mut Downloads) -> Vec<u64> {
    let counts = downloads.get_all(&(0..TORRENTS).map(torrent).collect::<Vec<_>>()).unwrap();
    counts.into_iter().map(u64::from).collect()
}

/// The counts after this number of commits.
fn after(commits: u64) -> Vec<u64> {
    let counted = commits * EACH;
    (0..TORRENTS).map(|n| counted / TORRENTS + u64::from(n < counted % TORRENTS)).collect()
}

/// The process that is killed: it commits for ever, and writes a line for each commit. Without a folder, it
/// is a test that does nothing.
#[test]
fn commits_for_ever() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let mut downloads = open(Path::new(&folder));
    let total: u64 = counts(&mut downloads).iter().sum();
    for commit in total / EACH.. {
        let torrents = (commit * EACH..(commit + 1) * EACH).map(torrent);
        downloads.commit(torrents.map(|torrent| (torrent, Change { forget: false, add: 1 }))).unwrap();
        let line = format!("committed {}\n", commit + 1);
        std::io::stdout().write_all(line.as_bytes()).unwrap();
    }
}

#[test]
fn a_killed_process_has_lost_nothing_that_it_acknowledged() {
    let folder = tempfile::tempdir().unwrap();
    let mut rng: Box<dyn Random> = Box::new(SplitMix64::new(1));
    let mut committed = 0;
    let until = Instant::now() + Duration::from_secs(3);
    while Instant::now() < until {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["downloads_kill::commits_for_ever", "--exact", "--nocapture"])
            .env(FOLDER, folder.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let lines = std::thread::spawn(move || {
            let commits = lines.map_while(Result::ok);
            // The harness may have begun the line.
            commits.filter_map(|line| line.split_once("committed ")?.1.parse().ok()).last()
        });
        std::thread::sleep(Duration::from_millis(20 + rng.below(120) as u64));
        process.kill().unwrap();
        process.wait().unwrap();
        let acknowledged: u64 = lines.join().unwrap().unwrap_or(committed);

        let mut downloads = open(folder.path());
        let found = counts(&mut downloads);
        let in_progress = found == after(acknowledged + 1);
        assert!(in_progress || found == after(acknowledged), "after {acknowledged} commits: {downloads:?}");
        committed = acknowledged + u64::from(in_progress);
    }
    assert!(committed > 20, "{committed} commits");
}
