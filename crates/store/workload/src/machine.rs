//! The description of the machine of a measurement.

use std::{fmt, fs, num::NonZeroUsize, path::Path, thread};

use serde::{Deserialize, Serialize};

/// The properties of a machine that a reader needs to interpret its numbers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Machine {
    /// The name of the processor.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub cpu: Option<String>,
    /// The number of cores that this process may use.
    pub cores: usize,
    /// The size of the main memory in bytes.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub memory_bytes: Option<u64>,
    /// The operating system and the architecture.
    pub system: String,
}

impl Machine {
    /// Returns the description of this machine.
    pub fn this() -> Self {
        let after = |path: &str, key: &str| {
            let text = fs::read_to_string(path).ok()?;
            let (_, value) = text.lines().find(|line| line.starts_with(key))?.split_once(':')?;
            Some(value.trim().to_owned())
        };
        let kib =
            after("/proc/meminfo", "MemTotal").and_then(|text| text.strip_suffix(" kB")?.parse::<u64>().ok());
        Self {
            cpu: after("/proc/cpuinfo", "model name"),
            cores: cores(),
            memory_bytes: kib.map(|kib| kib * 1024),
            system: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
        }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cpu = self.cpu.as_deref().unwrap_or(&self.system);
        write!(f, "{cpu}, {} core{}", self.cores, if self.cores == 1 { "" } else { "s" })
    }
}

/// Returns the number of cores that this process may use.
pub fn cores() -> usize {
    thread::available_parallelism().map_or(1, NonZeroUsize::get)
}

/// Returns the bytes of memory that this process may take: those of the machine, or of its control group if
/// that has a lower limit. `None` if the system tells neither.
pub fn memory() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let group = least_limit(&groups, Path::new("/sys/fs/cgroup"));
    group.into_iter().chain(Machine::this().memory_bytes).min()
}

/// The least limit of the control groups that `groups` lists, as in `/proc/self/cgroup`, and of those above them:
/// version 2, and the memory controller of version 1.
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
        // "max", and files that do not exist, are no limits.
        limits.filter_map(|file| fs::read_to_string(mount.join(file)).ok()?.trim().parse().ok()).min()
    });
    limits.min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_limit_of_all_groups_above_counts() {
        let folder = tempfile::tempdir().unwrap();
        let limit = |path: &str, bytes: &str| {
            let file = folder.path().join(path);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, bytes).unwrap();
        };
        let least = |groups: &str| least_limit(groups, folder.path());
        assert_eq!(least("0::/system.slice/swarmkeep.service\n"), None);
        limit("system.slice/swarmkeep.service/memory.max", "max\n");
        assert_eq!(least("0::/system.slice/swarmkeep.service\n"), None);
        limit("system.slice/memory.max", "8000000\n");
        assert_eq!(least("0::/system.slice/swarmkeep.service\n"), Some(8_000_000));
        limit("system.slice/swarmkeep.service/memory.high", "6000000\n");
        limit("system.slice/swarmkeep.service/memory.max", "7000000\n");
        assert_eq!(least("0::/system.slice/swarmkeep.service\n"), Some(6_000_000));
        assert_eq!(least("0::/user.slice\n"), None);
        // In a container the group is the root of what is seen.
        limit("memory.max", "5000000\n");
        assert_eq!(least("0::/\n"), Some(5_000_000));
        limit("memory/docker/memory.limit_in_bytes", "3000000\n");
        assert_eq!(least("5:cpu,cpuacct:/docker\n4:memory:/docker\n"), Some(3_000_000));
        assert_eq!(least("nonsense"), None);
    }

    #[test]
    fn this_process_may_take_no_more_than_the_machine_has() {
        assert!((1 << 20..=Machine::this().memory_bytes.unwrap()).contains(&memory().unwrap()));
    }
}
