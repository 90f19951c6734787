//! The conformance suite: every sentence of the contract of [`TorrentRepository`] as a case that tests any
//! store.
//!
//! One line in the tests of a crate makes a `#[test]` of every case:
//!
//! ```
//! swarmkeep_conformance::suite!(my_store, |config| swarmkeep_conformance::Model::new(config));
//! ```
//!
//! This line makes `my_store::announce_never_hands_out_the_announcer` and a test for each other case. A case
//! builds its own fresh stores, each with its own [`RepositoryConfig`]. The suite asserts the declarations of
//! a store in its [`Capabilities`], and that it refuses limits that it does not declare. No case is skipped.
//!
//! [`Model`] defines the correct results. The suite itself is tested: each of a list of deliberately broken
//! stores must be rejected by one given case.
//!
//! [`Capabilities`]: swarmkeep::Capabilities

mod blocking;
#[doc(hidden)]
pub mod broken;
#[doc(hidden)]
pub mod common;
mod delayed;
#[doc(hidden)]
pub mod histories;
#[macro_use]
mod list;
mod cases;
#[doc(hidden)]
pub mod kit;
mod model;
#[doc(hidden)]
pub mod threads;

use swarmkeep::{
    ConfigError, Immediate, RepositoryConfig, TorrentRepository,
    catalog::{Implementation, Repository},
};

pub use blocking::Blocking;
pub use delayed::Delayed;
pub use list::CASES;
pub use model::Model;

/// A kind of store that the suite can build and test.
///
/// Every function from a configuration to a repository implements it.
pub trait Subject: Sync {
    /// Returns an empty repository with the lifetime, limits and key of `config`.
    ///
    /// # Errors
    /// [`ConfigError`] if the store does not support `config`.
    fn build(&self, config: &RepositoryConfig) -> Result<Box<dyn TorrentRepository>, ConfigError>;
}

impl<F, R> Subject for F
where
    F: Fn(&RepositoryConfig) -> Result<R, ConfigError> + Sync,
    R: TorrentRepository + 'static,
{
    fn build(&self, config: &RepositoryConfig) -> Result<Box<dyn TorrentRepository>, ConfigError> {
        self(config).map(|store| Box::new(store) as Box<dyn TorrentRepository>)
    }
}

/// A row of the catalog can be tested directly; an asynchronous store is wrapped in [`Blocking`].
impl Subject for &Implementation {
    fn build(&self, config: &RepositoryConfig) -> Result<Box<dyn TorrentRepository>, ConfigError> {
        Ok(match Implementation::build(self, config)? {
            Repository::Sync(Immediate(store)) => Box::new(store),
            Repository::Async(store) => Box::new(Blocking::new(store)),
        })
    }
}

/// One sentence of the contract as a test that can be run.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Case {
    /// The sentence, as an identifier.
    pub name: &'static str,
    /// The numbers of the rules that it tests, in [`swarmkeep::contract`].
    pub rules: &'static [u8],
    run: fn(&dyn Subject),
}

/// Returns the store that [`suite!`] was given.
#[doc(hidden)]
pub fn subject<R: TorrentRepository + 'static>(
    build: impl Fn(&RepositoryConfig) -> Result<R, ConfigError> + Sync,
) -> impl Subject {
    build
}

/// Compiles and runs the code of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
