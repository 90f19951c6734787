//! Behaviour that only large swarms show.

use std::{collections::BTreeSet, net::Ipv6Addr};

use swarmkeep::{
    Announce, AsyncTorrentRepository, Budget, Endpoint, PeerBuffer, Request, Retention, SplitMix64, Timestamp,
};
use swarmkeep_redis::RedisRepository;
use swarmkeep_servers::Server;
use swarmkeep_store_tests::{
    programs::{REDIS, Trial},
    tests,
};

use crate::redis::{
    crowd::{NOW, endpoint, tell_all, torrent},
    stores::{RUNTIME, calls, config, connect, settings, started},
};

pub(crate) fn tests() -> Vec<Trial> {
    tests! {
        [REDIS]:
            redis_hands_out_tens_of_thousands_of_peers_at_once,
            redis_network_with_all_the_endpoints_it_may_have_makes_no_selection_slow,
            redis_swarm_that_grows_while_it_is_swept_keeps_no_expired_peer,
    }
}

/// Hundreds of pages, in one answer.
fn redis_hands_out_tens_of_thousands_of_peers_at_once() {
    const PEERS: u32 = 30_000;
    const WANT: usize = 20_000;
    let server = started(Server::start());
    RUNTIME.block_on(async {
        let store = connect(&settings([server.url()])).await;
        for part in (0..PEERS).collect::<Vec<_>>().chunks(500) {
            let comes = |&n| Announce::new(torrent(0), endpoint(n)).left(u64::from(n.is_multiple_of(2)));
            tell_all(&store, part.iter().map(comes), NOW).await;
        }
        // Two requests, which are one call.
        let mut rooms = vec![0; 2 * WANT * 6];
        let mut batch: Vec<_> = rooms
            .chunks_mut(WANT * 6)
            .map(|room| {
                let asks = Announce::new(torrent(0), endpoint(0)).want(WANT);
                Request::new(asks, PeerBuffer::new(room, &mut []))
            })
            .collect();
        store.announce_batch(&mut batch, NOW, &mut SplitMix64::new(1)).await.expect("reached");
        for request in &batch {
            let announced = request.answer.expect("each is answered");
            assert_eq!(announced.stats.peers(), u64::from(PEERS));
            let told: BTreeSet<Endpoint> = request.peers.endpoints().collect();
            assert_eq!(told.len(), WANT, "all of them different");
            assert!(!told.contains(&endpoint(0)), "no peer gets itself");
        }
    });
}

/// All peers of a /48 share a page, in which there may be 200 more than in others.
fn redis_network_with_all_the_endpoints_it_may_have_makes_no_selection_slow() {
    const PEERS: u32 = 2000;
    let server = started(Server::start());
    let peer = |network: u32, n: u32| {
        let subnet = u128::from(n / 8 / 5) << 72 | u128::from(n / 8 % 5) << 64 | u128::from(n % 8 + 1);
        let address = (0x2001_0db8 << 96) + (u128::from(network) << 80) + subnet;
        Endpoint::new(Ipv6Addr::from_bits(address).into(), 6881).expect("the port is not 0")
    };
    RUNTIME.block_on(async {
        let limited = config().max_endpoints_per_address(8);
        let store = RedisRepository::connect(&settings([server.url()]), &limited).await.expect("reached");
        // How often a page is read for each announce.
        let reads = async |peers: Vec<Endpoint>| {
            let before = calls(&server, "hget");
            for (n, peer) in peers.iter().enumerate() {
                let (mut room, mut rng) = ([0; 900], SplitMix64::new(n as u64));
                let asks = Announce::new(torrent(0), *peer).want(50);
                let peers = &mut PeerBuffer::new(&mut [], &mut room);
                store.announce(&asks, NOW, &mut rng, peers).await.expect("reached");
            }
            (calls(&server, "hget") - before) as f64 / peers.len() as f64
        };
        let others: Vec<_> = (0..PEERS).map(|n| peer(n, 0)).collect();
        reads(others.clone()).await;
        let usual = reads(others.clone()).await;
        reads((0..1000).map(|n| peer(1 << 15, n)).collect()).await;
        let stats = store.scrape(&torrent(0)).await.expect("reached");
        assert_eq!(stats.peers(), u64::from(PEERS) + 200);
        let crowded = reads(others).await;
        assert!(crowded < usual + 4.0, "{usual} reads for each announce before, {crowded} after");
    });
}

/// A page is split while a sweep is in the middle of the swarm: some peers go to its end, where the sweep has
/// been. The next pass finds them.
fn redis_swarm_that_grows_while_it_is_swept_keeps_no_expired_peer() {
    const OLD: u32 = 2000;
    let server = started(Server::start());
    RUNTIME.block_on(async {
        let store = connect(&settings([server.url()])).await;
        let later = Timestamp::from_secs(NOW.as_secs() + 1801);
        let comes = |n| Announce::new(torrent(0), endpoint(n));
        tell_all(&store, (0..OLD).map(comes), NOW).await;
        let (mut next, mut passes) = (OLD, 0);
        while passes < 2 {
            // Enough peers to split a page or two during the sweep.
            if passes == 0 {
                tell_all(&store, (next..next + 100).map(comes), later).await;
                next += 100;
            }
            let step = store.sweep(later, Retention::DropEmpty, Budget::peers(64)).await.expect("reached");
            passes += usize::from(step.pass_complete);
        }
        let stats = store.scrape(&torrent(0)).await.expect("reached");
        assert_eq!(stats.peers(), u64::from(next - OLD), "only peers that have not expired");
    });
}
