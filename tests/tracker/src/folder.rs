//! The folder of one test.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use tempfile::TempDir;

/// A folder, deleted when this is dropped. Every user may read it.
#[derive(Debug)]
pub struct Folder(TempDir);

impl Folder {
    /// An empty folder.
    pub fn empty() -> Self {
        let folder = tempfile::tempdir().expect("a folder for temporary files");
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("ours");
        Self(folder)
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// The path of a file in it.
    pub fn join(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    /// Writes a file that only its owner may read, and returns its path.
    pub fn write_secret(&self, name: &str, text: &str) -> String {
        let path = self.write(name, text);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("ours");
        path
    }

    /// Writes a file, and returns its path.
    pub fn write(&self, name: &str, text: &str) -> String {
        let path = self.join(name);
        fs::write(&path, text).expect("a file in our folder");
        path.to_str().expect("text").into()
    }
}
