//! Every state that a crash could leave, one after another.

use std::{
    collections::{HashSet, hash_map::DefaultHasher},
    hash::{Hash, Hasher},
};

use swarmkeep_content::block::{Owner, sectors};
use swarmkeep_kit::{
    device::SparseDevice,
    disk::{Medium, SECTOR as LOGICAL},
};

use super::{
    judge::judge,
    recorder::{DEVICE, RecordedFolder, blank, with_garbage},
    *,
};

#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) allocation: Allocation,
    /// The fault of the store.
    pub(crate) mutant: Option<Mutant>,
    /// Flushes that the device or the folder ignores.
    pub(crate) ignored: Option<IgnoredFlush>,
    /// The number of actions before each crash.
    pub(crate) actions: usize,
    /// The number of times that a store which came back works on and crashes again.
    pub(crate) again: u32,
    /// The number of torrents from the start.
    pub(crate) crowd: u64,
}

impl Plan {
    pub(crate) const fn new() -> Self {
        let allocation = Allocation::Sequential;
        Self { allocation, mutant: None, ignored: None, actions: 60, again: 1, crowd: 0 }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Explored {
    /// Crash states that were judged.
    pub(crate) states: u64,
    /// The distinct states among them.
    pub(crate) distinct: HashSet<u64>,
    /// Flushes between which the crashes were.
    pub(crate) flushes: u64,
    pub(crate) found: Option<String>,
}

/// Runs a fresh store, crashes it at each possible point, and judges each state, until one is wrong.
pub(crate) fn explore(seed: u64, plan: Plan, explored: &mut Explored) {
    let device = Recorder::<()>::new(blank(), None);
    BlockStore::format(&device, blocks_of(16 << 10)).expect("it is large enough");
    let device = Arc::new(Recorder::new(device.image(), plan.ignored));
    let store =
        BlockStore::boot_mutant(Arc::clone(&device), plan.allocation, plan.mutant).expect("it was formatted");
    let mut rng = SplitMix64::new(seed);
    let draws = SplitMix64::new(rng.next_u64());
    let note = |promises: &Promises| device.disk.record(Entry::Note(Arc::new(promises.clone())));
    let folder = RecordedFolder(Arc::clone(&device));
    let mut work = StoreWorkload::new(&store, folder, &note, Promises::default(), draws);
    work.crowd(plan.crowd);
    store.flush().expect("the device takes everything");
    let (medium, promises) = (Medium::new(device.image()), work.promises.clone());
    device.disk.take_log();
    let worked = work.run(plan.actions);
    let place = format!("seed {seed}");
    let mut explorer = Explorer { plan, rng, explored, in_boot: false };
    explorer.crashes(medium, promises, device.disk.take_log(), plan.again, &place);
    if let Err(what) = worked {
        explorer.wrong(format!("{place}: {what}"));
    }
}

/// Formats a device that holds a store, and crashes it at each possible point. Each state must be the old
/// store, unchanged, or an empty one, or none. The device ignores the flush `ignored`. Returns the number
/// of states, or the first fault.
pub(crate) fn explore_format(seed: u64, ignored: Option<Barrier>) -> Result<u64, String> {
    let options = |number: u64| {
        let mut options = blocks_of([16 << 10, 32 << 10, 64 << 10][number as usize % 3]);
        // In blocks of 16 KiB, a root of several of them.
        options.torrents = (number >= 3).then_some(2000);
        options
    };
    let device = Arc::new(Recorder::<Arc<Promises>>::new(blank(), None));
    BlockStore::format(&*device, options(seed % 4)).expect("it is large enough");
    let store = BlockStore::boot(Arc::clone(&device), Allocation::Sequential).expect("it was formatted");
    let note = |_: &Promises| {};
    let folder = RecordedFolder(Arc::clone(&device));
    let mut work = StoreWorkload::new(&store, folder, &note, Promises::default(), SplitMix64::new(seed));
    work.run(20).expect("the store agrees with itself");
    // Only one of the roots has the last torrent.
    work.crowd(1);
    drop(work);
    drop(store);
    let base = device.image();
    let listed = |image: Image| {
        let store = BlockStore::boot(Recorder::<()>::new(image, None), None)?;
        Ok::<_, Error>((store.list()?, store.report().damage.clone()))
    };
    let (before, _) = listed(base.clone()).expect("it was a store");
    let device = Recorder::<()>::new(base.clone(), ignored.map(IgnoredFlush::Device));
    BlockStore::format(&device, options(seed / 4 % 4)).expect("it is large enough");
    let mut found = Ok(());
    let (_, states) = every_crash(base.clone(), device.disk.take_log(), seed, |image| {
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

fn is_same(one: &Image, other: &Image) -> bool {
    let mut pages = one.pages(DEVICE).chain(other.pages(DEVICE));
    pages.all(|page| one.page(DEVICE, page) == other.page(DEVICE, page))
}

/// Makes a new root for a store that has none, crashes at each possible point, and finds the same torrents
/// again. Returns the number of states.
pub(crate) fn explore_salvage(seed: u64) -> u64 {
    let device = Arc::new(Recorder::<Arc<Promises>>::new(blank(), None));
    BlockStore::format(&*device, blocks_of(16 << 10)).expect("it is large enough");
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
    let mut work = StoreWorkload::new(&store, folder, &note, Promises::default(), SplitMix64::new(seed));
    work.run(40).expect("the store agrees with itself");
    store.flush().expect("the device takes everything");
    let before = store.list().expect("it answers from memory");
    drop(work);
    drop(store);
    let mut base = device.image();
    let bytes = vec![0; 8 * SECTOR].into();
    base.apply(&Change::Write { node: DEVICE, at: 0, bytes }, &mut || true);
    let device = Arc::new(Recorder::<()>::new(base.clone(), None));
    let salvage = |device: &Arc<Recorder<()>>| BlockStore::salvage(Arc::clone(device), &|_| None);
    let found = salvage(&device).expect("the device takes everything");
    assert_eq!(found.0 as usize, before.len());
    let judge = |image| {
        let device = Arc::new(Recorder::<()>::new(image, None));
        let boot = || BlockStore::boot(Arc::clone(&device), Allocation::Sequential);
        let store = boot().or_else(|_| salvage(&device).and_then(|_| boot()));
        let store = store.expect("it is found again");
        store.audit().expect("the store agrees with itself");
        assert_eq!(store.list().expect("it answers from memory"), before);
    };
    let (after, states) = every_crash(base, device.disk.take_log(), seed, judge);
    judge(after);
    states
}

/// An image with i-nodes that are possible in its blocks, and not in blocks of 16 KiB.
fn image_of_another_store() -> Vec<u8> {
    let device = Arc::new(SparseDevice::new(3 * 8));
    BlockStore::format(&*device, blocks_of(32 << 10)).expect("it is large enough");
    let store = BlockStore::boot(Arc::clone(&device), None).expect("it was formatted");
    for name in 1000..1020 {
        let new = NewTorrent::new(hash(name), 100 << 15, 32 << 10).expect("it has bytes");
        store.create(&new).expect("there is room");
    }
    let mut image = sectors(3 * 8);
    device.read(0, &mut image).expect("it is as long");
    image.iter().flat_map(|sector| sector.0).collect()
}

/// Judges many of the states that a crash in a log can leave. Returns the image without a crash, and the
/// number of states.
fn every_crash<N>(base: Image, log: Vec<Entry<N>>, seed: u64, mut judge: impl FnMut(Image)) -> (Image, u64) {
    let (mut states, mut medium, mut rng) = (0, Medium::new(base), SplitMix64::new(seed));
    let mut judge = |image: Image| {
        states += 1;
        judge(image);
    };
    for entry in log.into_iter().chain([Entry::Flush(None)]) {
        if let Entry::Flush(_) = entry {
            for kept in 0_u32..1 << medium.pending().len().min(8) {
                judge(medium.crash(&mut |write| kept & (1 << (write % 8)) != 0));
            }
            for _ in 0..100 {
                let kept = rng.next_u64();
                judge(medium.crash(&mut |write| kept & (1 << (write % 64)) != 0));
            }
            (0..50).for_each(|_| judge(medium.crash(&mut |_| rng.next_u64() & 1 == 0)));
        }
        let is_change = matches!(entry, Entry::Change(_));
        medium.play(entry);
        if is_change {
            judge(medium.crash(&mut |_| true));
        }
    }
    (medium.durable().clone(), states)
}

struct Explorer<'a> {
    plan: Plan,
    rng: SplitMix64,
    explored: &'a mut Explored,
    /// Crashes are explored in a boot, but not in the boot after it.
    in_boot: bool,
}

impl Explorer<'_> {
    fn draw(&mut self, below: usize) -> usize {
        (self.rng.next_u64() % below as u64) as usize
    }

    /// Replays the record, and crashes between any two flushes of the device.
    fn crashes(
        &mut self,
        mut medium: Medium,
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
                    if !medium.pending().iter().any(|change| change.is_of(DEVICE)) {
                        // No action is under way: the store has flushed everything.
                        let what = format!("{place}, after flush {epoch}");
                        let image = self.left(&medium, |_| true);
                        self.state(image, &promises, Fault::None, 0, &what);
                    }
                }
                Entry::Flush(Some(DEVICE)) => {
                    self.epoch(&medium, &promises, again, &format!("{place}, before flush {}", epoch + 1));
                    medium.play(entry);
                    epoch += 1;
                    self.explored.flushes += 1;
                    self.rot(&medium, &promises, &format!("{place}, after flush {epoch}"));
                }
                entry => {
                    let is_write = matches!(&entry, Entry::Change(change) if change.is_of(DEVICE));
                    medium.play(entry);
                    let what =
                        format!("{place}, after change {} behind flush {epoch}", medium.pending().len());
                    for _ in 0..if is_write { 1 } else { 2 } {
                        let image = self.left(&medium, |_| true);
                        self.state(image, &promises, Fault::None, 0, &what);
                    }
                    if is_write && again > 0 && self.draw(64) == 0 {
                        let what = format!("{what}, with the process alone");
                        self.go_on(medium.clone(), &promises, again - 1, &what);
                    }
                }
            }
        }
        self.epoch(&medium, &promises, again, &format!("{place}, at the end"));
    }

