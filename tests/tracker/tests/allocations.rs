//! Announces that refresh allocate nothing, in any synchronous store: neither for the update nor for the
//! selection. Nor does the server for any request over UDP. A page takes the buffer of its caller.

use std::{
    num::NonZero,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use swarmkeep::{
    Announce, AnnounceEvent, Endpoint, Families, HashKey, InfoHash, Packed, PeerBuffer, RepositoryConfig,
    SplitMix64, SwarmStats, SwarmSummary, Timestamp, TorrentRepository, catalog,
};
use swarmkeep_kit::allocations::{Counting, calls_of_all, of_thread};
use swarmkeep_tests::{
    Tracker, any_port, listening,
    udp::{CONNECT, Client, announce},
};
use swarmkeep_tracker::Server;
use swarmkeep_tracker_protocol::udp::{ConnectionId, ScrapeRequest, TransactionId};

/// Each test holds it, so that none counts the allocations of another.
static ALONE: Mutex<()> = Mutex::new(());

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn endpoint(n: u32, v6: bool) -> Endpoint {
    let text =
        if v6 { format!("[2001:db8::{n:x}]:6881") } else { format!("10.0.{}.{}:6881", n >> 8, n & 0xff) };
    text.parse().expect("an endpoint")
}

#[test]
fn an_announce_that_refreshes_allocates_nothing() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let config = RepositoryConfig::new(HashKey::from_bytes([7; 16])).lifetime(Duration::from_secs(1800));
    let mut tried = 0;
    for implementation in catalog::ALL {
        let repository = implementation.build(&config).expect("nothing unusual is asked for");
        // A boxed future is an allocation.
        let Some(store) = repository.as_sync() else { continue };
        tried += 1;
        for size in [1, 2, 10, 100, 2000] {
            let announces: Vec<_> = (0..size)
                .flat_map(|n| [endpoint(n, false), endpoint(n, true)])
                .enumerate()
                .map(|(n, endpoint)| {
                    let announce = Announce::new(InfoHash::new([size as u8; 20]), endpoint);
                    announce.left(n as u64 % 2).want(74).families(Families::all())
                })
                .collect();
            let (warm, after) =
                (allocations_of(&**store, &announces, 0), allocations_of(&**store, &announces, 1));
            assert!(warm > 0, "the count counts");
            assert_eq!(after, 0, "allocations of {} refreshes in {}", announces.len(), implementation.name);

            // Nor does an announce that finds no peer to change.
            let stranger = endpoint(60_000, false);
            let leaving = Announce::new(announces[0].info_hash, stranger).event(AnnounceEvent::Stopped);
            let unknown = Announce::new(InfoHash::new([0xee; 20]), stranger).event(AnnounceEvent::Stopped);
            let after = allocations_of(&**store, &[leaving, unknown], 2);
            assert_eq!(after, 0, "allocations of strangers that leave {}", implementation.name);
        }
    }
    assert!(tried >= 10, "only {tried} synchronous stores were tried");
}

fn allocations_of(store: &dyn TorrentRepository, announces: &[Announce], seconds: u64) -> u64 {
    let (mut v4, mut v6) = ([0; 6 * 74], [0; 18 * 74]);
    let mut peers = PeerBuffer::new(&mut v4, &mut v6);
    let (now, mut rng) = (Timestamp::from_secs(1_800_000_000 + seconds), SplitMix64::new(1));
    let work =
        || announces.iter().for_each(|announce| _ = store.announce(announce, now, &mut rng, &mut peers));
    of_thread(work).1.calls
}

#[test]
fn a_page_takes_only_the_buffer_of_its_caller() {
    const LIMIT: usize = 8192;
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let store = Packed::new(&RepositoryConfig::new(HashKey::from_bytes([7; 16]))).expect("no limits");
    let stats = SwarmStats { downloaded: 1, ..SwarmStats::default() };
    for n in 0..40_000_u32 {
        let mut info_hash = [0; 20];
        info_hash[..4].copy_from_slice(&n.to_be_bytes());
        let swarm = SwarmSummary { info_hash: InfoHash::new(info_hash), stats };
        store.restore(&swarm, &[], Timestamp::from_secs(1_800_000_000));
    }
    // The room of a full scrape.
    let mut page = Vec::with_capacity(4 * LIMIT);
    let ((), paged) = of_thread(|| store.page(None, LIMIT, &mut page));
    assert_eq!((page.len(), page.capacity()), (LIMIT, 4 * LIMIT));
    assert!(paged.most < 512 << 10, "less than the swarms that were looked at: {paged:?}");
}

#[test]
fn a_request_over_udp_allocates_nothing_in_the_whole_process() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let store = catalog::find("packed").expect("in the catalog");
    let store = store.build(&RepositoryConfig::new(HashKey::from_bytes([7; 16]))).expect("nothing unusual");
    let mut config = listening(&[any_port("127.0.0.1")], &[]);
    config.udp_workers = NonZero::new(1);
    let server = Server::bind(&config, store).expect("loopback");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    let tracker = Tracker::on(runtime, server);

    let mut client = Client::of(tracker.udp[0]);
    let (id, mut answer) = (client.connect(), [0; 2048]);
    let scrape = ScrapeRequest::new(id, TransactionId(1), &[[7; 20]]).to_vec();
    let [known, forged] = [id, ConnectionId(1)].map(|id| announce(id).to_vec());
    let mut round = || {
        [&CONNECT[..], &known, &scrape, &forged].map(|packet| {
            client.send(packet);
            client.socket.recv(&mut answer).expect("an answer")
        })
    };
    // The first announce makes the swarm, and the first answer of each kind makes lazy values.
    assert_eq!(round(), [16, 20, 20, 29]);
    let began = Instant::now();
    let ((), allocations) = calls_of_all(|| (0..2000).for_each(|_| _ = round()));
    // Beside the requests a sweep step may fall into each second.
    let most = 20 * (1 + began.elapsed().as_secs());
    assert!(allocations < most, "{allocations} allocations in 8,000 requests, {most} allowed");
}
