//! The origin of a run's numbers.

use std::{env, fmt, fs};

use serde::Serialize;
use swarmkeep::bittorrent::counted;

use crate::cores;

/// The origin of the numbers of a run.
#[derive(Debug, Serialize)]
pub struct Origin {
    machine: String,
    version: &'static str,
    seed: u64,
    /// The number of measurements of each number.
    repeat: usize,
}

impl Origin {
    /// Returns the origin of a run on this machine.
    pub fn here(seed: u64, repeat: usize) -> Self {
        Self { machine: machine(), version: env!("CARGO_PKG_VERSION"), seed, repeat }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, swarmkeep {}, seed {}", self.machine, self.version, self.seed)?;
        if self.repeat > 1 { write!(f, ", median of {}", self.repeat) } else { Ok(()) }
    }
}

/// Returns the name of the processor, and the number of cores that this process may use.
pub fn machine() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    let name = name.map_or_else(|| env::consts::ARCH, |(_, name)| name.trim());
    format!("{name}, {}", counted(cores(), "core"))
}
