//! Peers that announce while servers fail or change, and the answers that they got.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use swarmkeep::{
    Announce, AnnounceEvent, AsyncTorrentRepository, Budget, Cursor, Endpoint, InfoHash, PeerBuffer,
    PeerRecord, Request, Retention, SplitMix64, SwarmSummary, Timestamp, Totals, Unavailable,
};
use swarmkeep_redis::RedisRepository;
use tokio::task::JoinSet;

pub(crate) const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);

const TORRENTS: u32 = 300;

/// The number of swarms checked at once.
const ABREAST: usize = 16;

/// Info hashes without structure.
pub(crate) fn torrent(n: u32) -> InfoHash {
    let word = n.wrapping_mul(0x9e37_79b9).to_be_bytes();
    InfoHash::new(std::array::from_fn(|at| word[at % 4] ^ at as u8))
}

pub(crate) fn endpoint(n: u32) -> Endpoint {
    Endpoint::new(std::net::Ipv4Addr::from_bits(0x0a00_0000 + n).into(), 6881).expect("the port is not 0")
}

/// A peer that has just completed: if the store has it, its download must be counted exactly once.
pub(crate) fn finished(n: u32) -> Announce {
    Announce::new(torrent(n % TORRENTS), endpoint(n)).left(0).event(AnnounceEvent::Completed)
}

/// Announces one peer, for ten others.
pub(crate) async fn tell(
    store: &RedisRepository,
    announce: &Announce,
) -> Result<swarmkeep::Announced, Unavailable> {
    let mut room = [0; 60];
    let mix = |seed: u64, &byte: &u8| seed.wrapping_mul(31).wrapping_add(byte.into());
    let seed = announce.endpoint.as_bytes().iter().fold(1, mix);
    store.announce(announce, NOW, &mut SplitMix64::new(seed), &mut PeerBuffer::new(&mut room, &mut [])).await
}

/// Requests for no peers.
pub(crate) fn requests(announces: impl IntoIterator<Item = Announce>) -> Vec<Request<'static>> {
    let request = |announce| Request::new(announce, PeerBuffer::new(&mut [], &mut []));
    announces.into_iter().map(request).collect()
}

/// Announces all in one batch.
pub(crate) async fn tell_all(
    store: &RedisRepository,
    announces: impl IntoIterator<Item = Announce>,
    now: Timestamp,
) {
    let mut batch = requests(announces);
    store.announce_batch(&mut batch, now, &mut SplitMix64::new(1)).await.expect("acknowledged");
}

