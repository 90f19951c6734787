//! Which writes a session makes to a block device: a stripe is written whole, by one of them.
//!
//! Times are a quarter of the real ones, and rates four times as high. With `SWARMKEEP_STRIPES` in the
//! environment, both are real, and torrents are twice as long.

use std::{
    env,
    ops::Range,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use swarmkeep_content::{
    ContentConfig, ContentRepository, Memory, NewTorrent,
    block::{Allocation, BlockStore, FormatOptions, SECTOR},
};
use swarmkeep_kit::device::{Access, SparseDevice};
use swarmkeep_peer::{Session, SessionConfig};
use tokio::time::timeout;

use crate::sessions::{self, put, zeroes};

/// The torrents that a session fetches at once, from four peers.
struct FetchLoad {
    torrents: u64,
    /// Stripes of each.
    stripes: u64,
    /// Bytes per second, over all torrents.
    rate: u64,
    /// Bytes that may wait to be written.
    memory: u64,
    within: Duration,
}

#[derive(Debug)]
struct Writes {
    stripes: usize,
    whole: usize,
    /// Writes that did not begin where the one before it ended.
    runs: usize,
}

const STRIPE: u64 = 4 << 20;
const PIECE: u64 = 256 << 10;
const SEEDERS: u8 = 4;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_torrents_at_4_mib_per_second_are_written_in_whole_stripes() {
    FetchLoad::new(10, 4, 4 << 20, 128 << 20).is_written_in_whole_stripes().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_torrents_at_25_mib_per_second_are_written_in_whole_stripes() {
    FetchLoad::new(50, 2, 25 << 20, 512 << 20).is_written_in_whole_stripes().await;
}

impl FetchLoad {
    /// `cache` is half for writes, as in `seedkeep fetch`.
    fn new(torrents: u64, stripes: u64, rate: u64, cache: u64) -> Self {
        let minute = Duration::from_secs(60);
        let (times, stripes) = match env::var_os("SWARMKEEP_STRIPES") {
            Some(_) => (1, 2 * stripes),
            None => (4, stripes),
        };
        Self { torrents, stripes, rate: rate * u64::from(times), memory: cache / 2, within: minute / times }
    }

    /// A busy machine gets lower rates and longer times, unless the rates are the real ones.
    async fn is_written_in_whole_stripes(&self) {
        for slower in [1, 4, 16] {
            let (rate, within) = (self.rate / u64::from(slower), self.within * slower);
            let (begun, load) = (Instant::now(), Self { rate, within, ..*self });
            let writes = load.fetched().await;
            let elapsed = begun.elapsed();
            println!(
                "{} torrents at {} MiB/s in all, {within:?} at most: {} of {} stripes whole, {} runs, {elapsed:.1?}",
                self.torrents,
                rate >> 20,
                writes.whole,
                writes.stripes,
                writes.runs,
            );
            if elapsed < 2 * load.time() || slower == 16 || env::var_os("SWARMKEEP_STRIPES").is_some() {
                return assert!(writes.whole * 10 >= writes.stripes * 9, "{writes:?}");
            }
        }
    }

    /// The time that the rate allows.
    fn time(&self) -> Duration {
        Duration::from_secs(self.torrents * self.stripes * STRIPE / self.rate)
    }

    async fn fetched(&self) -> Writes {
        let pieces = self.stripes * STRIPE / PIECE;
        let named = |n| zeroes(&format!("{n:03}"), pieces as usize, PIECE as usize);
        let infos: Vec<_> = (0..self.torrents).map(named).collect();
        let full: Arc<dyn ContentRepository> = Arc::new(Memory::new(&ContentConfig::new("")));
        for info in &infos {
            put(&*full, info, &vec![0; info.length() as usize], 0..info.piece_count());
        }
        let mut seeders = Vec::new();
        for n in 0..SEEDERS {
            let seeder = Session::start(config(n), Arc::clone(&full)).await.unwrap();
            for info in &infos {
                seeder.add(Arc::clone(info), &[]).await.unwrap();
            }
            seeders.push(seeder);
        }

        let stripes = self.torrents * self.stripes;
        let sectors = (2 * stripes + 16) * STRIPE / SECTOR as u64;
        let device = Arc::new(SparseDevice::new(sectors));
        let mut options = FormatOptions::new();
        options.block_size = Some(STRIPE as u32);
        BlockStore::format(&device, options).unwrap();
        let store = BlockStore::boot(Arc::clone(&device), Allocation::Sequential).unwrap();
        let store = Arc::new(store);
        for info in &infos {
            store.create(&NewTorrent::of(info).unwrap()).unwrap();
        }
        let mut config = config(SEEDERS);
        (config.down, config.write_within) = (Some(self.rate), self.within);
        (config.write_memory, config.read_memory) = (self.memory, 0);
        let fetcher = Session::start(config, store).await.unwrap();
        let writes = Arc::<Mutex<Vec<_>>>::default();
        let written = Arc::clone(&writes);
        device.watch(move |access| {
            if let Access::Write(sectors) = access {
                written.lock().unwrap().push(sectors);
            }
            Ok(true)
        });
        let mut fetches = Vec::new();
        for info in infos {
            let fetch = fetcher.add(info, &[]).await.unwrap();
            fetch.found(seeders.iter().flat_map(|seeder| seeder.addresses().to_vec()));
            fetches.push(fetch);
        }
        for fetch in &fetches {
            let in_time = timeout(Duration::from_secs(120) + self.time(), fetch.complete()).await;
            in_time.expect("in time").unwrap();
        }
        fetcher.stop().await.unwrap();
        for seeder in seeders {
            seeder.stop().await.unwrap();
        }
        let block = STRIPE / SECTOR as u64;
        let writes = writes.lock().unwrap();
        let runs = 1 + writes.windows(2).filter(|pair| pair[0].end != pair[1].start).count();
        let whole = |sectors: &&Range<u64>| {
            sectors.start.is_multiple_of(block) && sectors.end == sectors.start + block
        };
        let whole = writes.iter().filter(whole).count();
        Writes { stripes: stripes as usize, whole, runs }
    }
}

fn config(n: u8) -> SessionConfig {
    let mut config = sessions::config(n);
    (config.connections, config.connections_per_address) = (1000, 1000);
    (config.write_memory, config.read_memory) = (4 << 20, 16 << 20);
    config
}