    /// The image after a crash: the writes that `kept` chooses, and a random part of the folder.
    fn left(&mut self, medium: &Medium, mut kept: impl FnMut(usize) -> bool) -> Image {
        let mut rng = SplitMix64::new(self.rng.next_u64());
        // One in four loses everything that it can, and one in four nothing.
        let all = rng.next_u64() % 4;
        let mut number = 0..;
        let writes: Vec<_> =
            medium.pending().iter().map(|change| change.is_of(DEVICE).then(|| number.next())).collect();
        medium.crash(&mut |change| match writes[change].flatten() {
            Some(write) => kept(write),
            None if all < 2 => all == 0,
            None => rng.next_u64().is_multiple_of(2),
        })
    }

    /// Every state that a crash in a flush may leave.
    fn epoch(&mut self, medium: &Medium, promises: &Promises, again: u32, place: &str) {
        let mut logical = Vec::new();
        let mut count = 0_usize;
        for change in medium.pending() {
            if let Change::Write { node: DEVICE, at, bytes } = change {
                logical.extend((*at..at + bytes.len() as u64).step_by(LOGICAL));
                count += 1;
            }
        }
        if count == 0 {
            return;
        }
        // A store that came back has very many states, so fewer of each are explored.
        let few = count <= if again == self.plan.again { 10 } else { 5 };
        let chosen = self.draw(64);
        let mut number = 0;
        let mut next = |explorer: &mut Self, image: Image, what: &str| {
            number += 1;
            // One of 64 continues to work.
            let again = if number % 64 == chosen { again } else { 0 };
            explorer.state(image, promises, Fault::None, again, &format!("{place}: {what}"));
        };
        if few {
            for kept in 0_u32..1 << count {
                let image = self.left(medium, |write| kept & (1 << write) != 0);
                next(self, image, &format!("writes {kept:0count$b} of {count}"));
            }
        } else {
            for one in 0..count {
                let (without, alone) =
                    (self.left(medium, |write| write != one), self.left(medium, |write| write == one));
                next(self, without, &format!("without write {one}"));
                next(self, alone, &format!("write {one} alone"));
            }
            for _ in 0..32 {
                let (seed, bias) = (self.rng.next_u64(), self.draw(7) as u64 + 1);
                let kept = |write: usize| SplitMix64::new(seed ^ write as u64).next_u64() % 8 < bias;
                let image = self.left(medium, kept);
                next(self, image, &format!("some writes, {seed}"));
            }
        }
        for _ in 0..12 {
            let (seed, bias) = (self.rng.next_u64(), self.draw(7) as u64 + 1);
            let mut rng = SplitMix64::new(seed);
            let image = self.left(medium, |_| rng.next_u64() % 8 < bias);
            next(self, image, &format!("torn, {seed}"));
        }
        for _ in 0..6 {
            let (seed, at) = (self.rng.next_u64(), logical[self.draw(logical.len())]);
            let mut rng = SplitMix64::new(seed);
            let image = self.left(medium, |_| rng.next_u64() & 1 == 0);
            let image = with_garbage(&image, at, seed);
            let what = format!("{place}: torn with garbage at byte {at}, {seed}");
            self.state(image, promises, Fault::Garbage(at / SECTOR as u64), 0, &what);
        }
    }

