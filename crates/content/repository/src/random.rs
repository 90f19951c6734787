//! Random bytes, for names and numbers that must be unique.

use std::io;

use crate::{Error, Result};

/// Random bytes of the operating system.
pub(crate) fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(io::Error::other).map_err(Error::io("drawing a random number"))?;
    Ok(bytes)
}
