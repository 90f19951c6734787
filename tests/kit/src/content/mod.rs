//! The conformance suite for stores of content: every sentence of the contracts of [`ContentRepository`] and
//! [`Content`](swarmkeep_content::Content) as a case that any store can be put through.
//!
//! [`content_suite!`](crate::content_suite) makes a `#[test]` of every case. A case makes temporary folders,
//! opens stores in them, drops them and opens them again. Some cases copy the folder of a store that is open
//! and idle, and open a store in the copy, as the next process finds it after a kill. The
//! [capabilities](swarmkeep_content::Capabilities) of a store are asserted, and so is the refusal of
//! everything that it does not declare: no case is skipped.
//!
//! The suite compares stores with [`Model`], and it is itself tested: each of a list of deliberately broken
//! stores must be rejected by the case that is meant for it.

pub mod broken;
#[macro_use]
mod list;
mod cases;
mod kit;
mod model;

use swarmkeep_content::{ContentConfig, ContentRepository, Result};

pub use model::Model;
pub use swarmkeep_conformance::common::within;

/// A store that can be put through the suite: how to open one.
///
/// Any function of a configuration that gives a repository is one.
pub trait Subject: Sync {
    /// Opens the store that lies in the folder of `config`, or makes one there.
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

/// One sentence of the contract, as something that can be run.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    /// The sentence.
    pub name: &'static str,
    run: fn(&dyn Subject),
}

/// Returns the store that [`content_suite!`](crate::content_suite) was given.
pub fn subject<R: ContentRepository + 'static>(
    open: impl Fn(&ContentConfig) -> Result<R> + Sync,
) -> impl Subject {
    open
}
