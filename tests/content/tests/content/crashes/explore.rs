//! Every state that a crash could leave, one after another.

use std::{
    collections::{HashSet, hash_map::DefaultHasher},
    hash::{Hash, Hasher},
    sync::Arc,
};

use swarmkeep::{Random, SplitMix64};
use swarmkeep_content::{
    ContentExt, ContentRepository, Error, NewTorrent,
    block::{
        Allocation, Barrier, BlockDevice, BlockStore, Damage, FormatOptions, Mutant, Owner, SECTOR, Sector,
        SparseDevice, sectors,
    },
};

use super::{
    judge::{Fault, SECTORS, check, judge},
    recorder::{Deaf, Entry, Folder, Image, LOGICAL, Pending, RecordedFolder, Recorder, with_garbage},
    workload::{Promises, Work, hash},
};

/// What is explored, and how far.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) allocation: Allocation,
    /// What the store gets wrong.
    pub(crate) mutant: Option<Mutant>,
    /// Flushes that the device or the folder ignores.
    pub(crate) deaf: Option<Deaf>,
    /// Things done before each crash.
    pub(crate) actions: usize,
    /// How often a store that came back is put to work and crashes again.
    pub(crate) again: u32,
    /// Torrents that are there from the start.
    pub(crate) crowd: u64,
}

impl Plan {
    pub(crate) const fn new() -> Self {
        let allocation = Allocation::Sequential;
        Self { allocation, mutant: None, deaf: None, actions: 60, again: 1, crowd: 0 }
    }
}

/// What was found.
#[derive(Debug, Default)]
pub(crate) struct Explored {
    /// Crash states that were judged.
    pub(crate) states: u64,
    /// Those among them that differ.
    pub(crate) distinct: HashSet<u64>,
    /// Flushes between which the crashes were.
    pub(crate) flushes: u64,
    /// What was wrong first.
    pub(crate) found: Option<String>,
}

/// Puts a fresh store to work, crashes it wherever it can crash, and judges what is left, until something is
/// wrong.
pub(crate) fn explore(seed: u64, plan: Plan, explored: &mut Explored) {
    let device = SparseDevice::new(SECTORS);
    BlockStore::format(&device, FormatOptions::new().block_size(16 << 10)).expect("it is large enough");
    let mut all = sectors(SECTORS as usize);
    device.read(0, &mut all).expect("it is as long");
    let image: Image =
        (0..).zip(all.into_iter().map(Arc::new)).filter(|(_, sector)| **sector != Sector::ZERO).collect();
    let device = Arc::new(Recorder::new(SECTORS, image, plan.deaf));
    let store =
        BlockStore::boot_mutant(Arc::clone(&device), plan.allocation, plan.mutant).expect("it was formatted");
    let mut rng = SplitMix64::new(seed);
    let draws = SplitMix64::new(rng.next_u64());
    let note = |promises: &Promises| device.note(Arc::new(promises.clone()));
    let folder = RecordedFolder(Arc::clone(&device));
    let mut work = Work::new(&store, folder, &note, Promises::default(), draws);
    work.crowd(plan.crowd);
    store.flush().expect("the device takes everything");
    let (base, folder, promises) = (device.image(), device.folder(), work.promises.clone());
    device.take_log();
    let worked = work.run(plan.actions);
    let place = format!("seed {seed}");
    let mut explorer = Explorer { plan, rng, explored, folder, in_boot: false };
    explorer.crashes(base, Pending::default(), promises, device.take_log(), plan.again, &place);
    if let Err(what) = worked {
        explorer.wrong(format!("{place}: {what}"));
    }
}

