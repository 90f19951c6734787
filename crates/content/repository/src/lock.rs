//! A file that is locked while a store is open.

use std::{
    fs::File,
    ops::{Deref, DerefMut},
    path::Path,
};

use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};

use crate::{Error, Result, error::about};

/// A file that no other process has locked. The lock ends with this value, and not only with the last copy of
/// the descriptor: a child process has a copy too, from its fork until it starts another program.
#[derive(Debug)]
pub(crate) struct Locked(File);

impl Locked {
    /// Locks a file, of the store at `path`: alone, or `shared` with others that do the same.
    ///
    /// # Errors
    /// [`Error::InUse`], [`Error::Io`].
    pub(crate) fn lock(file: File, path: &Path, shared: bool) -> Result<Self> {
        let operation = if shared {
            FlockOperation::NonBlockingLockShared
        } else {
            FlockOperation::NonBlockingLockExclusive
        };
        flock(&file, operation).map_err(|errno| match errno {
            Errno::WOULDBLOCK => Error::InUse { path: path.to_owned() },
            errno => Error::io("locking the store")(about(path)(errno.into())),
        })?;
        Ok(Self(file))
    }
}

impl Deref for Locked {
    type Target = File;

    fn deref(&self) -> &File {
        &self.0
    }
}

impl DerefMut for Locked {
    fn deref_mut(&mut self) -> &mut File {
        &mut self.0
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lock_ends_with_the_store_though_a_child_still_has_the_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let lock = || Locked::lock(File::open(file.path()).unwrap(), file.path(), false);
        let locked = lock().unwrap();
        let of_a_child = locked.try_clone().unwrap();
        assert!(matches!(lock(), Err(Error::InUse { .. })));
        drop(locked);
        lock().unwrap();
        drop(of_a_child);
    }
}
