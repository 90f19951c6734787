//! Where the bytes of leaves and buckets come from: pages of the system, shared by all stores of the process.
//!
//! - A **region** is 4 MiB of address space that begins with the headers of its spans. It is never given up.
//! - A **span** is 32 KiB of a region, in blocks of one size. Once all of them are free any class may have
//!   it, and the pages of all but a few such spans go back to the system.
//! - A **class** is a size of blocks, and its spans that have room, behind a lock. A block comes from one of
//!   the fullest, so that the others empty.
//!
//! What empties too slowly is moved together by the owners ([`Block::move_if_sparse`]).
#![expect(
    unsafe_code,
    reason = "for leaves that four threads grow, malloc takes twice the memory, and it keeps what they free"
)]

use std::{
    fmt,
    ops::{Deref, DerefMut},
    ptr::NonNull,
    slice,
    sync::atomic::{AtomicU16, AtomicU32, Ordering::Relaxed},
};

use parking_lot::{Mutex, MutexGuard};

/// Bytes with one owner, as in a `Box<[u8]>`.
#[repr(C, packed(2))]
pub(super) struct Block {
    /// From the block's class, from the global allocator if it is larger than any, or dangling if it is
    /// empty.
    bytes: NonNull<u8>,
    units: u16,
}

// SAFETY: a block is the only owner of its bytes.
unsafe impl Send for Block {}
// SAFETY: through a shared block its bytes can only be read.
unsafe impl Sync for Block {}

impl Block {
    /// No bytes.
    pub(super) const fn empty() -> Self {
        Self { bytes: NonNull::dangling(), units: 0 }
    }

    /// A block of `at_least` bytes or more, of any value. Panics from 1 MiB on.
    pub(super) fn with_capacity(at_least: usize) -> Self {
        let capacity = Self::capacity_for(at_least);
        let units = u16::try_from(capacity / UNIT).expect("a block is smaller than 1 MiB");
        match Class::of(units) {
            Some(class) => class.take(),
            None if units == 0 => Self::empty(),
            None => Self { bytes: system::allocate(capacity), units },
        }
    }

    /// How many bytes [`with_capacity`](Self::with_capacity) gives.
    pub(super) const fn capacity_for(at_least: usize) -> usize {
        match at_least {
            0 => 0,
            1..=LARGEST => UNITS[CLASS_OF[at_least.div_ceil(UNIT)] as usize] as usize * UNIT,
            _ => at_least.next_multiple_of(LARGE_STEP),
        }
    }

    /// How many bytes there are.
    pub(super) const fn capacity(&self) -> usize {
        self.units as usize * UNIT
    }

    /// Whether the bytes lie among so few others that moving them helps to return memory. Takes no lock: a
    /// hint.
    pub(super) fn is_sparse(&self) -> bool {
        Class::of(self.units).is_some_and(|class| class.is_sparse(self))
    }

    /// Moves the bytes to a fuller span if they are sparse and there is one. However often all blocks are
    /// asked, they come to rest: blocks move towards the fuller span only.
    pub(super) fn move_if_sparse(&mut self) {
        if let Some(class) = Class::of(self.units)
            && class.is_sparse(self)
            && let Some(mut moved) = class.take_beside_fuller(self)
        {
            moved.copy_from_slice(self);
            *self = moved;
        }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        match Class::of(self.units) {
            Some(class) => class.give_back(self),
            None if self.units == 0 => {}
            None => system::free(self.bytes, self.capacity()),
        }
    }
}

impl Deref for Block {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: so many bytes are this block's alone, and all memory here was zeroed before its first use.
        unsafe { slice::from_raw_parts(self.bytes.as_ptr(), self.capacity()) }
    }
}

impl DerefMut for Block {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and the block is borrowed mutably.
        unsafe { slice::from_raw_parts_mut(self.bytes.as_ptr(), self.capacity()) }
    }
}

impl Default for Block {
    fn default() -> Self {
        Self::empty()
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Block").field("capacity", &self.capacity()).finish_non_exhaustive()
    }
}

