//! Changes since the last look: trackers that answer or fail, peers that come, go, lie or are not reached,
//! and torrents for which nothing comes.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    mem,
    net::SocketAddr,
    time::{Duration, Instant},
};

use serde::Serialize;
use swarmkeep_bittorrent::InfoHash;
use swarmkeep_peer::{
    Handle,
    trackers::{FamilyStatus, TrackerStatus, UrlError},
};

use crate::store::counted;

#[derive(Debug, Default)]
pub(crate) struct News(BTreeMap<InfoHash, LastState>);

#[derive(Debug, Default)]
struct LastState {
    /// By URL: the failure, or none if it answers.
    trackers: BTreeMap<String, Option<String>>,
    peers: BTreeSet<SocketAddr>,
    /// Peers of the command line that are not reached, and why.
    unreached: BTreeMap<SocketAddr, String>,
    banned: HashSet<(SocketAddr, String)>,
    told_of_no_tracker: bool,
    lost: u32,
    back: u32,
    /// The bytes and pieces that were known, and since when.
    progress: Option<((u64, u32), Instant)>,
    told_waits: bool,
}

/// The time without progress after which the reasons are reported.
const STILL: Duration = Duration::from_secs(30);

/// An event, as `--json` prints it.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum Event {
    /// A tracker answers, fails for another reason than before, or cannot be used. `url` is missing if there
    /// is none that can.
    Tracker {
        info_hash: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        url: Option<String>,
        #[serde(flatten)]
        result: TrackerResult,
    },
    /// Pieces that were complete are no longer offered: they cannot be read, have changed, or are wrong.
    Lost { info_hash: String, pieces: u32 },
    /// Lost pieces are right again.
    Back { info_hash: String, pieces: u32 },
    /// A peer has connected or disconnected, has sent wrong bytes, or is one of `--peer` that cannot be
    /// reached.
    Peer {
        info_hash: String,
        address: SocketAddr,
        #[serde(flatten)]
        state: PeerState,
    },
    /// Nothing has come for a while: the missing pieces, and why no peer sends them.
    Waits { info_hash: String, pieces: u32, why: Vec<String> },
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum TrackerResult {
    Answer {
        seeders: u32,
        leechers: u32,
        peers: usize,
    },
    /// `again` is in seconds.
    Failure {
        error: String,
        again: Option<u64>,
    },
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum PeerState {
    Connected { connected: bool },
    Failed { error: String, again: Option<u64> },
}

impl News {
    /// The changes of a torrent since the last call. `lacks_peers`: it needs some, and none is named.
    pub(crate) fn of(&mut self, handle: &Handle, lacks_peers: bool) -> Vec<Event> {
        let (status, trackers, refused) = (handle.status(), handle.trackers(), handle.refused_trackers());
        let info_hash = || handle.info_hash().to_string();
        let event = |address, state| Event::Peer { info_hash: info_hash(), address, state };
        let last = self.0.entry(handle.info_hash()).or_default();
        let mut news = Vec::new();
        if trackers.is_empty() && lacks_peers && !mem::replace(&mut last.told_of_no_tracker, true) {
            let names = if refused.is_empty() { "it names no tracker" } else { "it names no usable tracker" };
            let error = format!("{names}, and no --peer is given: others have to call");
            let result = TrackerResult::Failure { error, again: None };
            news.push(Event::Tracker { info_hash: info_hash(), url: None, result });
        }
        let pieces = status.lost - mem::replace(&mut last.lost, status.lost);
        news.extend((pieces > 0).then(|| Event::Lost { info_hash: info_hash(), pieces }));
        let pieces = status.back - mem::replace(&mut last.back, status.back);
        news.extend((pieces > 0).then(|| Event::Back { info_hash: info_hash(), pieces }));
        let answered =
            trackers.iter().filter_map(|tracker| Some((tracker.url.clone(), tracker_result(tracker)?)));
        let refused = refused.into_iter().filter(|(_, error)| *error != UrlError::Twice);
        let refused = refused.map(|(url, error)| {
            (url, TrackerResult::Failure { error: format!("cannot be used: {error}"), again: None })
        });
        for (url, result) in answered.chain(refused) {
            let error = match &result {
                TrackerResult::Answer { .. } => None,
                TrackerResult::Failure { error, .. } => Some(error.clone()),
            };
            if last.trackers.insert(url.clone(), error.clone()) != Some(error) {
                news.push(Event::Tracker { info_hash: info_hash(), url: Some(url), result });
            }
        }
        let banned = status.banned.iter().filter(|banned| last.banned.insert((*banned).clone()));
        let failed = |(address, error)| event(address, PeerState::Failed { error, again: None });
        news.extend(banned.cloned().map(failed));
        let known = (status.down.0, status.progress.pieces);
        let (before, since) = *last.progress.get_or_insert_with(|| (known, Instant::now()));
        if before != known || !status.fetches {
            (last.progress, last.told_waits) = (None, false);
        } else if since.elapsed() >= STILL && !mem::replace(&mut last.told_waits, true) {
            let pieces = status.progress.pieces - status.progress.complete;
            let next = trackers.iter().flat_map(|tracker| [tracker.v4.next_in, tracker.v6.next_in]).flatten();
            let next = next.min().map(|next| format!("the next announce is in {}", short(next)));
            let why = status.reasons().into_iter().chain(next).collect();
            news.push(Event::Waits { info_hash: info_hash(), pieces, why });
        }
        let peers: BTreeSet<_> = status.peers.iter().map(|peer| peer.address).collect();
        let changed = |connected| move |address: &SocketAddr| (*address, PeerState::Connected { connected });
        let gone = last.peers.difference(&peers).map(changed(false));
        let changes = gone.chain(peers.difference(&last.peers).map(changed(true)));
        news.extend(changes.map(|(address, state)| event(address, state)));
        peers.iter().for_each(|address| drop(last.unreached.remove(address)));
        last.peers = peers;
        for peer in status.unreached.into_iter().filter(|peer| peer.named) {
            let again = Some(peer.next_in.as_secs());
            if last.unreached.insert(peer.address, peer.error.clone()).as_ref() != Some(&peer.error) {
                news.push(event(peer.address, PeerState::Failed { error: peer.error, again }));
            }
        }
        news
    }
}

/// The result of the announces to a tracker over both families; `None` before the first one has ended.
fn tracker_result(tracker: &TrackerStatus) -> Option<TrackerResult> {
    let families = [&tracker.v4, &tracker.v6];
    let answers = |family: &&&FamilyStatus| family.latest.is_some() && family.error.is_none();
    if families.iter().any(|family| answers(&family)) {
        let latest = || families.iter().filter(answers).filter_map(|family| family.latest.as_ref());
        return Some(TrackerResult::Answer {
            seeders: latest().map(|answer| answer.seeders).max()?,
            leechers: latest().map(|answer| answer.leechers).max()?,
            peers: latest().map(|answer| answer.peers).sum(),
        });
    }
    // The tracker may still answer over the other family.
    if families.iter().any(|family| family.is_asking && family.failures == 0) {
        return None;
    }
    let failed = families.iter().filter(|family| family.error.is_some());
    // Most machines without IPv6 lack it on purpose.
    let worst = failed.max_by_key(|family| (family.next_in.is_some(), family.address.is_some()))?;
    let error = worst.error.as_ref()?.to_string();
    let again = families.iter().filter_map(|family| family.next_in).min();
    Some(TrackerResult::Failure { error, again: again.map(|again| again.as_secs()) })
}

impl Event {
    /// The event in words; `None` if it is of no interest to people.
    pub(crate) fn words(&self, name: &str) -> Option<String> {
        let again = |again: &Option<u64>, verb: &str| match again {
            Some(seconds) => format!("; {verb} again in {}", short(Duration::from_secs(*seconds))),
            None => String::new(),
        };
        Some(match self {
            Self::Tracker { url: None, result: TrackerResult::Failure { error, .. }, .. } => {
                format!("{name}: {error}")
            }
            Self::Tracker { url, result: TrackerResult::Failure { error, again: next }, .. } => {
                format!("{name}: {}: {error}{}", url.as_deref()?, again(next, "tried"))
            }
            Self::Tracker { url, result: TrackerResult::Answer { seeders, leechers, .. }, .. } => {
                let [seeders, leechers] = [(*seeders, "seeder"), (*leechers, "leecher")]
                    .map(|(count, unit)| counted(count as usize, unit));
                format!("{name}: {}: {seeders}, {leechers}", url.as_deref()?)
            }
            Self::Peer { address, state: PeerState::Failed { error, again: next }, .. } => {
                format!("{name}: peer {address}: {error}{}", again(next, "called"))
            }
            Self::Lost { pieces, .. } => {
                let pieces = counted(*pieces as usize, "piece");
                format!("{name}: {pieces} cannot be read, changed, or turned out wrong: no longer offered")
            }
            Self::Back { pieces, .. } => {
                format!("{name}: {} right again, and offered", counted(*pieces as usize, "piece"))
            }
            Self::Waits { pieces, why, .. } => {
                let missing = match *pieces as usize {
                    0 => "metadata".to_owned(),
                    pieces => counted(pieces, "piece"),
                };
                let why = why.join("; ");
                format!("{name}: nothing has come for {}, and it lacks {missing}: {why}", short(STILL))
            }
            Self::Peer { .. } => return None,
        })
    }
}

/// A time in one unit: the largest of which it has at least two.
pub(crate) fn short(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}

#[cfg(test)]
#[test]
fn lost_pieces_and_restored_ones_are_reported() {
    let (info_hash, pieces) = (String::new(), 2);
    let told = [Event::Lost { info_hash: info_hash.clone(), pieces }, Event::Back { info_hash, pieces }];
    let [lost, back] = told.map(|event| event.words("x").unwrap());
    assert_eq!((&lost[..26], &*back), ("x: 2 pieces cannot be read", "x: 2 pieces right again, and offered"));
}
