//! What the stripe cache costs and saves: four torrents of 256 MiB, whose pieces of 256 KiB come in random order.
//!
//! `cargo run --release -p swarmkeep-content --example gather -- FOLDER [ROUNDS]` makes an image of 1.25 GiB in the folder for
//! each run and removes it. The ways take turns, round after round.

use std::{
    collections::HashSet,
    error::Error,
    fs, io,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Instant,
};

use swarmkeep_content::{
    ContentConfig, ContentExt, ContentRepository, InfoHash, Memory, NewTorrent,
    block::{Allocation, Barrier, BlockDevice, BlockStore, FileDevice, FormatOptions, SECTOR, Sector},
    stripe_cache::{StripeCache, StripeCacheOptions},
};

const TORRENTS: u8 = 4;
const LENGTH: u64 = 256 << 20;
const PIECE: u32 = 256 << 10;
/// What peers send at once.
const BLOCK: usize = 16 << 10;

/// A device that counts its writes, and those that do not begin where the last one ended.
#[derive(Debug)]
struct Counting {
    device: FileDevice,
    counts: Arc<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    writes: AtomicU64,
    seeks: AtomicU64,
    end: AtomicU64,
}

impl BlockDevice for Counting {
    fn sectors(&self) -> u64 {
        self.device.sectors()
    }

    fn read(&self, first: u64, into: &mut [Sector]) -> io::Result<()> {
        self.device.read(first, into)
    }

    fn write(&self, first: u64, parts: &[&[Sector]]) -> io::Result<()> {
        let end = first + parts.iter().map(|part| part.len() as u64).sum::<u64>();
        self.counts.writes.fetch_add(1, Relaxed);
        let before = self.counts.end.swap(end, Relaxed);
        self.counts.seeks.fetch_add(u64::from(before != first), Relaxed);
        self.device.write(first, parts)
    }

    fn flush(&self, barrier: Barrier) -> io::Result<()> {
        self.device.flush(barrier)
    }
}

#[derive(Clone, Copy)]
struct Way {
    name: &'static str,
    image: bool,
    /// Bytes of a write.
    at_once: usize,
    /// MiB of memory, and whether pieces that complete a stripe come first.
    cache: Option<(u64, bool)>,
}

const WAYS: &[Way] = &[
    Way { name: "image, a piece a write", image: true, at_once: PIECE as usize, cache: None },
    Way { name: "image, a block a write", image: true, at_once: BLOCK, cache: None },
    Way { name: "image, cache of 64 MiB", image: true, at_once: BLOCK, cache: Some((64, false)) },
    Way { name: "image, cache of 256 MiB", image: true, at_once: BLOCK, cache: Some((256, false)) },
    Way { name: "image, cache of 64 MiB, affinity", image: true, at_once: BLOCK, cache: Some((64, true)) },
    Way { name: "image, cache of 256 MiB, affinity", image: true, at_once: BLOCK, cache: Some((256, true)) },
    Way { name: "memory", image: false, at_once: BLOCK, cache: None },
    Way { name: "memory, cache of 64 MiB, affinity", image: false, at_once: BLOCK, cache: Some((64, true)) },
];

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let folder = args.next().ok_or("which folder?")?;
    let rounds = args.next().map_or(Ok(1), |rounds| rounds.parse())?;
    println!("{:<36} {:>7} {:>7} {:>7} {:>7} {:>9}", "way", "MB/s", "CPU s", "writes", "seeks", "modelled");
    for _ in 0..rounds {
        WAYS.iter().try_for_each(|&way| run(way, Path::new(&folder)))?;
    }
    Ok(())
}

