//! Seeding: what peers ask for, and what reading it takes on the modelled disk, one by one and with whole
//! blocks read ahead.
//!
//! No content is kept, so that a store of any size takes no room; what is replayed is what the real store and
//! the real cache read.

use std::{
    collections::{BTreeMap, HashMap},
    io::IoSlice,
    sync::Arc,
};

use serde::{Deserialize, Serialize};
use swarmkeep::{Random, SplitMix64};
use swarmkeep_content::{
    Content, ContentExt, ContentRepository, Geometry, PieceBits,
    block::{Allocation, BlockStore, FormatOptions},
    stripe_cache::{StripeCache, StripeCacheOptions},
};

use crate::content::{
    Result,
    device::ZeroDevice,
    disk::{Access, Replay},
    download::{Work, shuffle},
    payload::REQUEST,
    plan::{Locality, Options, SeedingOptions},
    trace::{Trace, TracedDevice, info_hash},
};

/// Peers of one locality, served in several ways.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Seeded {
    /// How the peers choose.
    pub locality: Locality,
    /// Each request is a read of 16 KiB, in the order in which they come.
    pub single: Served,
    /// The same, of which a drive sorts 32 at a time, as many as SATA lets it know.
    pub single_sorted: Served,
    /// The same behind a cache of what was read, as large as that of the stripes, that forgets what nobody
    /// asked for the longest time.
    pub single_cached: Served,
    /// Through the stripe cache.
    pub read_ahead: Served,
}

/// What serving took.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Served {
    /// Bytes that peers got, of which some were read from memory.
    pub served: u64,
    /// What the disk did.
    pub modelled: Replay,
}

impl Served {
    /// Megabytes (10⁶) that peers got in a modelled second.
    pub fn rate(&self) -> f64 {
        self.served as f64 / self.modelled.seconds / 1e6
    }
}

impl Seeded {
    /// How many times as fast as single reads in the order in which they come.
    pub fn speedup(&self) -> f64 {
        self.read_ahead.rate() / self.single.rate()
    }
}

/// How many requests a drive sorts: the depth of SATA's native command queue.
const QUEUE: usize = 32;
/// Pieces of an extent have so many bytes together, as libtorrent's `piece_extent_affinity` has them.
const EXTENT: u64 = 4 << 20;

/// Models the peers of `options`, and for comparison those that all choose in one way.
pub(crate) fn measure(
    options: &Options,
    seeding: SeedingOptions,
    progress: &mut dyn FnMut(f64),
) -> Result<Vec<Seeded>> {
    let shared = SeededStore::new(options)?;
    let only = |in_order, by_extent| Locality { in_order, by_extent, same_rare: 0.0 };
    let own = seeding.locality;
    let others = [only(1.0, 0.0), only(0.0, 1.0), Locality { same_rare: own.same_rare, ..only(0.0, 0.0) }];
    let all: Vec<_> = [own].into_iter().chain(others).chain([Locality::RANDOM]).collect();
    let mut seeded: Vec<Seeded> = Vec::new();
    for (n, &locality) in all.iter().enumerate() {
        if !seeded.iter().any(|before| before.locality == locality) {
            seeded.push(shared.serve(SeedingOptions { locality, ..seeding })?);
        }
        progress((n + 1) as f64 / all.len() as f64);
    }
    Ok(seeded)
}

/// Complete torrents on a device that is traced.
struct SeededStore<'a> {
    options: &'a Options,
    store: BlockStore,
    trace: Arc<Trace>,
    contents: Vec<Arc<dyn Content>>,
}

