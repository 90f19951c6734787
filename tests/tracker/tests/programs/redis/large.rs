//! What only large swarms show.

use std::{collections::BTreeSet, ops::Range};

use swarmkeep::{
    Announce, AsyncTorrentRepository, Budget, Endpoint, PeerBuffer, Request, Retention, SplitMix64, Timestamp,
};
use swarmkeep_redis::servers::Server;
use swarmkeep_store_tests::{
    programs::{REDIS, Trial},
    tests,
};

use crate::redis::{
    crowd::{NOW, endpoint, torrent},
    stores::{RUNTIME, connect, settings, started},
};

/// The tests of this module.
pub(crate) fn tests() -> Vec<Trial> {
    tests! {
        [REDIS]:
            redis_hands_out_tens_of_thousands_of_peers_at_once,
            redis_swarm_that_grows_while_it_is_swept_keeps_nobody_who_has_expired,
    }
}

/// Hundreds of pages, in one answer.
fn redis_hands_out_tens_of_thousands_of_peers_at_once() {
    const PEERS: u32 = 30_000;
    const WANT: usize = 20_000;
    let server = started(Server::start());
    RUNTIME.block_on(async {
        let store = connect(&settings([server.url()])).await;
        let mut rng = SplitMix64::new(1);
        for part in (0..PEERS).collect::<Vec<_>>().chunks(500) {
            let comes = |&n| Announce::new(torrent(0), endpoint(n)).left(u64::from(n.is_multiple_of(2)));
            let mut batch: Vec<_> =
                part.iter().map(|n| Request::new(comes(n), PeerBuffer::new(&mut [], &mut []))).collect();
            store.announce_batch(&mut batch, NOW, &mut rng).await.expect("reached");
        }
        // Two, which are one call.
        let mut rooms = vec![0; 2 * WANT * 6];
        let mut batch: Vec<_> = rooms
            .chunks_mut(WANT * 6)
            .map(|room| {
                let asks = Announce::new(torrent(0), endpoint(0)).want(WANT);
                Request::new(asks, PeerBuffer::new(room, &mut []))
            })
            .collect();
        store.announce_batch(&mut batch, NOW, &mut rng).await.expect("reached");
        for request in &batch {
            let announced = request.answer.expect("each is answered");
            assert_eq!(announced.stats.peers(), u64::from(PEERS));
            let told: BTreeSet<Endpoint> = request.peers.endpoints().collect();
            assert_eq!(told.len(), WANT, "all of them different");
            assert!(!told.contains(&endpoint(0)), "nobody is handed to itself");
        }
    });
}

/// A page is split while a sweep is in the middle of the swarm: some peers go to its end, where the sweep has
/// been. The next pass finds them.
fn redis_swarm_that_grows_while_it_is_swept_keeps_nobody_who_has_expired() {
    const OLD: u32 = 2000;
    let server = started(Server::start());
    RUNTIME.block_on(async {
        let store = connect(&settings([server.url()])).await;
        let mut rng = SplitMix64::new(1);
        let later = Timestamp::from_secs(NOW.as_secs() + 1801);
        let mut come = async |peers: Range<u32>, now| {
            let comes = |n| Announce::new(torrent(0), endpoint(n));
            let mut batch: Vec<_> =
                peers.map(|n| Request::new(comes(n), PeerBuffer::new(&mut [], &mut []))).collect();
            store.announce_batch(&mut batch, now, &mut rng).await.expect("reached");
        };
        come(0..OLD, NOW).await;
        let (mut next, mut passes) = (OLD, 0);
        while passes < 2 {
            // As many as split a page or two, while there is something to be swept.
            if passes == 0 {
                come(next..next + 100, later).await;
                next += 100;
            }
            let step = store.sweep(later, Retention::DropEmpty, Budget::peers(64)).await.expect("reached");
            passes += usize::from(step.pass_complete);
        }
        let stats = store.scrape(&torrent(0)).await.expect("reached");
        assert_eq!(stats.peers(), u64::from(next - OLD), "only those who have not expired");
    });
}
