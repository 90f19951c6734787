//! `--cache`: how much memory is in front of a store.

use std::{fs, num::NonZero};

use swarmkeep_bittorrent::programs;

#[derive(Debug, clap::Args)]
pub(crate) struct Cache {
    /// The most memory for content that waits to be written or was read ahead, such as 512MiB. [default: an
    /// eighth of the memory that this process may take, from 128MiB to 1GiB]
    #[arg(long = "cache", value_name = "BYTES", value_parser = programs::bytes)]
    most: Option<NonZero<u64>>,
}

impl Cache {
    pub(crate) fn bytes(&self) -> u64 {
        let memory = || programs::memory(|path| fs::read_to_string(path).ok()).unwrap_or(0);
        self.most.map_or_else(|| (memory() / 8).clamp(128 << 20, 1 << 30), NonZero::get)
    }
}
