//! Parts that the two programs share.

use std::{error::Error, io, num::NonZero, path::Path, process::ExitCode};

use crate::in_words;

/// The bytes of a progress bar, for `indicatif`.
pub const BAR: &str =
    "{bar:30} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec}, {eta} left  {wide_msg}";

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

/// Bytes of a remote program as text, without characters that a terminal obeys or that change the direction
/// of text.
pub fn printable(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let shown = text.chars().flat_map(|c| match c {
        '"' | '\'' | '\\' => c.escape_default().skip(1).collect::<Vec<_>>(),
        c => c.escape_debug().collect(),
    });
    shown.collect()
}

/// Powers of 1024, and powers of ten, by which disks are sold.
pub const BYTES: [(&str, u64); 8] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("kB", 1000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
];

/// A number of bytes, as an option gives it; or the expected format.
pub fn bytes(text: &str) -> Result<NonZero<u64>, String> {
    in_units(text, &BYTES).and_then(NonZero::new).ok_or_else(|| {
        "expected bytes above 0, such as 536870912, 500MB or 1.5GiB; units are kB, MB, GB, TB, KiB, MiB, GiB, TiB"
            .into()
    })
}

/// A whole number of ones, or a sum of units, the largest first: `90`, `1.5GiB`, `1h30m`. Fractions of ones
/// are dropped, and the smallest unit has none.
pub fn in_units(mut text: &str, units: &[(&str, u64)]) -> Option<u64> {
    if let Ok(ones) = text.parse() {
        return Some(ones);
    }
    let (mut sum, mut last) = (0_u64, u64::MAX);
    loop {
        let (number, rest) = text.split_at(text.find(|c: char| c.is_ascii_alphabetic())?);
        let end = rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len());
        let (_, unit) = *units.iter().find(|(name, unit)| *name == &rest[..end] && *unit < last)?;
        let (whole, part) = number.split_once('.').unwrap_or((number, ""));
        if number.ends_with('.') || unit == 1 && !part.is_empty() {
            return None;
        }
        let digits: u64 = format!("{whole}{part}").parse().ok()?;
        let ones = u128::from(digits) * u128::from(unit) / 10_u128.checked_pow(part.len() as u32)?;
        sum = sum.checked_add(ones.try_into().ok()?)?;
        (last, text) = (unit, &rest[end..]);
        if text.is_empty() {
            return Some(sum);
        }
    }
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
    fn numbers_have_units_fractions_and_parts() {
        for (text, number) in [
            ("1000", 1000),
            ("512MiB", 512 << 20),
            ("1GB", 1_000_000_000),
            ("1.5GiB", 3 << 29),
            (".5kB", 500),
            ("1GiB512MiB", 3 << 29),
            ("1.1KiB", 1126),
        ] {
            assert_eq!(bytes(text).map(NonZero::get), Ok(number), "{text}");
        }
        let wrong = "|0|0GiB|GiB|1gb|-1|1.5|1.GiB|1..5GiB|1GiB2|1MiB1GiB|1GiB1GiB|1 GiB|99999999999TiB";
        for wrong in wrong.split('|').chain(["1.00000000000000000000GiB"]) {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
        let times = [("s", 1), ("m", 60), ("h", 3600), ("d", 86_400)];
        let seconds = ["1d", "1h30m", "1d2h3m4s", "1.5h", "1.5s"].map(|text| in_units(text, &times));
        assert_eq!(seconds, [Some(86_400), Some(5400), Some(93_784), Some(5400), None]);
    }

    #[test]
    fn printable_text_obeys_no_remote_program() {
        let said = "it's \"d\u{e9}j\u{e0}\" \\ \x1b[2J\r\n\u{202e}\u{7}".as_bytes();
        assert_eq!(printable(said), "it's \"d\u{e9}j\u{e0}\" \\ \\u{1b}[2J\\r\\n\\u{202e}\\u{7}");
        assert_eq!(printable(&[b'a', 0xff]), "a\u{fffd}");
    }

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
