//! CPU time and memory of a process, from `/proc`.

use std::fs;

use nix::unistd::{SysconfVar, sysconf};
use serde::Serialize;

/// CPU time and memory of a process, at one moment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Usage {
    pub(crate) cpu_seconds: f64,
    pub(crate) rss_bytes: u64,
}

/// CPU time and memory of the tracker's process during the measurement.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Server {
    /// The process.
    pub pid: u32,
    /// User and system time of all its threads, in seconds; the system counts in hundredths.
    pub cpu_seconds: f64,
    /// The same for a million answers.
    pub cpu_seconds_per_million: f64,
    /// Resident set before the measurement.
    pub rss_bytes_before: u64,
    /// Resident set after it.
    pub rss_bytes_after: u64,
}

impl Usage {
    /// Of the process with this id; `None` if there is none, or no `/proc`.
    pub(crate) fn of(pid: u32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let ticks = sysconf(SysconfVar::CLK_TCK).ok()??;
        Some(Self { cpu_seconds: cpu_ticks(&stat)? as f64 / ticks as f64, rss_bytes: rss_bytes(&status)? })
    }

    /// The CPU time since `before`, for a number of `answers`.
    pub(crate) fn since(&self, before: &Self, pid: u32, answers: u64) -> Server {
        let cpu_seconds = self.cpu_seconds - before.cpu_seconds;
        Server {
            pid,
            cpu_seconds,
            cpu_seconds_per_million: cpu_seconds * 1e6 / answers.max(1) as f64,
            rss_bytes_before: before.rss_bytes,
            rss_bytes_after: self.rss_bytes,
        }
    }
}

/// User and system time: fields 14 and 15. The name in field 2 may hold spaces and parentheses.
fn cpu_ticks(stat: &str) -> Option<u64> {
    let (_, behind) = stat.rsplit_once(')')?;
    let mut fields = behind.split_ascii_whitespace().skip(11);
    Some(fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?)
}

fn rss_bytes(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_whatever_a_program_calls_itself() {
        let stat = "7 (a) b (c)) S 1 7 7 0 -1 4194304 1 2 3 4 250 50 9 9 20 0 4 0 100 1 1";
        assert_eq!(cpu_ticks(stat), Some(300));
        assert_eq!(rss_bytes("Name:\tx\nVmRSS:\t    1234 kB\n"), Some(1234 * 1024));
        assert_eq!(rss_bytes("Name:\tx\n"), None);
    }
}
