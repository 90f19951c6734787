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

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const HEX: &str = "0123456789abcdef0123456789abcdef01234567";
    const BASE32: &str = "AERUKZ4JVPG66AJDIVTYTK6N54ASGRLH";

    fn load(text: &str) -> Result<InfoHashList, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("list");
        fs::write(&path, text).unwrap();
        InfoHashList::load(&path).map_err(|error| error.to_string().replace(path.to_str().unwrap(), "FILE"))
    }

    #[test]
    fn an_info_hash_is_the_same_in_every_notation() {
        let info_hash = HEX.parse().unwrap();
        let v2 = format!("{HEX}{}", "89abcdef".repeat(3));
        for text in [HEX, BASE32, &v2] {
            assert_eq!(parse_info_hash(text), Some(info_hash), "{text}");
            assert_eq!(parse_info_hash(&text.to_uppercase()), Some(info_hash), "{text}");
            assert_eq!(parse_info_hash(&text.to_lowercase()), Some(info_hash), "{text}");
        }
        assert_eq!(parse_info_hash(&"7".repeat(32)), Some(InfoHash::new([0xff; 20])));
        assert_eq!(parse_info_hash(&"a".repeat(32)), Some(InfoHash::new([0; 20])));
    }

    #[test]
    fn other_text_is_no_info_hash() {
        let v2 = HEX.repeat(2);
        for text in [
            "",
            "a",
            &HEX[1..],
            &format!("{HEX}0"),
            &HEX.replace('f', "g"),
            &BASE32.replace('Z', "1"),
            &BASE32.replace('Z', "="),
            &BASE32[1..],
            &v2[..63],
            &v2[..65],
            &v2[..64].replace('f', "g"),
            &format!("{}g", &v2[..63]),
            &"é".repeat(20),
            &"é".repeat(16),
            &"é".repeat(32),
            &format!("{}é{}", &HEX[..39], &HEX[..23]),
        ] {
            assert_eq!(parse_info_hash(text), None, "{text}");
        }
    }

    #[test]
    fn a_list_holds_each_info_hash_once() {
        let list = load(&format!("\u{feff}# ours\r\n{HEX}\r\n\n{BASE32} # again\n{HEX}{}\n", "0".repeat(24)));
        let list = list.unwrap();
        assert_eq!((list.len(), list.is_empty()), (1, false));
        assert!(list.contains(&HEX.parse().unwrap()));
        assert!(!list.contains(&InfoHash::default()));
        assert_eq!(format!("{list:?}"), "InfoHashList(1 torrent)");
        let empty = load("# none\n").unwrap();
        assert_eq!((empty.len(), empty.is_empty()), (0, true));
    }

    #[test]
    fn an_error_names_the_line_and_the_expected_form() {
        assert_eq!(
            load(&format!("{HEX}\n\n# a comment\n{HEX} and more # x\n")).unwrap_err(),
            format!(
                "access list FILE, line 4: \"{HEX} and more\" is not an info hash: \
                 give 40 hex digits, 64 hex digits (v2) or 32 base32 characters"
            )
        );
    }

    #[test]
    fn of_a_wrong_line_80_characters_are_shown_and_nothing_that_a_terminal_would_act_on() {
        let error = load(&format!("{}\n", "x".repeat(5000))).unwrap_err();
        assert!(error.contains(&format!("\"{}…\"", "x".repeat(80))), "{error}");
        let error = load(&"\u{1b}[2J\u{202e}\"".repeat(100)).unwrap_err();
        assert!(error.contains(r#": "\u{1b}[2J\u{202e}\"\u{1b}"#), "{error}");
        assert!(error.len() < 250 && !error.contains(['\u{1b}', '\u{202e}']), "{error}");
    }
}
