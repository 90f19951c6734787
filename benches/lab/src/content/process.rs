//! What this process takes.

use std::{fs, io};

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;

/// Resident memory, in bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Memory {
    pub(crate) now: u64,
    /// The most it has been.
    pub(crate) peak: u64,
}

/// `None` where there is no `/proc`.
pub(crate) fn memory() -> Option<Memory> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let of = |key: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(key))?;
        let kib: u64 = line.trim_start_matches(':').trim().strip_suffix(" kB")?.parse().ok()?;
        Some(kib * 1024)
    };
    Some(Memory { now: of("VmRSS")?, peak: of("VmHWM")? })
}

/// From here on, the peak is that of what follows. Where the system does not have it, the peak stays that of
/// the whole process.
pub(crate) fn forget_peak() {
    let _ = fs::write("/proc/self/clear_refs", "5");
}

/// Of all threads, those that ended included; user and system.
pub(crate) fn cpu_seconds() -> io::Result<f64> {
    let usage = getrusage(UsageWho::RUSAGE_SELF)?;
    let microseconds = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    Ok(microseconds as f64 / 1e6)
}

/// Tasks that ran or waited for a disk, in the mean of the last five minutes.
pub(crate) fn load() -> Option<f64> {
    fs::read_to_string("/proc/loadavg").ok()?.split_whitespace().nth(1)?.parse().ok()
}
