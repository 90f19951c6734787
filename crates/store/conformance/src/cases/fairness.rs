//! Cases of fair selection: every eligible peer is selected with the same probability.
//!
//! Every selected peer is counted, over enough announces for 20 or more expected hits per peer. The spread of
//! the counts (Pearson's chi-square) is compared with the spread of a simulated sampler that is fair by
//! construction: it selects a window at a uniformly random place of a ring. The fastest stores select windows
//! too. Their counts spread more than those of independent draws, because consecutive peers are hit together.

use std::{
    collections::HashMap,
    iter::repeat_n,
    sync::{Mutex, PoisonError},
};

use swarmkeep::{Announce, BoundedBy, Endpoint, Families, Family, InfoHash, Random, SplitMix64};

use crate::{Subject, kit::*};

pub(crate) fn selection_is_fair_in_a_swarm_of_2(subject: &dyn Subject) {
    let (store, torrent) = (build(subject), hash(1));
    store.fill(0, [leecher(torrent, v4(1)), seeder(torrent, v4(2))]);
    assert_fair(&store, leecher(torrent, v4(9000)).want(1), 2, 4000);
}

pub(crate) fn selection_is_fair_in_a_swarm_of_75(subject: &dyn Subject) {
    for (want, announces) in [(50, 40_000), (10, 40_000)] {
        let (store, torrent) = half_seeders(subject, 75);
        // The announcer is a member in the middle: a window that skips it after it was drawn favors the peers
        // after it.
        assert_fair(&store, leecher(torrent, v4(31)).want(want), 74, announces);
    }
}

pub(crate) fn selection_is_fair_in_a_swarm_of_1_000(subject: &dyn Subject) {
    let (store, torrent) = half_seeders(subject, 1000);
    assert_fair(&store, leecher(torrent, v4(501)).want(50), 999, 8000);
}

pub(crate) fn selection_is_fair_in_a_swarm_of_100_000(subject: &dyn Subject) {
    let (store, torrent) = half_seeders(subject, 100_000);
    assert_fair(&store, leecher(torrent, v4(50_001)).want(1000), 99_999, 2000);
}

pub(crate) fn selection_for_a_seeder_is_fair(subject: &dyn Subject) {
    for announcer in [v4(2), v4(9000)] {
        let (store, torrent) = half_seeders(subject, 150);
        let announce = seeder(torrent, announcer).want(20);
        assert_fair(&store, announce, 75, 8000);
        let others = store.members(&torrent).len() - 1;
        assert_fair(&store, announce.seeders_too(true), others, 8000);
    }
}

pub(crate) fn selection_is_fair_within_each_family(subject: &dyn Subject) {
    let (store, torrent) = half_seeders(subject, 120);
    store.fill(0, (1..=60).map(|n| Announce::new(torrent, v6(n)).left((n % 2).into())));
    for (family, eligible) in [(Family::V4, 119), (Family::V6, 60)] {
        let announce = leecher(torrent, v4(61)).want(20).families(BOTH);
        assert_fair_among(&store, announce, eligible, 10_000, Some(family));
    }
    assert_fair(&store, leecher(torrent, v6(9000)).want(20).families(Families::V6), 60, 8000);
}

/// After peers have left, come back and changed roles: the places that they left must not make other peers
/// more likely.
pub(crate) fn selection_stays_fair_when_a_swarm_has_shrunk(subject: &dyn Subject) {
    let (store, torrent) = half_seeders(subject, 2000);
    store.fill(0, (1..=2000).filter(|n| n % 16 != 0 && *n > 40).map(|n| stopped(torrent, v4(n))));
    store.fill(0, (1..=40).map(|n| Announce::new(torrent, v4(n)).left(((n + 1) % 2).into())));
    let left = store.members(&torrent).len();
    assert_fair(&store, leecher(torrent, v4(1)).want(20), left - 1, 12_000);
}

/// Some addresses have the maximum number of endpoints, and some have one. A store may keep the endpoints of
/// one address together to count them.
pub(crate) fn selection_is_fair_among_the_endpoints_of_limited_addresses(subject: &dyn Subject) {
    const TOGETHER: u32 = 8;
    for (most, peers, want, announces) in [(8, 75, 10, 40_000), (8, 2000, 50, 10_000), (60, 2000, 50, 10_000)]
    {
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
        let eligible = peers as usize - 1;
        for announcer in [2, peers - 2] {
            assert_fair(&store, leecher(torrent, endpoint(announcer)).want(want), eligible, announces);
        }
    }
}

fn half_seeders(subject: &dyn Subject, count: u32) -> (Store, InfoHash) {
    let (store, torrent) = (build(subject), hash(1));
    store.fill(0, (1..=count).map(|n| Announce::new(torrent, v4(n)).left((n % 2).into())));
    (store, torrent)
}

fn assert_fair(store: &Store, announce: Announce, eligible: usize, announces: usize) {
    assert_fair_among(store, announce, eligible, announces, None);
}

/// Repeats one announce and counts the selections of each of the `eligible` peers. Half of each answer is of
/// `family`, if there is one: its peers are eligible.
fn assert_fair_among(
    store: &Store,
    announce: Announce,
    eligible: usize,
    announces: usize,
    family: Option<Family>,
) {
    let window = if family.is_some() { announce.want / 2 } else { announce.want };
    let mut hits: HashMap<Endpoint, u32> = HashMap::with_capacity(eligible);
    let mut rng = SplitMix64::new(2026);
    let mut count = |answer: Answer| {
        let handed = answer.peers.iter().filter(|peer| family.is_none_or(|family| peer.family() == family));
        assert_eq!(handed.clone().count(), window, "handed out at once, of {eligible}");
        handed.for_each(|&peer| *hits.entry(peer).or_default() += 1);
    };
    // Half of the announces one by one, and the others in batches, which stores may answer in another way.
    let alone = announces / 2;
    (0..alone).for_each(|_| count(announce_with(store, &announce, at(0), &mut rng)));
    store.tell_all(at(0), repeat_n(announce, announces - alone), &mut rng, count);
    assert!(hits.len() <= eligible, "{} peers were handed out, {eligible} are eligible", hits.len());
    let mut counts: Vec<u32> = hits.into_values().collect();
    counts.resize(eligible, 0);
    let (spread, most) = (chi_square(&counts, window * announces), fair_spread(eligible, window, announces));
    assert!(
        spread <= most,
        "selection of {window} from {eligible} is not fair: chi-square {spread:.0}, and {most:.0} at most for a fair one"
    );
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
