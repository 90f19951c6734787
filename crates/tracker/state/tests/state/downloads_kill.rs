//! A real process, killed while it commits: each acknowledged commit is there, and no part of another.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
    thread,
    time::Duration,
};

use swarmkeep::{Random as _, SplitMix64};
use swarmkeep_state::{Change, Directory, Downloads, InfoHash};

const FOLDER: &str = "SWARMKEEP_KILLED_FOLDER";

/// Torrents of a commit. Every commit counts the next ones, round and round.
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

fn counts(downloads: &mut Downloads) -> Vec<u32> {
    downloads.get_all(&(0..TORRENTS).map(torrent).collect::<Vec<_>>()).unwrap()
}

/// The counts after this number of commits.
fn after(commits: u64) -> Vec<u32> {
    let counted = commits * EACH;
    (0..TORRENTS).map(|n| (counted / TORRENTS) as u32 + u32::from(n < counted % TORRENTS)).collect()
}

/// The process that is killed: it commits for ever, and writes a line for each commit. Without a folder, it
/// is a test that does nothing.
#[test]
fn commits_for_ever() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let mut downloads = open(Path::new(&folder));
    let total: u64 = counts(&mut downloads).into_iter().map(u64::from).sum();
    for commit in total / EACH.. {
        let torrents = (commit * EACH..(commit + 1) * EACH).map(torrent);
        downloads.commit(torrents.map(|torrent| (torrent, Change { forget: false, add: 1 }))).unwrap();
        std::io::stdout().write_all(format!("committed {}\n", commit + 1).as_bytes()).unwrap();
    }
}

#[test]
fn a_killed_process_has_lost_no_acknowledged_commit() {
    let (folder, mut rng) = (tempfile::tempdir().unwrap(), SplitMix64::new(1));
    for _ in 0..20 {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["downloads_kill::commits_for_ever", "--exact", "--nocapture"])
            .env(FOLDER, folder.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines().map_while(Result::ok);
        // The harness may have begun the line.
        let mut commits = lines.filter_map(|line| line.split_once("committed ")?.1.parse::<u64>().ok());
        let some = commits.by_ref().take(1 + (rng.next_u64() % 20) as usize).last();
        thread::sleep(Duration::from_micros(rng.next_u64() % 3000));
        process.kill().unwrap();
        process.wait().unwrap();
        let acknowledged = commits.last().or(some).expect("it commits");
        let found = counts(&mut open(folder.path()));
        let is_known = found == after(acknowledged) || found == after(acknowledged + 1);
        assert!(is_known, "after {acknowledged} commits: {found:?}");
    }
}
