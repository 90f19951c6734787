//! Whether an answer can be right. A tracker that is fast and wrong has failed.

use std::net::IpAddr;

use swarmkeep::{Endpoint, Family, bittorrent::counted};

use crate::{Config, population::PlannedAnnounce, stats::Kind};

/// The fault of an answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Fault {
    #[error("an answer to a request that was never sent, or a second one: transaction {0:#010x}")]
    Transaction(u32),
    #[error("against the protocol: {0}")]
    Malformed(String),
    #[error("{answered} as the answer to {asked}")]
    Action { asked: &'static str, answered: &'static str },
    #[error("{} where at most {want} were requested", counted(*got, "peer"))]
    TooMany { got: usize, want: u32 },
    #[error("{0} twice in one answer")]
    Duplicate(Endpoint),
    #[error("{0} in the response to its own announce")]
    Oneself(Endpoint),
    #[error("{seeders} seeders and {leechers} leechers, {problem}")]
    Counts { seeders: u32, leechers: u32, problem: &'static str },
    #[error("an interval of {0} s")]
    Interval(u32),
    #[error("an answer that was not requested")]
    Unasked,
    #[error("counts of {} where {asked} were requested", counted(*got, "swarm"))]
    Scraped { got: usize, asked: usize },
}

impl Fault {
    /// The name under which such answers are counted.
    pub(crate) const fn reason(&self) -> &'static str {
        match self {
            Self::Transaction(_) => "transaction id",
            Self::Malformed(_) => "malformed",
            Self::Action { .. } => "action",
            Self::TooMany { .. } => "too many peers",
            Self::Duplicate(_) => "duplicate peer",
            Self::Oneself(_) => "the announcing peer among the peers",
            Self::Counts { .. } => "counts",
            Self::Interval(_) => "interval",
            Self::Unasked => "unasked",
            Self::Scraped { .. } => "scrape length",
        }
    }
}

/// The number of peers in a right answer, or the reason why the tracker refused; or the fault of an answer.
pub(crate) type Judgement = Result<Result<usize, String>, Fault>;

/// Bytes of a remote program as text, without characters that a terminal obeys or that change the direction
/// of text.
pub fn printable(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let shown = text.chars().flat_map(|c| match c {
        '"' | '\'' | '\\' => c.escape_default().skip(1).collect::<Vec<_>>(),
        c => c.escape_debug().collect(),
    });
    shown.collect()
}

/// The reason of a tracker, as it is counted.
pub(crate) fn refused(reason: &[u8]) -> Judgement {
    let reason = printable(reason);
    Ok(Err(format!("error: {}", reason.chars().take(80).collect::<String>())))
}

/// The properties of an announce that its answer has to match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ExpectedAnnounce {
    /// The endpoint at which the tracker sees the announcing peer, if it is known.
    pub(crate) own: Option<Endpoint>,
    pub(crate) seeder: bool,
    pub(crate) stopped: bool,
}

impl ExpectedAnnounce {
    /// `own` is the address that the tracker must see, if it is known.
    pub(crate) fn of(announcing: &PlannedAnnounce, own: Option<IpAddr>, kind: Kind) -> Self {
        let own = own.and_then(|ip| Endpoint::new(ip, announcing.port).ok());
        Self { own, seeder: announcing.left == 0, stopped: kind == Kind::Stopped }
    }
}

/// More peers than any swarm has. A counter that went below 0 shows more.
const MOST_PEERS: u32 = 100_000_000;
/// Reasonable intervals: a second, for tests, to a day.
const INTERVALS: std::ops::RangeInclusive<u32> = 1..=86_400;

/// Checks answers. Allocates only for an answer that is longer than all before.
#[derive(Debug)]
pub(crate) struct Checker {
    want: Option<u32>,
    announcer_uncounted: bool,
    strict: bool,
    /// Unusual in the latest right answer to an announce.
    pub(crate) note: Option<Fault>,
    peers: Vec<Endpoint>,
    /// The peers of this answer: an open-addressed table of their indices. Entries of earlier answers have an
    /// older stamp.
    seen: Vec<(u32, u32)>,
    stamp: u32,
}

