//! What the process takes of its machine.

use std::{fs, time::Duration};

use rustix::time::{ClockId, clock_gettime};

/// What it takes at this moment; what the system does not say is 0.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Process {
    pub(super) resident_bytes: u64,
    /// On all cores together, since it began.
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

/// The length of the folder where the system says so (Linux 6.2), since counting its entries takes a
/// millisecond for each thousand; elsewhere their number, less the one that is open for this.
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
    fn memory_time_and_files_grow_with_what_is_used() {
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
