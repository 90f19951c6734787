//! The compared stores, behind a common interface.

use std::{cell::RefCell, marker::PhantomData, net::SocketAddr, pin::pin, sync::Arc, task, time::Duration};

use aquatic_udp_protocol::{AnnounceEvent, NumberOfBytes, PeerId};
use swarmkeep::{
    Announce, CompactV4, CompactV6, HashKey, PeerBuffer, RepositoryConfig, Request, SplitMix64, Timestamp,
    TorrentRepository, catalog,
};
use swarmkeep_benches::torrust;
use torrust_tracker_primitives::{info_hash::InfoHash, peer::Peer, swarm_metadata::SwarmMetadata};
use torrust_tracker_torrent_repository::{
    entry::{Entry, EntrySync},
    repository::{Repository as TorrustRepository, RepositoryAsync},
    *,
};

use crate::aquatic::Aquatic;

/// A store under comparison.
pub(crate) trait Store: Sync {
    /// One whole announce: update, count, select up to `WANT` peers. Returns the number of selected peers.
    fn announce(&self, input: &Input, rng: &mut SplitMix64) -> usize;
    /// The same for some announces at once, as a UDP tracker receives them.
    fn announce_some(&self, inputs: &[Input], rng: &mut SplitMix64) -> usize {
        inputs.iter().map(|input| self.announce(input, rng)).sum()
    }
    /// Updates the peer, and no more than that if the store can do less.
    fn update(&self, input: &Input, rng: &mut SplitMix64);
}

/// An announce in the words of all stores, so that none converts while the clock runs.
#[derive(Debug, Clone)]
pub(crate) struct Input {
    pub(crate) announce: Announce,
    info_hash: InfoHash,
    peer: Peer,
}

/// Builds an empty store.
type Build = fn() -> Box<dyn Store>;

/// Theirs, then ours: packed and the fastest of each map family.
pub(crate) const ALL: &[(&str, Build)] = &[
    ("torrust SkipMapMutexStd", theirs::<TorrentsSkipMapMutexStd, EntryMutexStd>),
    ("torrust DashMapMutexStd", theirs::<TorrentsDashMapMutexStd, EntryMutexStd>),
    ("torrust RwLockStd", theirs::<TorrentsRwLockStd, EntrySingle>),
    ("aquatic's design", || Box::<Aquatic>::default()),
    ("swarmkeep packed", || ours("packed")),
    ("swarmkeep packed, in batches", || Box::new(Batched(build(find("packed"))))),
    ("swarmkeep skipmap-mutex-parking-lot", || ours("skipmap-mutex-parking-lot")),
    ("swarmkeep dashmap-mutex-parking-lot", || ours("dashmap-mutex-parking-lot")),
    ("swarmkeep btreemap-rwlock-parking-lot-mutex-parking-lot", || {
        ours("btreemap-rwlock-parking-lot-mutex-parking-lot")
    }),
];