impl Checker {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            want: config.want,
            announcer_uncounted: config.announcer_uncounted,
            strict: config.strict,
            note: None,
            peers: Vec::with_capacity(256),
            seen: vec![(0, 0); 1024],
            stamp: 0,
        }
    }

    /// Checks the answer to an announce. Returns the number of other peers in it.
    pub(crate) fn announce<E: std::fmt::Display>(
        &mut self,
        asked: ExpectedAnnounce,
        (interval, seeders, leechers): (u32, u32, u32),
        peers: impl Iterator<Item = Result<Endpoint, E>>,
    ) -> Result<usize, Fault> {
        self.peers.clear();
        let mut oneself = None;
        for peer in peers {
            let peer = peer.map_err(|error| Fault::Malformed(error.to_string()))?;
            if asked.own == Some(peer) {
                oneself = Some(Fault::Oneself(peer));
            }
            self.peers.push(peer);
        }
        if self.strict
            && let Some(oneself) = oneself
        {
            return Err(oneself);
        }
        let got = self.peers.len();
        // Over HTTP, `want` may be the number of peers of each family (BEP 7).
        let v4 = self.peers.iter().filter(|peer| peer.family() == Family::V4).count();
        let most = v4.max(got - v4);
        if let Some(want) = self.want.filter(|&want| most > want as usize) {
            return Err(Fault::TooMany { got: most, want });
        }
        self.distinct()?;
        let others = got - usize::from(oneself.is_some());
        let wrong = |problem| Err(Fault::Counts { seeders, leechers, problem });
        if seeders > MOST_PEERS || leechers > MOST_PEERS {
            return wrong("more than any swarm has");
        }
        let counted = !asked.stopped && !self.announcer_uncounted;
        if counted && if asked.seeder { seeders == 0 } else { leechers == 0 } {
            return wrong("without the one that announced");
        }
        if u64::from(seeders) + u64::from(leechers) < others as u64 + u64::from(counted) {
            return wrong("fewer than there are peers in the answer");
        }
        if !INTERVALS.contains(&interval) {
            return Err(Fault::Interval(interval));
        }
        self.note = oneself;
        Ok(others)
    }

    pub(crate) fn scrape(&self, asked: usize, counts: impl Iterator<Item = (u32, u32)>) -> Result<(), Fault> {
        let mut got = 0;
        for (seeders, leechers) in counts {
            if seeders > MOST_PEERS || leechers > MOST_PEERS {
                return Err(Fault::Counts { seeders, leechers, problem: "more than any swarm has" });
            }
            got += 1;
        }
        if got == asked { Ok(()) } else { Err(Fault::Scraped { got, asked }) }
    }

    fn distinct(&mut self) -> Result<(), Fault> {
        if self.seen.len() < self.peers.len() * 4 {
            self.seen = vec![(0, 0); (self.peers.len() * 4).next_power_of_two()];
            self.stamp = 0;
        }
        if self.stamp == u32::MAX {
            self.seen.fill((0, 0));
            self.stamp = 0;
        }
        self.stamp += 1;
        let (mask, shift) = (self.seen.len() - 1, 64 - self.seen.len().trailing_zeros());
        for (n, peer) in self.peers.iter().enumerate() {
            let mut at = (hash(peer) >> shift) as usize;
            while self.seen[at].0 == self.stamp {
                if self.peers[self.seen[at].1 as usize] == *peer {
                    return Err(Fault::Duplicate(*peer));
                }
                at = (at + 1) & mask;
            }
            self.seen[at] = (self.stamp, n as u32);
        }
        Ok(())
    }
}

