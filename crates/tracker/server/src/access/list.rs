//! A list of torrents.

use std::{fmt, path::Path};

use swarmkeep::{InfoHash, bittorrent::counted};

use super::{
    AccessError,
    lines::{Line, read_set},
    set::SortedSet,
};

/// An immutable set of info hashes, with 21 bytes per entry.
#[derive(Clone, Default)]
pub struct InfoHashList(SortedSet<20>);

impl InfoHashList {
    /// Reads a text file with [one info hash per line](crate::access), in any [notation](parse_info_hash).
    /// Blocks on the disk.
    ///
    /// # Errors
    /// [`AccessError`] names the invalid line and the expected form.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, AccessError> {
        let read = |path: &Path, line: &Line<'_>| entry(path, line).map(Into::into);
        read_set(path.as_ref(), SHORTEST_LINE, read).map(Self)
    }

    /// Whether the list contains this info hash. It costs two to four cache misses in a list of millions, for
    /// any info hash.
    pub fn contains(&self, info_hash: &InfoHash) -> bool {
        self.0.contains(info_hash.as_bytes())
    }

    /// The number of different info hashes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl FromIterator<InfoHash> for InfoHashList {
    /// # Panics
    /// If there are 2^32 or more.
    fn from_iter<I: IntoIterator<Item = InfoHash>>(info_hashes: I) -> Self {
        let entries = info_hashes.into_iter().map(Into::into).collect();
        Self(SortedSet::new(entries).unwrap_or_else(|entries| panic!("{} info hashes", entries.len())))
    }
}

/// Prints the number of entries.
impl fmt::Debug for InfoHashList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "InfoHashList({})", counted(self.len(), "torrent"))
    }
}

/// Parses an info hash in upper or lower case: 40 hexadecimal digits; 64 for the SHA-256 of a v2 torrent, of
/// which trackers use the first 20 bytes (BEP 52); or the 32 characters of base32 (RFC 4648) of old magnet
/// links (BEP 9).
pub fn parse_info_hash(text: &str) -> Option<InfoHash> {
    match text.len() {
        32 => base32(text.as_bytes()),
        40 => text.parse().ok(),
        64 => {
            let (kept, cut) = text.split_at_checked(40)?;
            if cut.bytes().all(|digit| digit.is_ascii_hexdigit()) { kept.parse().ok() } else { None }
        }
        _ => None,
    }
}

/// 32 characters of base32, each of which is five bits.
fn base32(text: &[u8]) -> Option<InfoHash> {
    let mut bytes = [0; 20];
    for (characters, bytes) in text.chunks_exact(8).zip(bytes.chunks_exact_mut(5)) {
        let mut bits = 0_u64;
        for character in characters {
            let digit = match character.to_ascii_uppercase() {
                letter @ b'A'..=b'Z' => letter - b'A',
                digit @ b'2'..=b'7' => digit - b'2' + 26,
                _ => return None,
            };
            bits = bits << 5 | u64::from(digit);
        }
        bytes.copy_from_slice(&bits.to_be_bytes()[3..]);
    }
    Some(InfoHash::new(bytes))
}

/// 32 characters and a line's end.
const SHORTEST_LINE: u64 = 33;

/// About how many bytes of an invalid line are shown.
const SHOWN: usize = 80;

/// The info hash of a line that has an entry.
pub(super) fn entry(path: &Path, line: &Line<'_>) -> Result<InfoHash, AccessError> {
    parse_info_hash(line.entry).ok_or_else(|| AccessError::InfoHash {
        path: path.to_owned(),
        line: line.number,
        text: shown(line.entry),
    })
}

/// The beginning of a text, without characters that control a terminal.
pub(super) fn shown(text: &str) -> String {
    let mut shown = String::new();
    for character in text.chars() {
        if shown.len() >= SHOWN {
            shown.push('…');
            break;
        }
        shown.extend(character.escape_debug());
    }
    shown
}