    /// The durable state, with garbage in one logical sector.
    fn rot(&mut self, medium: &Medium, promises: &Promises, place: &str) {
        let sectors: Vec<_> = medium.durable().pages(DEVICE).collect();
        for _ in 0..3 {
            // The roots are at the front, and are few among many sectors.
            let (near, far) = (self.draw(4), self.draw(sectors.len()));
            let sector = if self.draw(3) == 0 { [0, 2, 4, 6][near] } else { sectors[far] };
            let at = sector * SECTOR as u64 + (self.draw(SECTOR / LOGICAL) * LOGICAL) as u64;
            let seed = self.rng.next_u64();
            let base = self.left(medium, |_| true);
            let image = with_garbage(&base, at, seed);
            let what = format!("{place}: garbage at byte {at}, {seed}");
            if self.state(image.clone(), promises, Fault::Garbage(sector), 0, &what) {
                self.heal(&base, image, at, promises, &what);
            }
        }
    }

    /// Continues to work with a bad sector, until it reads correctly again: the store must not trust it then.
    fn heal(&mut self, base: &Image, bad: Image, at: u64, promises: &Promises, place: &str) {
        let device = Arc::new(Recorder::<()>::new(bad.clone(), self.plan.ignored));
        let store = BlockStore::boot_mutant(Arc::clone(&device), self.plan.allocation, self.plan.mutant)
            .expect("it has booted before");
        let costs = |damage: &Damage| matches!(damage, Damage::Lost { .. } | Damage::Map { .. });
        if self.explored.found.is_some() || !store.report().damage.iter().any(costs) {
            return;
        }
        fill(&store);
        // The power goes. Of all writes since the last flush, only content is left.
        let log = device.disk.take_log();
        let flushed = log.iter().rposition(|entry| matches!(entry, Entry::Flush(_))).map_or(0, |at| at + 1);
        let content = first_of_content(&store);
        let (mut image, sector, mut rewritten) = (bad, at / SECTOR as u64, false);
        for (position, entry) in log.into_iter().enumerate() {
            if let Entry::Change(change) = entry
                && let &Change::Write { at: start, ref bytes, .. } = &change
                && (position < flushed || content.contains(&(start / SECTOR as u64)))
            {
                let end = start + bytes.len() as u64;
                rewritten |= (start / SECTOR as u64..end / SECTOR as u64).contains(&sector);
                image.apply(&change, &mut || true);
            }
        }
        if !rewritten {
            let within = at as usize % PAGE;
            let bytes = base.page(DEVICE, sector)[within..within + LOGICAL].into();
            image.apply(&Change::Write { node: DEVICE, at, bytes }, &mut || true);
        }
        self.state(image, promises, Fault::Healed(sector), 0, &format!("{place}, healed after a crash"));
    }

