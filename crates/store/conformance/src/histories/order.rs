//! The search for an order of calls in which the [`Model`] gives their answers: an order that respects which
//! call returned before which began (Wing and Gong, 1993). States that were visited are remembered (Lowe,
//! 2017).

use std::collections::{BTreeSet, HashSet};

use super::{Call, Done, ENDPOINTS, History, Peers};
use crate::{
    Model,
    cases::stories::endpoint_of,
    kit::{at, config},
    model::ModelState,
};

/// The most states that a search visits. A history that takes more has many lost calls.
const MOST: usize = if cfg!(test) { 1_000 } else { 100_000 };

/// Whether there is an order; `None` if the search was given up.
pub(super) fn exists(history: &History) -> Option<bool> {
    let model = Model::new(&config()).expect("a lifetime of whole seconds");
    let (empty, mut visited) = (model.state().clone(), HashSet::new());
    let seen: History = history.iter().flatten().flat_map(Call::sightings).collect();
    let history: Vec<_> = history.iter().chain(&seen).map(Vec::as_slice).collect();
    let found = search(&history, &mut vec![0; history.len()], &empty, &mut visited);
    (visited.len() <= MOST).then_some(found)
}

/// Whether there is an order of the calls from `next` on of each list, with the swarm as `state` has it.
fn search(
    history: &[&[Call]],
    next: &mut Vec<usize>,
    state: &ModelState,
    visited: &mut HashSet<(Vec<usize>, Option<SwarmKey>)>,
) -> bool {
    let left = history.iter().zip(&*next).filter_map(|(calls, &next)| calls.get(next));
    let first_end = left.map(|call| call.end).min().unwrap_or(Call::LOST);
    if first_end == Call::LOST || visited.len() > MOST {
        return true;
    }
    if !visited.insert((next.clone(), key(state))) {
        return false;
    }
    for list in 0..history.len() {
        let may_be_next = |call: &&Call| {
            call.start < first_end && call.earlier_of.is_none_or(|(list, nth)| next[list] <= nth)
        };
        let Some(call) = history[list].get(next[list]).filter(may_be_next) else { continue };
        // A sweep may remove the swarm and go on.
        if let Done::Swept(retention) = call.done
            && let Some((info_hash, swarm)) = state.swarms.first_key_value()
            && swarm.is_idle(retention)
        {
            let mut removed = state.clone();
            removed.remove(info_hash);
            if search(history, next, &removed, visited) {
                return true;
            }
        }
        let after = call.on(state);
        // A call that may have had no effect, and had none, leads nowhere else.
        if let Some(after) = after.filter(|after| !call.is_lost() || key(after) != key(state)) {
            next[list] += 1;
            if search(history, next, &after, visited) {
                return true;
            }
            next[list] -= 1;
            // It changes nothing, so that it fits nowhere better.
            if let Done::Scraped(_) | Done::Shown(_) | Done::Seen(..) = call.done {
                return false;
            }
        }
    }
    false
}

/// Everything that the answers of a swarm depend on.
type SwarmKey = (Peers, u32);

fn key(state: &ModelState) -> Option<SwarmKey> {
    let (_, swarm) = state.swarms.first_key_value()?;
    Some((swarm.peers.iter().map(|(&endpoint, peer)| (endpoint, peer.role)).collect(), swarm.downloaded))
}

impl Call {
    /// The sights of each endpoint that announces, whether a listing shows it or not, as calls of their own.
    /// One that stays is shown exactly once.
    fn sightings(&self) -> Vec<Vec<Self>> {
        let Done::Shown(peers) = &self.done else { return Vec::new() };
        let seen = (0..ENDPOINTS).flat_map(|n| {
            let endpoint = endpoint_of(n as u8);
            let shown = peers.iter().filter(|peer| peer.0 == endpoint);
            let mut roles: Vec<_> = shown.map(|peer| Some(peer.1)).collect();
            if roles.len() != 1 {
                roles.push(None);
            }
            roles.into_iter().map(move |role| Done::Seen(endpoint, role))
        });
        seen.map(|done| vec![Self { done, ..self.clone() }]).collect()
    }

    /// The state in which the call leaves the swarm; none if its answer is impossible.
    fn on(&self, before: &ModelState) -> Option<ModelState> {
        let mut state = before.clone();
        let swarm = before.swarms.first_key_value();
        let is_possible = match &self.done {
            Done::Announced(announce, answer) => {
                state.update(announce, at(0)) == answer.announced && {
                    let eligible: BTreeSet<_> = state.eligible(announce).into_iter().collect();
                    let peers: BTreeSet<_> = answer.peers.iter().copied().collect();
                    peers.len() == answer.peers.len()
                        && peers.len() == eligible.len().min(announce.want)
                        && peers.is_subset(&eligible)
                }
            }
            Done::Scraped(stats) => swarm.map(|(_, swarm)| swarm.stats()).unwrap_or_default() == *stats,
            Done::Listed(peers) => key(before).map(|(listed, _)| listed).unwrap_or_default() == *peers,
            Done::Removed(stats) => swarm.and_then(|(info_hash, _)| state.remove(info_hash)) == *stats,
            Done::Seen(endpoint, role) => {
                swarm.and_then(|(_, swarm)| swarm.peers.get(endpoint)).map(|peer| peer.role) == *role
            }
            Done::Shown(_) | Done::Swept(_) => true,
            Done::Restored(swarm, peers, restored) => state.restore(swarm, peers, at(0)) == *restored,
            Done::Added(count, added) => {
                swarm.is_some_and(|(info_hash, _)| state.add_downloads(info_hash, *count)) == *added
            }
        };
        (is_possible || self.is_lost()).then_some(state)
    }
}

#[cfg(test)]
mod tests {
    use swarmkeep::{Announce, Role};

    use super::*;
    use crate::kit::{Answer, hash, leecher, seeder, stopped};

    /// The roles in which a listing shows a peer: none, one, or two.
    const SHOWN: [&[Role]; 5] =
        [&[], &[Role::Leecher], &[Role::Seeder], &[Role::Leecher; 2], &[Role::Leecher, Role::Seeder]];

    #[test]
    fn a_listing_shows_each_peer_as_it_was_at_some_moment() {
        let endpoint = endpoint_of(0);
        let [joins, leaves, finishes] =
            [leecher, stopped, seeder].map(|announce| announce(hash(1), endpoint));
        let call = |start, end, done| Call { torrent: 0, start, end, done, earlier_of: None };
        let judged = |announces: &[Announce]| {
            let model = Model::new(&config()).expect("a lifetime of whole seconds");
            let answered = |(&announce, start): (&Announce, u64)| {
                let announced = model.state().update(&announce, at(0));
                call(start, start + 1, Done::Announced(announce, Answer { announced, peers: Vec::new() }))
            };
            let announces: Vec<_> = announces.iter().zip([0, 3]).map(answered).collect();
            SHOWN.map(|roles| {
                let shown = roles.iter().map(|&role| (endpoint, role)).collect();
                exists(&vec![announces.clone(), vec![call(2, 5, Done::Shown(shown))]])
            })
        };
        assert_eq!(judged(&[joins]), [false, true, false, false, false].map(Some), "it stays");
        assert_eq!(judged(&[joins, leaves]), [true, true, false, true, false].map(Some), "it leaves");
        assert_eq!(judged(&[joins, finishes]), [false, true, true, false, false].map(Some), "it finishes");
    }
}
