//! The origin of a run's numbers: machine, load, commit, date and command.

use std::{env, fmt, fs, process::Command, time::SystemTime};

use serde::Serialize;
use swarmkeep::bittorrent::counted;

use crate::{cores, tables::significant};

/// The origin of the numbers of a run.
#[derive(Debug, Serialize)]
pub struct Origin {
    machine: String,
    version: &'static str,
    /// The commit of the folder in which the program was started, with `-dirty` if files there differ.
    commit: Option<String>,
    date: String,
    /// The name of the program, and its flags.
    command: String,
    quick: bool,
    seed: u64,
    /// The number of measurements of each number.
    repeat: usize,
    /// The mean number of threads of other programs that ran or waited for a core.
    load: Option<f64>,
    /// Why the numbers are not to be quoted.
    not_a_measurement: Option<String>,
}

impl Origin {
    /// Returns the origin of a run that begins.
    pub fn here(seed: u64, repeat: usize, quick: bool) -> Self {
        Self {
            machine: machine(),
            version: env!("CARGO_PKG_VERSION"),
            commit: commit(),
            date: today(),
            command: command(),
            quick,
            seed,
            repeat,
            load: None,
            not_a_measurement: None,
        }
    }

    /// Returns the origin of a run that has ended; `loads` has a result of [`load`] for each measurement.
    #[must_use]
    pub fn under(mut self, loads: &[f64]) -> Self {
        self.load = (!loads.is_empty()).then(|| loads.iter().sum::<f64>() / loads.len() as f64);
        let loaded = self.load.filter(|load| load * 2.0 >= cores() as f64);
        let reasons = [
            self.quick.then(|| "quick".to_owned()),
            cfg!(debug_assertions).then(|| "a build without all optimisations".to_owned()),
            loaded.map(|load| format!("load {} on {}", significant(load), counted(cores(), "core"))),
        ];
        let reasons: Vec<_> = reasons.into_iter().flatten().collect();
        self.not_a_measurement = (!reasons.is_empty()).then(|| reasons.join(", "));
        self
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { command, machine, commit, date, .. } = self;
        let load = self.load.map_or("unknown".to_owned(), significant);
        let commit = commit.as_deref().unwrap_or("no commit");
        write!(f, "`{command}`: {machine}, load {load}, {commit}, {date}")?;
        let reason = self.not_a_measurement.as_ref();
        reason.map_or(Ok(()), |reason| write!(f, "; {reason}: not a measurement"))
    }
}

/// Returns the number of threads of other programs that run or wait for a core at this moment; `None` without
/// `/proc`. The load average of a minute would count the build of this program.
pub fn load() -> Option<f64> {
    let text = fs::read_to_string("/proc/loadavg").ok()?;
    let (running, _) = text.split(' ').nth(3)?.split_once('/')?;
    // This thread runs, too.
    Some((running.parse::<f64>().ok()? - 1.0).max(0.0))
}

/// Returns the name of the processor, and the number of cores that this process may use.
pub fn machine() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    let name = name.map_or_else(|| env::consts::ARCH, |(_, name)| name.trim());
    format!("{name}, {}", counted(cores(), "core"))
}

/// The date in UTC, as `2026-11-21`.
pub fn today() -> String {
    let mut now = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    now.truncate("2026-11-21".len());
    now
}

/// The form that a shell reads as one word.
pub fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=,.:/%+@".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// The name of this program, without its folders, and its flags.
fn command() -> String {
    let mut words: Vec<_> = env::args().map(|word| quoted(&word)).collect();
    words[0] = words[0].rsplit('/').next().unwrap_or_default().to_owned();
    words.join(" ")
}

fn commit() -> Option<String> {
    let describe = ["describe", "--always", "--dirty", "--exclude=*", "--abbrev=8"];
    let output = Command::new("git").args(describe).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quick_and_loaded_runs_are_not_measurements() {
        let (idle, busy) = ([0.0, 0.1], [16.0 * cores() as f64, 0.0]);
        let told = |quick, loads: &[f64]| Origin::here(1, 1, quick).under(loads).to_string();
        let load = format!("load {} on {}", significant(8.0 * cores() as f64), counted(cores(), "core"));
        let loaded = told(false, &busy);
        assert!(loaded.ends_with(&format!("{load}: not a measurement")), "{loaded}");
        assert!(told(true, &idle).contains("; quick, "));
        assert!(!told(false, &idle).contains(" on ") && !told(false, &idle).contains("quick"));
    }

    #[test]
    fn words_are_quoted_for_a_shell() {
        for (word, text) in [("--fill", "--fill"), ("[::1]:1", "'[::1]:1'"), ("a'b", r"'a'\''b'"), ("", "''")]
        {
            assert_eq!(quoted(word), text);
        }
    }
}
