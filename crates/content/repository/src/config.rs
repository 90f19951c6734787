//! The options of all stores.

use std::path::PathBuf;

/// The folder of a store, and its capacity. Start with [`new`](Self::new), and set other values.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ContentConfig {
    /// The folder, which must exist. A store that is opened there later finds the content of the earlier one.
    pub folder: PathBuf,
    /// The most bytes that the store takes, for content and for its own data about it, if there is a limit.
    ///
    /// A store that is [bounded](crate::Capabilities::bounded) accepts every capacity of at least 8 MiB and 8
    /// of its stripes, and holds content of at least a quarter of it. With a smaller capacity it may return
    /// [`Full`](crate::Error::Full), at once or on a write. Any other store returns
    /// [`Unsupported`](crate::Error::Unsupported).
    pub capacity: Option<u64>,
}

impl ContentConfig {
    /// A store in `folder` without a limit.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into(), capacity: None }
    }
}
