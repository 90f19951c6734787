//! What only tests within the store can see: the order of its steps, and what it does when one of them fails.

use std::{fmt, io};

use super::store::Step;

/// What is asked before each step.
pub(super) struct Hook(pub(super) Box<dyn FnMut(Step) -> io::Result<()> + Send>);

impl fmt::Debug for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hook")
    }
}
