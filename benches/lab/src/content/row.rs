//! One row: creates a store, downloads into it, opens it again and reads it, in its own process.

use std::{
    fs::{File, OpenOptions},
    io, iter,
    ops::Range,
    os::unix::fs::OpenOptionsExt,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use rustix::{
    fs::OFlags,
    time::{ClockId, clock_gettime},
};
use serde::{Deserialize, Serialize};
use swarmkeep_content::{
    ContentConfig, ContentRepository,
    block::{self, BlockStore, FileDevice, FormatOptions, SECTOR},
    files::{Allocation, FileStore},
    stripe_cache::{StripeCache, StripeCacheOptions},
};
use zerocopy::IntoBytes;

use crate::content::{
    Error, Options, Result, StoreSetup, aging,
    disk::{self, Replay},
    download::DownloadPlan,
    libtorrent::Libtorrent,
    payload::Payload,
    trace::{Trace, TracedDevice, TracedRepository},
    volume::{Limit, Volume},
};

/// One download into one store.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Its name.
    pub name: String,
    pub(crate) way: StoreSetup,
    /// The requests that reached the device, or the calls if those were not traced, on the modelled disk.
    pub(crate) replay: Replay,
    /// The time until all bytes were on the device.
    pub(crate) seconds: f64,
    /// The CPU time of its process until then.
    pub(crate) cpu: f64,
    /// Bytes that were read and compared after the store was opened again. All pieces were complete.
    pub(crate) compared: u64,
    pub(crate) version: Option<String>,
}

pub(crate) fn measure(options: &Options, way: StoreSetup, progress: &mut dyn FnMut(f64)) -> Result<Row> {
    // It is removed in any case.
    let folder = tempfile::Builder::new().prefix("swarmkeep-bench-").tempdir_in(&options.folder)?;
    let mut plan = options.download_plan();
    match way {
        StoreSetup::LibtorrentTuned => plan.extent = 4 << 20,
        StoreSetup::FilesByExtents => plan.extent = options.block.into(),
        _ => {}
    }
    let payload = Payload::new(plan.longest_piece());
    let mut bench = Bench { options, way, plan, payload, trace: Arc::default(), volume: None };
    if options.traced {
        bench.volume = Some(Volume::new(folder.path(), bench.blocks() * u64::from(options.block))?);
    }
    if way.is_block() { bench.block(folder.path(), progress) } else { bench.files(folder.path(), progress) }
}

struct Bench<'a> {
    options: &'a Options,
    way: StoreSetup,
    plan: DownloadPlan,
    payload: Payload,
    trace: Arc<Trace>,
    volume: Option<Volume>,
}