impl<'a> SeededStore<'a> {
    /// Laid out as a download through the stripe cache leaves them: the blocks of those that are downloaded
    /// at a time lie mixed.
    fn new(options: &'a Options) -> Result<Self> {
        let (work, block) = (options.work(), u64::from(options.block));
        let blocks = u64::from(work.torrents) * work.size.div_ceil(block) + 20;
        let trace = Trace::with_room_for(0);
        let device = TracedDevice { device: ZeroDevice::new(blocks * block), trace: Arc::clone(&trace) };
        BlockStore::format(&device, FormatOptions::new().block_size(options.block))?;
        let store = BlockStore::boot(device, Allocation::Sequential)?;
        let contents = (0..work.torrents).map(|number| Ok(store.create(&work.new_torrent(number)?)?));
        let contents = contents.collect::<Result<Vec<_>>>()?;
        let zeroes = swarmkeep_content::block::sectors(block as usize / 4096);
        let zeroes = zerocopy::IntoBytes::as_bytes(&zeroes[..]);
        let mut rng = SplitMix64::new(work.seed);
        for together in contents.chunks(work.parallel as usize) {
            let mut stripes: Vec<_> = together
                .iter()
                .flat_map(|content| {
                    (0..work.size.div_ceil(block)).map(move |stripe| (content, stripe * block))
                })
                .collect();
            shuffle(&mut stripes, &mut rng);
            for (content, at) in stripes {
                let len = block.min(work.size - at);
                content.write_at(at, &[IoSlice::new(&zeroes[..len as usize])])?;
            }
            for content in together {
                (0..content.geometry().pieces())
                    .try_for_each(|piece| content.mark_complete(piece).map(drop))?;
            }
        }
        store.flush()?;
        Ok(Self { options, store, trace, contents })
    }

    fn serve(&self, seeding: SeedingOptions) -> Result<Seeded> {
        let (work, disk) = (self.options.work(), self.options.disk);
        let requests = requests(work, &self.contents, seeding);
        let served = requests.iter().map(|request| request.len).sum();
        let replay = |trace: &[Access]| Served { served, modelled: disk.replay(trace.iter().copied()) };

        let single = self.ask(&requests, &self.contents)?;
        assert_eq!(single.len(), requests.len(), "a request is one read");
        let mut sorted = single.clone();
        sorted.chunks_mut(QUEUE).for_each(|queue| queue.sort_by_key(|access| access.at));
        let mut lru = Lru::new(self.options.cache / REQUEST as u64);
        let misses =
            single.iter().zip(&requests).filter(|(_, request)| !lru.hit(request.torrent, request.at));
        let misses: Vec<_> = misses.map(|(access, _)| *access).collect();

        let cache = StripeCacheOptions::new().stripe(self.options.block).read_memory(self.options.cache);
        let cache = StripeCache::new(Arc::new(self.store.clone()), cache)?;
        let handles = (0..work.torrents).map(|number| Ok(cache.open(&info_hash(number))?));
        let ahead = self.ask(&requests, &handles.collect::<Result<Vec<_>>>()?)?;
        Ok(Seeded {
            locality: seeding.locality,
            single: replay(&single),
            single_sorted: replay(&sorted),
            single_cached: replay(&misses),
            read_ahead: replay(&ahead),
        })
    }

    /// Answers requests; what was read for that.
    fn ask(&self, requests: &[Request], contents: &[Arc<dyn Content>]) -> Result<Vec<Access>> {
        let mut buffer = [0; REQUEST];
        self.trace.turn(true);
        for request in requests {
            contents[request.torrent as usize].read(request.at, &mut buffer[..request.len as usize])?;
        }
        self.trace.turn(false);
        Ok(self.trace.take())
    }
}

/// What a peer asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Request {
    torrent: u32,
    at: u64,
    len: u64,
}