/// The stores of torrust's own benches under its names, and the same of ours.
pub(crate) const UNDER_TORRUST: &[(&str, torrust::Build<'static, Input>)] = &[
    ("torrust RwLockStd", &counted::<TorrentsRwLockStd, _>),
    ("torrust RwLockStdMutexStd", &counted::<TorrentsRwLockStdMutexStd, _>),
    ("torrust RwLockStdMutexTokio", &awaited::<TorrentsRwLockStdMutexTokio, _>),
    ("torrust RwLockTokio", &awaited::<TorrentsRwLockTokio, _>),
    ("torrust RwLockTokioMutexStd", &awaited::<TorrentsRwLockTokioMutexStd, _>),
    ("torrust RwLockTokioMutexTokio", &awaited::<TorrentsRwLockTokioMutexTokio, _>),
    ("torrust SkipMapMutexStd", &counted::<TorrentsSkipMapMutexStd, _>),
    ("torrust SkipMapMutexParkingLot", &counted::<TorrentsSkipMapMutexParkingLot, _>),
    ("torrust SkipMapRwLockParkingLot", &counted::<TorrentsSkipMapRwLockParkingLot, _>),
    ("torrust DashMapMutexStd", &counted::<TorrentsDashMapMutexStd, _>),
    ("swarmkeep packed", &|| Box::new(build(FOUND[0]))),
    ("swarmkeep skipmap", &|| Box::new(build(FOUND[1]))),
    ("swarmkeep dashmap", &|| Box::new(build(FOUND[2]))),
    ("swarmkeep btreemap", &|| Box::new(build(FOUND[3]))),
];

/// Found once: while the clock runs, torrust's are only built.
static FOUND: std::sync::LazyLock<[&catalog::Implementation; 4]> =
    std::sync::LazyLock::new(|| ["packed", "skipmap", "dashmap", "btreemap"].map(find));

/// The time of every announce.
pub(crate) const NOW: u64 = 1_800_000_000;
/// The maximum number of selected peers.
pub(crate) const WANT: usize = 50;

impl From<Announce> for Input {
    fn from(announce: Announce) -> Self {
        let bytes = |number: u64| NumberOfBytes::new(number.try_into().unwrap_or(i64::MAX));
        let peer = Peer {
            peer_id: PeerId(announce.peer_id.into()),
            peer_addr: announce.endpoint.into(),
            updated: Duration::from_secs(NOW),
            uploaded: bytes(announce.uploaded),
            downloaded: bytes(announce.downloaded),
            left: bytes(announce.left),
            event: match announce.event {
                swarmkeep::AnnounceEvent::None => AnnounceEvent::None,
                swarmkeep::AnnounceEvent::Completed => AnnounceEvent::Completed,
                swarmkeep::AnnounceEvent::Started => AnnounceEvent::Started,
                swarmkeep::AnnounceEvent::Stopped => AnnounceEvent::Stopped,
            },
        };
        Self { announce, info_hash: InfoHash::from_bytes(announce.info_hash.as_bytes()), peer }
    }
}

fn ours(name: &str) -> Box<dyn Store> {
    Box::new(build(find(name)))
}

fn find(name: &str) -> &'static catalog::Implementation {
    catalog::find(name).expect("the catalog has it")
}

fn build(implementation: &catalog::Implementation) -> Ours {
    let config = RepositoryConfig::new(HashKey::from_bytes(*b"always this key."));
    let repository = implementation.build(&config).expect("every store keeps the default configuration");
    Ours(Arc::clone(repository.as_sync().expect("the fastest are synchronous")))
}

/// The maximum number of announces in a batch.
const MOST: usize = 32;

thread_local! {
    /// Room for the peers of a batch, as a worker of a tracker keeps it.
    static BUFFERS: RefCell<[(V4Bytes, V6Bytes); MOST]> =
        const { RefCell::new([([0; _], [0; _]); MOST]) };
}

type V4Bytes = [u8; WANT * CompactV4::LEN];
type V6Bytes = [u8; WANT * CompactV6::LEN];

struct Ours(Arc<dyn TorrentRepository>);

impl Store for Ours {
    fn announce(&self, input: &Input, rng: &mut SplitMix64) -> usize {
        BUFFERS.with_borrow_mut(|[(v4, v6), ..]| {
            let mut peers = PeerBuffer::new(v4, v6);
            self.0.announce(&input.announce, Timestamp::from_secs(NOW), rng, &mut peers);
            peers.len()
        })
    }

    fn update(&self, input: &Input, _: &mut SplitMix64) {
        torrust::Store::announce(self, input);
    }
}

impl torrust::Store<Input> for Ours {
    fn announce(&self, input: &Input) -> u64 {
        let (now, mut rng) = (Timestamp::from_secs(NOW), SplitMix64::new(1));
        let mut none = PeerBuffer::new(&mut [], &mut []);
        self.0.announce(&input.announce, now, &mut rng, &mut none).stats.peers()
    }
}

/// Ours, with up to 32 announces in a call.
struct Batched(Ours);

impl Store for Batched {
    fn announce(&self, input: &Input, rng: &mut SplitMix64) -> usize {
        self.0.announce(input, rng)
    }

