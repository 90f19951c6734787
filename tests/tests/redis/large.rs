//! What only large swarms show.

use std::collections::BTreeSet;

use swarmkeep::{Announce, AsyncTorrentRepository, Endpoint, PeerBuffer, Request, SplitMix64};
use swarmkeep_redis::{RedisRepository, servers::Server};

use crate::{
    crowd::{NOW, endpoint, torrent},
    stores::{RUNTIME, config, settings, started},
};

/// Hundreds of pages, in one answer.
#[test]
fn redis_hands_out_tens_of_thousands_of_peers_at_once() {
    const PEERS: u32 = 30_000;
    const WANT: usize = 20_000;
    let server = started(Server::start());
    RUNTIME.block_on(async {
        let store = RedisRepository::connect(&settings([server.url()]), &config()).await.expect("reached");
        let mut rng = SplitMix64::new(1);
        for part in (0..PEERS).collect::<Vec<_>>().chunks(500) {
            let comes = |&n| Announce::new(torrent(0), endpoint(n)).left(u64::from(n.is_multiple_of(2)));
            let mut batch: Vec<_> =
                part.iter().map(|n| Request::new(comes(n), PeerBuffer::new(&mut [], &mut []))).collect();
            store.announce_batch(&mut batch, NOW, &mut rng).await.expect("reached");
        }
        let mut room = vec![0; WANT * 6];
        let mut peers = PeerBuffer::new(&mut room, &mut []);
        let asks = Announce::new(torrent(0), endpoint(0)).want(WANT);
        let announced = store.announce(&asks, NOW, &mut rng, &mut peers).await.expect("reached");
        assert_eq!(announced.stats.peers(), u64::from(PEERS));
        let told: BTreeSet<Endpoint> = peers.endpoints().collect();
        assert_eq!(told.len(), WANT, "all of them different");
        assert!(!told.contains(&endpoint(0)), "nobody is handed to itself");
    });
}