/// Good enough for a table without attackers, and cheap: the generator shares a machine with the tracker.
fn hash(peer: &Endpoint) -> u64 {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    match peer {
        Endpoint::V4(compact) => {
            let [a, b, c, d, e, f] = *compact.as_bytes();
            u64::from_le_bytes([a, b, c, d, e, f, 0, 0]).wrapping_mul(ODD)
        }
        Endpoint::V6(compact) => compact.as_bytes().chunks(8).fold(0, |hash: u64, chunk| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            (hash.rotate_left(23) ^ u64::from_le_bytes(word)).wrapping_mul(ODD)
        }),
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    fn endpoint(text: &str) -> Endpoint {
        text.parse().unwrap()
    }

    fn two() -> impl Iterator<Item = Result<Endpoint, Infallible>> {
        ["127.0.0.1:1", "127.0.0.1:2"].map(|text| Ok(endpoint(text))).into_iter()
    }

    const ASKED: ExpectedAnnounce = ExpectedAnnounce { own: None, seeder: false, stopped: false };

    fn checker(want: Option<u32>, change: impl FnOnce(&mut Config)) -> Checker {
        let mut config = Config::new(["127.0.0.1:1".parse().unwrap()]);
        config.want = want;
        change(&mut config);
        Checker::new(&config)
    }

    fn check(asked: ExpectedAnnounce, head: (u32, u32, u32), peers: &[&str]) -> Result<usize, Fault> {
        let peers = peers.iter().map(|text| Ok::<_, Infallible>(endpoint(text)));
        checker(Some(3), |config| config.strict = true).announce(asked, head, peers)
    }

    #[test]
    fn printable_text_obeys_no_remote_program() {
        let said = "it's \"d\u{e9}j\u{e0}\" \\ \x1b[2J\r\n\u{202e}\u{7}".as_bytes();
        assert_eq!(printable(said), "it's \"d\u{e9}j\u{e0}\" \\ \\u{1b}[2J\\r\\n\\u{202e}\\u{7}");
        assert_eq!(printable(&[b'a', 0xff]), "a\u{fffd}");
    }

    #[test]
    fn a_right_answer_is_right() {
        assert_eq!(check(ASKED, (1800, 0, 1), &[]), Ok(0));
        let peers = ["127.0.0.1:1", "127.0.0.1:2", "[::1]:1"];
        assert_eq!(check(ASKED, (1800, 2, 2), &peers), Ok(3));
        let stopped = ExpectedAnnounce { stopped: true, ..ASKED };
        assert_eq!(check(stopped, (1800, 0, 0), &[]), Ok(0));
        let seeder = ExpectedAnnounce { seeder: true, ..ASKED };
        assert_eq!(check(seeder, (1800, 1, 0), &[]), Ok(0));
    }

    #[test]
    fn every_wrong_answer_is_wrong_for_its_reason() {
        let own = ExpectedAnnounce { own: Some(endpoint("127.0.0.1:7")), ..ASKED };
        let seeder = ExpectedAnnounce { seeder: true, ..ASKED };
        let two = ["127.0.0.1:1", "127.0.0.1:2"];
        for (asked, head, peers, reason) in [
            (own, (1800, 9, 9), &["127.0.0.1:6", "127.0.0.1:7"][..], "the announcing peer among the peers"),
            (ASKED, (1800, 9, 9), &["[::1]:6", "[::1]:7", "[::1]:6"], "duplicate peer"),
            (ASKED, (1800, 9, 9), &["[::1]:6", "[::1]:7", "[::1]:8", "[::1]:9"], "too many peers"),
            (ASKED, (1800, 0, 0), &[], "counts"),
            (seeder, (1800, 0, 5), &[], "counts"),
            (ASKED, (1800, 5, 0), &[], "counts"),
            (ASKED, (1800, 1, 1), &two, "counts"),
            (ASKED, (1800, 0, u32::MAX), &two, "counts"),
            (ASKED, (0, 9, 9), &two, "interval"),
            (ASKED, (86_401, 9, 9), &two, "interval"),
        ] {
            assert_eq!(
                check(asked, head, peers).unwrap_err().reason(),
                reason,
                "{asked:?} {head:?} {peers:?}"
            );
        }
        let port_zero = [Err::<Endpoint, _>("port 0")];
        let error = checker(None, |_| {}).announce(ASKED, (1, 9, 9), port_zero.into_iter()).unwrap_err();
        assert_eq!(error.reason(), "malformed");
    }

    #[test]
    fn trackers_may_leave_the_announcer_out_if_they_are_known_to() {
        let mut lenient = checker(Some(3), |config| config.announcer_uncounted = true);
        let none = || std::iter::empty::<Result<Endpoint, Infallible>>();
        assert_eq!(lenient.announce(ASKED, (1800, 0, 0), none()), Ok(0));
        assert_eq!(lenient.announce(ASKED, (1800, 1, 1), two()), Ok(2));
        assert!(lenient.announce(ASKED, (1800, 0, 1), two()).is_err());
    }

    #[test]
    fn the_announcer_is_a_note_and_no_other_peer() {
        let own = ExpectedAnnounce { own: Some(endpoint("127.0.0.1:1")), ..ASKED };
        let mut checker = checker(Some(2), |_| {});
        assert_eq!(checker.announce(own, (1800, 1, 1), two()), Ok(1));
        assert_eq!(checker.note.take(), Some(Fault::Oneself(endpoint("127.0.0.1:1"))));
        assert_eq!(checker.announce(ASKED, (1800, 2, 1), two()), Ok(2));
        assert_eq!(checker.note, None);
        let twice = two().chain(two());
        assert!(checker.announce(own, (1800, 9, 9), twice).is_err());
    }

    #[test]
    fn duplicates_are_found_in_every_answer_of_many() {
        let mut checker = checker(None, |_| {});
        let peers: Vec<_> = (1..=2_000).map(|port| endpoint(&format!("127.0.0.1:{port}"))).collect();
        for round in 0..300 {
            let some = &peers[round..][..1 + round * 5];
            let ok = |peers: &[Endpoint]| peers.iter().copied().map(Ok::<_, Infallible>).collect::<Vec<_>>();
            assert_eq!(checker.announce(ASKED, (1800, 9_999, 9), ok(some).into_iter()), Ok(some.len()));
            let twice = [some, &some[..1]].concat();
            let error = checker.announce(ASKED, (1800, 9_999, 9), ok(&twice).into_iter());
            assert_eq!(error, Err(Fault::Duplicate(some[0])));
        }
    }

    #[test]
    fn a_scrape_is_as_long_as_its_request() {
        let checker = checker(None, |_| {});
        assert_eq!(checker.scrape(2, [(0, 0), (1, 1)].into_iter()), Ok(()));
        assert_eq!(checker.scrape(2, [(0, 0)].into_iter()), Err(Fault::Scraped { got: 1, asked: 2 }));
        assert!(checker.scrape(1, [(u32::MAX, 0)].into_iter()).is_err());
    }
}
