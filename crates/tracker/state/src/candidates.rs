//! Torrents with downloads of only one prefix, which may have made them up. They wait in memory, and enter
//! the database when another prefix downloads them, or when their first downloader announces again.

use std::{
    collections::{HashMap, VecDeque},
    hash::{BuildHasher as _, RandomState},
    time::Duration,
};

use swarmkeep::{Cursor, Endpoint, Timestamp, TorrentRepository};

use crate::{Change, InfoHash};

/// The source of a change of a count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// Peers of one prefix, of which this one was the first to finish, at that time.
    Prefix(Endpoint, Timestamp),
    /// Peers of several prefixes, or the operator.
    Several,
}

/// A change that is not durable yet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PendingChange {
    pub(crate) change: Change,
    pub(crate) source: Source,
}

impl PendingChange {
    /// This change followed by a newer one.
    pub(crate) fn then(self, newer: Self) -> Self {
        let source = if newer.change.forget { newer.source } else { self.source.and(newer.source) };
        Self { change: self.change.then(newer.change), source }
    }

    /// Whether it enters the database even if the torrent is not known.
    pub(crate) fn enters(self) -> bool {
        self.source == Source::Several
    }
}

impl Source {
    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Prefix(one, _), Self::Prefix(other, _)) if prefix(&one) == prefix(&other) => self,
            _ => Self::Several,
        }
    }
}

/// The network that one person can easily have: an IPv4 /24, an IPv6 /48.
fn prefix(endpoint: &Endpoint) -> &[u8] {
    match endpoint {
        Endpoint::V4(_) => &endpoint.as_bytes()[..3],
        Endpoint::V6(_) => &endpoint.as_bytes()[..6],
    }
}

/// The number of groups of candidates, and the most candidates of a group: the newest of the prefixes that
/// share it. So a flood from one prefix displaces itself.
const GROUPS: usize = 256;
const MOST: usize = 256;
/// The most peers of a swarm that are searched for one that has announced again.
const LOOKED_AT: usize = 1024;

/// At most 65,536 torrents that wait, in about 6 MB.
#[derive(Debug)]
pub(crate) struct Candidates {
    hasher: RandomState,
    known: HashMap<InfoHash, Candidate>,
    /// Oldest first.
    groups: Vec<VecDeque<InfoHash>>,
    /// The group that is searched next.
    next: usize,
}

#[derive(Debug, Clone, Copy)]
struct Candidate {
    downloads: u64,
    endpoint: Endpoint,
    finished: Timestamp,
}

impl Candidates {
    pub(crate) fn new() -> Self {
        let groups = vec![VecDeque::new(); GROUPS];
        Self { hasher: RandomState::new(), known: HashMap::new(), groups, next: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.known.len()
    }

    /// The waiting downloads of a torrent.
    pub(crate) fn get(&self, info_hash: &InfoHash) -> u64 {
        self.known.get(info_hash).map_or(0, |candidate| candidate.downloads)
    }

    /// Lets the downloads of a peer and its prefix wait. If downloads of the torrent from another prefix wait
    /// already, removes the torrent and returns the sum of all.
    pub(crate) fn add(
        &mut self,
        info_hash: InfoHash,
        downloads: u64,
        endpoint: Endpoint,
        finished: Timestamp,
    ) -> Option<u64> {
        if let Some(known) = self.known.get_mut(&info_hash) {
            known.downloads = known.downloads.saturating_add(downloads);
            let is_same = prefix(&known.endpoint) == prefix(&endpoint);
            return if is_same { None } else { self.remove(&info_hash) };
        }
        let number = self.group(&endpoint);
        let group = &mut self.groups[number];
        if group.len() == MOST
            && let Some(oldest) = group.pop_front()
        {
            self.known.remove(&oldest);
        }
        group.push_back(info_hash);
        self.known.insert(info_hash, Candidate { downloads, endpoint, finished });
        None
    }

    /// Removes a torrent, and returns its waiting downloads.
    pub(crate) fn remove(&mut self, info_hash: &InfoHash) -> Option<u64> {
        let Candidate { downloads, endpoint, .. } = self.known.remove(info_hash)?;
        let group = self.group(&endpoint);
        self.groups[group].retain(|other| other != info_hash);
        Some(downloads)
    }

    fn group(&self, endpoint: &Endpoint) -> usize {
        self.hasher.hash_one(prefix(endpoint)) as usize % GROUPS
    }

    /// Searches the next group for torrents that their first downloader has announced again, `after` that
    /// time or later. Removes them, and returns them with their downloads.
    pub(crate) fn confirmed(
        &mut self,
        store: &dyn TorrentRepository,
        after: Duration,
    ) -> Vec<(InfoHash, u64)> {
        let group = &self.groups[self.next];
        self.next = (self.next + 1) % GROUPS;
        let has_come_back = |info_hash: &&InfoHash| {
            let Some(Candidate { endpoint, finished, .. }) = self.known.get(*info_hash) else { return false };
            let mut peers = Vec::new();
            store.peers(info_hash, Cursor::START, LOOKED_AT, &mut peers);
            let same = peers.iter().find(|peer| peer.endpoint == *endpoint);
            same.is_some_and(|peer| peer.last_announce.secs_since(*finished) >= after.as_secs().max(1))
        };
        let confirmed: Vec<_> = group.iter().filter(has_come_back).copied().collect();
        let taken = confirmed.into_iter().filter_map(|info_hash| Some((info_hash, self.remove(&info_hash)?)));
        taken.collect()
    }
}

/// The prefixes of the peers of a swarm, which may have made its downloads. `None` if the swarm has no peers.
pub(crate) fn source_of(store: &dyn TorrentRepository, info_hash: &InfoHash) -> Option<Source> {
    let mut peers = Vec::new();
    store.peers(info_hash, Cursor::START, LOOKED_AT, &mut peers);
    let peers = peers.iter().map(|peer| Source::Prefix(peer.endpoint, peer.last_announce));
    peers.reduce(Source::and)
}
