//! Lists that are loaded from files.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use swarmkeep::HashKey;

use crate::access::{Access, AccessError, InfoHashList, Passkeys, Watched};

/// Whether a list names the torrents that are served, or the torrents that are not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListKind {
    /// Only the torrents on the list are served.
    Allow,
    /// All torrents are served, except those on the list.
    Deny,
}

/// A list of torrents, and the file that it was loaded from.
#[derive(Debug, Clone)]
pub struct AccessList {
    kind: ListKind,
    watched: Watched,
    access: Arc<Access>,
}

impl AccessList {
    /// Reads the file. Blocks on the disk.
    ///
    /// # Errors
    /// As [`InfoHashList::load`].
    pub fn load(kind: ListKind, path: impl Into<PathBuf>) -> Result<Self, AccessError> {
        // Before the file is read, so that no change falls between the two.
        let watched = Watched::new(path);
        let list = InfoHashList::load(watched.path())?;
        let access = match kind {
            ListKind::Allow => Access::Allow(list),
            ListKind::Deny => Access::Deny(list),
        };
        Ok(Self { kind, watched, access: Arc::new(access) })
    }

    /// Returns a copy of `earlier` if it is the same kind of list of the same file and the file has not
    /// changed. Otherwise reads the file. Blocks on the disk.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn load_after(
        earlier: Option<&Self>,
        kind: ListKind,
        path: impl Into<PathBuf>,
    ) -> Result<Self, AccessError> {
        let path = path.into();
        match earlier {
            Some(list) if list.kind == kind && list.path() == path && list.watched.is_unchanged() => {
                Ok(list.clone())
            }
            _ => Self::load(kind, path),
        }
    }

    /// Reads the file again, if it has changed.
    pub(crate) fn load_again(&self) -> Result<Self, AccessError> {
        Self::load_after(Some(self), self.kind, self.path())
    }

    /// The kind of the list.
    pub const fn kind(&self) -> ListKind {
        self.kind
    }

    /// The file.
    pub fn path(&self) -> &Path {
        self.watched.path()
    }

    /// The file as it was before it was read.
    pub(crate) const fn watched(&self) -> &Watched {
        &self.watched
    }

    /// The torrents that it admits.
    pub const fn access(&self) -> &Arc<Access> {
        &self.access
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        match &*self.access {
            Access::Open => 0,
            Access::Allow(list) | Access::Deny(list) => list.len(),
        }
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The members of a private tracker, and the file that they were loaded from.
#[derive(Debug, Clone)]
pub struct PasskeyList {
    watched: Watched,
    key: HashKey,
    passkeys: Arc<Passkeys>,
}

impl PasskeyList {
    /// Reads the file. Blocks on the disk. `key` is as for [`Passkeys::load`].
    ///
    /// # Errors
    /// As [`Passkeys::load`].
    pub fn load(path: impl Into<PathBuf>, key: HashKey) -> Result<Self, AccessError> {
        let watched = Watched::new(path);
        let passkeys = Arc::new(Passkeys::load(watched.path(), key)?);
        Ok(Self { watched, key, passkeys })
    }

    /// Returns a copy of `earlier` if it is a list of the same file and the file has not changed. Otherwise
    /// reads the file. Blocks on the disk.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn load_after(
        earlier: Option<&Self>,
        path: impl Into<PathBuf>,
        key: HashKey,
    ) -> Result<Self, AccessError> {
        let path = path.into();
        match earlier {
            Some(list) if list.path() == path && list.key == key && list.watched.is_unchanged() => {
                Ok(list.clone())
            }
            _ => Self::load(path, key),
        }
    }

    /// Reads the file again, if it has changed.
    pub(crate) fn load_again(&self) -> Result<Self, AccessError> {
        Self::load_after(Some(self), self.path(), self.key)
    }

    /// The file.
    pub fn path(&self) -> &Path {
        self.watched.path()
    }

    /// The file as it was before it was read.
    pub(crate) const fn watched(&self) -> &Watched {
        &self.watched
    }

    /// The passkeys that it admits.
    pub const fn passkeys(&self) -> &Arc<Passkeys> {
        &self.passkeys
    }
}
