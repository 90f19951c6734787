//! The hashes that name an info dictionary.

use sha1::Sha1;
use sha2::{Digest, Sha256};

use swarmkeep_bittorrent::InfoHash;

/// The hashes that identify an info dictionary before it is known, as in a magnet link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct InfoHashes {
    v1: Option<InfoHash>,
    v2: Option<[u8; 32]>,
}

impl InfoHashes {
    /// From the SHA-1 of v1, the SHA-256 of v2, or both for a hybrid; `None` if both are `None`.
    pub const fn new(v1: Option<InfoHash>, v2: Option<[u8; 32]>) -> Option<Self> {
        if v1.is_none() && v2.is_none() { None } else { Some(Self { v1, v2 }) }
    }

    /// Whether an info dictionary, given in parts, has all of them.
    pub fn are_of<'a>(&self, info: impl IntoIterator<Item = &'a [u8]>) -> bool {
        let mut v1 = self.v1.map(|expected| (Sha1::new(), expected));
        let mut v2 = self.v2.map(|expected| (Sha256::new(), expected));
        for part in info {
            if let Some((hash, _)) = &mut v1 {
                hash.update(part);
            }
            if let Some((hash, _)) = &mut v2 {
                hash.update(part);
            }
        }
        v1.is_none_or(|(hash, expected)| <[u8; 20]>::from(hash.finalize()) == *expected.as_bytes())
            && v2.is_none_or(|(hash, expected)| <[u8; 32]>::from(hash.finalize()) == expected)
    }
}

/// The info hash that trackers and peers use for a torrent of v2.
pub(crate) fn truncated(v2: [u8; 32]) -> InfoHash {
    InfoHash::new(*v2.first_chunk().expect("32 bytes are more than 20"))
}
