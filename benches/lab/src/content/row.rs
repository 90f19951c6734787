//! One row: a store is made, downloaded into, measured, opened again and read. Runs in a process of its own.

use std::{
    fs::{File, OpenOptions},
    io, iter,
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
    disk::{Access, Action, Disk, Replay, runs},
    download::Work,
    extents::Extents,
    libtorrent::Libtorrent,
    payload::Payload,
    pictures::{METADATA, Pictures},
    plan::{Options, Setup, Store},
    process,
    trace::{Trace, TracedDevice, TracedRepository, info_hash, number},
    volume::{Limit, Volume},
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
    /// Bytes of the stripe cache and, where requests were traced, of all memory of the row.
    pub cache: u64,
    /// The calls on the modelled disk, in their order.
    pub calls: Requests,
    /// What reached the device, on the modelled disk, where it was traced.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub traced: Option<Requests>,
    /// Zeroes that were written to the device or image before, and the seconds that it took.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub zeroed: Option<(Requests, f64)>,
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

/// Requests to a device, or calls, and what they take on the modelled disk.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Requests {
    /// Those that have bytes.
    pub count: u64,
    /// One after another.
    pub modelled: Replay,
}

impl Requests {
    fn new(disk: Disk, accesses: &[Access]) -> Self {
        let count = accesses.iter().filter(|access| access.action != Action::Flush).count() as u64;
        Self { count, modelled: disk.replay(accesses.iter().copied()) }
    }
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

    /// What reached the device, or the calls where that was not traced.
    pub fn requests(&self) -> &Requests {
        self.traced.as_ref().unwrap_or(&self.calls)
    }

    /// Seconds on the modelled disk.
    pub fn modelled(&self) -> f64 {
        self.requests().modelled.seconds
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
        let middle = |requests: fn(&Self) -> Option<Requests>| {
            let mut all: Vec<_> = rows.iter().filter_map(requests).collect();
            all.sort_by(|one, other| one.modelled.seconds.total_cmp(&other.modelled.seconds));
            all.get(all.len().saturating_sub(1) / 2).copied()
        };
        median.calls = middle(|row| Some(row.calls))?;
        median.traced = middle(|row| row.traced);
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
    let mut bench = Bench::new(options, way);
    if options.traced {
        bench.volume = Some(Volume::new(folder.path(), bench.blocks() * u64::from(options.block))?);
    }
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
    volume: Option<Volume>,
}

/// What is known when everything is on the disk.
struct Done {
    seconds: f64,
    cpu_seconds: f64,
    memory_bytes: Option<u64>,
    cache: Option<StripeCacheStatistics>,
    calls: Vec<Access>,
    requests: Option<Vec<Access>>,
}

impl<'a> Bench<'a> {
    fn new(options: &'a Options, way: Setup) -> Self {
        let mut work = options.work();
        if way.store == Store::LibtorrentTuned {
            work.extent = 4 << 20;
        }
        let payload = Payload::new(work.longest_piece());
        let blocks = work.bytes() / u64::from(options.block);
        let trace = Trace::with_room_for((2 * work.pieces() + 4 * blocks) as usize);
        let memory = process::memory().map(|memory| memory.now);
        Self { options, way, work, payload, trace, memory, volume: None }
    }

    /// Blocks of the device: a tenth is for metadata and for room. I-nodes lie in a block for each of their
    /// sizes, and those that an ordered store begins at the end of the device.
    fn blocks(&self) -> u64 {
        let needed = u64::from(self.work.torrents) * self.work.size.div_ceil(self.options.block.into());
        let free = needed + needed / 10 + 64;
        if self.way.aged { (free as f64 / (1.0 - aging::SHARE)) as u64 } else { free }
    }

