//! One row: a store is made, downloaded into, measured, opened again and read. Runs in a process of its own.

use std::{
    fs::{File, OpenOptions},
    io,
    ops::Range,
    os::unix::fs::OpenOptionsExt,
    path::Path,
    sync::Arc,
    time::Instant,
};

use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};
use swarmkeep_content::{
    ContentConfig, ContentRepository,
    block::{self, BlockStore, FileDevice, FormatOptions, Owner, SECTOR},
    files::{self, FileStore},
    stripe_cache::{StripeCache, StripeCacheOptions, StripeCacheStatistics},
};
use zerocopy::IntoBytes;

use crate::content::{
    Error, Result, aging,
    disk::{Access, Action, Replay, runs, write_back},
    download::Work,
    extents::Extents,
    payload::Payload,
    pictures::{METADATA, Pictures},
    plan::{Options, Setup, Store},
    process,
    trace::{Trace, TracedDevice, TracedRepository, info_hash, number},
};

/// One download into one store.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Its name.
    pub name: String,
    /// Of what it is.
    pub way: Setup,
    /// Bytes of the torrents.
    pub bytes: u64,
    /// From the first torrent's creation to the end of the last flush.
    pub seconds: f64,
    /// Of all threads of the process, user and system. What the kernel's own threads do for a page cache is
    /// not in it.
    pub cpu_seconds: f64,
    /// Calls that wrote content to the store's medium, and metadata too where it is the block store.
    pub writes: u64,
    /// Calls that flushed the medium.
    pub flushes: u64,
    /// How much more memory the process had than before it opened the store, at most. The kernel's page cache
    /// is not in it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub memory_bytes: Option<u64>,
    /// On the modelled disk, in the order of the calls.
    pub modelled: Replay,
    /// On the modelled disk, behind a page cache that writes back sorted; of plain files.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub modelled_sorted: Option<Replay>,
    /// Where the seeks of a block store went.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub seeks: Option<Seeks>,
    /// Extents of the files.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub extents: Option<u64>,
    /// Stripes that the cache wrote whole, and in part.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub stripes: Option<(u64, u64)>,
    /// Bytes that were read and compared after the store had been opened again. All pieces were complete.
    pub compared: u64,
    /// What a reader has to know.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub note: Option<String>,
}

/// Where the head of the modelled disk went in a block store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Seeks {
    /// To blocks that nothing was written to before, unless it only came back from metadata.
    pub fresh: u64,
    /// Runs of bytes that the content lies in: a seek to each is the least there can be, short gaps apart.
    pub stretches: u64,
    /// Into the middle of blocks that nothing was written to before, and from there on: stripes that were
    /// written before they were whole.
    pub part: u64,
    /// Back to where content was last written, after metadata.
    pub back: u64,
    /// To blocks that parts had been written to.
    pub again: u64,
    /// To metadata: i-nodes, maps, the root.
    pub metadata: u64,
}

impl Row {
    /// Megabytes (10⁶) a second.
    pub fn rate(&self) -> f64 {
        self.bytes as f64 / self.seconds / 1e6
    }

    /// CPU seconds a gigabyte (10⁹).
    pub fn cpu_per_gb(&self) -> f64 {
        self.cpu_seconds / (self.bytes as f64 / 1e9)
    }

    /// One row in place of several of the same way: of each number the median, the rest as in the first.
    pub(crate) fn median(rows: &[Self]) -> Option<Self> {
        let mut median = rows.first()?.clone();
        let of = |value: fn(&Self) -> f64| {
            let mut values: Vec<_> = rows.iter().map(value).collect();
            values.sort_by(f64::total_cmp);
            f64::midpoint(values[(values.len() - 1) / 2], values[values.len() / 2])
        };
        median.seconds = of(|row| row.seconds);
        median.cpu_seconds = of(|row| row.cpu_seconds);
        median.writes = of(|row| row.writes as f64) as u64;
        median.flushes = of(|row| row.flushes as f64) as u64;
        if median.memory_bytes.is_some() {
            median.memory_bytes = Some(of(|row| row.memory_bytes.unwrap_or(0) as f64) as u64);
        }
        // Numbers that belong together stay together: the replay is that of the row with the middle time.
        let middle = |replay: fn(&Self) -> Option<Replay>| {
            let mut replays: Vec<_> = rows.iter().filter_map(replay).collect();
            replays.sort_by(|one, other| one.seconds.total_cmp(&other.seconds));
            replays.get(replays.len().saturating_sub(1) / 2).copied()
        };
        median.modelled = middle(|row| Some(row.modelled))?;
        median.modelled_sorted = middle(|row| row.modelled_sorted);
        Some(median)
    }
}

/// Measures one row.
pub(crate) fn measure(
    options: &Options,
    way: Setup,
    progress: &mut dyn FnMut(f64),
) -> Result<(Row, Option<Pictures>)> {
    // So that nothing of it is left, whatever happens.
    let folder = tempfile::Builder::new().prefix("swarmkeep-bench-").tempdir_in(&options.folder)?;
    let bench = Bench::new(options, way);
    if way.store.is_block() {
        bench.block(folder.path(), progress)
    } else {
        bench.files(folder.path(), progress)
    }
}

