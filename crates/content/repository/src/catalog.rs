//! The list of implementations. Tests, benches, the command line and the documents are made from it: a new
//! store is its module and its row here.

use std::{fmt, sync::Arc};

use crate::{
    ContentConfig, ContentRepository, Memory, Result,
    block::{Allocation, BlockStore},
    files::{self, FileStore},
    stripe_cache::{StripeCache, StripeCacheOptions},
};

/// Makes the list, and the macro that goes through its names, of the rows below.
macro_rules! rows {
    ($(#[doc = $summary:literal] $name:literal $identifier:ident: $open:expr;)*) => {
        /// Every implementation.
        pub const ALL: &[Implementation] = &[
            $(Implementation { name: $name, summary: $summary.trim_ascii(), open: |config| Ok(Arc::new($open(config)?)) },)*
        ];

        rows! { @export ($) $($name $identifier)* }
    };
    (@export ($d:tt) $($name:literal $identifier:ident)*) => {
        /// Calls a macro with the names of all implementations, each as a string and as an identifier:
        /// `"memory" memory …`.
        #[macro_export]
        macro_rules! for_each_content_repository {
            ($d callback:ident) => { $d callback! { $($name $identifier)* } };
        }
    };
}

rows! {
    /// In memory, gone with the process.
    "memory" memory: |config| Result::Ok(Memory::new(config));
    /// Plain files, which take room as they are written.
    "files-sparse" files_sparse: |config| FileStore::open(config, files::Allocation::Sparse);
    /// Plain files, with all of their room allocated at creation.
    "files-preallocated" files_preallocated: |config| FileStore::open(config, files::Allocation::Preallocated);
    /// A block device or an image, blocks taken around the device.
    "block-sequential" block_sequential: |config| BlockStore::open_or_create(config, Allocation::Sequential);
    /// A block device or an image, the lowest free blocks taken first.
    "block-ordered" block_ordered: |config| BlockStore::open_or_create(config, Allocation::Ordered);
    /// The stripe cache, over plain files which take room as they are written.
    "cached-files-sparse" cached_files_sparse: |config| {
        StripeCache::new(Arc::new(FileStore::open(config, files::Allocation::Sparse)?), StripeCacheOptions::new())
    };
    /// The stripe cache, over a block device or an image with blocks taken around the device.
    "cached-block-sequential" cached_block_sequential: |config| {
        let store = BlockStore::open_or_create(config, Allocation::Sequential)?;
        StripeCache::new(Arc::new(store), StripeCacheOptions::new())
    };
}

/// One implementation: its name, a summary, and a function that opens it.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub struct Implementation {
    /// Its name on command lines and in tables: lower case, parts joined by `-`.
    pub name: &'static str,
    /// One line about it.
    pub summary: &'static str,
    open: fn(&ContentConfig) -> Result<Arc<dyn ContentRepository>>,
}

impl Implementation {
    /// Opens the store that lies in the folder of `config`, or makes one there.
    ///
    /// # Errors
    /// Those of the store.
    pub fn open(&self, config: &ContentConfig) -> Result<Arc<dyn ContentRepository>> {
        (self.open)(config)
    }
}

impl fmt::Debug for Implementation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// The implementation called `name`.
pub fn find(name: &str) -> Option<&'static Implementation> {
    ALL.iter().find(|implementation| implementation.name == name)
}
