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

/// What the tests of [`suite!`](crate::suite) do: puts a store through the case called `name`.
#[doc(hidden)]
pub fn check(name: &str, subject: &dyn Subject) {
    Case::find(name).expect("the macro and the list are made of the same names").run(subject);
}

/// What [`suite!`](crate::suite) makes of the function it is given.
#[doc(hidden)]
pub fn boxed<R: ContentRepository + 'static>(
    config: &ContentConfig,
    open: impl Fn(&ContentConfig) -> Result<R>,
) -> Result<Box<dyn ContentRepository>> {
    Ok(Box::new(open(config)?))
}
