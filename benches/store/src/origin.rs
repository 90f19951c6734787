//! The origin of a run's numbers: machine, load, commit, date and command.

use std::{env, fmt, fs, process::Command, time::SystemTime};

use serde::Serialize;
use swarmkeep::bittorrent::counted;

use crate::{cores, tables::significant};

/// The origin of the numbers of a run.
#[derive(Debug, Clone, Serialize)]
pub struct Origin {
    machine: String,
    version: &'static str,
    /// As [`commit`] returns it.
    commit: Option<String>,
    date: String,
    /// The name of the program, and its flags.
    command: String,
    quick: bool,
    seed: u64,
    /// The number of measurements of each number.
    repeat: usize,
    /// The mean number of cores that other programs kept busy.
    load: Option<f64>,
    /// Why the numbers are not to be quoted.
    not_a_measurement: Option<String>,
    #[serde(skip)]
    began: Option<Ticks>,
}

/// Ticks of all cores, of the idle ones, and of this process with its children that have ended.
type Ticks = [u64; 3];

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
            began: Self::ticks(),
        }
    }

    /// Returns the origin of a run that has ended.
    #[must_use]
    pub fn ended(self) -> Self {
        let others = self.began.and_then(|began| share_of_others(began, Self::ticks()?));
        self.under(others.map(|others| others * cores() as f64))
    }

    fn ticks() -> Option<Ticks> {
        ticks(&fs::read_to_string("/proc/stat").ok()?, &fs::read_to_string("/proc/self/stat").ok()?)
    }

    fn under(mut self, load: Option<f64>) -> Self {
        self.load = load;
        let loaded = load.filter(|load| load * 4.0 >= cores() as f64);
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
        let commit = commit.as_ref().map_or("no commit".to_owned(), |commit| format!("commit {commit}"));
        write!(f, "`{command}`: {machine}, load {load}, {commit}, {date}")?;
        let reason = self.not_a_measurement.as_ref();
        reason.map_or(Ok(()), |reason| write!(f, "; {reason}: not a measurement"))
    }
}

/// Returns the ticks so far, from the texts of `/proc/stat` and `/proc/self/stat`.
fn ticks(stat: &str, own: &str) -> Option<Ticks> {
    let numbers =
        |text: &str| -> Vec<u64> { text.split(' ').map(|n| n.parse().unwrap_or_default()).collect() };
    // Behind the name, which may have blanks: utime, stime, cutime and cstime are fields 14 to 17.
    let (all, own) = (numbers(stat.lines().next()?), numbers(own.rsplit_once(')')?.1));
    // From user to steal; idle and iowait among them.
    let ticks = [all.get(2..10)?, all.get(5..7)?, own.get(12..16)?];
    Some(ticks.map(|ticks| ticks.iter().sum()))
}

/// Returns the share that other programs had of the time between two moments.
fn share_of_others(began: Ticks, now: Ticks) -> Option<f64> {
    let [all, idle, own] = [0, 1, 2].map(|n| now[n].saturating_sub(began[n]));
    (all > 0).then(|| all.saturating_sub(idle + own) as f64 / all as f64)
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

/// The commit of swarmkeep's checkout, with `-dirty` if files there differ from it.
pub fn commit() -> Option<String> {
    let describe = ["describe", "--always", "--dirty", "--exclude=*", "--abbrev=8"];
    let output = Command::new("git").args(["-C", env!("CARGO_MANIFEST_DIR")]).args(describe).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quick_and_loaded_runs_are_not_measurements() {
        let (idle, busy) = (0.1, cores() as f64 / 4.0);
        let told = |quick, load| Origin::here(1, 1, quick).under(Some(load)).to_string();
        let load = format!("load {} on {}", significant(busy), counted(cores(), "core"));
        let loaded = told(false, busy);
        assert!(loaded.ends_with(&format!("{load}: not a measurement")), "{loaded}");
        assert!(told(true, idle).contains("; quick, ") && told(true, idle).contains(" commit"));
        assert!(!told(false, idle).contains(" on ") && !told(false, idle).contains("quick"));
    }

    #[test]
    fn load_is_the_time_of_other_programs() {
        let at = |busy: u64, idle: u64, own: u64| {
            let stat = format!("cpu  {busy} 1 1 {idle} {idle} 1 1 1 {busy} 0\ncpu0 9 9\n");
            ticks(&stat, &format!("7 (a) b) R 1 1 1 0 -1 0 9 9 9 9 {own} 1 2 {own} 20")).unwrap()
        };
        assert_eq!(share_of_others(at(0, 0, 0), at(400, 300, 100)), Some(0.2));
    }

    #[test]
    fn words_are_quoted_for_a_shell() {
        for (word, text) in [("--fill", "--fill"), ("[::1]:1", "'[::1]:1'"), ("a'b", r"'a'\''b'"), ("", "''")]
        {
            assert_eq!(quoted(word), text);
        }
    }
}
