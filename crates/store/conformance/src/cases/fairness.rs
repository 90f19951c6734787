//! Cases of fair selection: every eligible peer is selected with the same probability.
//!
//! Every selected peer is counted, over enough announces for 20 or more expected hits per peer. The spread of
//! the counts (Pearson's chi-square) is compared with the spread of a simulated sampler that is fair by
//! construction: it selects a window at a uniformly random place of a ring. The fastest stores select windows
//! too. Their counts spread more than those of independent draws, because consecutive peers are hit together.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use swarmkeep::{Announce, BoundedBy, Endpoint, Families, Family, InfoHash, Random, Role, SplitMix64};

use crate::{Subject, kit::*, model::share};

pub(crate) fn selection_is_fair_in_a_swarm_of_2(subject: &dyn Subject) {
    let (store, torrent) = (build(subject), hash(1));
    store.fill(0, [leecher(torrent, v4(1)), seeder(torrent, v4(2))]);
    assert_fair(&store, (0, leecher(torrent, v4(9000)).want(1)), 1, 4000);
}

/// The announcer is a member in the middle: a window that skips it after it was drawn favors the peers after
/// it. That shows only in many announces.
pub(crate) fn selection_is_fair_to_the_peers_beside_the_announcer(subject: &dyn Subject) {
    for (want, batch) in [(50, 252), (10, 98), (1, 63)] {
        let (store, torrent) = quarter_seeders(subject, 75);
        assert_fair(&store, (0, leecher(torrent, v4(31)).want(want)), batch, 40_000);
    }
}

/// Swarms of any size, age and family, with any share of seeders; announces of members and of newcomers, with
/// any role and `want`, alone and in batches.
pub(crate) fn selection_is_fair_in_any_swarm(subject: &dyn Subject) {
    const WORLDS: u64 = 24;
    let (store, mut rng) = (build(subject), SplitMix64::new(58));
    let rng: &mut dyn Random = &mut rng;
    for world in 0..WORLDS {
        let (torrent, begin) = (hash(world), world * LIFETIME);
        let magnitude = 4 << rng.below(9);
        let size = magnitude + rng.below(magnitude);
        let [seeders, fresh, v6] =
            [[3, 50, 97], [10, 50, 90], [0, 10, 50]].map(|shares| shares[rng.below(3)]);
        let member = |n: usize| peer(FAMILIES[usize::from(n * 37 % 100 < v6)], n as u32);
        let announces: Vec<_> = (0..size)
            .map(|n| Announce::new(torrent, member(n)).left((rng.below(100) >= seeders).into()))
            .collect();
        store.fill(begin, announces.iter().copied());
        let now = begin + LIFETIME / 2;
        store.fill(now, announces.iter().filter(|_| rng.below(100) < fresh).copied());
        let mut compared = 0;
        while compared < 2 {
            let announcer = [member(rng.below(size)), peer(FAMILIES[rng.below(2)], 100_000)][rng.below(2)];
            let announce = Announce::new(torrent, announcer)
                .left((rng.below(3) > 0).into())
                .seeders_too(rng.below(4) == 0);
            let announce = if rng.below(2) == 0 { announce } else { announce.families(BOTH) };
            let eligible = eligible(&store, &announce).len();
            // A large swarm would need many announces that want few.
            let mut want =
                [1, 1, 2, 10, 50][rng.below(5)].min(eligible.saturating_sub(1)).max(eligible / 100);
            if announce.families == BOTH {
                // Either family may have the last one of an odd number.
                want += want % 2;
            }
            if (1..eligible).contains(&want) {
                assert_fair(&store, (now, announce.want(want)), [1, 2, 7, 252][rng.below(4)], 0);
                compared += 1;
            } else if eligible < 2 {
                // Too few of its kind.
                compared += usize::from(rng.below(4) == 0);
            }
        }
    }
}

pub(crate) fn selection_is_fair_in_a_swarm_of_100_000(subject: &dyn Subject) {
    let (store, torrent) = quarter_seeders(subject, 100_000);
    assert_fair(&store, (0, leecher(torrent, v4(50_001)).want(1000)), 98, 0);
}