struct Bench<'a> {
    options: &'a Options,
    way: Setup,
    work: Work,
    payload: Payload,
    trace: Arc<Trace>,
    /// Memory before there is a store.
    memory: Option<u64>,
}

/// What is known when the last flush has returned.
struct Done {
    seconds: f64,
    cpu_seconds: f64,
    memory_bytes: Option<u64>,
    cache: Option<StripeCacheStatistics>,
    trace: Vec<Access>,
}

impl<'a> Bench<'a> {
    fn new(options: &'a Options, way: Setup) -> Self {
        let work = options.work();
        let payload = Payload::new(work.longest_piece());
        let blocks = work.bytes() / u64::from(options.block);
        let trace = Trace::with_room_for((2 * work.pieces() + 4 * blocks) as usize);
        let memory = process::memory().map(|memory| memory.now);
        Self { options, way, work, payload, trace, memory }
    }

    fn files(&self, folder: &Path, progress: &mut dyn FnMut(f64)) -> Result<(Row, Option<Pictures>)> {
        let allocation = match self.way.store {
            Store::FilesPreallocated => files::Allocation::Preallocated,
            _ => files::Allocation::Sparse,
        };
        let config = ContentConfig::new(folder);
        let store = FileStore::open(&config, allocation)?;
        let traced = TracedRepository { inner: store.clone(), trace: Arc::clone(&self.trace) };
        let done = self.download(Arc::new(traced), progress)?;
        let flushes = store.statistics().flushes;
        let paths =
            (0..self.work.torrents).map(|number| Ok(store.paths(&info_hash(number))?.swap_remove(0).1));
        let paths = paths.collect::<Result<Vec<_>>>()?;
        drop(store);
        let compared = self.work.verify(&FileStore::open(&config, allocation)?, &self.payload)?;

        let extents = Extents::of(paths.iter().map(|path| &**path))?;
        let placed = extents.place(done.trace.iter().copied());
        let sorted = write_back(placed.iter().copied(), self.options.cache);
        let disk = self.options.disk;
        let pictures = self.options.pictures.then(|| {
            let mut pictures = Pictures::new(disk, &placed, |access| access.whose);
            pictures.arrivals(&done.trace, self.options.size);
            pictures
        });
        let (written, flushed) = (self.trace.writes(), flushes);
        let mut row = self.row(&done, disk.replay(placed), written, flushed, compared);
        row.modelled_sorted = Some(disk.replay(sorted));
        row.note =
            extents.unknown.as_ref().map(|why| format!("{why}: taken as one after another, without gaps"));
        row.extents = extents.unknown.is_none().then(|| extents.count());
        Ok((row, pictures))
    }

    fn block(&self, folder: &Path, progress: &mut dyn FnMut(f64)) -> Result<(Row, Option<Pictures>)> {
        let (path, block) = (folder.join(block::IMAGE), u64::from(self.options.block));
        let allocation = match self.way.store {
            Store::BlockOrdered => block::Allocation::Ordered,
            _ => block::Allocation::Sequential,
        };
        // I-nodes lie in a block for each of their sizes, and those that an ordered store begins at the end
        // of the device.
        let needed = u64::from(self.work.torrents) * self.work.size.div_ceil(block);
        let free = needed + needed / 50 + 20;
        let blocks = if self.way.aged { (free as f64 / (1.0 - aging::SHARE)) as u64 } else { free };
        let file = OpenOptions::new().write(true).create_new(true).open(&path)?;
        file.set_len(blocks * block)?;
        drop(file);
        if !self.way.aged {
            fill(&path, 0..blocks * block)?;
        }
        let device = TracedDevice { device: FileDevice::open(&path, true)?, trace: Arc::clone(&self.trace) };
        BlockStore::format(&device, FormatOptions::new().block_size(self.options.block))?;
        let store = BlockStore::boot(device, allocation)?;
        if self.way.aged {
            aging::age(&store, self.options.seed, &mut |share| progress(share * 0.1))?;
            for run in aging::free_runs(&store, blocks as u32) {
                fill(&path, u64::from(run.start) * block..u64::from(run.end) * block)?;
            }
        }
        let from = if self.way.aged { 0.1 } else { 0.0 };
        let progress = &mut |share: f64| progress(from + (1.0 - from) * share);
        let done = self.download(Arc::new(store.clone()), progress)?;
        store.audit().map_err(Error::Audit)?;
        let owners = store.owners();
        drop(store);
        let compared = self.work.verify(&BlockStore::open(&path, allocation)?, &self.payload)?;

        let whose = Owners::new(&owners, blocks as u32, block);
        let disk = self.options.disk;
        let pictures = self.options.pictures.then(|| {
            let mut pictures = Pictures::new(disk, &done.trace, |access| whose.of(access.at));
            pictures.layout(&owners, blocks as u32);
            pictures
        });
        let modelled = disk.replay(done.trace.iter().copied());
        let mut row = self.row(&done, modelled, self.trace.writes(), self.trace.flushes(), compared);
        row.seeks = Some(self.seeks(&done.trace, &whose));
        Ok((row, pictures))
    }

