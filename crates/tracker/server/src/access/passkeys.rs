//! The members of a private tracker.

use std::{fmt, path::Path};

use siphasher::sip128::SipHasher24;
use swarmkeep::HashKey;
use swarmkeep_tracker_protocol::is_passkey;

use super::{AccessError, lines::read_set, set::SortedSet};

/// An immutable set of passkeys, with 17 bytes per key.
///
/// The set contains only a keyed hash of each passkey (SipHash-2-4 with 128 bits). So no passkey can be read
/// from the tracker's memory or logs after the file has been read. The time of a lookup reveals nothing:
/// without the key of the hash, it is impossible to choose a passkey with a hash near another. The
/// probability that two of n passkeys have the same hash is n² / 2^129: for 10 million, 10^-25.
#[derive(Clone)]
pub struct Passkeys {
    key: SipHasher24,
    hashes: SortedSet<16>,
}

impl Passkeys {
    /// Reads a text file with [one passkey per line](crate::access), each [of its form](is_passkey). Upper
    /// and lower case differ. `key` is a random secret that has no other use. Blocks on the disk.
    ///
    /// # Errors
    /// [`AccessError`] names the invalid line and the expected form. It never contains the line itself.
    pub fn load(path: impl AsRef<Path>, key: HashKey) -> Result<Self, AccessError> {
        let [first, second] = key.words();
        let key = SipHasher24::new_with_keys(first, second);
        let hashes = read_set(path.as_ref(), SHORTEST_LINE, |path, line| {
            let wrong = || AccessError::Passkey { path: path.to_owned(), line: line.number };
            hash(&key, line.entry.as_bytes()).ok_or_else(wrong)
        })?;
        Ok(Self { key, hashes })
    }

    /// Whether the set contains this passkey. Bytes that cannot be a passkey are not hashed, whatever their
    /// number.
    pub fn admits(&self, passkey: &[u8]) -> bool {
        hash(&self.key, passkey).is_some_and(|hash| self.hashes.contains(&hash))
    }

    /// The number of different passkeys.
    pub fn len(&self) -> usize {
        self.hashes.len()
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Prints the number of passkeys.
impl fmt::Debug for Passkeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Passkeys({} secret)", self.len())
    }
}

/// 8 characters and the end of the line.
const SHORTEST_LINE: u64 = 9;

/// The stored hash of a passkey; `None` if `passkey` is not one.
fn hash(key: &SipHasher24, passkey: &[u8]) -> Option<[u8; 16]> {
    is_passkey(passkey).then(|| key.hash(passkey).as_bytes())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn load_under(key: u8, text: &str) -> Result<Passkeys, AccessError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("passkeys");
        fs::write(&path, text).unwrap();
        Passkeys::load(&path, HashKey::from_bytes([key; 16]))
    }

    fn load(text: &str) -> Result<Passkeys, AccessError> {
        load_under(1, text)
    }

    #[test]
    fn only_members_are_admitted() {
        let longest = "x".repeat(128);
        let passkeys =
            load(&format!("# ours\r\nAlice-1_\r\n\nbobbobbob # since 2019\n{longest}\nAlice-1_")).unwrap();
        assert_eq!((passkeys.len(), passkeys.is_empty()), (3, false));
        for member in ["Alice-1_", "bobbobbob", &longest] {
            assert!(passkeys.admits(member.as_bytes()), "{member}");
        }
        for stranger in
            ["", "alice-1_", "Alice-1_\r", "Alice-1", "bobbobbo", "bobbobbobb", &longest[1..], "# ours"]
        {
            assert!(!passkeys.admits(stranger.as_bytes()), "{stranger}");
        }
        assert!(!passkeys.admits(&[b'x'; 129]) && !passkeys.admits(&[0xff; 8]));
        assert!(load("").unwrap().is_empty());
    }

    #[test]
    fn the_stored_hash_depends_on_the_key() {
        let [one, other] = [1, 2].map(|key| load_under(key, "AliceAlice\n").unwrap());
        let kept = |passkeys: &Passkeys| hash(&passkeys.key, b"AliceAlice").unwrap();
        assert!(one.hashes.contains(&kept(&one)) && other.hashes.contains(&kept(&other)));
        assert!(!one.hashes.contains(&kept(&other)));
    }

    #[test]
    fn neither_a_set_nor_an_error_shows_a_passkey() {
        assert_eq!(format!("{:?}", load("SecretSecret\n").unwrap()), "Passkeys(1 secret)");
        let long = "Secret".repeat(30_000);
        for wrong in
            ["announce", "Secret", "Secret Secret", "SecretSécret", "Secret\0Secret", &long[..129], &long]
        {
            let error = load(&format!("SecretSecret\n{wrong}\n")).unwrap_err();
            for text in [format!("{error:?}"), error.to_string()] {
                assert!(!text.contains("Secret"), "{text}");
                assert!(text.contains("line 2") || text.contains("line: 2"), "{text}");
            }
        }
        let error = load("SecretSecret\nSecret/Secret\n").unwrap_err().to_string();
        assert!(error.ends_with("give 8 to 128 of A-Z, a-z, 0-9, _ and -, other than `announce`"), "{error}");
    }
}
