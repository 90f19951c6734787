//! Which endpoints sent wrong bytes, and from which of them nothing is fetched any more.

use std::{
    collections::BTreeMap,
    fmt,
    net::{IpAddr, SocketAddr},
};

use sha1::{Digest, Sha1};

use crate::{network::network, picker::BLOCK};

/// The senders and digests of the blocks of wrong pieces, until the pieces are right.
///
/// If one peer sent all of a piece, it is to blame. Otherwise one peer alone sends the piece again: if it is
/// wrong again, that peer is to blame; if it is right, the senders of the blocks that differ are.
#[derive(Debug, Default)]
pub(crate) struct Blame {
    wrong: BTreeMap<u32, Vec<(SocketAddr, [u8; 20])>>,
}

impl Blame {
    /// The most pieces that are remembered. Beyond that, a peer is to blame only if it sent all of a piece.
    const MOST: usize = 64;

    /// Records a wrong piece. Returns the endpoint to blame, or `None` if it may be one of several.
    pub(crate) fn wrong(&mut self, piece: u32, data: &[u8], from: &[SocketAddr]) -> Option<SocketAddr> {
        let (&first, others) = from.split_first()?;
        if others.iter().all(|other| *other == first) {
            return Some(first);
        }
        if self.wrong.len() < Self::MOST || self.wrong.contains_key(&piece) {
            self.wrong.insert(piece, from.iter().copied().zip(digests(data)).collect());
        }
        None
    }

    /// Records a right piece. Returns the endpoints to blame if it was wrong before.
    pub(crate) fn right(&mut self, piece: u32, data: &[u8]) -> Vec<SocketAddr> {
        let Some(before) = self.wrong.remove(&piece) else { return Vec::new() };
        let wrong = before.into_iter().zip(digests(data)).filter(|((_, before), now)| before != now);
        let mut to_blame: Vec<_> = wrong.map(|((from, _), _)| from).collect();
        to_blame.sort_unstable();
        to_blame.dedup();
        to_blame
    }
}

fn digests(data: &[u8]) -> impl Iterator<Item = [u8; 20]> + '_ {
    data.chunks(BLOCK as usize).map(|block| Sha1::digest(block).into())
}

/// The endpoints that sent wrong bytes, by [`network`], each with the piece or `None` for metadata: the
/// latest last.
///
/// The endpoint is banned first, since other peers may have its address, and the address with its second
/// endpoint. Without another source they are asked again, but not for a piece that the endpoint had wrong.
#[derive(Debug, Default)]
pub(crate) struct Offences(BTreeMap<IpAddr, Vec<(SocketAddr, Option<u32>)>>);

/// How far an endpoint is banned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ban {
    /// While there is another source. Otherwise it is asked for pieces that it had not wrong.
    Endpoint,
    /// The same, for all endpoints of its address.
    Address,
    /// The address is banned, also if there is no other source.
    ForGood,
}

impl fmt::Display for Ban {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Endpoint => "it is banned, and asked for other pieces only without another source",
            Self::Address => {
                "its address has sent wrong bytes from two ports: it is banned, and asked only without another source"
            }
            Self::ForGood => "its address is banned",
        })
    }
}

impl Offences {
    /// The offences of a network after which it is banned for good.
    const MOST: usize = 5;

    /// Records that `from` sent wrong bytes.
    pub(crate) fn record(&mut self, from: SocketAddr, piece: Option<u32>) {
        let offences = self.0.entry(network(from.ip())).or_default();
        if offences.len() < Self::MOST {
            offences.push((from, piece));
        }
    }

    /// The latest offence of each endpoint, and how far it is banned.
    pub(crate) fn in_words(&self) -> impl Iterator<Item = (SocketAddr, String)> {
        let latest: BTreeMap<_, _> = self.0.values().flatten().copied().collect();
        latest.into_iter().filter_map(|(endpoint, piece)| {
            let what = piece.map_or("metadata".to_owned(), |piece| format!("bytes of piece {piece}"));
            Some((endpoint, format!("sent wrong {what}: {}", self.ban(endpoint)?)))
        })
    }

    /// How far `endpoint` is banned. Port 0 is an unknown port.
    pub(crate) fn ban(&self, endpoint: SocketAddr) -> Option<Ban> {
        let offences = self.0.get(&network(endpoint.ip()))?;
        match offences.len() {
            Self::MOST.. => Some(Ban::ForGood),
            _ if offences.iter().any(|(other, _)| *other != offences[0].0) => Some(Ban::Address),
            _ => (offences[0].0 == endpoint).then_some(Ban::Endpoint),
        }
    }

    pub(crate) fn wrong_pieces(&self, endpoint: SocketAddr) -> Vec<u32> {
        let offences = self.0.get(&network(endpoint.ip())).into_iter().flatten();
        offences.filter(|(from, _)| *from == endpoint).filter_map(|(_, piece)| *piece).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_banned_before_its_address_and_mapped_addresses_count_as_ipv4() {
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        let mut offences = Offences::default();
        let peers = ["192.0.2.1:1", "192.0.2.1:9", "[::ffff:192.0.2.1]:9", "192.0.2.2:1"];
        for (n, piece, banned) in
            [(0, Some(7), [true, false, false, false]), (1, None, [true, true, true, false])]
        {
            offences.record(SocketAddr::new(at(peers[n]).ip(), 1 + n as u16), piece);
            assert_eq!(peers.map(|peer| offences.ban(at(peer)).is_some()), banned);
        }
        let told = offences.in_words().map(|(peer, _)| peer.port());
        assert_eq!(told.collect::<Vec<_>>(), [1, 2], "the second hides no first");
        (0..3).for_each(|piece| offences.record(at("192.0.2.1:2"), Some(piece)));
        assert_eq!(offences.ban(at("192.0.2.1:9")), Some(Ban::ForGood));
        assert_eq!(offences.wrong_pieces(at("192.0.2.1:1")), [7]);
    }

    #[test]
    fn a_right_piece_shows_the_sender_of_a_wrong_block() {
        let [one, two, three] = [1, 2, 3].map(|n| SocketAddr::from(([127, 0, 0, n], 1)));
        let right: Vec<u8> = (0..4 * BLOCK).map(|n| (n / 7) as u8).collect();
        let mut wrong = right.clone();
        wrong[2 * BLOCK as usize + 5] ^= 1;
        let mut blame = Blame::default();
        assert_eq!(blame.wrong(7, &wrong, &[one, two, three, one]), None);
        assert!(blame.right(8, &right).is_empty());
        assert_eq!(blame.right(7, &right), [three]);
        assert!(blame.right(7, &right).is_empty());
        assert_eq!(blame.wrong(7, &wrong, &[two; 4]), Some(two));
    }
}
