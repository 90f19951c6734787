//! The floods of docs/design/packed-store.md, in numbers.

use std::{fmt::Write, time::Instant};

use super::*;

/// Swarms of 1 to 40 peers, each peer from a network of its own and announced once.
const LIVING: u64 = 1200;
const MADE_UP: u64 = 60_000;
/// The first network of a flood.
const STRANGERS: u32 = 100_000;
/// More than a quarter of the lifetime: a peer that announces again proves that its swarm lives.
const RETURN: u64 = 1000;

fn size(living: u64) -> u64 {
    1 + living % 40
}

fn of_network(network: u32, n: u32) -> Endpoint {
    v4((network << 8) + n)
}

fn populated() -> Packed {
    let store = Packed::new(&config().max_swarms(5000)).expect("what it can keep");
    for n in 0..LIVING {
        (0..size(n)).for_each(|m| _ = tell(&store, 0, leecher(n, of_network(40 * n as u32 + m as u32, 1))));
    }
    store
}

/// The peers of the living swarms that are lost.
fn lost(store: &Packed) -> Vec<u64> {
    (0..LIVING).filter(|&n| store.scrape(&hash(n)).peers() < size(n)).map(size).collect()
}

fn made_up() -> impl Iterator<Item = u64> {
    1_000_000..1_000_000 + MADE_UP
}

#[test]
#[ignore = "takes a minute, and prints the table of docs/design/packed-store.md: `.ci/long floods`"]
fn floods_from_few_networks_displace_few_swarms() {
    let announces = [1, 4, 10, 40];
    let mut table = String::from("| networks |");
    announces.iter().for_each(|announces| _ = write!(table, " {announces} |"));
    for networks in [1, 10, 100, 1000] {
        write!(table, "\n| {networks} |").unwrap();
        for announces in announces {
            let store = populated();
            let began = Instant::now();
            for n in made_up() {
                for m in 0..announces {
                    // Consecutive networks for one made-up swarm, and others for the next.
                    let announce = n as u32 * announces + m;
                    let network = STRANGERS + announce % networks;
                    tell(
                        &store,
                        1 + (n - 1_000_000) / 100,
                        leecher(n, of_network(network, announce / networks % 256)),
                    );
                }
            }
            let each = began.elapsed().as_secs_f64() * 1e6 / (MADE_UP * u64::from(announces)) as f64;
            let lost = lost(&store);
            let largest = lost.iter().max().unwrap_or(&0);
            write!(table, " {} of up to {largest} peers, {each:.1} µs |", lost.len()).unwrap();
            assert!(networks > 10 || lost.is_empty(), "{table}");
        }
    }
    println!("{table}");
}

#[test]
#[ignore = "takes a minute: `.ci/long floods`"]
fn floods_from_one_address_displace_none() {
    const STEPS: u64 = 20;
    const STEP: u64 = RETURN / 8;
    // Each made-up swarm is announced once, twice at the same time, or again after a return.
    for (ports, again) in
        [1, 2, 16].into_iter().flat_map(|ports| [None, Some(0), Some(9)].map(|again| (ports, again)))
    {
        let store = populated();
        for step in 0..STEPS + again.unwrap_or(0) {
            let repeated = again.and_then(|steps| step.checked_sub(steps));
            for part in [Some(step), repeated].into_iter().flatten().filter(|&part| part < STEPS) {
                for n in made_up().skip((part * MADE_UP / STEPS) as usize).take((MADE_UP / STEPS) as usize) {
                    for port in 0..ports {
                        tell(&store, 1 + step * STEP, leecher(n, of_address(Family::V4, 1, port)));
                    }
                }
            }
        }
        let lost = lost(&store);
        println!("{ports} ports, again after {again:?} steps: {} of {LIVING} lost", lost.len());
        assert!(lost.is_empty(), "of {lost:?} peers");
    }
}