fn run(way: Way, folder: &Path) -> Result<(), Box<dyn Error>> {
    let path = folder.join("gather.image");
    let counts = Arc::<Counts>::default();
    let store: Arc<dyn ContentRepository> = if way.image {
        let device = FileDevice::create_image(&path, 5 << 28)?;
        // An image that was never written is slower to write for the first time, whatever the way.
        fill(&device)?;
        BlockStore::format(&device, FormatOptions::new().block_size(4 << 20))?;
        let device = Counting { device, counts: Arc::clone(&counts) };
        Arc::new(BlockStore::boot(device, Allocation::Sequential)?)
    } else {
        Arc::new(Memory::new(&ContentConfig::new("")))
    };
    let cache = way.cache.map(|(mib, affinity)| {
        let options = StripeCacheOptions::new().write_memory(mib << 20);
        StripeCache::new(Arc::clone(&store), options).map(|cache| (cache, affinity))
    });
    let cache = cache.transpose()?;
    let upper: &dyn ContentRepository = cache.as_ref().map_or(&*store, |(cache, _)| cache);
    let torrents = (0..TORRENTS).map(|n| {
        let hash = InfoHash::new([n; 20]);
        Ok((hash, upper.create(&NewTorrent::new(hash, LENGTH, PIECE)?)?))
    });
    let torrents = torrents.collect::<swarmkeep_content::Result<Vec<_>>>()?;
    let mut order: Vec<_> = (0..torrents.len())
        .flat_map(|torrent| (0..torrents[torrent].1.geometry().pieces()).map(move |piece| (torrent, piece)))
        .collect();
    shuffle(&mut order);
    let (cpu, began) = (cpu_seconds()?, Instant::now());
    let bytes = vec![0x5a; PIECE as usize];
    let mut done = HashSet::new();
    while let Some((torrent, drawn)) = order.pop() {
        if done.contains(&(torrent, drawn)) {
            continue;
        }
        let (hash, content) = &torrents[torrent];
        let best = match &cache {
            Some((cache, true)) => cache.affinity(hash, 1)?.first().map(|best| best.piece),
            _ => None,
        };
        let piece = best.unwrap_or(drawn);
        if piece != drawn {
            order.push((torrent, drawn));
        }
        done.insert((torrent, piece));
        let start = u64::from(piece) * u64::from(PIECE);
        for (block, bytes) in bytes.chunks(way.at_once).enumerate() {
            content.write(start + (block * way.at_once) as u64, bytes)?;
        }
        assert!(content.mark_complete(piece)?);
    }
    upper.flush()?;
    let (seconds, cpu) = (began.elapsed().as_secs_f64(), cpu_seconds()? - cpu);
    for (_, content) in &torrents {
        assert_eq!(content.pieces()?.count() as usize * torrents.len(), done.len());
        assert_eq!(content.read_piece(7)?, bytes);
    }
    let total = LENGTH as f64 * f64::from(TORRENTS);
    let (writes, seeks) = (counts.writes.load(Relaxed), counts.seeks.load(Relaxed));
    // 8.5 ms to move the head, half a turn at 7,200 a minute, 150 MB/s.
    let modelled = seeks as f64 * (0.0085 + 0.004_17) + total / 150e6;
    let megabytes = total / seconds / 1e6;
    let name = way.name;
    println!("{name:<36} {megabytes:>7.0} {cpu:>7.2} {writes:>7} {seeks:>7} {modelled:>7.0} s");
    drop((torrents, cache, store));
    if way.image {
        fs::remove_file(path)?;
    }
    Ok(())
}

fn fill(device: &FileDevice) -> io::Result<()> {
    let part = swarmkeep_content::block::sectors(1024);
    (0..device.sectors() / 1024).try_for_each(|at| device.write(at * 1024, &[&part]))?;
    device.flush(Barrier::Formatted)
}

const _: () = assert!(SECTOR == 4096);

fn shuffle<T>(items: &mut [T]) {
    let mut seed = 1_u64;
    for at in (1..items.len()).rev() {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        items.swap(at, (seed >> 33) as usize % (at + 1));
    }
}

/// Of all threads of the process, those that ended included.
fn cpu_seconds() -> Result<f64, Box<dyn Error>> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    let after_name = stat.rsplit(')').next().ok_or("no name")?;
    let fields: Vec<_> = after_name.split_whitespace().collect();
    // Ticks are 10 ms on every Linux.
    Ok((fields[11].parse::<f64>()? + fields[12].parse::<f64>()?) / 100.0)
}
