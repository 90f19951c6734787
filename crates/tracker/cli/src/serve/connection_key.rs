//! The file of `connection-key`.

use std::{
    fs::{self, OpenOptions},
    io::Read as _,
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
    path::Path,
};

use rustix::fs::OFlags;
use swarmkeep_tracker::ConnectionKey;

use crate::settings::Contradiction;

/// The fewest bytes of a secret: 128 bits in hexadecimal digits.
const SHORTEST: usize = 32;
const LONGEST: usize = 4096;

/// Derives the key from the secret in a file.
pub(super) fn read(path: &Path) -> Result<ConnectionKey, Contradiction> {
    let wrong = |problem: String| Contradiction(format!("connection-key: {}: {problem}", path.display()));
    // Does not wait for the writer of a named pipe.
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let open = OpenOptions::new().read(true).custom_flags(flags).open(path);
    let file = open.map_err(|error| wrong(format!("cannot read it: {error}")))?;
    let metadata = file.metadata().map_err(|error| wrong(format!("cannot read it: {error}")))?;
    if !metadata.is_file() {
        return Err(wrong("it is not a regular file: name a file with a secret".into()));
    }
    if metadata.permissions().mode() & 0o007 != 0 {
        return Err(wrong("everybody can read or change it: chmod o= it".into()));
    }
    // Of the file, and of a link to it.
    for path in [path.canonicalize(), std::path::absolute(path)] {
        let folder = path.and_then(|path| fs::metadata(path.parent().unwrap_or(Path::new("/"))));
        let folder = folder.map_err(|error| wrong(format!("cannot look at its folder: {error}")))?;
        // In a sticky folder, only the owner of a file replaces it.
        if folder.permissions().mode() & 0o1002 == 0o002 {
            return Err(wrong("everybody can put another in its place: chmod o-w its folder".into()));
        }
    }
    let mut secret = Vec::new();
    // One byte more than the longest secret and the end of its line.
    let read = file.take(LONGEST as u64 + 3).read_to_end(&mut secret);
    read.map_err(|error| wrong(format!("cannot read it: {error}")))?;
    // The end of the last line may differ between machines.
    let secret = secret.strip_suffix(b"\n").unwrap_or(&secret);
    let secret = secret.strip_suffix(b"\r").unwrap_or(secret);
    if !(SHORTEST..=LONGEST).contains(&secret.len()) {
        let size =
            if secret.len() > LONGEST { format!("more than {LONGEST}") } else { secret.len().to_string() };
        return Err(wrong(format!(
            "it has {size} bytes, and a secret has {SHORTEST} to {LONGEST}: write one, as by `openssl rand -hex 32`"
        )));
    }
    if secret.trim_ascii_end().windows(2).all(|pair| pair[0] == pair[1]) {
        return Err(wrong("all of its bytes are equal: write another, as by `openssl rand -hex 32`".into()));
    }
    Ok(ConnectionKey::new(secret))
}
