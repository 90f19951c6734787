//! The results and the errors of the readers of all formats.

use std::io::{self, ErrorKind};

use serde::Serialize;
use swarmkeep_bittorrent::{InfoHash, in_words};

use super::{Count, input::Input};

/// The most wrong entries of a file that are reported.
const NAMED: usize = 5;

/// The counts and the wrong entries of a file.
pub(super) struct Entries<'a> {
    counts: &'a mut Vec<Count>,
    pub(super) read: u64,
    pub(super) refused: u64,
    /// The first wrong entries.
    pub(super) wrong: Vec<Wrong>,
}

/// The reason why a file is not read to its end.
pub(super) enum Stop {
    /// An error after which the rest has no meaning.
    Broken(Wrong),
    /// The file has another format, or it cannot be read.
    Failed(String),
}

impl<'a> Entries<'a> {
    pub(super) fn new(counts: &'a mut Vec<Count>) -> Self {
        Self { counts, read: 0, refused: 0, wrong: Vec::new() }
    }

    pub(super) fn take(&mut self, info_hash: InfoHash, downloads: u32) {
        self.read += 1;
        self.counts.push((info_hash, downloads));
    }

    /// Counts a wrong entry.
    pub(super) fn refuse(&mut self, at: String, what: String) {
        self.refused += 1;
        if self.wrong.len() < NAMED {
            self.wrong.push(Wrong { at, what });
        }
    }
}

impl Stop {
    /// An error of a read: the file is broken if it cannot be decompressed; other errors are the machine's.
    pub(super) fn reading(error: io::Error, input: &Input<'_>) -> Self {
        match error.kind() {
            ErrorKind::UnexpectedEof | ErrorKind::InvalidData | ErrorKind::InvalidInput => {
                Self::broken(format!("byte {}", input.at()), format!("gzip: {}", in_words(&error)))
            }
            _ => Self::Failed(in_words(&error)),
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
    /// The error.
    pub what: String,
}