/// After peers have left, come back and changed roles: the places that they left make no peer more likely.
pub(crate) fn selection_stays_fair_when_a_swarm_has_shrunk(subject: &dyn Subject) {
    let (store, torrent) = quarter_seeders(subject, 2000);
    store.fill(0, (1..=2000).filter(|n| n % 16 != 0 && *n > 40).map(|n| stopped(torrent, v4(n))));
    store.fill(0, (1..=40).map(|n| Announce::new(torrent, v4(n)).left(((n + 1) % 2).into())));
    for want in [2, 20] {
        assert_fair(&store, (0, leecher(torrent, v4(1)).want(want)), 1, 0);
    }
}

/// Some addresses have the maximum number of endpoints, and some have one. A store may keep the endpoints of
/// one address together to count them.
pub(crate) fn selection_is_fair_among_the_endpoints_of_limited_addresses(subject: &dyn Subject) {
    const TOGETHER: u32 = 8;
    for (most, peers, want) in [(8, 75, 10), (8, 2000, 10), (60, 2000, 50)] {
        let config = config().max_endpoints_per_address(most);
        let Some(store) = bounded(subject, BoundedBy::ENDPOINTS_PER_ADDRESS, &config) else { return };
        let torrent = hash(1);
        // A third of all endpoints share their address with others.
        let endpoint = |n: u32| match n.checked_sub(peers / 3) {
            None => of_address(Family::V4, n / TOGETHER, n),
            Some(n) => of_address(Family::V4, 10_000 + n, 1),
        };
        store.fill(0, (0..peers).map(|n| Announce::new(torrent, endpoint(n)).left((n / 2 % 2).into())));
        assert_eq!(store.scrape(&torrent).peers(), peers.into());
        for announcer in [2, peers - 2] {
            assert_fair(&store, (0, leecher(torrent, endpoint(announcer)).want(want)), 14, 0);
        }
    }
}

fn quarter_seeders(subject: &dyn Subject, count: u32) -> (Store, InfoHash) {
    let (store, torrent) = (build(subject), hash(1));
    store.fill(0, (1..=count).map(|n| Announce::new(torrent, v4(n)).left((n % 4).into())));
    let counted = stats(count / 4, count - count / 4, 0);
    assert_eq!(store.scrape(&torrent), counted);
    assert_eq!(store.tell(seeder(torrent, v4(4)).want(0)).stats, counted);
    (store, torrent)
}

/// The peers that may be selected for an announce.
fn eligible(store: &Store, announce: &Announce) -> Vec<Endpoint> {
    let members = store.members(&announce.info_hash).into_values();
    let others = members.filter(|record| {
        record.endpoint != announce.endpoint
            && announce.families.contains(Families::of(record.endpoint.family()))
            && (announce.takes_seeders() || record.role == Role::Leecher)
    });
    others.map(|record| record.endpoint).collect()
}

/// Repeats one announce at its time, in batches of `batch`, until each eligible peer is expected 24 times and
/// there were `least` announces, and counts the selections of each: all, and those of each place of a batch.
/// If `least` is 0, they are too few for that: then those of each seventh place.
fn assert_fair(store: &Store, (now, announce): (u64, Announce), batch: usize, least: usize) {
    const EXPECTED: usize = 24;
    let places = if least == 0 { batch.min(7) } else { batch };
    let mut hits: HashMap<Endpoint, Vec<u32>> =
        eligible(store, &announce).into_iter().map(|peer| (peer, vec![0; places])).collect();
    let of_family = |family| hits.keys().filter(|peer| peer.family() == family).count();
    let counts = FAMILIES.map(of_family);
    let (v4, v6) = share(announce.want, counts[0], counts[1]);
    let windows = [v4, v6];
    let needed =
        counts.iter().zip(windows).map(|(&count, window)| (count * EXPECTED).div_ceil(window.max(1)));
    let batches = needed.max().unwrap_or(0).max(least).div_ceil(batch);
    let (mut rng, mut place) = (SplitMix64::new(2026), (0..places).cycle());
    let mut count = |answer: Answer| {
        let place = place.next().expect("a cycle does not end");
        assert_eq!(FAMILIES.map(|family| answer.count(family)), windows, "of {counts:?} at once");
        for peer in answer.peers {
            hits.get_mut(&peer).unwrap_or_else(|| panic!("{peer} is not eligible"))[place] += 1;
        }
    };
    for _ in 0..batches {
        // Stores may answer one announce in another way than a batch.
        match batch {
            1 => count(announce_with(store, &announce, at(now), &mut rng)),
            _ => store.tell_batch(at(now), &vec![announce; batch], &mut rng, &mut count),
        }
    }
    let announces = batches * batch;
    for (family, window) in FAMILIES.into_iter().zip(windows) {
        let of_family: Vec<_> =
            hits.iter().filter(|(peer, _)| peer.family() == family).map(|(_, hits)| hits).collect();
        if window == 0 || window == of_family.len() {
            continue;
        }
        let of = format!("{window} of {} by {announces} announces, {announce:?}", of_family.len());
        let all: Vec<u32> = of_family.iter().map(|hits| hits.iter().sum()).collect();
        assert!(!all.contains(&0), "a peer was never selected: {of}");
        let at_place = |place: usize| of_family.iter().map(|hits| hits[place]).collect();
        let at_places = (0..places).map(|place| (at_place(place), announces / places));
        for (counts, windows) in at_places.chain([(all, announces)]) {
            let (spread, most) =
                (chi_square(&counts, window * windows), fair_spread(counts.len(), window, windows));
            assert!(
                spread <= most,
                "chi-square {spread:.0}, at most {most:.0} for {windows} fair ones: {of}"
            );
        }
    }
}

