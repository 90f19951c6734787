//! What every store can be built with.

use std::path::{Path, PathBuf};

/// Where a store keeps what outlives it, and how much that may be.
#[derive(Debug, Clone)]
pub struct ContentConfig {
    folder: PathBuf,
    capacity: Option<u64>,
}

impl ContentConfig {
    /// A store in `folder`, which exists; another store that is built in the same folder later finds what the first one kept.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into(), capacity: None }
    }

    /// Holds at most so many bytes, of content and of what the store keeps about it.
    #[must_use]
    pub fn capacity(mut self, bytes: u64) -> Self {
        self.capacity = Some(bytes);
        self
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The most bytes, if there is a limit.
    pub fn most(&self) -> Option<u64> {
        self.capacity
    }
}
