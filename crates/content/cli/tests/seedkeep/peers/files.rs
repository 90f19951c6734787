//! Many files that are seeded where they are.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Command, Stdio},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use swarmkeep_content_tests::scratch_folder;

use super::last;
use crate::common::{done, ended};

/// Torrents of a file of one piece each: `00000.torrent` and so on.
fn small_torrents(folder: &Path, count: u32) {
    fs::write(folder.join("00000"), "bytes").unwrap();
    done(folder, "create 00000");
    let mut torrent = fs::read(folder.join("00000.torrent")).unwrap();
    let at = torrent.windows(5).position(|name| name == b"00000").unwrap();
    for name in (1..count).map(|n| format!("{n:05}")) {
        torrent[at..at + 5].copy_from_slice(name.as_bytes());
        fs::hard_link(folder.join("00000"), folder.join(&name)).unwrap();
        fs::write(folder.join(&name).with_extension("torrent"), &torrent).unwrap();
    }
}

/// A command of the shell with a limit of descriptors; `seedkeep` is the program.
fn limited(folder: &Path, descriptors: u32, command: &str) -> Command {
    let command = command.replace("seedkeep", env!("CARGO_BIN_EXE_seedkeep"));
    let mut shell = Command::new("sh");
    shell.current_dir(folder).arg("-c").arg(format!("ulimit -n {descriptors}; exec {command}"));
    shell
}

#[test]
fn any_number_of_torrents_is_seeded_and_added_with_the_usual_limit_of_descriptors() {
    let folder = scratch_folder();
    let at = folder.path();
    small_torrents(at, 10_000);
    let mut seed = limited(at, 1024, "seedkeep seed *.torrent . --listen 127.0.0.1:0");
    let mut seed = seed.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(seed.stderr.take().unwrap()).lines().map(Result::unwrap);
    let peer = lines.find_map(|line| line.strip_prefix("Peers can call at ").map(str::to_owned)).unwrap();
    let fetch = format!("fetch 00000.torrent --store memory: --listen 127.0.0.1:0 --peer {peer} --json");
    assert_eq!(last(&done(at, &fetch))["left"], 0);
    kill(Pid::from_raw(seed.id() as i32), Signal::SIGINT).unwrap();
    let seeded = seed.wait_with_output().unwrap();
    assert!(seeded.status.success());
    assert_eq!(String::from_utf8(seeded.stdout).unwrap().matches(": 1 of 1 pieces").count(), 10_000);

    fs::create_dir(at.join("store")).unwrap();
    let added = ended(&mut limited(at, 256, "seedkeep store add store 00[0-2]*.torrent ."));
    assert_eq!((added.code, added.out.lines().count()), (0, 300), "{}", added.errors);
}