    fn files(&self, folder: &Path, progress: &mut dyn FnMut(f64)) -> Result<(Row, Option<Pictures>)> {
        let (mut root, mut zeroed) = (folder.to_owned(), None);
        if let Some(volume) = &self.volume {
            zeroed = Some(self.zero(&volume.device, iter::once(0..self.blocks()))?);
            root.push("ext4");
            volume.ext4(&root)?;
        }
        let numbers = 0..self.work.torrents;
        let mut note = None;
        let (done, flushes, paths, compared);
        if self.way.store.is_libtorrent() {
            let tuned = self.way.store == Store::LibtorrentTuned;
            let queue = tuned.then_some(self.options.cache / 4);
            let (store, version) = Libtorrent::start(&root, queue)?;
            note = Some(format!("version {version}"));
            done = self.download(self.traced(store.clone()), &[store.pid()], progress)?;
            compared = self.work.verify(&store, &self.payload)?;
            (flushes, paths) = (0, numbers.map(|number| store.path(number)).collect::<Vec<_>>());
        } else {
            let allocation = match self.way.store {
                Store::FilesPreallocated => files::Allocation::Preallocated,
                _ => files::Allocation::Sparse,
            };
            let config = ContentConfig::new(&root);
            let store = FileStore::open(&config, allocation)?;
            done = self.download(self.traced(store.clone()), &[], progress)?;
            flushes = store.statistics().flushes;
            let path = |number| Ok(store.paths(&info_hash(number))?.swap_remove(0).1);
            paths = numbers.map(path).collect::<Result<_>>()?;
            drop(store);
            compared = self.work.verify(&FileStore::open(&config, allocation)?, &self.payload)?;
        }

        let extents = Extents::of(paths.iter().map(|path| &**path))?;
        let placed = extents.place(done.calls.iter().copied());
        let pictures = self.options.pictures.then(|| {
            let reached = done.requests.as_ref().unwrap_or(&placed);
            let whose = extents.owners();
            let mut pictures = Pictures::new(self.options.disk, reached, |access| whose(access.at));
            pictures.arrivals(&done.calls, self.options.size);
            pictures
        });
        let mut row = self.row(&done, &placed, flushes, compared);
        let unknown =
            extents.unknown.as_ref().map(|why| format!("{why}: taken as one after another, without gaps"));
        row.note = note.or(unknown);
        row.extents = extents.unknown.is_none().then(|| extents.count());
        row.zeroed = zeroed;
        Ok((row, pictures))
    }

    /// A store whose calls are recorded.
    fn traced<R: ContentRepository + 'static>(&self, inner: R) -> Arc<dyn ContentRepository> {
        Arc::new(TracedRepository { inner, trace: Arc::clone(&self.trace) })
    }

    fn block(&self, folder: &Path, progress: &mut dyn FnMut(f64)) -> Result<(Row, Option<Pictures>)> {
        let (block, blocks) = (u64::from(self.options.block), self.blocks());
        let allocation = match self.way.store {
            Store::BlockOrdered => block::Allocation::Ordered,
            _ => block::Allocation::Sequential,
        };
        let path = match &self.volume {
            Some(volume) => volume.device.clone(),
            None => {
                let path = folder.join(block::IMAGE);
                File::create_new(&path)?.set_len(blocks * block)?;
                path
            }
        };
        let mut zeroed = None;
        if !self.way.aged {
            zeroed = Some(self.zero(&path, iter::once(0..blocks))?);
        }
        let device = TracedDevice { device: FileDevice::open(&path, true)?, trace: Arc::clone(&self.trace) };
        BlockStore::format(&device, FormatOptions::new().block_size(self.options.block))?;
        let store = BlockStore::boot(device, allocation)?;
        if self.way.aged {
            aging::age(&store, self.options.seed, &mut |share| progress(share * 0.1))?;
            let free = aging::free_runs(&store, blocks as u32);
            zeroed = Some(self.zero(&path, free.iter().map(|run| run.start.into()..run.end.into()))?);
        }
        let from = if self.way.aged { 0.1 } else { 0.0 };
        let progress = &mut |share: f64| progress(from + (1.0 - from) * share);
        let done = self.download(Arc::new(store.clone()), &[], progress)?;
        store.audit().map_err(Error::Audit)?;
        let owners = store.owners();
        drop(store);
        let compared = self.work.verify(&BlockStore::open(&path, allocation)?, &self.payload)?;

        let whose = Owners::new(&owners, blocks as u32, block);
        let pictures = self.options.pictures.then(|| {
            let mut pictures = Pictures::new(self.options.disk, &done.calls, |access| whose.of(access.at));
            pictures.layout(&owners, blocks as u32);
            pictures
        });
        let mut row = self.row(&done, &done.calls, self.trace.flushes(), compared);
        row.seeks = Some(self.seeks(&done.calls, &whose));
        row.zeroed = zeroed;
        Ok((row, pictures))
    }

