//! `cargo store-bench` with traced requests: its results, and that nothing of it remains.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use serde_json::Value;
use swarmkeep_store_tests::{
    programs::{EXT4, LIBTORRENT, Need, ROOT, Trial},
    tests,
};
use tempfile::TempDir;

const TRACEFS: Need =
    Need::other("tracefs", "take a kernel with tracefs", |_| Path::new("/sys/kernel/tracing").is_dir());
const USERS: Need = Need::other("user namespaces", "allow them", |_| {
    let status = Command::new("unshare").args(["--user", "true"]).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
});

pub(crate) fn all() -> Vec<Trial> {
    tests! {
        [ROOT, EXT4, TRACEFS]:
            requests_are_traced_and_memory_is_limited,
            nothing_stays_of_a_row_that_is_killed;
        [ROOT, EXT4, TRACEFS, LIBTORRENT]: libtorrent_writes_the_same_torrents;
        [USERS, EXT4]: without_root_it_says_so_and_replays_calls;
    }
}

/// Stripes of 1 MiB: memory has room for about a tenth of the torrents that download at a time.
const TINY: [&str; 8] = ["--torrents", "4", "--parallel", "4", "--cache", "8MB", "--block", "1MiB"];

fn command(folder: &TempDir, only: &str) -> Command {
    command_of(folder, only, "24MB")
}

fn command_of(folder: &TempDir, only: &str, size: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_swarmkeep-lab"));
    command.arg("store-bench").args(TINY).args(["--json", "--only", only, "--size", size, "--folder"]);
    command.arg(folder.path());
    command
}

fn read(output: Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn row<'a>(report: &'a Value, name: &str) -> &'a Value {
    let rows = report["report"]["rows"].as_array().unwrap();
    rows.iter().find(|row| row["name"] == name).unwrap_or_else(|| panic!("{name}: {report}"))
}

fn number(row: &Value, path: &str) -> f64 {
    row.pointer(path).and_then(Value::as_f64).unwrap_or_else(|| panic!("{path}: {row}"))
}

const PREFIX: &str = "swarmkeep-store-bench-";

/// The control groups and records of requests of all rows.
fn traces() -> Vec<PathBuf> {
    // Tracefs is mounted for a row alone.
    let list = "mount -t tracefs t /sys/kernel/tracing; ls -d /sys/kernel/tracing/instances/* /sys/fs/cgroup/* \
                /sys/fs/cgroup/memory/*";
    let entries = Command::new("unshare").args(["--mount", "sh", "-c", list]).output().unwrap().stdout;
    let entries = String::from_utf8(entries).unwrap();
    entries.lines().filter(|path| path.contains(&format!("/{PREFIX}"))).map(PathBuf::from).collect()
}

/// Folders of the kernel that ended processes made, and loop devices with images in `folder`.
fn left(folder: &TempDir) -> Vec<PathBuf> {
    let has_ended = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap();
        !Path::new("/proc").join(name.trim_start_matches(PREFIX)).exists()
    };
    let mut left: Vec<_> = traces().into_iter().filter(has_ended).collect();
    let devices = Command::new("losetup").args(["--list", "--noheadings", "--output", "BACK-FILE"]).output();
    let devices = String::from_utf8(devices.unwrap().stdout).unwrap();
    let here = folder.path().to_str().unwrap();
    left.extend(devices.lines().filter(|line| line.contains(here)).map(PathBuf::from));
    left
}

fn nothing_stays(folder: &TempDir) {
    // The kernel takes a device down some time after its last user has gone.
    let began = Instant::now();
    while !left(folder).is_empty() && began.elapsed() < Duration::from_secs(60) {
        sleep(Duration::from_millis(50));
    }
    assert_eq!(left(folder), Vec::<PathBuf>::new());
    assert_eq!(folder.path().read_dir().unwrap().count(), 0);
}

fn requests_are_traced_and_memory_is_limited() {
    let folder = TempDir::new().unwrap();
    let report = read(command_of(&folder, "files;block store, cache", "96MB").output().unwrap());
    assert_eq!(report["report"]["untraced"], Value::Null);
    let content = 384e6;
    for row in report["report"]["rows"].as_array().unwrap() {
        let (bytes, requests) = (number(row, "/replay/bytes"), number(row, "/replay/requests"));
        assert!((content..content * 1.3).contains(&bytes) && requests > bytes / 1.4e6, "{row}");
    }
    let modelled = |name| number(row(&report, name), "/replay/seconds");
    let (files, free) = (modelled("files"), modelled("files, free page cache"));
    let (behind, block) = (modelled("files, cache"), modelled("block store, cache"));
    assert!(free * 1.1 < files && behind < files && block * 1.2 < behind, "{report}");
    nothing_stays(&folder);
}

fn libtorrent_writes_the_same_torrents() {
    let folder = TempDir::new().unwrap();
    let report = read(command(&folder, "libtorrent").output().unwrap());
    for name in ["libtorrent", "libtorrent, tuned"] {
        let row = row(&report, name);
        assert!(number(row, "/replay/bytes") >= 96e6 && number(row, "/compared") > 1e6, "{row}");
        assert!(row["version"].is_string(), "{row}");
    }
    nothing_stays(&folder);
}

fn nothing_stays_of_a_row_that_is_killed() {
    let folder = TempDir::new().unwrap();
    let mut run = command_of(&folder, "files", "200MB").stderr(Stdio::piped()).spawn().unwrap();
    let children = format!("/proc/{0}/task/{0}/children", run.id());
    let began = Instant::now();
    // The process of the row, not a program that checks the requirements.
    let child = loop {
        assert!(began.elapsed() < Duration::from_secs(60));
        let children = fs::read_to_string(&children).unwrap();
        let row = |pid: &&str| {
            let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&arguments).contains("store-bench-row")
        };
        if let Some(pid) = children.split_whitespace().find(row) {
            break pid.parse().unwrap();
        }
        sleep(Duration::from_millis(5));
    };
    // Its control group and its record of requests, which only a next run can remove.
    let group = format!("{PREFIX}{child}");
    while traces().iter().filter(|path| path.ends_with(&group)).count() < 2 {
        assert!(began.elapsed() < Duration::from_secs(60));
        sleep(Duration::from_millis(5));
    }
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(child), nix::sys::signal::SIGKILL).unwrap();
    assert!(!run.wait().unwrap().success());
    let next = TempDir::new().unwrap();
    read(command(&next, "block store, cache").output().unwrap());
    assert_eq!(left(&folder), Vec::<PathBuf>::new());
    nothing_stays(&next);
}

fn without_root_it_says_so_and_replays_calls() {
    let folder = TempDir::new().unwrap();
    let alone = command(&folder, "files;block store, cache");
    let mut unshare = Command::new("unshare");
    let report =
        read(unshare.arg("--user").arg(alone.get_program()).args(alone.get_args()).output().unwrap());
    assert!(report["report"]["untraced"].as_str().is_some_and(|why| !why.is_empty()), "{report}");
    assert!(number(&report, "/speedup") > 1.0, "{report}");
    nothing_stays(&folder);
}