    fn download(&self, lower: Arc<dyn ContentRepository>, progress: &mut dyn FnMut(f64)) -> Result<Done> {
        let cache = self.way.cache.then(|| {
            let options = StripeCacheOptions::new()
                .stripe(self.options.block)
                .write_memory(self.options.cache)
                .threads(self.options.writers as usize);
            StripeCache::new(Arc::clone(&lower), options)
        });
        let cache = cache.transpose()?;
        let upper: &dyn ContentRepository = cache.as_ref().map_or(&*lower, |cache| cache);
        let total = self.work.bytes();
        let (mut bytes, mut told) = (0, 0);
        let progress = &mut |more: u64| {
            bytes += more;
            // A hundred times in all: telling costs a system call.
            if bytes * 100 / total > told {
                told = bytes * 100 / total;
                progress(bytes as f64 / total as f64);
            }
        };
        process::forget_peak();
        self.trace.turn(true);
        let (cpu, began) = (process::cpu_seconds()?, Instant::now());
        let asked = cache.as_ref().filter(|_| self.way.affinity);
        self.work.download(upper, asked, &self.payload, progress)?;
        let (seconds, cpu_seconds) = (began.elapsed().as_secs_f64(), process::cpu_seconds()? - cpu);
        self.trace.turn(false);
        let peak = process::memory().map(|memory| memory.peak);
        let memory_bytes = self.memory.zip(peak).map(|(before, peak)| peak.saturating_sub(before));
        let cache = cache.as_ref().map(StripeCache::cache_statistics);
        Ok(Done { seconds, cpu_seconds, memory_bytes, cache, trace: self.trace.take() })
    }

    fn row(&self, done: &Done, modelled: Replay, writes: u64, flushes: u64, compared: u64) -> Row {
        Row {
            name: self.way.to_string(),
            way: self.way,
            bytes: self.work.bytes(),
            seconds: done.seconds,
            cpu_seconds: done.cpu_seconds,
            writes,
            flushes,
            memory_bytes: done.memory_bytes,
            modelled,
            modelled_sorted: None,
            seeks: None,
            extents: None,
            stripes: done.cache.as_ref().map(|cache| (cache.whole, cache.partial)),
            compared,
            note: None,
        }
    }

    /// Tells the seeks of a trace apart.
    fn seeks(&self, trace: &[Access], whose: &Owners) -> Seeks {
        let block = u64::from(self.options.block);
        let mut seeks = Seeks::default();
        let mut written = vec![false; whose.blocks.len()];
        let mut ranges = Vec::new();
        // Where content was last written to, and whether the block was left before its end.
        let (mut end, mut left) = (u64::MAX, false);
        self.options.disk.replay_with(trace.iter().copied(), |step| {
            let access = step.access;
            let first = (access.at / block) as usize;
            let content = whose.of(access.at) != METADATA;
            match step.seeks {
                true if !content => seeks.metadata += 1,
                true if access.at == end => seeks.back += 1,
                true if written[first] => seeks.again += 1,
                true if left || !access.at.is_multiple_of(block) => seeks.part += 1,
                true => seeks.fresh += 1,
                false => {}
            }
            if content && access.action == Action::Write {
                end = access.at + access.len;
                // A torrent's last block is as short as the torrent leaves it.
                left = access.len < block
                    && access.len != self.work.size.next_multiple_of(SECTOR as u64) % block;
                written[first..end.div_ceil(block) as usize].fill(true);
                ranges.push(access.at..end);
            }
        });
        seeks.stretches = runs(ranges);
        seeks
    }
}

/// Whose each block is: the number of a torrent, or [`METADATA`].
struct Owners {
    blocks: Vec<u32>,
    block: u64,
}

impl Owners {
    fn new(owners: &[(Range<u32>, Owner)], blocks: u32, block: u64) -> Self {
        let mut all = vec![METADATA; blocks as usize];
        for (run, owner) in owners {
            if let Owner::Content(info_hash) = owner {
                all[run.start as usize..run.end as usize].fill(number(info_hash));
            }
        }
        Self { blocks: all, block }
    }

    fn of(&self, at: u64) -> u32 {
        self.blocks.get((at / self.block) as usize).copied().unwrap_or(METADATA)
    }
}

/// Writes zeroes, so that what is measured finds an image as it finds a disk: a file system is slower where
/// it has to give room to a file, or to note that something was written there for the first time.
fn fill(path: &Path, range: Range<u64>) -> io::Result<()> {
    let open = |flags: OFlags| OpenOptions::new().write(true).custom_flags(flags.bits() as i32).open(path);
    let file: File = open(OFlags::DIRECT).or_else(|_| open(OFlags::empty()))?;
    let zeroes =
        block::sectors(((4 << 20) / SECTOR).min(((range.end - range.start) as usize).div_ceil(SECTOR)));
    let mut at = range.start;
    while at < range.end {
        let len = zeroes.as_bytes().len().min((range.end - at) as usize);
        match rustix::io::pwrite(&file, &zeroes.as_bytes()[..len], at) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => at += written as u64,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    file.sync_data()
}
