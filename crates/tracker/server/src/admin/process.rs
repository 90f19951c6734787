//! The resources that the process uses.

use std::{fs, time::Duration};

use rustix::time::{ClockId, clock_gettime};

/// The resources in use at this moment; unknown values are 0.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Process {
    pub(super) resident_bytes: u64,
    /// The time on all cores since the start.
    pub(super) cpu: Duration,
    pub(super) open_files: u64,
}

impl Process {
    pub(super) fn now() -> Self {
        let cpu = clock_gettime(ClockId::ProcessCPUTime);
        Self {
            resident_bytes: resident_pages().unwrap_or(0) * rustix::param::page_size() as u64,
            cpu: Duration::try_from(cpu).unwrap_or_default(),
            open_files: open_files(),
        }
    }
}

/// The length of the folder if the system gives it (Linux 6.2), since counting entries takes a millisecond
/// per thousand; otherwise the number of entries, without the file that is open for counting.
fn open_files() -> u64 {
    match fs::metadata("/proc/self/fd").map(|folder| folder.len()) {
        Ok(0) | Err(_) => fs::read_dir("/proc/self/fd").map_or(0, |files| files.count() as u64 - 1),
        Ok(count) => count,
    }
}

/// The second number of `statm` (proc_pid_statm(5)).
fn resident_pages() -> Option<u64> {
    fs::read_to_string("/proc/self/statm").ok()?.split_ascii_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_time_and_files_grow_with_use() {
        let before = Process::now();
        let memory = vec![1u8; 64 << 20];
        let files: Vec<_> = (0..10).map(|_| fs::File::open("/proc/self/statm").expect("readable")).collect();
        let sum: u64 = memory.iter().map(|&byte| u64::from(byte)).sum();
        let after = Process::now();
        assert_eq!(sum, 64 << 20);
        assert!(after.resident_bytes >= before.resident_bytes + (48 << 20), "{before:?} {after:?}");
        assert!(after.cpu > before.cpu);
        // Other tests open and close some meanwhile.
        assert!(
            after.open_files >= before.open_files.saturating_sub(5) + files.len() as u64 / 2,
            "{before:?} {after:?}"
        );
    }
}
