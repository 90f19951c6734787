//! Peer exchange (BEP 11): the list of the other peers, as it is sent to one peer.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use swarmkeep_bittorrent::Endpoint;
use swarmkeep_peer_wire::{Pex, PexFlags};

/// The peers that one peer was sent, so that it is sent only changes.
#[derive(Debug, Default)]
pub(crate) struct PeerExchange {
    sent: BTreeMap<Endpoint, PexFlags>,
    next: Option<Instant>,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct PexLists {
    added: Vec<[u8; 6]>,
    added_flags: Vec<u8>,
    added6: Vec<[u8; 18]>,
    added6_flags: Vec<u8>,
    dropped: Vec<[u8; 6]>,
    dropped6: Vec<[u8; 18]>,
}

impl PeerExchange {
    /// The time between two messages, and the most peers that one adds or drops (BEP 11, "Rate Limiting").
    const OFTEN: Duration = Duration::from_secs(60);
    const MOST: usize = 50;

    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.next.is_none_or(|next| next <= now)
    }

    /// The changes since the last message, if there are any.
    pub(crate) fn changes(&mut self, there: &BTreeMap<Endpoint, PexFlags>, now: Instant) -> Option<PexLists> {
        let dropped: Vec<_> =
            self.sent.keys().filter(|peer| !there.contains_key(peer)).take(Self::MOST).copied().collect();
        let added: Vec<_> = there
            .iter()
            .filter(|(peer, _)| !self.sent.contains_key(peer))
            .take(Self::MOST)
            .map(|(peer, flags)| (*peer, *flags))
            .collect();
        if dropped.is_empty() && added.is_empty() {
            return None;
        }
        self.next = Some(now + Self::OFTEN);
        let mut lists = PexLists::default();
        for peer in dropped {
            self.sent.remove(&peer);
            match peer.as_bytes().try_into() {
                Ok(v4) => lists.dropped.push(v4),
                Err(_) => lists.dropped6.extend(<[u8; 18]>::try_from(peer.as_bytes())),
            }
        }
        for (peer, flags) in added {
            self.sent.insert(peer, flags);
            if let Ok(v4) = peer.as_bytes().try_into() {
                lists.added.push(v4);
                lists.added_flags.push(flags.bits());
            } else {
                lists.added6.extend(<[u8; 18]>::try_from(peer.as_bytes()));
                lists.added6_flags.push(flags.bits());
            }
        }
        Some(lists)
    }
}

impl PexLists {
    pub(crate) fn message(&self) -> Pex<'_> {
        let mut pex = Pex::default();
        (pex.added, pex.added_flags) = (&self.added, &self.added_flags);
        (pex.added6, pex.added6_flags) = (&self.added6, &self.added6_flags);
        (pex.dropped, pex.dropped6) = (&self.dropped, &self.dropped6);
        pex
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peers(range: std::ops::Range<u8>) -> BTreeMap<Endpoint, PexFlags> {
        let v4 = |n| format!("10.0.0.{n}:6881");
        let v6 = |n| format!("[2001:db8::{n}]:6881");
        let both = range.map(|n| if n % 2 == 0 { v4(n) } else { v6(n) });
        both.map(|peer| (peer.parse().unwrap(), PexFlags::SEEDER)).collect()
    }

    #[test]
    fn a_message_has_only_changes_and_at_most_fifty_of_a_kind() {
        let (mut exchange, now) = (PeerExchange::default(), Instant::now());
        assert!(exchange.is_due(now));
        assert_eq!(exchange.changes(&BTreeMap::new(), now), None);
        assert!(exchange.is_due(now), "nothing was sent");

        let lists = exchange.changes(&peers(0..120), now).unwrap();
        let sent: Vec<_> = lists.message().added().collect();
        assert_eq!((sent.len(), lists.message().dropped().count()), (50, 0));
        assert!(sent.iter().all(|peer| peer.flags == PexFlags::SEEDER));
        assert!(
            !exchange.is_due(now + Duration::from_secs(59)) && exchange.is_due(now + Duration::from_secs(60))
        );

        let mut all: Vec<_> = sent.iter().map(|peer| peer.endpoint).collect();
        for _ in 0..2 {
            all.extend(
                exchange.changes(&peers(0..120), now).unwrap().message().added().map(|peer| peer.endpoint),
            );
        }
        all.sort();
        assert!(all.iter().eq(peers(0..120).keys()), "each once");
        assert_eq!(exchange.changes(&peers(0..120), now), None);

        let lists = exchange.changes(&peers(2..122), now).unwrap();
        let dropped: Vec<_> = lists.message().dropped().collect();
        assert!(dropped.iter().all(|peer| peers(0..2).contains_key(peer)) && dropped.len() == 2);
        let added: Vec<_> = lists.message().added().map(|peer| peer.endpoint).collect();
        assert!(added.iter().all(|peer| peers(120..122).contains_key(peer)) && added.len() == 2);
    }
}
