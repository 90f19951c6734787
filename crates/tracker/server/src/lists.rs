//! Lists that are loaded from files.

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
};

use swarmkeep::HashKey;

use crate::access::{Access, AccessError, InfoHashList, Networks, Passkeys, Watched};

/// Whether a list names the torrents that are served, or the torrents that are not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListKind {
    /// Only the torrents on the list are served.
    Allow,
    /// All torrents are served, except those on the list.
    Deny,
}

/// The entries of a kind of list.
pub trait ListFormat: fmt::Debug + Sized + Send + Sync + 'static {
    /// A value that is given with the file.
    type With: fmt::Debug + Copy + PartialEq + Send + Sync;

    /// The name of such a list in the log.
    const NAME: &'static str;

    /// Reads the file. Blocks on the disk.
    ///
    /// # Errors
    /// [`AccessError`] names the invalid line and the expected form.
    fn read(path: &Path, with: Self::With) -> Result<Self, AccessError>;

    /// The number of entries.
    fn entries(&self) -> usize;
}

impl ListFormat for Access {
    type With = ListKind;

    const NAME: &'static str = "list of torrents";

    fn read(path: &Path, kind: ListKind) -> Result<Self, AccessError> {
        let list = InfoHashList::load(path)?;
        Ok(match kind {
            ListKind::Allow => Self::Allow(list),
            ListKind::Deny => Self::Deny(list),
        })
    }

    fn entries(&self) -> usize {
        match self {
            Self::Open => 0,
            Self::Allow(list) | Self::Deny(list) => list.len(),
        }
    }
}

impl ListFormat for Passkeys {
    type With = HashKey;

    const NAME: &'static str = "list of passkeys";

    fn read(path: &Path, key: HashKey) -> Result<Self, AccessError> {
        Self::load(path, key)
    }

    fn entries(&self) -> usize {
        self.len()
    }
}

impl ListFormat for Networks {
    type With = ();

    const NAME: &'static str = "list of networks";

    fn read(path: &Path, (): ()) -> Result<Self, AccessError> {
        Self::load(path)
    }

    fn entries(&self) -> usize {
        self.len()
    }
}

/// A list of torrents, and the file that it was loaded from.
pub type AccessList = Listed<Access>;

/// The members of a private tracker, and the file that they were loaded from.
pub type PasskeyList = Listed<Passkeys>;

/// The networks that are refused, and the file that they were loaded from.
pub type NetworkList = Listed<Networks>;

/// A list, and the file that it was loaded from.
#[derive(Debug)]
pub struct Listed<L: ListFormat> {
    with: L::With,
    watched: Watched,
    list: Arc<L>,
}

impl<L: ListFormat> Listed<L> {
    /// Reads the file. Blocks on the disk.
    ///
    /// # Errors
    /// As [`ListFormat::read`].
    pub fn load(with: L::With, path: impl Into<PathBuf>) -> Result<Self, AccessError> {
        // Before the file is read, so that no change falls between the two.
        let watched = Watched::new(path);
        let list = Arc::new(L::read(watched.path(), with)?);
        Ok(Self { with, watched, list })
    }

    /// Returns a copy of `earlier` if it is the same kind of list of the same file and the file has not
    /// changed. Otherwise reads the file. Blocks on the disk.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn load_after(
        earlier: Option<&Self>,
        with: L::With,
        path: impl Into<PathBuf>,
    ) -> Result<Self, AccessError> {
        let path = path.into();
        match earlier {
            Some(list) if list.with == with && list.path() == path && list.watched.is_unchanged() => {
                Ok(list.clone())
            }
            _ => Self::load(with, path),
        }
    }

    /// Reads the file again, if it has changed.
    pub(crate) fn load_again(&self) -> Result<Self, AccessError> {
        Self::load_after(Some(self), self.with, self.path())
    }

    /// The value that was given with the file.
    pub const fn with(&self) -> L::With {
        self.with
    }

    /// The file.
    pub fn path(&self) -> &Path {
        self.watched.path()
    }

    /// The file as it was before it was read.
    pub(crate) const fn watched(&self) -> &Watched {
        &self.watched
    }

    /// The list.
    pub const fn list(&self) -> &Arc<L> {
        &self.list
    }
}

impl<L: ListFormat> Clone for Listed<L> {
    fn clone(&self) -> Self {
        Self { with: self.with, watched: self.watched.clone(), list: Arc::clone(&self.list) }
    }
}
