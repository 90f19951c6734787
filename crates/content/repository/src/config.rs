//! The options of all stores.

use std::path::{Path, PathBuf};

/// The folder of a store, and its capacity.
#[derive(Debug, Clone)]
pub struct ContentConfig {
    folder: PathBuf,
    capacity: Option<u64>,
}

impl ContentConfig {
    /// A store in `folder`, which must exist. A store that is opened there later finds the content of the
    /// earlier one.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into(), capacity: None }
    }

    /// The most bytes that the store takes, for content and for its own data about it.
    ///
    /// A store that is [bounded](crate::Capabilities::bounded) accepts every capacity of at least 8 MiB and 8
    /// of its stripes, and holds content of at least a quarter of it. With a smaller capacity it may return
    /// [`Full`](crate::Error::Full), at once or on a write. Any other store returns
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