/// What capacities are counted in, and what blocks are aligned to.
const UNIT: usize = 16;
/// Smaller spans fit fewer sizes exactly, larger ones are emptied later.
const SPAN: usize = 1 << 15;
const REGION: usize = 1 << 22;
/// Larger blocks come from the global allocator, in steps of `LARGE_STEP`.
const LARGEST: usize = SPAN / 4;
const LARGE_STEP: usize = 1 << 10;
/// How many free spans keep their pages for the next that is needed.
const KEPT: usize = 16;

/// The next size of blocks: a thirty-second more, rounded up to what fits a span as many times.
const fn next_size(size: usize) -> usize {
    let step = if size / 32 > UNIT { size / 32 } else { UNIT };
    let blocks = SPAN / (size + step);
    SPAN / blocks / UNIT * UNIT
}

const CLASSES: usize = {
    let (mut size, mut classes) = (UNIT, 1);
    while size < LARGEST {
        (size, classes) = (next_size(size), classes + 1);
    }
    assert!(size == LARGEST);
    classes
};

/// The size of each class.
const UNITS: [u16; CLASSES] = {
    let (mut sizes, mut size, mut class) = ([0; CLASSES], UNIT, 0);
    while class < CLASSES {
        sizes[class] = (size / UNIT) as u16;
        (size, class) = (next_size(size), class + 1);
    }
    sizes
};

/// For each number of units, the smallest class that holds it.
static CLASS_OF: [u8; LARGEST / UNIT + 1] = {
    let (mut classes, mut units, mut class) = ([0; LARGEST / UNIT + 1], 0, 0);
    while units < classes.len() {
        if units > UNITS[class] as usize {
            class += 1;
        }
        classes[units] = class as u8;
        units += 1;
    }
    classes
};

/// A size of blocks, and where there is room for more of them.
struct Class {
    units: u16,
    /// How many blocks a span has.
    blocks: u16,
    /// How many free blocks more or less make no difference between spans, by its binary logarithm.
    shift: u32,
    /// How many blocks are free in all spans. Written under the lock; elsewhere a hint.
    room: AtomicU32,
    spans: Mutex<Spans>,
}

/// The spans that have room, the fullest first.
struct Spans([Vec<Span>; BINS]);

const BINS: usize = 16;

static ALL: [Class; CLASSES] = {
    let mut all = [const { Class::new() }; CLASSES];
    let mut class = 0;
    while class < CLASSES {
        all[class].units = UNITS[class];
        all[class].blocks = (SPAN / UNIT) as u16 / UNITS[class];
        while (all[class].blocks as usize - 1) >> all[class].shift >= BINS {
            all[class].shift += 1;
        }
        class += 1;
    }
    all
};

impl Class {
    const fn new() -> Self {
        let spans = Spans([const { Vec::new() }; BINS]);
        Self { units: 0, blocks: 0, shift: 0, room: AtomicU32::new(0), spans: Mutex::new(spans) }
    }