/// Formats a device that holds a store, crashes it wherever it can crash, and looks at what is left: that
/// store, of which nothing was touched, an empty one, or none. The device does nothing at `deaf` flushes. How
/// many states there were, or what is wrong.
pub(crate) fn explore_format(seed: u64, deaf: Option<Barrier>) -> Result<u64, String> {
    let options = |number: u64| {
        let options = FormatOptions::new().block_size([16 << 10, 32 << 10, 64 << 10][number as usize % 3]);
        // In blocks of 16 KiB, a root of several of them.
        if number < 3 { options } else { options.torrents(2000) }
    };
    let device = Arc::new(Recorder::<Arc<Promises>>::new(SECTORS, Image::new(), None));
    BlockStore::format(&*device, options(seed % 4)).expect("it is large enough");
    let store = BlockStore::boot(Arc::clone(&device), Allocation::Sequential).expect("it was formatted");
    let note = |_: &Promises| {};
    let folder = RecordedFolder(Arc::clone(&device));
    let mut work = Work::new(&store, folder, &note, Promises::default(), SplitMix64::new(seed));
    work.run(20).expect("the store agrees with itself");
    // What was created last is in one of the roots only.
    work.crowd(1);
    drop(work);
    drop(store);
    let base = device.image();
    let listed = |image: Image| {
        let store = BlockStore::boot(Recorder::<()>::new(SECTORS, image, None), None)?;
        Ok::<_, Error>((store.list()?, store.report().damage.clone()))
    };
    let (before, _) = listed(base.clone()).expect("it was a store");
    let device = Recorder::<()>::new(SECTORS, base.clone(), deaf.map(Deaf::Device));
    BlockStore::format(&device, options(seed / 4 % 4)).expect("it is large enough");
    let mut found = Ok(());
    let (_, states) = every_crash(base.clone(), device.take_log(), seed, |image| {
        let is_untouched = is_same(&image, &base);
        match listed(image) {
            Ok((torrents, _)) if is_untouched && torrents == before => {}
            Ok((torrents, damage)) if !is_untouched && torrents.is_empty() && damage.is_empty() => {}
            Err(Error::NotAStore { .. }) if !is_untouched => {}
            wrong => found = Err(format!("untouched: {is_untouched}, {wrong:?}")),
        }
    });
    assert_eq!(listed(device.image()).expect("format returned"), (Vec::new(), Vec::new()));
    found.map(|()| states)
}

/// Whether two devices hold the same.
fn is_same(one: &Image, other: &Image) -> bool {
    let of = |image: &Image, at| image.get(at).map_or(Sector::ZERO, |sector| **sector);
    one.keys().chain(other.keys()).all(|at| of(one, at) == of(other, at))
}

/// Makes a new root for a store that has none, crashes wherever it can crash, and finds the same torrents
/// again. How many states there were.
pub(crate) fn explore_salvage(seed: u64) -> u64 {
    let device = Arc::new(Recorder::<Arc<Promises>>::new(SECTORS, Image::new(), None));
    BlockStore::format(&*device, FormatOptions::new().block_size(16 << 10)).expect("it is large enough");
    let store = BlockStore::boot(Arc::clone(&device), Allocation::Sequential).expect("it was formatted");
    let image = image_of_another_store();
    let length = image.len() as u64;
    let content = store.create(&NewTorrent::new(hash(u64::MAX), length, 16 << 10).expect("it has bytes"));
    let content = content.expect("there is room");
    content.write(0, &image).expect("there is room");
    (0..content.geometry().pieces())
        .for_each(|piece| _ = content.mark_complete(piece).expect("it was written"));
    let note = |_: &Promises| {};
    let folder = RecordedFolder(Arc::clone(&device));
    let mut work = Work::new(&store, folder, &note, Promises::default(), SplitMix64::new(seed));
    work.run(40).expect("the store agrees with itself");
    store.flush().expect("the device takes everything");
    let before = store.list().expect("it answers from memory");
    drop(work);
    drop(store);
    let mut base = device.image();
    base.retain(|&at, _| at >= 8);
    let device = Recorder::<()>::new(SECTORS, base.clone(), None);
    let found = BlockStore::salvage(&device).expect("the device takes everything");
    assert_eq!(found as usize, before.len());
    let judge = |image| {
        let device = Arc::new(Recorder::<()>::new(SECTORS, image, None));
        let boot = || BlockStore::boot(Arc::clone(&device), Allocation::Sequential);
        let store = boot().or_else(|_| BlockStore::salvage(&*device).and_then(|_| boot()));
        let store = store.expect("it is found again");
        store.audit().expect("the store agrees with itself");
        assert_eq!(store.list().expect("it answers from memory"), before);
    };
    let (after, states) = every_crash(base, device.take_log(), seed, judge);
    judge(after);
    states
}