fn chi_square(counts: &[u32], total: usize) -> f64 {
    let expected = total as f64 / counts.len() as f64;
    counts.iter().map(|&count| (f64::from(count) - expected).powi(2) / expected).sum()
}

/// Returns the spread that a fair sampler exceeds with a probability below 10^-6.
///
/// Simulated, then extrapolated: a sum of squares of normal variables is close to a gamma distribution of the
/// same mean and variance, with the quantile of Wilson and Hilferty (1931).
fn fair_spread(eligible: usize, window: usize, announces: usize) -> f64 {
    const SIMULATIONS: usize = 200;
    type Thresholds = HashMap<(usize, usize, usize), f64>;
    // All stores of a test run are judged by the same few thresholds.
    static KNOWN: Mutex<Option<Thresholds>> = Mutex::new(None);

    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    *known.get_or_insert_default().entry((eligible, window, announces)).or_insert_with(|| {
        let mut rng = SplitMix64::new(1);
        let spreads: Vec<f64> = (0..SIMULATIONS)
            .map(|_| chi_square(&ring_windows(eligible, window, announces, &mut rng), window * announces))
            .collect();
        let mean = spreads.iter().sum::<f64>() / SIMULATIONS as f64;
        let variance =
            spreads.iter().map(|spread| (spread - mean).powi(2)).sum::<f64>() / (SIMULATIONS - 1) as f64;
        let freedom = 2.0 * mean.powi(2) / variance;
        // The normal quantile of 1 - 10^-6 is 4.76; 5.2 leaves room for the error of the two moments.
        let ninth = 2.0 / (9.0 * freedom);
        mean * (1.0 - ninth + 5.2 * ninth.sqrt()).powi(3)
    })
}

/// Returns the number of hits of each place of a ring by windows at uniformly random places. O(places +
/// windows): it sums up the edges of the windows.
fn ring_windows(places: usize, window: usize, windows: usize, rng: &mut dyn Random) -> Vec<u32> {
    let mut edges = vec![0_i32; places + 1];
    for _ in 0..windows {
        let start = rng.below(places);
        let end = start + window;
        edges[start] += 1;
        if end > places {
            edges[places] -= 1;
            edges[0] += 1;
        }
        edges[if end > places { end - places } else { end }] -= 1;
    }
    let sums = edges[..places].iter().scan(0, |sum, edge| {
        *sum += edge;
        Some(*sum)
    });
    sums.map(|hits| u32::try_from(hits).expect("windows end behind where they start")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_window_hits_as_many_places_as_it_is_long() {
        let mut rng = SplitMix64::new(1);
        for (places, window) in [(2, 1), (10, 10), (10, 3), (74, 50)] {
            let hits = ring_windows(places, window, 500, &mut rng);
            assert_eq!(hits.iter().sum::<u32>() as usize, window * 500);
        }
        assert_eq!(ring_windows(5, 5, 7, &mut rng), [7; 5]);
    }

    #[test]
    fn the_threshold_lets_fair_samplers_pass_and_is_close_to_them() {
        let mut rng = SplitMix64::new(99);
        let most = fair_spread(74, 10, 5000);
        let worst =
            (0..3000).map(|_| chi_square(&ring_windows(74, 10, 5000, &mut rng), 50_000)).fold(0.0, f64::max);
        assert!(worst < most, "{worst} of 3,000 fair ones, {most} allowed");
        assert!(worst > most / 4.0, "{worst} of 3,000 fair ones, and {most} allowed lets anything pass");
    }
}