    fn of(units: u16) -> Option<&'static Self> {
        let class = CLASS_OF.get(usize::from(units)).filter(|_| units > 0)?;
        Some(&ALL[usize::from(*class)])
    }

    fn take(&self) -> Block {
        let mut spans = self.spans.lock();
        let span = spans.fullest().unwrap_or_else(|| {
            // If another thread does so too, one span more has room.
            let span = MutexGuard::unlocked(&mut spans, Span::fresh);
            self.refile(&mut spans, span, 0, self.blocks);
            span
        });
        self.take_from(span, &mut spans)
    }

    /// A block in another span, at least as full as that of `sparse`.
    fn take_beside_fuller(&self, sparse: &Block) -> Option<Block> {
        let from = Span::of(sparse);
        let mut spans = self.spans.lock();
        let used = from.header().used.load(Relaxed);
        // Two of each bin are enough: one may be the span itself, and of any two the emptier finds the other.
        let mut fullest = spans.0.iter().flat_map(|bin| bin.iter().rev().take(2)).copied();
        let to = fullest.find(|&to| to != from && to.header().used.load(Relaxed) >= used)?;
        Some(self.take_from(to, &mut spans))
    }

    fn take_from(&self, span: Span, spans: &mut Spans) -> Block {
        let header = span.header();
        let used = header.used.load(Relaxed);
        let unit = match header.freed.load(Relaxed) {
            NONE => {
                let fresh = header.fresh.load(Relaxed);
                header.fresh.store(fresh + self.units, Relaxed);
                fresh
            }
            freed => {
                // SAFETY: a freed block begins with the place of the next one, as `give_back` wrote it.
                let next = unsafe { span.at(freed).cast().read() };
                header.freed.store(next, Relaxed);
                freed
            }
        };
        header.used.store(used + 1, Relaxed);
        self.refile(spans, span, self.blocks - used, self.blocks - used - 1);
        Block { bytes: span.at(unit), units: self.units }
    }

    fn give_back(&self, block: &mut Block) {
        let span = Span::of(block);
        let header = span.header();
        let mut spans = self.spans.lock();
        let used = header.used.load(Relaxed) - 1;
        header.used.store(used, Relaxed);
        if used == 0 {
            self.refile(&mut spans, span, self.blocks - 1, 0);
            drop(spans);
            return span.release();
        }
        // SAFETY: the bytes are the block's for the last time, at least `UNIT` of them, and aligned to as
        // many.
        unsafe { block.bytes.cast().write(header.freed.load(Relaxed)) };
        header.freed.store(span.unit_of(block), Relaxed);
        self.refile(&mut spans, span, self.blocks - used - 1, self.blocks - used);
    }

    /// Whether the span of a block is less than three quarters full, and the others have room for all that is
    /// in it.
    fn is_sparse(&self, block: &Block) -> bool {
        let used = Span::of(block).header().used.load(Relaxed);
        u32::from(used) * 4 < u32::from(self.blocks) * 3 && self.room.load(Relaxed) >= u32::from(self.blocks)
    }

    /// The list of spans with `free` free blocks; full spans are in none.
    fn bin(&self, free: u16) -> Option<usize> {
        Some(usize::from(free.checked_sub(1)? >> self.shift))
    }

    /// Keeps room and bins right when the number of a span's free blocks changes; a span that is not here has
    /// none.
    fn refile(&self, spans: &mut Spans, span: Span, free_before: u16, free: u16) {
        let room = self.room.load(Relaxed) + u32::from(free) - u32::from(free_before);
        self.room.store(room, Relaxed);
        let (before, now) = (self.bin(free_before), self.bin(free));
        if before == now {
            return;
        }
        if let Some(bin) = before {
            spans.remove(span, bin);
        }
        if let Some(bin) = now {
            spans.insert(span, bin);
        }
    }
}

impl Spans {
    fn fullest(&self) -> Option<Span> {
        self.0.iter().find_map(|bin| bin.last().copied())
    }

    fn insert(&mut self, span: Span, bin: usize) {
        let bin = &mut self.0[bin];
        span.header().place.store(bin.len() as u32, Relaxed);
        bin.push(span);
    }

    fn remove(&mut self, span: Span, bin: usize) {
        let (bin, place) = (&mut self.0[bin], span.header().place.load(Relaxed));
        bin.swap_remove(place as usize);
        if let Some(moved) = bin.get(place as usize) {
            moved.header().place.store(place, Relaxed);
        }
    }
}

/// The start of a span, by a pointer that may go anywhere in its region.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Span(NonNull<u8>);

// SAFETY: spans are reached by whoever holds the lock that they lie behind, their headers by all.
unsafe impl Send for Span {}

/// What is known of a span. Changed under the lock of its class, and atomic only because owners look at it
/// without.
#[repr(align(64))]
struct Header {
    /// How many blocks have owners.
    used: AtomicU16,
    /// The block that was freed last, by its first unit; each leads to the one before.
    freed: AtomicU16,
    /// The first unit that was never given out: what lies behind takes no memory yet.
    fresh: AtomicU16,
    /// Which one of its bin it is.
    place: AtomicU32,
}

const NONE: u16 = u16::MAX;
const HEADERS: usize = REGION / SPAN * size_of::<Header>();
const _: () = assert!(HEADERS <= SPAN, "the first span of a region is for the headers");

/// The spans of no class.
struct Pool {
    /// Their pages are with the process.
    kept: Vec<Span>,
    /// Their pages are with the system, or have never been here.
    returned: Vec<Span>,
}

