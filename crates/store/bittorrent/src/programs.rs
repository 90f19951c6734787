//! Parts that the two programs share.

use std::{error::Error, io, path::Path, process::ExitCode};

use crate::in_words;

/// A progress bar over bytes; hidden where stderr is no terminal.
#[cfg(feature = "programs")]
pub fn bar(bytes: u64) -> indicatif::ProgressBar {
    if !io::IsTerminal::is_terminal(&io::stderr()) {
        return indicatif::ProgressBar::hidden();
    }
    let style = indicatif::ProgressStyle::with_template(
        "{bar:30} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec}, {eta} left  {wide_msg}",
    );
    let bar = indicatif::ProgressBar::new(bytes).with_style(style.expect("a valid template"));
    bar.enable_steady_tick(std::time::Duration::from_millis(200));
    bar
}

/// Like `println!`, but returns an error if the pipe is closed; then the program ends without a message.
#[doc(hidden)]
#[macro_export]
macro_rules! say {
    ($($words:tt)*) => {
        std::io::Write::write_fmt(&mut std::io::stdout(), format_args!("{}\n", format_args!($($words)*)))?
    };
}

/// Ends a program: prints the error of its command, unless the reader of the output has closed the pipe.
pub fn end(program: &str, done: Result<ExitCode, Box<dyn Error>>) -> ExitCode {
    done.unwrap_or_else(|error| match error.downcast_ref().map(io::Error::kind) {
        Some(io::ErrorKind::BrokenPipe) => ExitCode::SUCCESS,
        _ => {
            eprintln!("{program}: {}", in_words(&error));
            ExitCode::FAILURE
        }
    })
}

/// A number of bytes, as an option gives it; or the expected format.
#[cfg(feature = "programs")]
pub fn bytes(text: &str) -> Result<std::num::NonZero<u64>, String> {
    let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let is_known = match &text[number.len()..] {
        "" => !number.contains('.'),
        unit => ["B", "kB", "MB", "GB", "TB", "KiB", "MiB", "GiB", "TiB"].contains(&unit),
    };
    let bytes = text.parse::<bytesize::ByteSize>().ok().filter(|bytes| is_known && bytes.0 < u64::MAX);
    bytes.and_then(|bytes| std::num::NonZero::new(bytes.0)).ok_or_else(|| {
        "expected bytes above 0, such as 536870912, 500MB or 1.5GiB; units are kB, MB, GB, TB, KiB, MiB, GiB, TiB"
            .into()
    })
}

/// The bytes of memory that this process may use: the memory of the machine, or the least limit of its
/// control group and of the groups above, in version 2 or by the memory controller of version 1. `None` if
/// the system reports neither. `read` returns the text of a file.
pub fn memory(read: impl Fn(&Path) -> Option<String>) -> Option<u64> {
    let text = |path: &str| read(Path::new(path)).unwrap_or_default();
    let (machine, groups) = (text("/proc/meminfo"), text("/proc/self/cgroup"));
    let kib = machine.lines().find_map(|line| line.strip_prefix("MemTotal:")?.strip_suffix("kB"));
    let machine = kib.and_then(|kib| kib.trim().parse::<u64>().ok()).map(|kib| kib * 1024);
    let limits = groups.lines().filter_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        let (mount, files) = match controllers {
            "" => ("/sys/fs/cgroup", ["memory.max", "memory.high"].as_slice()),
            "memory" => ("/sys/fs/cgroup/memory", ["memory.limit_in_bytes"].as_slice()),
            _ => return None,
        };
        let path = Path::new(path.trim_start_matches('/'));
        let limits = path.ancestors().flat_map(|path| files.iter().map(move |file| path.join(file)));
        // "max" is no limit, nor is a file that does not exist.
        limits.filter_map(|file| read(&Path::new(mount).join(file))?.trim().parse().ok()).min()
    });
    limits.chain(machine).min()
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn the_least_of_the_machine_and_the_limits_of_all_groups_above_counts() {
        let mut files = HashMap::new();
        let mut least = |changes: &[(&str, &str)]| {
            files.extend(changes.iter().map(|(file, text)| (Path::new(file).to_owned(), (*text).to_owned())));
            memory(|file| files.get(file).cloned())
        };
        let (groups, of_slice) = ("/proc/self/cgroup", "/sys/fs/cgroup/system.slice");
        let [max, high] = ["max", "high"].map(|file| format!("{of_slice}/swarmkeep.service/memory.{file}"));
        let own = "nonsense\n0::/system.slice/swarmkeep.service\n";
        assert_eq!(least(&[(groups, own), (&max, "max\n")]), None);
        assert_eq!(least(&[("/proc/meminfo", "MemTotal:      8789 kB\nMemFree: 1 kB\n")]), Some(8_999_936));
        assert_eq!(least(&[(&format!("{of_slice}/memory.max"), "8000000\n")]), Some(8_000_000));
        assert_eq!(least(&[(&high, "6000000\n"), (&max, "7000000\n")]), Some(6_000_000));
        assert_eq!(least(&[(groups, "0::/user.slice\n")]), Some(8_999_936));
        // In a container the group is the root of all visible ones.
        assert_eq!(least(&[(groups, "0::/\n"), ("/sys/fs/cgroup/memory.max", "5000000\n")]), Some(5_000_000));
        let docker = ("/sys/fs/cgroup/memory/docker/memory.limit_in_bytes", "3000000\n");
        assert_eq!(least(&[(groups, "5:cpu,cpuacct:/docker\n4:memory:/docker\n"), docker]), Some(3_000_000));
    }
}