    /// Writes zeroes over runs of blocks, so that what is measured finds an image as it finds a disk: a file
    /// system is slower where it has to give room to a file, or to note that something was written there for
    /// the first time.
    fn zero(&self, path: &Path, runs: impl IntoIterator<Item = Range<u64>>) -> io::Result<(Requests, f64)> {
        let (block, began) = (u64::from(self.options.block), Instant::now());
        let mut calls = Vec::new();
        self.record(true)?;
        for run in runs {
            let (at, len) = (run.start * block, (run.end - run.start) * block);
            fill(path, at..at + len)?;
            calls.push(Access { at, len, action: Action::Write, whose: METADATA });
        }
        let seconds = began.elapsed().as_secs_f64();
        let requests = self.record(false)?.unwrap_or(calls);
        Ok((Requests::new(self.options.disk, &requests), seconds))
    }

    /// Begins to record the requests to the device, or ends that and returns them.
    fn record(&self, on: bool) -> io::Result<Option<Vec<Access>>> {
        let Some(volume) = &self.volume else { return Ok(None) };
        volume.record(on)?;
        if on { Ok(None) } else { volume.requests().map(Some) }
    }

    /// Downloads into a store, of which these other processes are a part.
    fn download(
        &self,
        lower: Arc<dyn ContentRepository>,
        others: &[u32],
        progress: &mut dyn FnMut(f64),
    ) -> Result<Done> {
        let limit = match self.volume {
            Some(_) if !self.way.free => {
                let limit = Limit::new()?;
                limit.enter(memory_of(self.options.cache), &[others, &[std::process::id()]].concat())?;
                Some(limit)
            }
            _ => None,
        };
        // What is written through the page cache needs some of the memory there, or the kernel ends the process.
        let pages = if limit.is_some() && !self.way.store.is_block() { 16 << 20 } else { 0 };
        let cache = self.way.cache.then(|| {
            let options = StripeCacheOptions::new()
                .stripe(self.options.block)
                .write_memory(self.options.cache - pages.min(self.options.cache / 4))
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
        self.record(true)?;
        let (cpu, began) = (process::cpu_seconds()?, Instant::now());
        let asked = cache.as_ref().filter(|_| self.way.affinity);
        self.work.download(upper, asked, &self.payload, progress)?;
        self.volume.as_ref().map_or(Ok(()), Volume::sync)?;
        let (seconds, cpu_seconds) = (began.elapsed().as_secs_f64(), process::cpu_seconds()? - cpu);
        self.trace.turn(false);
        let peak = process::memory().map(|memory| memory.peak);
        let memory_bytes = self.memory.zip(peak).map(|(before, peak)| peak.saturating_sub(before));
        drop(limit);
        let requests = self.record(false)?;
        let cache = cache.as_ref().map(StripeCache::cache_statistics);
        Ok(Done { seconds, cpu_seconds, memory_bytes, cache, calls: self.trace.take(), requests })
    }

    fn row(&self, done: &Done, calls: &[Access], flushes: u64, compared: u64) -> Row {
        let requests = |accesses: &[Access]| Requests::new(self.options.disk, accesses);
        Row {
            name: self.way.to_string(),
            way: self.way,
            bytes: self.work.bytes(),
            seconds: done.seconds,
            cpu_seconds: done.cpu_seconds,
            writes: self.trace.writes(),
            flushes,
            memory_bytes: done.memory_bytes,
            cache: self.options.cache,
            calls: requests(calls),
            traced: done.requests.as_deref().map(requests),
            zeroed: None,
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

/// Bytes that a row may take: the stripe cache, and a little for what is not stripes. 23 MB of that were seen
/// with a cache of 64 MB.
pub(crate) const fn memory_of(cache: u64) -> u64 {
    cache + cache / 20 + (32 << 20)
}

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