/// Sweeps to the end of a pass, in steps of this number of peers. Returns the number of expired peers.
pub(crate) async fn sweep(store: &RedisRepository, now: Timestamp, step: usize) -> u64 {
    let mut expired = 0;
    loop {
        let swept = store.sweep(now, Retention::DropEmpty, Budget::peers(step)).await.expect("reached");
        expired += swept.expired;
        if swept.pass_complete {
            return expired;
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct AnnounceResults {
    /// The acknowledged ones.
    pub(crate) acknowledged: Vec<u32>,
    /// The others, with their errors.
    pub(crate) refused: Vec<(u32, String)>,
    /// The longest time of an announce.
    pub(crate) slowest: Duration,
}

/// Announces new peers, sixteen at a time, until `meanwhile` is done. `meanwhile` receives the number of the
/// next one.
pub(crate) async fn announce_while<T>(
    store: &Arc<RedisRepository>,
    first: u32,
    meanwhile: impl AsyncFnOnce(Arc<AtomicU32>) -> T,
) -> (AnnounceResults, T) {
    let (next, done) = (Arc::new(AtomicU32::new(first)), Arc::new(AtomicBool::new(false)));
    let mut tasks = JoinSet::new();
    for _ in 0..16 {
        let (store, next, done) = (Arc::clone(store), Arc::clone(&next), Arc::clone(&done));
        tasks.spawn(async move {
            let mut results = AnnounceResults::default();
            while !done.load(Relaxed) {
                let n = next.fetch_add(1, Relaxed);
                let begin = Instant::now();
                match tell(&store, &finished(n)).await {
                    Ok(_) => results.acknowledged.push(n),
                    Err(unavailable) => {
                        results.refused.push((n, unavailable.reason));
                        // Like a tracker's clients: none tries again at once.
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                }
                results.slowest = results.slowest.max(begin.elapsed());
            }
            results
        });
    }
    let result = meanwhile(Arc::clone(&next)).await;
    done.store(true, Relaxed);
    let mut all = AnnounceResults::default();
    while let Some(results) = tasks.join_next().await {
        let mut results = results.expect("no announce panics");
        all.acknowledged.append(&mut results.acknowledged);
        all.refused.append(&mut results.refused);
        all.slowest = all.slowest.max(results.slowest);
    }
    (all, result)
}

/// All swarms of the store.
pub(crate) async fn swarms(store: &RedisRepository) -> Vec<SwarmSummary> {
    let (mut cursor, mut swarms) = (Cursor::START, Vec::new());
    while !cursor.is_end() {
        cursor = store.walk(cursor, 1000, &mut swarms).await.expect("reached");
    }
    swarms
}

/// All peers of a swarm.
pub(crate) async fn peers(store: &RedisRepository, info_hash: &InfoHash) -> Vec<PeerRecord> {
    let (mut cursor, mut peers) = (Cursor::START, Vec::new());
    while !cursor.is_end() {
        cursor = store.peers(info_hash, cursor, 1000, &mut peers).await.expect("reached");
    }
    peers
}

/// All peers of the store. Compares everything that is kept twice: counts with listings, totals with counts,
/// and downloads with completed peers.
pub(crate) async fn members(store: &RedisRepository) -> BTreeMap<InfoHash, BTreeSet<Endpoint>> {
    let (mut members, mut counted) = (BTreeMap::new(), Totals::default());
    for some in swarms(store).await.chunks(ABREAST) {
        for (swarm, endpoints) in
            some.iter().zip(join_all(some.iter().map(|swarm| listed(store, swarm))).await)
        {
            counted.swarms += 1;
            counted.v4.seeders += u64::from(swarm.stats.complete);
            counted.v4.leechers += u64::from(swarm.stats.incomplete);
            counted.downloaded += u64::from(swarm.stats.downloaded);
            assert!(members.insert(swarm.info_hash, endpoints).is_none(), "a swarm is shown twice");
        }
    }
    let mut totals = store.totals().await.expect("reached");
    totals.evicted = counted.evicted;
    assert_eq!(totals, counted, "totals and counts");
    members
}

/// The peers of a swarm, compared with its counts.
async fn listed(store: &RedisRepository, swarm: &SwarmSummary) -> BTreeSet<Endpoint> {
    let peers = peers(store, &swarm.info_hash).await;
    let endpoints: BTreeSet<_> = peers.iter().map(|peer| peer.endpoint).collect();
    assert_eq!(endpoints.len(), peers.len(), "a peer is listed twice");
    assert_eq!(swarm.stats.peers(), peers.len() as u64, "the counts of a swarm and its peers");
    assert_eq!(
        store.scrape(&swarm.info_hash).await.expect("reached"),
        swarm.stats,
        "its scrape and its summary"
    );
    assert!(
        swarm.stats.downloaded >= swarm.stats.complete,
        "a download is counted for each completed peer: {:?}",
        swarm.stats
    );
    endpoints
}

/// Asserts that each announce was acknowledged, took effect and was counted once.
pub(crate) async fn assert_all_done(store: &RedisRepository, results: &AnnounceResults) {
    assert_eq!(results.refused, []);
    assert_eq!(lost(store, results).await, [] as [u32; 0], "acknowledged and lost");
    assert_counted_once(store).await;
}

/// As many downloads as peers: each was counted exactly once.
pub(crate) async fn assert_counted_once(store: &RedisRepository) {
    for (info_hash, peers) in members(store).await {
        let stats = store.scrape(&info_hash).await.expect("reached");
        assert_eq!(stats.downloaded as usize, peers.len(), "downloads, of peers that finished once each");
    }
}

/// The acknowledged peers that the store does not have.
pub(crate) async fn lost(store: &RedisRepository, results: &AnnounceResults) -> Vec<u32> {
    let members = members(store).await;
    let is_there =
        |n: u32| members.get(&torrent(n % TORRENTS)).is_some_and(|peers| peers.contains(&endpoint(n)));
    results.acknowledged.iter().copied().filter(|&n| !is_there(n)).collect()
}