/// An image with i-nodes that are possible in its blocks, and not in blocks of 16 KiB.
fn image_of_another_store() -> Vec<u8> {
    let device = Arc::new(SparseDevice::new(3 * 8));
    BlockStore::format(&*device, FormatOptions::new().block_size(32 << 10)).expect("it is large enough");
    let store = BlockStore::boot(Arc::clone(&device), None).expect("it was formatted");
    for name in 1000..1020 {
        let new = NewTorrent::new(hash(name), 100 << 15, 32 << 10).expect("it has bytes");
        store.create(&new).expect("there is room");
    }
    let mut image = sectors(3 * 8);
    device.read(0, &mut image).expect("it is as long");
    image.iter().flat_map(|sector| sector.0).collect()
}

/// Judges many of the states that a crash in a log can leave. What is left without a crash, and how many
/// there were.
fn every_crash<N>(
    mut base: Image,
    log: Vec<Entry<N>>,
    seed: u64,
    mut judge: impl FnMut(Image),
) -> (Image, u64) {
    let (mut states, mut pending, mut rng) = (0, Pending::default(), SplitMix64::new(seed));
    let mut judge = |image: Image| {
        states += 1;
        judge(image);
    };
    for entry in log.into_iter().chain([Entry::Flush]) {
        match entry {
            Entry::Write(first, sectors) => {
                pending.writes.push((first, sectors));
                judge(pending.some_writes(&base, |_| true));
            }
            Entry::Flush => {
                for kept in 0_u32..1 << pending.writes.len().min(8) {
                    judge(pending.some_writes(&base, |write| kept & (1 << (write % 8)) != 0));
                }
                for _ in 0..100 {
                    let kept = rng.next_u64();
                    judge(pending.some_writes(&base, |write| kept & (1 << (write % 64)) != 0));
                }
                (0..50).for_each(|_| judge(pending.some_sectors(&base, || rng.next_u64() & 1 == 0)));
                base = pending.some_writes(&base, |_| true);
                pending = Pending::default();
            }
            Entry::Note(_) | Entry::Folder(_) => {}
        }
    }
    (base, states)
}

struct Explorer<'a> {
    plan: Plan,
    rng: SplitMix64,
    explored: &'a mut Explored,
    /// The folder, as far as the record was read.
    folder: Folder,
    /// A crash of boot is looked into, and not those of the boot after it.
    in_boot: bool,
}

