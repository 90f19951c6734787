//! Secrets stay with this process.

use std::{fs, io, os::unix::fs::PermissionsExt as _, path::Path};

use nix::sys::prctl::set_dumpable;
use swarmkeep_bittorrent::in_words;
use tracing::warn;

/// Warns if all users can read or change `path`, which contains `secret`.
pub(super) fn warn_of_others(path: &Path, secret: &str) {
    let mode = fs::metadata(path).map_or(0, |file| file.permissions().mode());
    if mode & 0o007 != 0 {
        warn!(file = %path.display(), "everybody can read or change {secret}: chmod o= it");
    }
}

/// Prevents core dumps of this process, and reads of its memory by other processes, except by root.
pub(super) fn keep_out_of_dumps() {
    if let Err(error) = set_dumpable(false) {
        warn!(error = %in_words(&io::Error::from(error)), "a core dump would contain the secrets of this process");
    }
}
