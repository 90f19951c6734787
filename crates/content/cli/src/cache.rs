//! `--cache`: how much memory is in front of a store.

use std::{fs, num::NonZero, path::Path};

use crate::units;

#[derive(Debug, clap::Args)]
pub(crate) struct Cache {
    /// The most memory for content that waits to be written or was read ahead, such as 512MiB. [default: an
    /// eighth of the memory that this process may take, from 128MiB to 1GiB]
    #[arg(long = "cache", value_name = "BYTES", value_parser = units::bytes)]
    most: Option<NonZero<u64>>,
}

impl Cache {
    pub(crate) fn bytes(&self) -> u64 {
        self.most.map_or_else(|| (memory().unwrap_or(0) / 8).clamp(128 << 20, 1 << 30), NonZero::get)
    }
}

/// The bytes of memory that this process may use: the memory of the machine, or the limit of its control
/// group if that is lower. `None` if the system reports neither.
fn memory() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let group = least_limit(&groups, Path::new("/sys/fs/cgroup"));
    let machine = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = machine.lines().find_map(|line| line.strip_prefix("MemTotal:")?.strip_suffix("kB"));
    let machine = kib.and_then(|kib| kib.trim().parse::<u64>().ok()).map(|kib| kib * 1024);
    group.into_iter().chain(machine).min()
}

/// The least limit of the control groups that `groups` lists, as in `/proc/self/cgroup`, and of the groups
/// above: version 2, and the memory controller of version 1.
fn least_limit(groups: &str, mount: &Path) -> Option<u64> {
    let limits = groups.lines().filter_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        let (mount, files) = match controllers {
            "" => (mount.to_owned(), ["memory.max", "memory.high"].as_slice()),
            "memory" => (mount.join("memory"), ["memory.limit_in_bytes"].as_slice()),
            _ => return None,
        };
        let path = Path::new(path.trim_start_matches('/'));
        let limits = path.ancestors().flat_map(|path| files.iter().map(move |file| path.join(file)));
        // "max" is no limit, nor is a file that does not exist.
        limits.filter_map(|file| fs::read_to_string(mount.join(file)).ok()?.trim().parse().ok()).min()
    });
    limits.min()
}