    fn announce_some(&self, inputs: &[Input], rng: &mut SplitMix64) -> usize {
        BUFFERS.with_borrow_mut(|buffers| {
            let mut selected = 0;
            for inputs in inputs.chunks(MOST) {
                let pairs = inputs.iter().zip(&mut *buffers);
                let mut requests: Vec<_> = pairs
                    .map(|(input, (v4, v6))| Request::new(input.announce, PeerBuffer::new(v4, v6)))
                    .collect();
                self.0.0.announce_batch(&mut requests, Timestamp::from_secs(NOW), rng);
                selected += requests.iter().map(|request| request.peers.len()).sum::<usize>();
            }
            selected
        })
    }

    fn update(&self, input: &Input, rng: &mut SplitMix64) {
        self.0.update(input, rng);
    }
}

fn theirs<R: TorrustRepository<T> + Sync, T: Selects + 'static>() -> Box<dyn Store> {
    Box::new(Theirs(R::default(), PhantomData))
}

struct Theirs<R, T>(R, PhantomData<fn() -> T>);

impl<R: TorrustRepository<T> + Sync, T: Selects> Store for Theirs<R, T> {
    /// The calls that torrust's tracker makes for an announce, with our limit instead of its own of 74.
    fn announce(&self, input: &Input, _: &mut SplitMix64) -> usize {
        self.0.upsert_peer(&input.info_hash, &input.peer);
        let _counts = self.0.get_swarm_metadata(&input.info_hash);
        let entry = self.0.get(&input.info_hash);
        entry.map_or(0, |entry| entry.select(&input.peer.peer_addr, WANT))
    }

    fn update(&self, input: &Input, _: &mut SplitMix64) {
        self.0.upsert_peer(&input.info_hash, &input.peer);
    }
}

fn counted<R: TorrustRepository<T> + Sync, T: 'static>() -> Box<dyn torrust::Store<Input>> {
    Box::new(Theirs::<R, T>(R::default(), PhantomData))
}

impl<R: TorrustRepository<T> + Sync, T> torrust::Store<Input> for Theirs<R, T> {
    fn announce(&self, input: &Input) -> u64 {
        self.0.upsert_peer(&input.info_hash, &input.peer);
        peers(self.0.get_swarm_metadata(&input.info_hash))
    }
}

fn awaited<R: RepositoryAsync<T> + Sync, T: 'static>() -> Box<dyn torrust::Store<Input>> {
    Box::new(Awaited::<R, T>(R::default(), PhantomData))
}

/// Theirs under tokio's locks, which need no runtime.
struct Awaited<R, T>(R, PhantomData<fn() -> T>);

impl<R: RepositoryAsync<T> + Sync, T> torrust::Store<Input> for Awaited<R, T> {
    fn announce(&self, input: &Input) -> u64 {
        let mut done = pin!(async {
            self.0.upsert_peer(&input.info_hash, &input.peer).await;
            peers(self.0.get_swarm_metadata(&input.info_hash).await)
        });
        // Only a wait needs a waker, which `block_on` allocates.
        match done.as_mut().poll(&mut task::Context::from_waker(task::Waker::noop())) {
            task::Poll::Ready(count) => count,
            task::Poll::Pending => pollster::block_on(done),
        }
    }
}

fn peers(counts: Option<SwarmMetadata>) -> u64 {
    counts.map_or(0, |counts| u64::from(counts.complete + counts.incomplete))
}

/// Selects peers from an entry, whether there is a lock around it or not.
trait Selects {
    fn select(&self, client: &SocketAddr, limit: usize) -> usize;
}

macro_rules! selects {
    ($($entry:ty: $via:ident),*) => {$(
        impl Selects for $entry {
            fn select(&self, client: &SocketAddr, limit: usize) -> usize {
                $via::get_peers_for_client(self, client, Some(limit)).len()
            }
        }
    )*};
}

selects!(EntrySingle: Entry, EntryMutexStd: EntrySync);
