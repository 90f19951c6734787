//! `swarmkeep serve`, started and stopped.

pub(crate) mod https;
pub(crate) mod load;
pub(crate) mod manager;
pub(crate) mod state;

use std::{
    net::SocketAddr,
    os::unix::process::CommandExt as _,
    process::{Command, Stdio},
    time::{Duration, SystemTime},
};

use nix::unistd::Uid;
pub(crate) use swarmkeep_store_tests::{A_MINUTE, until};
use swarmkeep_tests::udp::{Client, announce};
pub(crate) use swarmkeep_tests::{Folder, serve::Serve};

pub(crate) fn start(arguments: &[&str]) -> Serve {
    Serve::start(swarmkeep(arguments))
}

/// With these arguments, among them a file with the UDP addresses.
pub(crate) fn start_at_file(arguments: &[&str]) -> Serve {
    let mut command = swarmkeep(arguments);
    command.env_remove("SWARMKEEP_UDP");
    Serve::start(command)
}

pub(crate) fn swarmkeep(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_swarmkeep"));
    // Listens at no default address, which may be in use.
    command.arg("serve").args(arguments).stdin(Stdio::null()).stdout(Stdio::null());
    command.envs(["SWARMKEEP_ADMIN", "SWARMKEEP_UDP", "SWARMKEEP_HTTP"].map(|variable| (variable, "off")));
    command
}

/// The user `nobody`, and its group.
pub(crate) const NOBODY: u32 = 65534;

/// The same command for a user other than root: `nobody`, where root runs the tests.
pub(crate) fn not_as_root(folder: &Folder, command: &Command) -> Command {
    // Copied to a folder that all users can read; not by this process, since its children might hold the file
    // open.
    let program = folder.join("swarmkeep");
    let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_swarmkeep")).arg(&program).status();
    assert!(copied.is_ok_and(|status| status.success()), "no room for the program");
    let mut copy = Command::new(program);
    copy.args(command.get_args());
    copy.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    if Uid::effective().is_root() {
        copy.uid(NOBODY).gid(NOBODY);
    }
    copy
}

pub(crate) fn refused(arguments: &[&str]) -> String {
    let (code, message) = Serve::refused(swarmkeep(arguments));
    assert_eq!(code, Some(2), "{arguments:?}: {message}");
    message
}

/// The time of a log line, which begins as `2026-11-22T17:53:29.123456Z`.
pub(crate) fn logged_at(line: &str) -> SystemTime {
    let stamp = line.split(' ').next().expect("a line has a beginning");
    let numbers: Vec<u64> =
        stamp.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).collect();
    let [year, month, day, hours, minutes, seconds, micros] = numbers[..] else { panic!("{line}") };
    // Days since the epoch in a calendar with years that begin in March.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = year * 365 + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 719_469;
    let seconds = ((days * 24 + hours) * 60 + minutes) * 60 + seconds;
    SystemTime::UNIX_EPOCH + Duration::from_secs(seconds) + Duration::from_micros(micros)
}

/// The duration in a log line: `took=1.5ms`.
pub(crate) fn took(line: &str) -> Duration {
    let (_, took) = line.split_once("took=").unwrap_or_else(|| panic!("{line}"));
    let took = took.split_whitespace().next().expect("a time");
    let unit = took.find(|c: char| c.is_alphabetic() || c == 'µ').expect("a unit");
    let seconds = match &took[unit..] {
        "s" => 1.0,
        "ms" => 1e-3,
        "µs" => 1e-6,
        _ => 1e-9,
    };
    Duration::from_secs_f64(took[..unit].parse::<f64>().expect("a number") * seconds)
}

/// The interval of a leecher's announce. No packet may get lost.
pub(crate) fn interval(tracker: SocketAddr) -> u32 {
    interval_asking_every(A_MINUTE, tracker)
}

/// The same from a tracker that may lose packets: each request is sent again after `patience`.
pub(crate) fn interval_asking_every(patience: Duration, tracker: SocketAddr) -> u32 {
    let mut client = Client::of(tracker);
    client.socket.set_read_timeout(Some(patience)).expect("above zero");
    let connection_id = client.connect();
    client.announce(announce(connection_id)).0.interval
}