/// What the peers ask for, one after another: each time a peer by chance, who goes through the piece it has
/// begun.
fn requests(work: Work, contents: &[Arc<dyn Content>], seeding: SeedingOptions) -> Vec<Request> {
    let mut rng = SplitMix64::new(work.seed ^ 0x7365_6564);
    let mut peers: Vec<_> =
        (0..seeding.peers).map(|n| Peer::new(n, contents, seeding.locality, seeding.peers)).collect();
    // Those of one swarm should be of all kinds, and those of one kind in all swarms.
    shuffle(&mut peers, &mut rng);
    for (n, peer) in peers.iter_mut().enumerate() {
        peer.join(n as u32 % work.torrents, contents);
    }
    let mut latest = vec![None; contents.len()];
    (0..seeding.requests)
        .map(|_| {
            let peer = (rng.next_u64() % u64::from(seeding.peers)) as usize;
            peers[peer].request(&mut latest, &mut rng)
        })
        .collect()
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Habit {
    InOrder,
    ByExtent,
    /// With this share of choices as another peer's.
    Random(f64),
}

#[derive(Debug)]
struct Peer {
    habit: Habit,
    torrent: u32,
    geometry: Geometry,
    has: PieceBits,
    piece: u32,
    /// What it has of the piece.
    got: u64,
    begun: bool,
}

impl Peer {
    fn new(n: u32, contents: &[Arc<dyn Content>], locality: Locality, of: u32) -> Self {
        let quantile = (f64::from(n) + 0.5) / f64::from(of);
        let habit = if quantile < locality.in_order {
            Habit::InOrder
        } else if quantile < locality.in_order + locality.by_extent {
            Habit::ByExtent
        } else {
            Habit::Random(locality.same_rare)
        };
        let geometry = contents[0].geometry();
        Self { habit, torrent: 0, geometry, has: PieceBits::none(1), piece: 0, got: 0, begun: false }
    }

    fn join(&mut self, torrent: u32, contents: &[Arc<dyn Content>]) {
        (self.torrent, self.geometry) = (torrent, contents[torrent as usize].geometry());
        self.has = PieceBits::none(self.geometry.pieces());
    }

    fn request(&mut self, latest: &mut [Option<u32>], rng: &mut SplitMix64) -> Request {
        let geometry = self.geometry;
        let range = |piece| geometry.piece(piece).expect("it is chosen among the pieces");
        let mut piece = range(self.piece);
        if !self.begun || piece.start + self.got == piece.end {
            self.piece = self.choose(latest[self.torrent as usize], rng);
            latest[self.torrent as usize] = Some(self.piece);
            self.has.insert(self.piece);
            (self.got, self.begun) = (0, true);
            piece = range(self.piece);
        }
        let at = piece.start + self.got;
        let len = (piece.end - at).min(REQUEST as u64);
        self.got += len;
        Request { torrent: self.torrent, at, len }
    }

    /// The next piece. Who has all of them goes, and another one like it comes.
    fn choose(&mut self, latest: Option<u32>, rng: &mut SplitMix64) -> u32 {
        let pieces = self.geometry.pieces();
        if self.has.count() == pieces {
            self.has = PieceBits::none(pieces);
            self.begun = false;
        }
        let missing = |piece: &u32| !self.has.contains(*piece);
        let random = |rng: &mut SplitMix64| {
            let from = (rng.next_u64() % u64::from(pieces)) as u32;
            (from..pieces).chain(0..from).find(missing).expect("a piece is missing")
        };
        match self.habit {
            Habit::InOrder if self.begun => {
                (self.piece..pieces).chain(0..self.piece).find(missing).expect("a piece is missing")
            }
            Habit::ByExtent if self.begun => {
                let begun = self.geometry.piece(self.piece).expect("it has begun it").start / EXTENT * EXTENT;
                let extent = begun..(begun + EXTENT).min(self.geometry.len());
                self.geometry.pieces_of(&extent).find(missing).unwrap_or_else(|| random(rng))
            }
            Habit::Random(same) => {
                let draw = (rng.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
                latest.filter(|piece| draw < same && missing(piece)).unwrap_or_else(|| random(rng))
            }
            Habit::InOrder | Habit::ByExtent => random(rng),
        }
    }
}

/// What was asked for last, so many of them.
struct Lru {
    most: u64,
    ages: HashMap<(u32, u64), u64>,
    oldest: BTreeMap<u64, (u32, u64)>,
    clock: u64,
}

impl Lru {
    fn new(most: u64) -> Self {
        Self { most, ages: HashMap::new(), oldest: BTreeMap::new(), clock: 0 }
    }

    /// Whether it is there; from now on it is.
    fn hit(&mut self, torrent: u32, at: u64) -> bool {
        self.clock += 1;
        let before = self.ages.insert((torrent, at), self.clock);
        if let Some(before) = before {
            self.oldest.remove(&before);
        }
        self.oldest.insert(self.clock, (torrent, at));
        if self.oldest.len() as u64 > self.most {
            let (_, oldest) = self.oldest.pop_first().expect("there is one more than there may be");
            self.ages.remove(&oldest);
        }
        before.is_some()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn options() -> Options {
        let mut options = Options::new("");
        (options.torrents, options.size, options.parallel, options.block) = (6, 20_000_001, 3, 1 << 20);
        options.cache = 64 << 20;
        options
    }

    fn asked(locality: Locality, peers: u32) -> Vec<Request> {
        let options = options();
        let shared = SeededStore::new(&options).unwrap();
        requests(options.work(), &shared.contents, SeedingOptions { peers, requests: 4000, locality })
    }

    fn of(in_order: f64, by_extent: f64, same_rare: f64) -> Locality {
        Locality { in_order, by_extent, same_rare }
    }

    #[test]
    fn a_peer_asks_for_everything_once_piece_by_piece() {
        for locality in [of(1.0, 0.0, 0.0), of(0.0, 1.0, 0.0), Locality::RANDOM, of(0.0, 0.0, 1.0)] {
            let requests = asked(locality, 1);
            // 20,000,001 bytes are 1,221 requests.
            assert_eq!(requests[..1221].iter().map(|request| request.at).collect::<HashSet<_>>().len(), 1221);
            assert_eq!(requests[..1221].iter().map(|request| request.len).sum::<u64>(), 20_000_001);
            assert!(requests.iter().all(|request| request.torrent == 0 && request.at % REQUEST as u64 == 0));
        }
    }

    #[test]
    fn peers_have_the_locality_that_is_asked_for() {
        let next_to_each_other = |locality| {
            let requests = asked(locality, 1);
            requests.windows(2).filter(|pair| pair[0].at + pair[0].len == pair[1].at).count()
        };
        let random = next_to_each_other(Locality::RANDOM);
        assert!(next_to_each_other(of(1.0, 0.0, 0.0)) >= 3990);
        // The first torrent has pieces of 64 KiB: 4 requests.
        assert!((2900..3300).contains(&random), "{random}");
        let extents = |locality| {
            let requests = asked(locality, 1);
            requests.windows(2).filter(|pair| pair[0].at / EXTENT != pair[1].at / EXTENT).count()
        };
        assert!(extents(of(0.0, 1.0, 0.0)) < 20 && extents(Locality::RANDOM) > 500);
        let distinct = |locality| {
            let asked = asked(locality, 30).into_iter().map(|request| (request.torrent, request.at));
            asked.collect::<HashSet<_>>().len()
        };
        assert!(distinct(of(0.0, 0.0, 0.9)) * 3 < distinct(Locality::RANDOM) * 2);
    }

    #[test]
    fn reading_ahead_pays_where_requests_lie_together() {
        let options = options();
        let shared = SeededStore::new(&options).unwrap();
        let serve = |locality| shared.serve(SeedingOptions { peers: 12, requests: 4000, locality }).unwrap();
        let in_order = serve(of(1.0, 0.0, 0.0));
        assert_eq!(in_order.single.served, 4000 * 16384 - in_order_short(&shared));
        assert!(in_order.speedup() > 10.0, "{in_order:?}");
        // Single reads do as many reads as there are requests; the whole is not read more often than there
        // are stripes.
        assert!(in_order.single.modelled.bytes >= 4000 * 16384 - 16384);
        assert!(in_order.read_ahead.modelled.bytes <= 6 * (20 << 20));
        assert!(serve(Locality::RANDOM).speedup() < in_order.speedup());
    }

    /// Bytes that are missing because torrents end within a request.
    fn in_order_short(shared: &SeededStore<'_>) -> u64 {
        let seeding = SeedingOptions { peers: 12, requests: 4000, locality: of(1.0, 0.0, 0.0) };
        let requests = requests(shared.options.work(), &shared.contents, seeding);
        requests.iter().map(|request| 16384 - request.len).sum()
    }
}
