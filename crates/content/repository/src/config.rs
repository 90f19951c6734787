//! What every store can be built with.

use std::path::{Path, PathBuf};

/// Where a store keeps what outlives it, and how much that may be.
#[derive(Debug, Clone)]
pub struct ContentConfig {
    folder: PathBuf,
    capacity: Option<u64>,
}

impl ContentConfig {
    /// A store in `folder`, which exists; another store that is built in the same folder later finds what the
    /// first one kept.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into(), capacity: None }
    }

    /// Holds at most so many bytes, of content and of what the store keeps about it.
    ///
    /// A store that declares to be [bounded](crate::Capabilities::bounded) takes every capacity of at least 8
    /// MiB and 8 of its stripes, and fills a quarter of it with content at least. One that is too small is
    /// [`Full`](crate::Error::Full), at once or when it is written to. Any other store answers
    /// [`Unsupported`](crate::Error::Unsupported).
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