impl Explorer<'_> {
    fn draw(&mut self, below: usize) -> usize {
        (self.rng.next_u64() % below as u64) as usize
    }

    /// Goes through what was recorded, and crashes between any two flushes. `pending` is what an earlier
    /// process wrote and did not flush.
    fn crashes(
        &mut self,
        mut base: Image,
        mut pending: Pending,
        promises: Promises,
        log: Vec<Entry<Arc<Promises>>>,
        again: u32,
        place: &str,
    ) {
        let mut promises = Arc::new(promises);
        let mut epoch = 0;
        for entry in log {
            if self.explored.found.is_some() {
                return;
            }
            match entry {
                Entry::Note(said) => {
                    promises = said;
                    if pending.writes.is_empty() {
                        // Nothing is under way: what was flushed is all there is.
                        self.state(
                            base.clone(),
                            &promises,
                            Fault::None,
                            0,
                            &format!("{place}, after flush {epoch}"),
                        );
                    }
                }
                Entry::Folder(step) => {
                    self.folder.apply(&step);
                    let image = pending.some_writes(&base, |_| true);
                    let what = format!("{place}, after a step in the folder behind flush {epoch}");
                    (0..2).for_each(|_| _ = self.state(image.clone(), &promises, Fault::None, 0, &what));
                }
                Entry::Write(first, sectors) => {
                    pending.writes.push((first, sectors));
                    let image = pending.some_writes(&base, |_| true);
                    let what = format!("{place}, after write {} behind flush {epoch}", pending.writes.len());
                    self.state(image, &promises, Fault::None, 0, &what);
                    if again > 0 && self.draw(64) == 0 {
                        let what = format!("{what}, with the process alone");
                        self.go_on(base.clone(), pending.clone(), &promises, again - 1, &what);
                    }
                }
                Entry::Flush => {
                    self.epoch(
                        &base,
                        &pending,
                        &promises,
                        again,
                        &format!("{place}, before flush {}", epoch + 1),
                    );
                    base = pending.some_writes(&base, |_| true);
                    pending = Pending::default();
                    epoch += 1;
                    self.explored.flushes += 1;
                    self.rot(&base, &promises, &format!("{place}, after flush {epoch}"));
                }
            }
        }
        self.epoch(&base, &pending, &promises, again, &format!("{place}, at the end"));
    }

    /// Everything that may be left if it crashes in a flush.
    fn epoch(&mut self, base: &Image, pending: &Pending, promises: &Promises, again: u32, place: &str) {
        let count = pending.writes.len();
        if count == 0 {
            return;
        }
        // Of a store that came back there are so many that fewer of each have to do.
        let few = count <= if again == self.plan.again { 10 } else { 5 };
        let chosen = self.draw(64);
        let mut number = 0;
        let mut next = |explorer: &mut Self, image: Image, what: &str| {
            number += 1;
            // One of so many is put to work again.
            let again = if number % 64 == chosen { again } else { 0 };
            explorer.state(image, promises, Fault::None, again, &format!("{place}: {what}"));
        };
        if few {
            for kept in 0_u32..1 << count {
                let image = pending.some_writes(base, |write| kept & (1 << write) != 0);
                next(self, image, &format!("writes {kept:0count$b} of {count}"));
            }
        } else {
            for one in 0..count {
                next(self, pending.some_writes(base, |write| write != one), &format!("without write {one}"));
                next(self, pending.some_writes(base, |write| write == one), &format!("write {one} alone"));
            }
            for _ in 0..32 {
                let (seed, bias) = (self.rng.next_u64(), self.draw(7) as u64 + 1);
                let kept = |write: usize| SplitMix64::new(seed ^ write as u64).next_u64() % 8 < bias;
                next(self, pending.some_writes(base, kept), &format!("some writes, {seed}"));
            }
        }
        for _ in 0..12 {
            let (seed, bias) = (self.rng.next_u64(), self.draw(7) as u64 + 1);
            let mut rng = SplitMix64::new(seed);
            let image = pending.some_sectors(base, || rng.next_u64() % 8 < bias);
            next(self, image, &format!("torn, {seed}"));
        }
        let logical = pending.logical();
        for _ in 0..6 {
            let (seed, (at, part, _)) = (self.rng.next_u64(), logical[self.draw(logical.len())]);
            let mut rng = SplitMix64::new(seed);
            let image = pending.some_sectors(base, || rng.next_u64() & 1 == 0);
            let image = with_garbage(&image, at, part, seed);
            let what = format!("{place}: torn with garbage in sector {at}.{part}, {seed}");
            self.state(image, promises, Fault::Garbage(at), 0, &what);
        }
    }

    /// What is durable, but for a logical sector.
    fn rot(&mut self, base: &Image, promises: &Promises, place: &str) {
        let mut sectors: Vec<_> = base.keys().copied().collect();
        sectors.sort_unstable();
        for _ in 0..3 {
            // The roots lie in front, and are few among many.
            let (near, far) = (self.draw(4), self.draw(sectors.len()));
            let at = if self.draw(3) == 0 { [0, 2, 4, 6][near] } else { sectors[far] };
            let (part, seed) = (self.draw(SECTOR / LOGICAL), self.rng.next_u64());
            let image = with_garbage(base, at, part, seed);
            let what = format!("{place}: garbage in sector {at}.{part}, {seed}");
            if self.state(image.clone(), promises, Fault::Garbage(at), 0, &what) {
                self.heal(base, image, (at, part), promises, &what);
            }
        }
    }

    /// Works on with a bad sector, until it reads again as it did: nobody may believe it then.
    fn heal(&mut self, base: &Image, bad: Image, (at, part): (u64, usize), promises: &Promises, place: &str) {
        let device = Arc::new(Recorder::<()>::new(SECTORS, bad.clone(), self.plan.deaf));
        let store = BlockStore::boot_mutant(Arc::clone(&device), self.plan.allocation, self.plan.mutant)
            .expect("it has booted before");
        let costs = |damage: &Damage| matches!(damage, Damage::Lost { .. } | Damage::Map { .. });
        if self.explored.found.is_some() || !store.report().damage.iter().any(costs) {
            return;
        }
        fill(&store);
        // The power goes, and of what was written since the last flush nothing but content is left.
        let log = device.take_log();
        let flushed = log.iter().rposition(|entry| matches!(entry, Entry::Flush)).map_or(0, |at| at + 1);
        let content = first_of_content(&store);
        let (mut image, mut rewritten) = (bad, false);
        for (position, entry) in log.into_iter().enumerate() {
            if let Entry::Write(first, sectors) = entry
                && (position < flushed || content.contains(&first))
            {
                rewritten |= (first..first + sectors.len() as u64).contains(&at);
                image.extend((first..).zip(sectors));
            }
        }
        if !rewritten {
            let mut healed = *image[&at];
            let bytes = part * LOGICAL..(part + 1) * LOGICAL;
            healed.0[bytes.clone()].copy_from_slice(&base[&at].0[bytes]);
            image.insert(at, Arc::new(healed));
        }
        self.state(image, promises, Fault::Healed(at), 0, &format!("{place}, healed after a crash"));
    }

    /// Crashes again while boot mends what the first crash left.
    fn crash_of_boot(
        &mut self,
        mended: Vec<Entry<Arc<Promises>>>,
        image: &Image,
        promises: &Promises,
        fault: Fault,
        place: &str,
    ) {
        if std::mem::replace(&mut self.in_boot, true) {
            return;
        }
        // What was bad was reported by then.
        let fault = match fault {
            Fault::None => Fault::None,
            Fault::Garbage(at) | Fault::Healed(at) => Fault::Healed(at),
        };
        let (mut base, mut pending) = (image.clone(), Pending::default());
        for entry in mended {
            match entry {
                Entry::Write(first, sectors) => pending.writes.push((first, sectors)),
                Entry::Flush => {
                    let count = pending.writes.len();
                    for kept in 0_u32..1 << count.min(5) {
                        let image = pending.some_writes(&base, |write| kept & (1 << (write % 5)) != 0);
                        self.state(
                            image,
                            promises,
                            fault,
                            0,
                            &format!("{place}; boot mends writes {kept:b} of {count}"),
                        );
                    }
                    base = pending.some_writes(&base, |_| true);
                    pending = Pending::default();
                }
                Entry::Note(_) | Entry::Folder(_) => {}
            }
        }
        self.in_boot = false;
    }

    fn wrong(&mut self, what: String) {
        self.explored.found.get_or_insert(what);
    }

    /// Judges what is left, and maybe works on from there. Whether it is new, and holds.
    fn state(&mut self, image: Image, promises: &Promises, fault: Fault, again: u32, place: &str) -> bool {
        if self.explored.found.is_some() {
            return false;
        }
        self.explored.states += 1;
        let folder = self.folder.crash(self.rng.next_u64());
        if !self.explored.distinct.insert(fingerprint(&image, &folder, promises))
            && fault == Fault::None
            && again == 0
        {
            return false;
        }
        let mended = match judge(image.clone(), &folder, promises, fault, self.plan.mutant) {
            Ok(mended) => mended,
            Err(what) => {
                self.wrong(format!("{place}: {what}"));
                return false;
            }
        };
        self.crash_of_boot(mended, &image, promises, fault, place);
        if again > 0 {
            let before = std::mem::replace(&mut self.folder, folder);
            self.go_on(image, Pending::default(), promises, again - 1, place);
            self.folder = before;
        }
        true
    }

    /// Opens what a process left, works on, and crashes again. `pending` is still in the cache of the device,
    /// if the process died without it.
    fn go_on(&mut self, base: Image, pending: Pending, promises: &Promises, again: u32, place: &str) {
        if self.explored.found.is_some() {
            return;
        }
        let image = pending.some_writes(&base, |_| true);
        let folder = self.folder.clone();
        let device = Arc::new(Recorder::beside(folder.clone(), SECTORS, image, self.plan.deaf));
        let (allocation, mutant) = (self.plan.allocation, self.plan.mutant);
        let store =
            BlockStore::boot_mutant(Arc::clone(&device), allocation, mutant).expect("it has booted before");
        let note = |promises: &Promises| device.note(Arc::new(promises.clone()));
        let rng = SplitMix64::new(self.rng.next_u64());
        let read = |name: &str| folder.read(name).map(<[u8]>::to_vec);
        let worked = check(&store, read, promises, Fault::None).and_then(|promises| {
            Work::new(&store, RecordedFolder(Arc::clone(&device)), &note, promises, rng).run(8)
        });
        let place = format!("{place}; then");
        self.crashes(base, pending, promises.clone(), device.take_log(), again, &place);
        self.folder = folder;
        if let Err(what) = worked {
            self.wrong(format!("{place}: {what}"));
        }
    }
}

