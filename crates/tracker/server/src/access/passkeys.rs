//! The members of a private tracker.

use std::{
    collections::HashMap,
    fmt,
    path::Path,
    time::{Duration, SystemTime},
};

use data_encoding::HEXLOWER;
use sha2::{Digest as _, Sha256};
use siphasher::sip128::SipHasher24;
use swarmkeep::{HashKey, Timestamp};
use swarmkeep_tracker_protocol::is_passkey;

use super::{
    AccessError,
    lines::{Line, read_set},
    set::SortedSet,
};

/// An immutable set of passkeys, with 17 bytes per key, and some 100 more for a name or a date.
///
/// The set contains only a keyed hash of each passkey (SipHash-2-4 with 128 bits). So no passkey can be read
/// from the tracker's memory or logs after the file has been read. The time of a lookup reveals nothing:
/// without the key of the hash, it is impossible to choose a passkey with a hash near another. The
/// probability that two of n passkeys have the same hash is n² / 2^129: for 10 million, 10^-25.
#[derive(Clone)]
pub struct Passkeys {
    key: SipHasher24,
    hashes: SortedSet<16>,
    /// The members with a name or a date.
    named: HashMap<[u8; 16], Member>,
}

/// What a list says of one passkey.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Member {
    /// The name of the member, if the line gives one. Several passkeys may have the same.
    pub name: Option<Box<str>>,
    /// The time from which the passkey is refused, if the line gives one.
    pub until: Option<Timestamp>,
}

impl Passkeys {
    /// Reads a text file with [one passkey per line](crate::access), each [of its form](is_passkey), and
    /// after it `name=NAME` and `until=DATE`, or one of them, or none. Upper and lower case differ. Of
    /// several lines with the same passkey, the last with a name or a date counts. `key` is a random secret
    /// that has no other use. Blocks on the disk.
    ///
    /// # Errors
    /// [`AccessError`] names the invalid line and the expected form. It never contains the line itself.
    pub fn load(path: impl AsRef<Path>, key: HashKey) -> Result<Self, AccessError> {
        let [first, second] = key.words();
        let key = SipHasher24::new_with_keys(first, second);
        let mut named = HashMap::new();
        let hashes = read_set(path.as_ref(), SHORTEST_LINE, |path, line| {
            let (passkey, member) = entry(path, line)?;
            let hash = key.hash(passkey.as_bytes()).as_bytes();
            if member != Member::default() {
                named.insert(hash, member);
            }
            Ok(hash)
        })?;
        Ok(Self { key, hashes, named })
    }

    /// The member with this passkey, if the set contains it. Bytes that cannot be a passkey are not hashed,
    /// whatever their number. Names and dates are looked up for members only: a guess costs the same.
    pub fn find(&self, passkey: &[u8]) -> Option<&Member> {
        static UNNAMED: Member = Member { name: None, until: None };
        let hash = is_passkey(passkey).then(|| self.key.hash(passkey).as_bytes())?;
        self.hashes.contains(&hash).then(|| self.named.get(&hash).unwrap_or(&UNNAMED))
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

/// The passkey of a line and its member.
pub(super) fn entry<'l>(path: &Path, line: &Line<'l>) -> Result<(&'l str, Member), AccessError> {
    parse(line.entry).ok_or_else(|| AccessError::Passkey { path: path.to_owned(), line: line.number })
}

fn parse(entry: &str) -> Option<(&str, Member)> {
    let mut words = entry.split_ascii_whitespace();
    let passkey = words.next().filter(|word| is_passkey(word.as_bytes()))?;
    let mut member = Member::default();
    for word in words {
        let is_first = match word.split_once('=')? {
            ("name", name) => member.name.replace(parse_name(name)?).is_none(),
            ("until", date) => member.until.replace(parse_date(date)?).is_none(),
            _ => false,
        };
        if !is_first {
            return None;
        }
    }
    Some((passkey, member))
}

/// The name of a member: 1 to 64 letters, digits, `_`, `-`, `.`, `@` and `+`.
pub(crate) fn parse_name(text: &str) -> Option<Box<str>> {
    let is_allowed = |c: char| c.is_alphanumeric() || "_-.@+".contains(c);
    ((1..=64).contains(&text.chars().count()) && text.chars().all(is_allowed)).then(|| text.into())
}

/// A time of RFC 3339 in UTC, or a date, which is its first second.
pub(crate) fn parse_date(text: &str) -> Option<Timestamp> {
    let time = if text.len() == 10 { format!("{text}T00:00:00Z") } else { text.to_owned() };
    Timestamp::try_from(humantime::parse_rfc3339(&time).ok()?).ok()
}

/// The same, in RFC 3339.
pub(crate) fn date(time: Timestamp) -> String {
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(time.as_secs());
    humantime::format_rfc3339_seconds(time).to_string()
}

/// A name of a passkey that does not reveal it: 16 hexadecimal digits of its SHA-256. It is the same in all
/// trackers, before a restart and after it.
pub(crate) fn fingerprint(passkey: &str) -> String {
    let digest: [u8; 32] =
        Sha256::new_with_prefix("swarmkeep passkey ").chain_update(passkey).finalize().into();
    HEXLOWER.encode(&digest[..8])
}

impl Member {
    /// The line of the member.
    pub(crate) fn line(&self, passkey: &str) -> String {
        let name = self.name.iter().map(|name| format!(" name={name}"));
        let until = self.until.iter().map(|&until| format!(" until={}", date(until)));
        name.chain(until).fold(passkey.to_owned(), |line, more| line + &more)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_stored_hash_depends_on_the_key() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), "AliceAlice name=alice\nBobBobBob\n").unwrap();
        let [one, other] =
            [1, 2].map(|key| Passkeys::load(file.path(), HashKey::from_bytes([key; 16])).unwrap());
        let kept = |passkeys: &Passkeys| passkeys.key.hash(b"AliceAlice").as_bytes();
        assert!(one.hashes.contains(&kept(&one)) && other.hashes.contains(&kept(&other)));
        assert!(!one.hashes.contains(&kept(&other)));
        assert_eq!((one.len(), one.named.len()), (2, 1), "a key without a name takes 17 bytes as before");
    }
}