static POOL: Mutex<Pool> = Mutex::new(Pool { kept: Vec::new(), returned: Vec::new() });

impl Span {
    /// The span of a block that belongs to a class.
    fn of(block: &Block) -> Self {
        let start = block.bytes.as_ptr().map_addr(|address| address & !(SPAN - 1));
        Self(NonNull::new(start).expect("headers lie before a span"))
    }

    fn header(self) -> &'static Header {
        let header = self.0.as_ptr().map_addr(|address| {
            let region = address & !(REGION - 1);
            region + (address - region) / SPAN * size_of::<Header>()
        });
        // SAFETY: regions begin with so many headers, which are valid when zeroed, are never written but
        // through shared references, and stay for ever.
        unsafe { &*header.cast::<Header>() }
    }

    fn at(self, unit: u16) -> NonNull<u8> {
        debug_assert!(usize::from(unit) < SPAN / UNIT);
        // SAFETY: the unit is inside of the span.
        unsafe { self.0.add(usize::from(unit) * UNIT) }
    }

    fn unit_of(self, block: &Block) -> u16 {
        ((block.bytes.as_ptr().addr() - self.0.as_ptr().addr()) / UNIT) as u16
    }

    /// A span without blocks, for any class.
    fn fresh() -> Self {
        let mut pool = POOL.lock();
        let pool = &mut *pool;
        if pool.kept.is_empty() && pool.returned.is_empty() {
            let region = system::region();
            // SAFETY: so many spans are in a region.
            let spans = (1..REGION / SPAN).map(|span| Self(unsafe { region.add(span * SPAN) }));
            pool.returned.extend(spans.rev());
        }
        let span = pool.kept.pop().or_else(|| pool.returned.pop()).expect("a region has more than one span");
        span.header().freed.store(NONE, Relaxed);
        span.header().fresh.store(0, Relaxed);
        span
    }

    /// Takes back a span without blocks.
    fn release(self) {
        {
            let mut pool = POOL.lock();
            if pool.kept.len() < KEPT {
                return pool.kept.push(self);
            }
        }
        // Nobody else knows of the span now, so that no lock need be held.
        system::return_pages(self);
        POOL.lock().returned.push(self);
    }
}

/// Zeroed memory from outside.
mod system {
    use std::{
        alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error},
        ptr::NonNull,
    };

    use super::{REGION, Span, UNIT};

    pub(super) fn allocate(capacity: usize) -> NonNull<u8> {
        zeroed(layout(capacity, UNIT))
    }

    pub(super) fn free(bytes: NonNull<u8>, capacity: usize) {
        // SAFETY: `allocate` gave the bytes for the same layout, and their owner goes.
        unsafe { dealloc(bytes.as_ptr(), layout(capacity, UNIT)) };
    }

    /// A region, aligned to its size.
    #[cfg(all(target_os = "linux", not(miri)))]
    pub(super) fn region() -> NonNull<u8> {
        use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a mapping that the system places is nobody else's.
        let mapped = unsafe { mmap_anonymous(std::ptr::null_mut(), 2 * REGION, access, flags) };
        let Ok(mapped) = mapped else { handle_alloc_error(layout(REGION, REGION)) };
        // The system maps downwards: the upper region adjoins the one before, and they stay one mapping to
        // it.
        let below = REGION - mapped.addr() % REGION;
        // SAFETY: of two regions' length, one lies behind so much less than another.
        let region = unsafe { mapped.cast::<u8>().add(below) };
        // SAFETY: nobody has seen the rest. Should it stay, it is address space without memory.
        _ = unsafe { (munmap(mapped, below), munmap(region.add(REGION).cast(), REGION - below)) };
        NonNull::new(region).expect("it lies behind the mapping's start")
    }

    /// Gives back the pages of a span. They are zeroed when they come again. Where pages are larger than
    /// spans, they stay.
    #[cfg(all(target_os = "linux", not(miri)))]
    pub(super) fn return_pages(span: Span) {
        use rustix::mm::{Advice, madvise};

        // SAFETY: the span is the caller's, and nothing in it is to be kept.
        _ = unsafe { madvise(span.0.as_ptr().cast(), super::SPAN, Advice::LinuxDontNeed) };
    }

    #[cfg(not(all(target_os = "linux", not(miri))))]
    pub(super) fn region() -> NonNull<u8> {
        zeroed(layout(REGION, REGION))
    }

    #[cfg(not(all(target_os = "linux", not(miri))))]
    pub(super) fn return_pages(_: Span) {}

    fn zeroed(layout: Layout) -> NonNull<u8> {
        // SAFETY: no layout here is empty.
        let bytes = unsafe { alloc_zeroed(layout) };
        NonNull::new(bytes).unwrap_or_else(|| handle_alloc_error(layout))
    }

    fn layout(size: usize, align: usize) -> Layout {
        Layout::from_size_align(size, align).expect("blocks and regions are small")
    }
}

