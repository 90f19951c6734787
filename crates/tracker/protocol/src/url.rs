//! The URLs of a tracker in torrents.

use swarmkeep_bittorrent::query::{Escaped, parameters};

use crate::udp::Action;

/// The action and the passkey of a member in the URL of a tracker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct TrackerUrl<'a> {
    /// [`Announce`](Action::Announce) or [`Scrape`](Action::Scrape), `None` if the path names neither.
    pub action: Option<Action>,
    /// The passkey.
    pub passkey: Option<Escaped<'a>>,
}

/// The parameters in which sites have passkeys: TBDev and NexusPHP, U-232 and Luminance, xbtit, TorrentPier.
const PARAMETERS: [&[u8]; 4] = [b"passkey", b"torrent_pass", b"pid", b"uk"];

impl<'a> TrackerUrl<'a> {
    /// Reads the path and the query of a request over HTTP, or of the URL in an announce over UDP (BEP 41).
    /// The passkey is a parameter [by its form](is_passkey), or else the part of the path before `announce`
    /// or `scrape` (Gazelle, chihaya) or behind it (torrust-tracker). A path with neither ends with the
    /// passkey (`udp://HOST/PASSKEY`, of older versions of torrust-tracker). The rest of the path before it
    /// is ignored: folders of a site.
    pub fn new(path: &'a [u8], query: &'a [u8]) -> Self {
        let mut parts = path.rsplit(|&byte| byte == b'/').filter(|part| !part.is_empty());
        let (last, before) = (parts.next(), parts.next());
        let (action, part) = match last.and_then(action_of) {
            None => (before.and_then(action_of), last),
            action => (action, before),
        };
        let parameter = parameters(query).find(|(name, value)| {
            let by_form = |text: &str| is_passkey(text.as_bytes()).then_some(());
            PARAMETERS.contains(name) && value.parse::<LONGEST_PASSKEY, _>(by_form).is_some()
        });
        Self { action, passkey: parameter.map(|(_, value)| value).or(part.map(Escaped::new)) }
    }

    /// As [`new`](Self::new) for a tracker without members: the path is `/announce` or `/scrape`, and has no
    /// passkey.
    pub fn without_passkey(path: &[u8]) -> Self {
        Self { action: path.strip_prefix(b"/").and_then(action_of), passkey: None }
    }
}

/// The most characters of a passkey.
pub const LONGEST_PASSKEY: usize = 128;

/// Whether this has the form of a passkey: 8 to 128 of `A-Z`, `a-z`, `0-9`, `_` and `-`. `announce` is the
/// name of a path, and no passkey.
pub fn is_passkey(text: &[u8]) -> bool {
    let is_allowed = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    (8..=LONGEST_PASSKEY).contains(&text.len()) && text.iter().all(is_allowed) && action_of(text).is_none()
}

/// `.php` is in the URLs of older sites, and an option of chihaya.
fn action_of(part: &[u8]) -> Option<Action> {
    match part {
        b"announce" | b"announce.php" => Some(Action::Announce),
        b"scrape" | b"scrape.php" => Some(Action::Scrape),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_passkey_is_a_parameter_or_beside_the_last_name_in_the_path() {
        let (announce, scrape) = (Some(Action::Announce), Some(Action::Scrape));
        for (path, query, action, passkey) in [
            ("/announce", "", announce, None),
            ("/announce", "port=1&key=k", announce, None),
            ("/KEY/announce", "port=1", announce, Some("KEY")),
            ("/announce/announce", "", announce, Some("announce")),
            ("/announce/scrape", "", scrape, Some("announce")),
            ("/bt/announce.php", "a=b&uk=KEY12345&port=1", announce, Some("KEY12345")),
            ("/scrape.php/", "passkey=KEY12345&passkey=another1", scrape, Some("KEY12345")),
            ("/KEY-IN-PATH/announce", "uk=&pid=123&passkey=%4bEY/", announce, Some("KEY-IN-PATH")),
            ("/announce", "uk=&port=1&pid=%4bEY12345", announce, Some("%4bEY12345")),
            ("/scrape", "pid=", scrape, None),
            ("", "torrent_pass=KEY12345", None, Some("KEY12345")),
            ("/announce/KEY/more", "", None, Some("more")),
            ("//", "", None, None),
        ] {
            let read = TrackerUrl::new(path.as_bytes(), query.as_bytes());
            let passkey = passkey.map(|passkey| Escaped::new(passkey.as_bytes()));
            assert_eq!(read, TrackerUrl { action, passkey }, "{path}?{query}");
        }
        for path in
            ["/", "", "/announce/", "/ANNOUNCE", "/announce.txt", "/stats", "announce", "*", "/KEY/announce"]
        {
            assert_eq!(TrackerUrl::without_passkey(path.as_bytes()).action, None, "{path}");
        }
        assert_eq!(TrackerUrl::without_passkey(b"/scrape").action, scrape);
    }
}