/// Writes whatever can be written, without a flush: all that is free is used.
fn fill(store: &BlockStore) {
    for summary in store.list().expect("it answers from memory") {
        let content = store.open(&summary.info_hash).expect("it is listed");
        let (complete, geometry) = (content.pieces().expect("it is there"), content.geometry());
        for piece in (0..geometry.pieces()).filter(|&piece| !complete.contains(piece)) {
            let range = geometry.piece(piece).expect("it is one of them");
            match content.write(range.start, &vec![0xf1; (range.end - range.start) as usize]) {
                Ok(()) => {}
                Err(Error::Full { .. }) => return,
                Err(error) => panic!("{error}"),
            }
        }
    }
}

/// The sectors of all blocks of content.
fn first_of_content(store: &BlockStore) -> HashSet<u64> {
    let owners = store.owners().into_iter();
    let of_content = owners.filter(|(_, owner)| matches!(owner, Owner::Content(_)));
    of_content.flat_map(|(run, _)| u64::from(run.start) * 4..u64::from(run.end) * 4).collect()
}

/// What tells a state from others: what is on the device and in the folder, and what has been promised.
fn fingerprint(image: &Image, folder: &Folder, promises: &Promises) -> u64 {
    thread_local! {
        // By address: a sector that is shared is hashed once.
        static KNOWN: std::cell::RefCell<std::collections::HashMap<usize, (std::sync::Weak<Sector>, u64)>> =
            std::cell::RefCell::default();
    }
    let of_sector = |sector: &Arc<Sector>| {
        KNOWN.with_borrow_mut(|known| {
            if known.len() > 1 << 16 {
                known.retain(|_, (sector, _)| sector.strong_count() > 0);
            }
            let entry = known.entry(Arc::as_ptr(sector) as usize);
            let (weak, hash) = entry.or_insert_with(|| (Arc::downgrade(sector), hash_of(&sector.0)));
            if weak.strong_count() == 0 {
                (*weak, *hash) = (Arc::downgrade(sector), hash_of(&sector.0));
            }
            *hash
        })
    };
    let device =
        image.iter().fold(0_u64, |sum, (at, sector)| sum.wrapping_add(hash_of(&(at, of_sector(sector)))));
    // Bytes of a file follow from its name and its length.
    let names: Vec<_> = folder.names().map(|(name, bytes)| (name, bytes.len())).collect();
    let promised: Vec<_> = promises
        .torrents
        .iter()
        .map(|(name, torrent)| {
            let pieces: Vec<_> =
                torrent.pieces.iter().map(|(at, piece)| (at, piece.durable, piece.marked)).collect();
            (name, torrent.number, pieces)
        })
        .collect();
    hash_of(&(device, names, promised))
}

fn hash_of(value: &(impl Hash + ?Sized)) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}