#[cfg(test)]
mod tests {
    use std::{array, collections::BTreeMap, sync::mpsc, thread};

    use super::*;
    use crate::{Random, SplitMix64};

    const STEPS: usize = if cfg!(miri) { 400 } else { 200_000 };

    fn below(rng: &mut SplitMix64, bound: usize) -> usize {
        (rng as &mut dyn Random).below(bound)
    }

    /// Sizes of all magnitudes up to more than the largest class.
    fn size(rng: &mut SplitMix64) -> usize {
        let magnitude = below(rng, 16);
        below(rng, 1 << magnitude)
    }

    /// A block of which every byte says whose it is.
    fn written(at_least: usize, tag: u64) -> Block {
        let mut block = Block::with_capacity(at_least);
        assert!(block.capacity() >= at_least);
        assert_eq!(block.capacity(), Block::capacity_for(at_least));
        assert_eq!(block.capacity(), block.len());
        block.as_chunks_mut().0.fill(tag.to_ne_bytes());
        block
    }

    fn check(block: &Block, tag: u64) {
        assert!(
            block.as_chunks().0.iter().all(|&bytes| bytes == tag.to_ne_bytes()),
            "{block:?} of {tag} changed"
        );
    }

    #[test]
    #[cfg(target_pointer_width = "64")]
    fn owners_are_small() {
        struct Leaf(#[expect(unused)] Block, #[expect(unused)] [u16; 2], #[expect(unused)] u32);
        struct Bucket(#[expect(unused)] Block, #[expect(unused)] u16, #[expect(unused)] u32);
        assert_eq!((size_of::<Block>(), align_of::<Block>()), (10, 2));
        assert_eq!((size_of::<Leaf>(), size_of::<Bucket>()), (20, 16));
    }

    #[test]
    fn capacities_are_little_more_than_asked() {
        assert_eq!(Block::capacity_for(0), 0);
        assert!(Block::empty().is_empty());
        for at_least in 1..100_000 {
            let capacity = Block::capacity_for(at_least);
            assert!(capacity >= at_least && capacity.is_multiple_of(UNIT));
            assert_eq!(Block::capacity_for(capacity), capacity);
            let most = at_least / if at_least <= 2048 { 14 } else { 3 };
            assert!(capacity <= at_least + most.max(UNIT - 1), "{at_least}: {capacity}");
        }
        for at_least in [1, 16, 17, 1600, LARGEST, LARGEST + 1, 1 << 16, (1 << 20) - LARGE_STEP] {
            check(&written(at_least, 1), 1);
        }
    }

    #[test]
    #[should_panic(expected = "smaller than 1 MiB")]
    fn a_block_of_a_mebibyte_is_refused() {
        Block::with_capacity((1 << 20) - LARGE_STEP + 1);
    }

    #[test]
    fn what_others_do_changes_no_block() {
        let mut rng = SplitMix64::new(1);
        let mut blocks: Vec<(Block, u64)> = Vec::new();
        let most = STEPS / 40;
        for tag in 0..STEPS as u64 {
            // Grows to the most, shrinks to nothing, and so on.
            let growing = (tag as usize / (2 * most)).is_multiple_of(2);
            if blocks.is_empty() || below(&mut rng, 100) < if growing { 75 } else { 25 } {
                blocks.push((written(size(&mut rng), tag), tag));
            }
            let at = below(&mut rng, blocks.len());
            let (block, owner) = &mut blocks[at];
            block.move_if_sparse();
            check(block, *owner);
            if below(&mut rng, 100) < if growing { 25 } else { 75 } {
                blocks.swap_remove(at);
            }
            if (tag as usize).is_multiple_of(STEPS / 20) {
                let spans = blocks.iter().map(|(block, _)| (block.as_ptr().addr(), block.capacity()));
                let mut end = 0;
                for (start, capacity) in
                    spans.filter(|&(_, capacity)| capacity > 0).collect::<BTreeMap<_, _>>()
                {
                    assert!(start >= end && start.is_multiple_of(UNIT));
                    end = start + capacity;
                }
                blocks.iter().for_each(|(block, owner)| check(block, *owner));
            }
        }
    }

    #[test]
    fn blocks_may_end_on_other_threads() {
        const THREADS: usize = 4;
        let channels: [_; THREADS] = array::from_fn(|_| mpsc::channel::<(Block, u64)>());
        let (mut senders, receivers): (Vec<_>, Vec<_>) = channels.into_iter().unzip();
        senders.rotate_left(1);
        thread::scope(|scope| {
            for (thread, (next, receiver)) in senders.into_iter().zip(receivers).enumerate() {
                scope.spawn(move || {
                    let mut rng = SplitMix64::new(thread as u64);
                    let mut held: Vec<(Block, u64)> = Vec::new();
                    for step in 0..STEPS / THREADS {
                        let tag = (step * THREADS + thread) as u64;
                        // Few sizes, so that threads meet in spans.
                        let block = written(1000 + below(&mut rng, 100), tag);
                        next.send((block, tag)).expect("the receiver outlives this");
                        held.extend(receiver.try_iter());
                        while held.len() > 100 {
                            let (mut block, tag) = held.swap_remove(below(&mut rng, held.len()));
                            block.move_if_sparse();
                            check(&block, tag);
                        }
                    }
                    drop(next);
                    held.extend(receiver);
                    held.iter().for_each(|(block, tag)| check(block, *tag));
                });
            }
        });
    }

    /// What the system says. Each test has a process to itself, as only then what it takes is known.
    #[cfg(all(target_os = "linux", not(miri)))]
    mod memory {
        use std::{collections::BTreeSet, env, fs, process::Command};

        use super::*;

        const MIB: usize = 1 << 20;

        fn alone(name: &str, test: impl FnOnce()) {
            const MARK: &str = "SWARMKEEP_TEST_ALONE";
            if env::var_os(MARK).is_some() {
                return test();
            }
            let (_, module) = module_path!().split_once("::").expect("a module is in a crate");
            let tests = Command::new(env::current_exe().expect("this runs"))
                .args([&format!("{module}::{name}"), "--exact", "--nocapture"])
                .env(MARK, "")
                .output()
                .expect("what runs can be run again");
            let said = String::from_utf8_lossy(&tests.stdout) + String::from_utf8_lossy(&tests.stderr);
            assert!(tests.status.success() && said.contains("1 passed"), "{said}");
        }

        /// Without the program's own pages, of which some are read in only as a test goes on.
        fn resident() -> usize {
            let rollup = fs::read_to_string("/proc/self/smaps_rollup").expect("Linux has it");
            let line =
                rollup.lines().find_map(|line| line.strip_prefix("Anonymous:")).expect("it has this line");
            line.trim_end_matches("kB").trim().parse::<usize>().expect("it is a number") * 1024
        }

        /// Lets blocks move until none does, and says in how many rounds.
        fn settle<T>(owners: &mut [T], block: impl Fn(&mut T) -> &mut Block) -> usize {
            for round in 0..100 {
                let mut moved = false;
                for block in owners.iter_mut().map(&block) {
                    let (before, bytes) = (block.as_ptr(), block.to_vec());
                    block.move_if_sparse();
                    moved |= block.as_ptr() != before;
                    assert_eq!(**block, *bytes);
                }
                if !moved {
                    return round;
                }
            }
            panic!("blocks move for ever");
        }

        #[test]
        fn memory_returns_to_the_system_and_is_used_again() {
            alone("memory_returns_to_the_system_and_is_used_again", || {
                let mut rng = SplitMix64::new(1);
                let mut regions = BTreeSet::new();
                let before = resident();
                for size in [1600, 900] {
                    let mut blocks: Vec<_> =
                        (0..64 * MIB / size).map(|tag| written(size, tag as u64)).collect();
                    regions.extend(blocks.iter().map(|block| block.as_ptr().addr() / REGION));
                    assert!(regions.len() * REGION < 80 * MIB, "{} regions", regions.len());
                    let peak = resident() - before;
                    assert!((64 * MIB..68 * MIB).contains(&peak), "64 MiB of blocks take {peak} bytes");
                    blocks.retain(|_| below(&mut rng, 100) == 0);
                    let rounds = settle(&mut blocks, |block| block);
                    let left = resident() - before;
                    assert!(left < peak / 20, "{left} of {peak} bytes stay for a hundredth of the blocks");
                    assert!(rounds <= 3, "blocks move for {rounds} rounds");
                    drop(blocks);
                    let left = resident() - before;
                    assert!(left < 2 * MIB, "{left} of {peak} bytes stay for no blocks");
                }
            });
        }

        #[test]
        fn new_blocks_come_from_full_spans() {
            alone("new_blocks_come_from_full_spans", || {
                const MOST: usize = 20_000;
                let mut rng = SplitMix64::new(1);
                let before = resident();
                let mut blocks: Vec<_> = (0..MOST).map(|_| written(1600, 0)).collect();
                let peak = resident() - before;
                while blocks.len() > MOST / 4 {
                    for _ in 0..3 {
                        blocks.swap_remove(below(&mut rng, blocks.len()));
                    }
                    blocks.extend([written(1600, 0), written(1600, 0)]);
                }
                let left = resident() - before;
                assert!(left < peak / 4 * 3, "{left} of {peak} bytes stay for a quarter of the blocks");
            });
        }

        struct Leaf {
            block: Block,
            used: usize,
            limit: usize,
        }

        /// As linear hashing makes leaves: each grows at random by a slot and splits at its limit, some early
        /// and some late.
        #[test]
        fn growing_leaves_take_little_more_than_their_bytes() {
            alone("growing_leaves_take_little_more_than_their_bytes", || {
                const SLOT: usize = 27;
                const MOST: usize = 20_000;
                let mut rng = SplitMix64::new(1);
                let mut leaves: Vec<Leaf> = Vec::with_capacity(MOST);
                let before = resident();
                while leaves.len() < MOST / 2 {
                    let limit = 1100 + below(&mut rng, 1100);
                    let used = limit / 2 + below(&mut rng, limit / 2);
                    leaves.push(Leaf { block: written(used, 0), used, limit });
                }
                while leaves.len() < MOST {
                    let at = below(&mut rng, leaves.len());
                    let leaf = &mut leaves[at];
                    leaf.used += SLOT;
                    if leaf.used > leaf.limit {
                        (leaf.used, leaf.block) = (leaf.used / 2, written(leaf.used / 2, 0));
                        let half = Leaf { block: written(leaf.used, 0), ..*leaf };
                        leaves.push(half);
                    } else if leaf.used > leaf.block.capacity() {
                        leaf.block = written(leaf.used, 0);
                    }
                }
                let taken = |leaves: &[Leaf]| {
                    let bytes: usize = leaves.iter().map(|leaf| leaf.used).sum();
                    (resident() - before - size_of_val(leaves)) as f64 / bytes as f64
                };
                assert!(taken(&leaves) < 1.12, "grown: {:.3} of the bytes", taken(&leaves));
                for leaf in &mut leaves {
                    (leaf.used, leaf.block) = (leaf.used / 4 * 3, written(leaf.used / 4 * 3, 0));
                }
                let rounds = settle(&mut leaves, |leaf| &mut leaf.block);
                assert!(taken(&leaves) < 1.12, "shrunk: {:.3} of the bytes", taken(&leaves));
                assert!(rounds <= 3, "blocks move for {rounds} rounds");
            });
        }
    }
}