impl Bench<'_> {
    /// Blocks of the device: a tenth is for metadata and for room. I-nodes lie in a block for each of their
    /// sizes.
    fn blocks(&self) -> u64 {
        let needed = u64::from(self.plan.torrents) * self.plan.size.div_ceil(self.options.block.into());
        let free = needed + needed / 10 + 64;
        if self.way == StoreSetup::BlockAged { (free as f64 / (1.0 - aging::SHARE)) as u64 } else { free }
    }

    fn files(&self, folder: &Path, progress: &mut dyn FnMut(f64)) -> Result<Row> {
        let mut root = folder.to_owned();
        if let Some(volume) = &self.volume {
            self.zero(&volume.device, iter::once(0..self.blocks()))?;
            root.push("ext4");
            volume.ext4(&root)?;
        }
        if self.way.is_libtorrent() {
            let queue = (self.way == StoreSetup::LibtorrentTuned).then_some(self.options.cache / 4);
            let (store, version) = Libtorrent::start(&root, queue)?;
            let mut row = self.download(self.traced(store.clone()), &[store.pid()], progress)?;
            (row.compared, row.version) = (self.plan.verify(&store, &self.payload)?, Some(version));
            return Ok(row);
        }
        let config = ContentConfig::new(&root);
        let open = || FileStore::open(&config, Allocation::Sparse);
        let mut row = self.download(self.traced(open()?), &[], progress)?;
        row.compared = self.plan.verify(&open()?, &self.payload)?;
        Ok(row)
    }

    /// A store whose calls are recorded.
    fn traced<R: ContentRepository + 'static>(&self, inner: R) -> Arc<dyn ContentRepository> {
        Arc::new(TracedRepository { inner, size: self.plan.size, trace: Arc::clone(&self.trace) })
    }

    fn block(&self, folder: &Path, progress: &mut dyn FnMut(f64)) -> Result<Row> {
        let (block, blocks) = (u64::from(self.options.block), self.blocks());
        let path = match &self.volume {
            Some(volume) => volume.device.clone(),
            None => {
                let path = folder.join("image");
                File::create_new(&path)?.set_len(blocks * block)?;
                path
            }
        };
        let aged = self.way == StoreSetup::BlockAged;
        if !aged {
            self.zero(&path, iter::once(0..blocks))?;
        }
        let device = TracedDevice { device: FileDevice::open(&path, true)?, trace: Arc::clone(&self.trace) };
        let mut options = FormatOptions::new();
        options.block_size = Some(self.options.block);
        BlockStore::format(&device, options)?;
        let store = BlockStore::boot(device, block::Allocation::Sequential)?;
        if aged {
            aging::age(&store, self.options.seed, &mut |share| progress(share * 0.1))?;
            let free = aging::free_runs(&store, blocks as u32);
            self.zero(&path, free.iter().map(|run| run.start.into()..run.end.into()))?;
        }
        let from = if aged { 0.1 } else { 0.0 };
        let progress = &mut |share: f64| progress(from + (1.0 - from) * share);
        let mut row = self.download(Arc::new(store.clone()), &[], progress)?;
        store.audit().map_err(|error| Error::Failed(format!("the store contradicts itself: {error}")))?;
        drop(store);
        row.compared = self.plan.verify(&BlockStore::open(&path, None)?, &self.payload)?;
        Ok(row)
    }

    /// Writes zeroes over runs of blocks, so that an image is like a used disk: a file system is slower where
    /// it has to give room to a file, or to note the first write to a place.
    fn zero(&self, path: &Path, runs: impl IntoIterator<Item = Range<u64>>) -> io::Result<()> {
        let block = u64::from(self.options.block);
        runs.into_iter().try_for_each(|run| fill(path, run.start * block..run.end * block))
    }

    /// Downloads into a store; `others` are further processes of it.
    fn download(
        &self,
        lower: Arc<dyn ContentRepository>,
        others: &[u32],
        progress: &mut dyn FnMut(f64),
    ) -> Result<Row> {
        let limit = match self.volume {
            Some(_) if self.way != StoreSetup::FilesFree => {
                let limit = Limit::new()?;
                limit.enter(memory_of(self.options.cache), &[others, &[std::process::id()]].concat())?;
                Some(limit)
            }
            _ => None,
        };
        // Writes through the page cache need some of the memory, or the kernel ends the process.
        let pages = if limit.is_some() && !self.way.is_block() { 16 << 20 } else { 0 };
        let is_cached = self.way.is_block() || self.way == StoreSetup::FilesCached;
        let cache = is_cached.then(|| {
            let mut options = StripeCacheOptions::new();
            options.stripe = Some(self.options.block);
            options.write_memory = self.options.cache - pages.min(self.options.cache / 4);
            options.threads = self.options.writers as usize;
            StripeCache::new(Arc::clone(&lower), options)
        });
        let cache = cache.transpose()?;
        let upper: &dyn ContentRepository = cache.as_ref().map_or(&*lower, |cache| cache);
        let total = self.plan.bytes();
        let (mut bytes, mut told) = (0, 0);
        let progress = &mut |more: u64| {
            bytes += more;
            // A hundred times in all, because each costs a system call.
            if bytes * 100 / total > told {
                told = bytes * 100 / total;
                progress(bytes as f64 / total as f64);
            }
        };
        match &self.volume {
            Some(volume) => volume.record(true)?,
            None => self.trace.turn_on(),
        }
        let cpu = || Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).unwrap_or_default();
        let (began, cpu_before) = (Instant::now(), cpu());
        let asked = cache.as_ref().filter(|_| self.way != StoreSetup::BlockWithoutAffinity);
        self.plan.download(upper, asked, &self.payload, progress)?;
        self.volume.as_ref().map_or(Ok(()), Volume::sync)?;
        let (seconds, cpu) = (began.elapsed().as_secs_f64(), (cpu() - cpu_before).as_secs_f64());
        drop(limit);
        let trace = match &self.volume {
            Some(volume) => {
                volume.record(false)?;
                volume.requests()?
            }
            None => self.trace.take(),
        };
        let mut replay = disk::replay(&trace);
        if !matches!(self.way, StoreSetup::Files | StoreSetup::Block) {
            // It has no picture.
            replay.points.clear();
        }
        Ok(Row {
            name: self.way.name().to_owned(),
            way: self.way,
            replay,
            seconds,
            cpu,
            compared: 0,
            version: None,
        })
    }
}

/// Bytes that a row may take: the stripe cache, and a little besides. With a cache of 64 MB, 23 MB were seen.
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
