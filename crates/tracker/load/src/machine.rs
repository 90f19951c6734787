//! The machine of the generator.

use std::{fmt, fs, num::NonZero, thread};

use serde::Serialize;
use swarmkeep::bittorrent::counted;

/// The properties of a machine that a reader needs to interpret its numbers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Machine {
    /// The name of the processor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<String>,
    /// The number of cores that this process may use.
    pub cores: usize,
    /// The size of the main memory in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// The operating system and the architecture.
    pub system: String,
}

impl Machine {
    /// Returns the description of this machine.
    pub(crate) fn this() -> Self {
        let after = |path: &str, key: &str| {
            let text = fs::read_to_string(path).ok()?;
            let (_, value) = text.lines().find(|line| line.starts_with(key))?.split_once(':')?;
            Some(value.trim().to_owned())
        };
        let memory = after("/proc/meminfo", "MemTotal");
        let kib = memory.and_then(|text| text.strip_suffix(" kB")?.parse::<u64>().ok());
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
        write!(f, "{cpu}, {}", counted(self.cores, "core"))
    }
}

/// Returns the number of cores that this process may use.
pub(crate) fn cores() -> usize {
    thread::available_parallelism().map_or(1, NonZero::get)
}
