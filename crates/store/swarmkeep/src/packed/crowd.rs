//! The peers of least worth in a sample: many peers of one network count as one.

use super::{clock::Tick, context::StoreContext, hash::Member, leaf::slot::Section};
use crate::{Endpoint, Role};

/// The worth of a network (IPv4 /24, IPv6 /48) in a sample. Its members, swarms or peers, share it equally.
pub(super) const UNIT: u64 = 1 << 12;
/// The most units of all networks of an IPv6 /40, and of a /32: one customer may have them all.
pub(super) const UNITS: [u64; 2] = [4, 8];
/// The same where bytes are limited: IPv6 peers take 2.5 times as many as IPv4 peers, so fewer of their
/// swarms share the units.
pub(super) const UNITS_FOR_BYTES: [u64; 2] = [2, 3];

/// Gives each member its share of the unit of its network. Sorts the members.
pub(super) fn share(members: &mut [Member], [of_40, of_32]: [u64; 2], mut give: impl FnMut(usize, u64)) {
    members.sort_unstable();
    for in_32 in members.chunk_by(|a, b| a.is_beside(*b, 24)) {
        for in_40 in in_32.chunk_by(|a, b| a.is_beside(*b, 40)) {
            for in_48 in in_40.chunk_by(|a, b| a.is_beside(*b, 56)) {
                let all = [(in_48, 1), (in_40, of_40), (in_32, of_32)];
                let shares = all.map(|(members, units)| units * UNIT / members.len() as u64);
                let share = shares.into_iter().min().unwrap_or(UNIT);
                in_48.iter().for_each(|member| give(member.index().into(), share));
            }
        }
    }
}

/// Up to `most` peers of a sample that are worth least: expired peers, then peers of the networks with most
/// members, then peers that have been silent longest. `newcomer` counts as a member, and stays. Returns its
/// share too.
pub(super) fn least<'a>(
    context: &StoreContext,
    now: Tick,
    newcomer: Option<&[u8]>,
    sample: impl Iterator<Item = (Section, &'a [u8], Tick)>,
    most: usize,
) -> (Vec<(Role, Endpoint)>, u64) {
    let mut members: Vec<_> =
        newcomer.map(|newcomer| context.hash.network(newcomer).member(u8::MAX)).into_iter().collect();
    let others = sample.filter(|(_, endpoint, _)| newcomer != Some(*endpoint)).take(u8::MAX.into());
    let mut peers: Vec<_> = others
        .enumerate()
        .map(|(nth, (section, endpoint, latest))| {
            let network = context.hash.network(endpoint);
            members.push(network.member(nth as u8));
            // Of equals, the one of the lowest network: no family comes first.
            let worth = (!context.clock.is_expired(latest, now), 0, latest, network);
            (worth, section, endpoint)
        })
        .collect();
    let mut of_newcomer = UNIT;
    share(&mut members, UNITS, |nth, share| match peers.get_mut(nth) {
        Some(((_, own, ..), ..)) => *own = share,
        None => of_newcomer = share,
    });
    peers.sort_unstable_by_key(|&(worth, ..)| worth);
    // No peer goes beside those of a crowd.
    let crowded = peers.partition_point(|((is_alive, share, ..), ..)| !is_alive || *share < UNIT);
    peers.truncate(if crowded > 0 { most.min(crowded) } else { most });
    let least = peers.iter().map(|(_, section, endpoint)| (section.role(), section.endpoint(endpoint)));
    (least.collect(), of_newcomer)
}
