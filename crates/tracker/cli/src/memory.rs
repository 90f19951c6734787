//! The memory of this process.

use std::{fs, path::Path};

/// The bytes of memory that this process may use: the memory of the machine, or the limit of its control
/// group if that is lower. `None` if the system reports neither.
pub(crate) fn memory() -> Option<u64> {
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
        // In a container the group is the root of all visible ones.
        limit("memory.max", "5000000\n");
        assert_eq!(least("0::/\n"), Some(5_000_000));
        limit("memory/docker/memory.limit_in_bytes", "3000000\n");
        assert_eq!(least("5:cpu,cpuacct:/docker\n4:memory:/docker\n"), Some(3_000_000));
        assert_eq!(least("nonsense"), None);
    }
}
