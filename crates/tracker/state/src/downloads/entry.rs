//! The entries of logs and runs: changes of the count of one torrent.

use crate::InfoHash;

/// A change of a torrent's count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Change {
    /// Whether the old count is forgotten.
    pub forget: bool,
    /// The number of downloads that are then added.
    pub add: u64,
}

impl Change {
    /// This change followed by a newer one.
    #[must_use]
    pub fn then(self, newer: Self) -> Self {
        if newer.forget {
            newer
        } else {
            Self { forget: self.forget, add: self.add.saturating_add(newer.add) }
        }
    }
}

/// Bytes of an entry: info hash, count, flags.
pub(crate) const ENTRY: usize = InfoHash::LEN + 5;

const FORGET: u8 = 1;

/// A stored change: it may forget older changes, and then adds. The changes of a torrent are combined by
/// [`then`](Self::then), in any grouping.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Delta {
    pub(crate) forget: bool,
    pub(crate) add: u32,
}

impl Delta {
    /// This change followed by a newer one. Counts saturate.
    pub(crate) fn then(self, newer: Self) -> Self {
        if newer.forget {
            newer
        } else {
            Self { forget: self.forget, add: self.add.saturating_add(newer.add) }
        }
    }

    /// Whether it changes nothing.
    pub(crate) fn is_empty(self) -> bool {
        self == Self::default()
    }
}

impl From<Change> for Delta {
    fn from(change: Change) -> Self {
        Self { forget: change.forget, add: u32::try_from(change.add).unwrap_or(u32::MAX) }
    }
}

/// One torrent's entry.
pub(crate) type Entry = (InfoHash, Delta);

pub(crate) fn encode((info_hash, delta): &Entry) -> [u8; ENTRY] {
    let mut bytes = [0; ENTRY];
    bytes[..20].copy_from_slice(info_hash.as_bytes());
    bytes[20..24].copy_from_slice(&delta.add.to_le_bytes());
    bytes[24] = if delta.forget { FORGET } else { 0 };
    bytes
}

/// `None` if there are flags that this version does not know.
pub(crate) fn decode(bytes: &[u8; ENTRY]) -> Option<Entry> {
    let forget = match bytes[24] {
        0 => false,
        FORGET => true,
        _ => return None,
    };
    let add = u32::from_le_bytes(array(&bytes[20..24]));
    Some((InfoHash::new(array(&bytes[..20])), Delta { forget, add }))
}

/// A slice of known length as an array.
pub(crate) fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    bytes.try_into().expect("the slice has the length of the array")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_combined_in_any_grouping() {
        let deltas: Vec<Delta> = [0, 1, 7, u32::MAX - 1, u32::MAX]
            .into_iter()
            .flat_map(|add| [false, true].map(|forget| Delta { forget, add }))
            .collect();
        for &a in &deltas {
            for &b in &deltas {
                for &c in &deltas {
                    assert_eq!(a.then(b).then(c), a.then(b.then(c)), "{a:?} {b:?} {c:?}");
                }
            }
        }
    }

    #[test]
    fn an_entry_is_25_bytes_and_strange_flags_are_none() {
        let entry = (InfoHash::new([7; 20]), Delta { forget: true, add: 0x0102_0304 });
        let mut bytes = encode(&entry);
        assert_eq!(bytes[20..], [4, 3, 2, 1, 1]);
        assert_eq!(decode(&bytes), Some(entry));
        bytes[24] = 2;
        assert_eq!(decode(&bytes), None);
    }
}