    /// Crashes again while boot repairs the damage of the first crash.
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
        // The store has reported the bad sector by then.
        let fault = match fault {
            Fault::None => Fault::None,
            Fault::Garbage(at) | Fault::Healed(at) => Fault::Healed(at),
        };
        let mut medium = Medium::new(image.clone());
        for entry in mended {
            if let Entry::Flush(_) = entry {
                let count = medium.pending().len();
                for kept in 0_u32..1 << count.min(5) {
                    let image = medium.crash(&mut |write| kept & (1 << (write % 5)) != 0);
                    let what = format!("{place}; boot mends writes {kept:b} of {count}");
                    self.state(image, promises, fault, 0, &what);
                }
            }
            medium.play(entry);
        }
        self.in_boot = false;
    }

    fn wrong(&mut self, what: String) {
        self.explored.found.get_or_insert(what);
    }

    /// Judges a state, and maybe works on from there. Returns whether the state is new and correct.
    fn state(&mut self, image: Image, promises: &Promises, fault: Fault, again: u32, place: &str) -> bool {
        if self.explored.found.is_some() {
            return false;
        }
        self.explored.states += 1;
        if !self.explored.distinct.insert(fingerprint(&image, promises)) && fault == Fault::None && again == 0
        {
            return false;
        }
        let mended = match judge(image.clone(), promises, fault, self.plan.mutant) {
            Ok(mended) => mended,
            Err(what) => {
                self.wrong(format!("{place}: {what}"));
                return false;
            }
        };
        self.crash_of_boot(mended, &image, promises, fault, place);
        if again > 0 {
            self.go_on(Medium::new(image), promises, again - 1, place);
        }
        true
    }

    /// Opens the state that a process left, works on, and crashes again. If only the process died, the cache
    /// of the device still has the writes that were not flushed.
    fn go_on(&mut self, medium: Medium, promises: &Promises, again: u32, place: &str) {
        if self.explored.found.is_some() {
            return;
        }
        let image = medium.crash(&mut |_| true);
        let device = Arc::new(Recorder::new(image.clone(), self.plan.ignored));
        let (allocation, mutant) = (self.plan.allocation, self.plan.mutant);
        let store =
            BlockStore::boot_mutant(Arc::clone(&device), allocation, mutant).expect("it has booted before");
        let note = |promises: &Promises| device.disk.record(Entry::Note(Arc::new(promises.clone())));
        let rng = SplitMix64::new(self.rng.next_u64());
        let read = |name: &str| torrent_file_in(&image, name);
        let worked = check(&store, read, promises, Fault::None).and_then(|promises| {
            StoreWorkload::new(&store, RecordedFolder(Arc::clone(&device)), &note, promises, rng).run(8)
        });
        let place = format!("{place}; then");
        self.crashes(medium, promises.clone(), device.disk.take_log(), again, &place);
        if let Err(what) = worked {
            self.wrong(format!("{place}: {what}"));
        }
    }
}

/// Fills all free space, without a flush.
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

/// Identifies a state: the bytes of the medium, and the promises.
fn fingerprint(image: &Image, promises: &Promises) -> u64 {
    let promised: Vec<_> = promises
        .torrents
        .iter()
        .map(|(name, torrent)| {
            let pieces: Vec<_> =
                torrent.pieces.iter().map(|(at, piece)| (at, piece.durable, piece.marked)).collect();
            (name, torrent.number, pieces)
        })
        .collect();
    let mut hasher = DefaultHasher::new();
    (image.fingerprint(), promised).hash(&mut hasher);
    hasher.finish()
}
