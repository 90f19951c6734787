//! The conformance suite: every sentence of [`TorrentRepository`]'s contract as a case that any store can be
//! put through.
//!
//! One line in a crate's tests makes a `#[test]` of every case:
//!
//! ```
//! swarmkeep_conformance::suite!(my_store, |config| swarmkeep_conformance::Model::new(config));
//! ```
//!
//! gives `my_store::announce_never_hands_out_the_announcer` and its siblings. A case builds its own fresh
//! stores, with [`RepositoryConfig`]s of its choosing. What a store declares in its [`Capabilities`] is
//! asserted, and the refusal of what it does not declare is asserted too: no case is skipped.
//!
//! The suite knows what is right from [`Model`], and it is itself tested: each of a list of deliberately
//! broken stores must be rejected by the case that is meant for it.
//!
//! [`Capabilities`]: swarmkeep::Capabilities

#[macro_use]
mod faults;
mod blocking;
#[doc(hidden)]
pub mod broken;
pub mod durability;
#[macro_use]
mod list;
mod cases;
mod kit;
mod model;
mod threads;

use swarmkeep::{
    ConfigError, RepositoryConfig, TorrentRepository,
    catalog::{Implementation, Repository},
};

pub use blocking::Blocking;
pub use list::CASES;
pub use model::Model;
#[doc(hidden)]
pub use swarmkeep;

/// A store that can be put through the suite: how to build one.
///
/// Any function of a configuration that gives a repository is one.
pub trait Subject: Sync {
    /// Builds an empty repository as `config` asks.
    ///
    /// # Errors
    /// [`ConfigError`] if the store cannot keep what `config` asks for.
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

/// A row of a catalog is one as it stands; an asynchronous store goes through [`Blocking`].
impl Subject for &Implementation {
    fn build(&self, config: &RepositoryConfig) -> Result<Box<dyn TorrentRepository>, ConfigError> {
        Ok(match Implementation::build(self, config)? {
            Repository::Sync(store) => Box::new(store),
            Repository::Async(store) => Box::new(Blocking::new(store)),
        })
    }
}

/// One sentence of the contract, as something that can be run.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Case {
    /// The sentence.
    pub name: &'static str,
    /// The numbers of the rules in `docs/contract.md` of the repository that it tests.
    pub rules: &'static [u8],
    run: fn(&dyn Subject),
}

impl Case {
    /// Puts a store through the case.
    ///
    /// # Panics
    /// If the store does not do what the sentence says.
    pub fn run(&self, subject: &dyn Subject) {
        (self.run)(subject);
    }

    /// The case called `name`.
    pub fn find(name: &str) -> Option<&'static Self> {
        CASES.iter().find(|case| case.name == name)
    }
}

/// What the tests of [`suite!`] do: puts a store through the case called `name`.
#[doc(hidden)]
pub fn check(name: &str, subject: &dyn Subject) {
    Case::find(name).expect("the macro and the list are made of the same names").run(subject);
}

/// What [`suite!`] makes of the function it is given.
#[doc(hidden)]
pub fn boxed<R: TorrentRepository + 'static>(
    config: &RepositoryConfig,
    build: impl Fn(&RepositoryConfig) -> Result<R, ConfigError>,
) -> Result<Box<dyn TorrentRepository>, ConfigError> {
    Ok(Box::new(build(config)?))
}

/// The README's own code, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
