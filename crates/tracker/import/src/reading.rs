//! What the readers of the formats find in a file, and why they stop.

use std::io::{self, ErrorKind};

use serde::Serialize;
use swarmkeep_bittorrent::InfoHash;

use super::{Count, input::Input};

/// So many of the things that are wrong in a file are named.
const NAMED: usize = 5;

/// Where the readers of the formats put what they find.
pub(super) struct Reading<'a> {
    counts: &'a mut Vec<Count>,
    pub(super) read: u64,
    pub(super) refused: u64,
    /// The first of them.
    pub(super) wrong: Vec<Wrong>,
}

/// Why a file is not read to its end.
pub(super) enum Stop {
    /// Something is wrong in it behind which nothing can be understood.
    Broken(Wrong),
    /// It is not such a file, or it cannot be read.
    Failed(String),
}

impl<'a> Reading<'a> {
    pub(super) fn new(counts: &'a mut Vec<Count>) -> Self {
        Self { counts, read: 0, refused: 0, wrong: Vec::new() }
    }

    pub(super) fn take(&mut self, info_hash: InfoHash, downloads: u32) {
        self.read += 1;
        self.counts.push((info_hash, downloads));
    }

    /// Counts something that is wrong, with its place.
    pub(super) fn refuse(&mut self, at: String, what: String) {
        self.refused += 1;
        if self.wrong.len() < NAMED {
            self.wrong.push(Wrong { at, what });
        }
    }
}

impl Stop {
    /// For an error while a file is read: what does not decompress is broken, the rest is the machine's
    /// fault.
    pub(super) fn reading(error: io::Error, input: &Input<'_>) -> Self {
        match error.kind() {
            ErrorKind::UnexpectedEof | ErrorKind::InvalidData | ErrorKind::InvalidInput => {
                Self::broken(format!("byte {}", input.at()), format!("gzip: {error}"))
            }
            _ => Self::Failed(error.to_string()),
        }
    }

    pub(super) fn broken(at: String, what: String) -> Self {
        Self::Broken(Wrong { at, what })
    }
}

/// A wrong entry of a file.
#[derive(Debug, Serialize)]
#[non_exhaustive]
pub struct Wrong {
    /// Its position: a line from 1, or a byte from 0 (before compression).
    pub at: String,
    /// What is wrong.
    pub what: String,
}
