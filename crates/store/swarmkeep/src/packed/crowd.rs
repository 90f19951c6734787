//! The peers of least worth in a sample: many peers of one network count as one.

use super::{clock::Tick, context::StoreContext, leaf::slot::Section};
use crate::{CompactV4, Endpoint, Role};

/// The worth of a network (IPv4 /24, IPv6 /48) in a sample. Its members, swarms or peers, share it equally.
pub(super) const UNIT: u64 = 1 << 12;
/// The most units of all networks of an IPv6 /40, and of a /32: one customer may have them all.
pub(super) const UNITS: [u64; 2] = [4, 8];
/// The same where bytes are limited: IPv6 peers take 2.5 times as many as IPv4 peers, so fewer of their
/// swarms share the units.
pub(super) const UNITS_FOR_BYTES: [u64; 2] = [2, 3];

/// The network of an address, /24 of IPv4 or /48 of IPv6, in 56 bits: first its family, then its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Network(u64);

impl Network {
    /// The network of an endpoint in wire form.
    pub(super) fn of(endpoint: &[u8]) -> Self {
        let mut bytes = [0; 8];
        let (family, len) = if endpoint.len() == CompactV4::LEN { (4, 3) } else { (6, 6) };
        bytes[0] = family;
        bytes[1..=len].copy_from_slice(&endpoint[..len]);
        Self(u64::from_be_bytes(bytes))
    }

    pub(super) const fn to_bytes(self) -> [u8; 8] {
        self.0.to_be_bytes()
    }

    pub(super) const fn member(self, index: u8) -> Member {
        Member(self.0 | index as u64)
    }
}

/// A network, and the index of a member in it: a swarm or a peer. In one word; sorted, those of one network
/// are neighbours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Member(u64);

impl Member {
    const fn index(self) -> u8 {
        self.0 as u8
    }

    /// Whether both are in the same IPv4 network, or in the same IPv6 network of `bits` bits.
    const fn is_beside(self, other: Self, bits: u32) -> bool {
        (self.0 ^ other.0) >> (u64::BITS - u8::BITS - bits) == 0
    }
}

/// Gives each member its share of the unit of its network. Sorts the members.
pub(super) fn share(members: &mut [Member], [of_40, of_32]: [u64; 2], mut give: impl FnMut(usize, u64)) {
    members.sort_unstable();
    for in_32 in members.chunk_by(|a, b| a.is_beside(*b, 32)) {
        for in_40 in in_32.chunk_by(|a, b| a.is_beside(*b, 40)) {
            for in_48 in in_40.chunk_by(|a, b| a.is_beside(*b, 48)) {
                let all = [(in_48, 1), (in_40, of_40), (in_32, of_32)];
                let shares = all.map(|(members, units)| units * UNIT / members.len() as u64);
                let share = shares.into_iter().min().unwrap_or(UNIT);
                in_48.iter().for_each(|member| give(member.index().into(), share));
            }
        }
    }
}

/// Up to `most` peers of a sample that are worth least: expired peers, then peers of the networks with most
/// members, then peers that have been silent longest. `newcomer` counts as a member, and stays.
pub(super) fn least<'a>(
    context: &StoreContext,
    now: Tick,
    newcomer: Option<&[u8]>,
    sample: impl Iterator<Item = (Section, &'a [u8], Tick)>,
    most: usize,
) -> Vec<(Role, Endpoint)> {
    let mut members: Vec<_> =
        newcomer.map(|newcomer| Network::of(newcomer).member(u8::MAX)).into_iter().collect();
    let others = sample.filter(|(_, endpoint, _)| newcomer != Some(*endpoint)).take(u8::MAX.into());
    let mut peers: Vec<_> = others
        .enumerate()
        .map(|(nth, (section, endpoint, latest))| {
            members.push(Network::of(endpoint).member(nth as u8));
            let endpoint = section.endpoint(endpoint);
            // Equals go in a keyed order, which prefers no family, no network and no bucket.
            let order = context.hash.order_of(&endpoint).rotate_left(32);
            ((!context.clock.is_expired(latest, now), 0, latest, order), section.role(), endpoint)
        })
        .collect();
    share(&mut members, UNITS, |nth, share| {
        if let Some(((_, own, ..), ..)) = peers.get_mut(nth) {
            *own = share;
        }
    });
    peers.sort_unstable_by_key(|&(worth, ..)| worth);
    // No peer goes beside those of a crowd.
    let crowded = peers.partition_point(|((is_alive, share, ..), ..)| !is_alive || *share < UNIT);
    peers.truncate(if crowded > 0 { most.min(crowded) } else { most });
    peers.into_iter().map(|(_, role, endpoint)| (role, endpoint)).collect()
}

/// The share of `newcomer` in the unit of its network, among the peers of a sample.
pub(super) fn share_of<'a>(newcomer: &[u8], sample: impl Iterator<Item = (Section, &'a [u8], Tick)>) -> u64 {
    let others = sample.map(|(_, endpoint, _)| endpoint).filter(|endpoint| *endpoint != newcomer);
    let all = [newcomer].into_iter().chain(others.take(u8::MAX.into())).enumerate();
    let mut members: Vec<_> = all.map(|(nth, peer)| Network::of(peer).member(nth as u8)).collect();
    let mut of_newcomer = UNIT;
    share(&mut members, UNITS, |nth, share| of_newcomer = if nth == 0 { share } else { of_newcomer });
    of_newcomer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_and_the_prefixes_around_it_share_their_units() {
        let v4 = |a, b, c| vec![32, a, b, c, 26, 225];
        let v6 = |bytes: [u8; 3]| [[32, 1, 13].as_slice(), &bytes, &[7; 12]].concat();
        let all = |endpoint: &dyn Fn(u8) -> Vec<u8>| (0..20).map(endpoint).collect::<Vec<_>>();
        let whole = [
            ("/24 of a /16", all(&|n| v4(1, n, 13)), UNIT),
            ("of one /24", all(&|n| [&v4(1, 13, 1)[..5], &[n]].concat()), UNIT / 20),
            ("/48 of a /40", all(&|n| v6([1, 1, n])), 4 * UNIT / 20),
            ("/40 of a /32", all(&|n| v6([1, n, 1])), 8 * UNIT / 20),
            ("/32", all(&|n| v6([n, 1, 1])), UNIT),
        ];
        // Those of IPv4 have the first bytes of those of IPv6.
        for (name, endpoints, expected) in whole {
            let others =
                [v4(1, 13, 0), v6([0; 3])].into_iter().filter(|other| other.len() != endpoints[0].len());
            let mut members: Vec<_> =
                (0..).zip(&endpoints).map(|(n, peer)| Network::of(peer).member(n)).collect();
            members.extend(others.map(|other| Network::of(&other).member(u8::MAX)));
            let mut shares = [0; 256];
            share(&mut members, UNITS, |nth, share| shares[nth] = share);
            assert_eq!((shares[..20].to_vec(), shares[255]), (vec![expected; 20], UNIT), "{name}");
        }
    }
}
