//! Announces, the answers of trackers, and the parts of answers that are believed.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use swarmkeep_bittorrent::{AnnounceEvent, Endpoint, Family, InfoHash, PeerId};
use swarmkeep_tracker_protocol as protocol;

/// The client and the torrent of an announce: the same for as long as the torrent runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// The torrent.
    pub info_hash: InfoHash,
    /// The peer id of the client.
    pub peer_id: PeerId,
    /// The ports at which it listens, over IPv4 and over IPv6.
    pub ports: [u16; 2],
    /// A random number by which a tracker recognizes the client at another address. Peers do not learn it.
    pub key: u32,
}

/// How far the torrent is, in bytes of content, since it was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    /// Bytes sent to peers.
    pub uploaded: u64,
    /// Bytes received from peers.
    pub downloaded: u64,
    /// Bytes still to download. 0 means a seeder. While the metadata is not known, any other number.
    pub left: u64,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Announce<'a> {
    pub(super) identity: Identity,
    /// The port of the family.
    pub(super) port: u16,
    pub(super) progress: Progress,
    pub(super) event: AnnounceEvent,
    pub(super) want: Option<u32>,
    /// The `tracker id` of an earlier answer.
    pub(super) tracker_id: Option<&'a [u8]>,
}

#[derive(Debug, Default)]
pub(super) struct Answer {
    pub(super) latest: LatestAnswer,
    pub(super) peers: Vec<Endpoint>,
    pub(super) tracker_id: Option<Vec<u8>>,
}

/// An answer of a tracker, without its peers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct LatestAnswer {
    /// Peers that have everything.
    pub seeders: u32,
    /// Peers that still have to download.
    pub leechers: u32,
    /// Peers that were in the answer.
    pub peers: usize,
    /// The interval that it asked for.
    pub interval: Duration,
    /// The shortest interval that it asked for, if it did.
    pub min_interval: Option<Duration>,
    /// The address at which it sees the client (BEP 24), if it said so.
    pub external_ip: Option<IpAddr>,
    /// Its warning.
    pub warning: Option<String>,
}

/// Why a tracker did not answer as it should.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TrackerError {
    /// Its host has no address in the family.
    #[error("there is no {} address", family_name(*.0))]
    NoAddress(Family),
    /// This machine does not support the family.
    #[error("this machine has no {}", family_name(*.0))]
    NoFamily(Family),
    /// The name of its host was not found.
    #[error("{host} is not found: {problem}")]
    Lookup {
        /// The host.
        host: String,
        /// The error of the system.
        problem: String,
    },
    /// Sending failed, or the connection broke.
    #[error("{to}: {problem}")]
    Connection {
        /// Its address.
        to: SocketAddr,
        /// The error of the system.
        problem: String,
    },
    /// It did not answer in time.
    #[error("no answer in time")]
    Silent,
    /// Its answer cannot be read.
    #[error("not an answer to an announce: {0}")]
    Protocol(#[from] protocol::Error),
    /// Its answer is to another request.
    #[error("an answer to something else")]
    Other,
    /// It refused the announce and gave a reason.
    #[error("refused: {reason}")]
    Refused {
        /// The reason, without control characters.
        reason: String,
        /// When to ask again, if it said so (BEP 31, or `Retry-After`).
        retry: Option<Retry>,
    },
    /// An HTTP status without a reason.
    #[error("HTTP status {status}")]
    Status {
        /// The status.
        status: u16,
        /// After how long to ask again, if it said so.
        retry: Option<Duration>,
    },
    /// The answer is too long.
    #[error("an answer of more than {0} bytes")]
    TooLong(usize),
    /// The answer is compressed in a way that cannot be read.
    #[error("an answer with an encoding that cannot be read: {0}")]
    Encoding(String),
    /// It redirected too often.
    #[error("more than {0} redirects")]
    Redirects(usize),
    /// It redirected to a URL that is not followed.
    #[error("redirected to {to:?}: {problem}")]
    Redirect {
        /// Where to.
        to: String,
        /// The reason.
        problem: String,
    },
    /// The URL leads to a service in this machine or network and does not look like a tracker's.
    #[error(
        "{0} is not public, and its URL is not exactly an announce URL: only a tracker that you name yourself is asked there (--tracker)"
    )]
    NotATracker(SocketAddr),
}

/// When a tracker that refused wants to be asked again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    /// After this time.
    After(Duration),
    /// Not at all.
    Never,
}

const fn family_name(family: Family) -> &'static str {
    match family {
        Family::V4 => "IPv4",
        Family::V6 => "IPv6",
    }
}

/// The most peers that are taken from one answer; more are of no use at once.
pub(super) const MOST_PEERS: usize = 1000;

/// The peers of an answer with addresses that hosts can have, at most [`MOST_PEERS`].
pub(super) fn useful(peers: impl Iterator<Item = Endpoint>) -> Vec<Endpoint> {
    let valid = |peer: &Endpoint| match peer.ip() {
        IpAddr::V4(ip) => !(ip.octets()[0] == 0 || ip.is_multicast() || ip.is_broadcast()),
        IpAddr::V6(ip) => !(ip.is_unspecified() || ip.is_multicast()),
    };
    peers.filter(valid).take(MOST_PEERS).collect()
}

/// Text of a remote host, made fit for a terminal: without control characters, and not too long.
pub(super) fn readable(words: &[u8]) -> String {
    const MOST: usize = 256;
    // A character takes 4 bytes at most.
    let words = String::from_utf8_lossy(&words[..words.len().min(4 * MOST)]);
    let fit = |letter: char| if letter.is_control() { ' ' } else { letter };
    words.chars().take(MOST).map(fit).collect::<String>().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_of_a_remote_host_reach_no_terminal() {
        assert_eq!(readable(b"\x1b[2Jgone\r\n"), "[2Jgone");
        assert_eq!(readable(b"\xff\xfe"), "\u{fffd}\u{fffd}");
        assert_eq!(readable(&[b'a'; 100_000]).len(), 256);
        assert_eq!(readable("é".repeat(1000).as_bytes()).chars().count(), 256);
    }

    #[test]
    fn peers_are_bounded_and_have_valid_addresses() {
        let peer = |text: &str| text.parse::<Endpoint>().unwrap();
        let invalid = ["0.0.0.0:1", "0.1.2.3:1", "224.0.0.1:1", "255.255.255.255:1", "[::]:1", "[ff02::1]:1"];
        let valid = ["127.0.0.1:1", "192.0.2.1:1", "[::1]:1", "[2001:db8::1]:1"];
        let all = invalid.iter().chain(&valid).map(|text| peer(text));
        assert_eq!(useful(all), valid.map(peer));
        assert_eq!(useful((0..100_000).map(|_| peer("192.0.2.1:1"))).len(), MOST_PEERS);
    }
}
