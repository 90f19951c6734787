//! The conformance suite: every sentence of the contracts of [`ContentRepository`] and
//! [`Content`](crate::Content) as a case that any store can be put through.
//!
//! One line in a crate's tests makes a `#[test]` of every case:
//!
//! ```
//! swarmkeep_content::suite!(my_store, |config| swarmkeep_content::conformance::Model::open(config));
//! ```
//!
//! gives `my_store::a_byte_that_was_never_written_is_an_error_that_names_the_first` and its siblings. A case
//! makes temporary folders of its own, opens stores in them, drops them and opens them again; some copy the
//! folder of a store that is open and idle, and open a store in the copy: what a process finds whose
//! predecessor ended at that moment. What a store declares in its [`Capabilities`](crate::Capabilities) is
//! asserted, and so is the refusal of what it does not declare: no case is skipped.
//!
//! The suite knows what is right from [`Model`], and it is itself tested: each of a list of deliberately
//! broken stores must be rejected by the case that is meant for it.

#[doc(hidden)]
pub mod broken;
#[macro_use]
mod list;
mod cases;
mod kit;
mod model;

use crate::{ContentConfig, ContentRepository, Result, catalog::Implementation};

pub use list::CASES;
pub use model::Model;

/// A store that can be put through the suite: how to open one.
///
/// Any function of a configuration that gives a repository is one.
pub trait Subject: Sync {
    /// Opens the store that lies in the folder of `config`, or makes one there.
    ///
    /// # Errors
    /// [`Unsupported`](crate::Error::Unsupported) if the store cannot do what `config` asks for.
    fn open(&self, config: &ContentConfig) -> Result<Box<dyn ContentRepository>>;
}

impl<F, R> Subject for F
where
    F: Fn(&ContentConfig) -> Result<R> + Sync,
    R: ContentRepository + 'static,
{
    fn open(&self, config: &ContentConfig) -> Result<Box<dyn ContentRepository>> {
        Ok(Box::new(self(config)?))
    }
}

/// A row of the catalog is one as it stands.
impl Subject for &Implementation {
    fn open(&self, config: &ContentConfig) -> Result<Box<dyn ContentRepository>> {
        Ok(Box::new(Implementation::open(self, config)?))
    }
}

/// One sentence of the contract, as something that can be run.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Case {
    /// The sentence.
    pub name: &'static str,
    run: fn(&dyn Subject),
}

/// Returns the store that [`suite!`](crate::suite) was given.
#[doc(hidden)]
pub fn subject<R: ContentRepository + 'static>(
    open: impl Fn(&ContentConfig) -> Result<R> + Sync,
) -> impl Subject {
    open
}
