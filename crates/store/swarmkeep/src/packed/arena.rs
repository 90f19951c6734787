//! The arena: where the bytes of leaves and buckets come from. All stores of the process share its pages.
//!
//! - A **region** is 4 MiB of address space that begins with the headers of its spans. It is never returned.
//! - A **span** is 32 KiB of a region, in blocks of one size. When all of its blocks are free, any class may
//!   use it. The pages of free spans go back to the system, except for a few.
//! - A **class** is a size of blocks with its spans that have room, guarded by a lock. A block comes from one
//!   of the fullest spans, so that the other spans become empty.
//!
//! Spans that become empty too slowly are emptied by the owners of their blocks ([`Block::move_if_sparse`]).
//!
//! With the feature `global-alloc` a process may take each span from the global allocator instead, which may
//! count and limit its memory.
#![expect(
    unsafe_code,
    reason = "for leaves that four threads grow, malloc takes twice the memory, and keeps freed memory"
)]

#[cfg(feature = "global-alloc")]
mod source;
mod stamped;
#[cfg(test)]
mod tests;

use std::{
    fmt,
    ops::{Deref, DerefMut},
    ptr::NonNull,
    slice,
    sync::atomic::{AtomicU16, AtomicU32, Ordering::Relaxed},
};

#[cfg(feature = "global-alloc")]
pub(super) use self::source::take_global;
pub(super) use self::stamped::StampedBlock;
use super::lock::{ExclusiveGuard, Lock};

/// Bytes with one owner, as in a `Box<[u8]>`.
#[repr(C, packed(2))]
pub(super) struct Block {
    /// From the class of the block; from the global allocator if the block has none; dangling if it is empty.
    bytes: NonNull<u8>,
    units: u16,
    /// The first unit of the bytes in their span, which the global allocator does not align.
    #[cfg(feature = "global-alloc")]
    at: u16,
}

// SAFETY: a block owns its bytes alone. Any thread may give them back: a lock guards their span.
unsafe impl Send for Block {}
// SAFETY: a shared `Block` lends its bytes to be read only. A shared `StampedBlock` lends its endpoints to be
// read only, and its stamps as atomics, which any thread may write: no plain reference covers them then.
unsafe impl Sync for Block {}

impl Block {
    #[cfg_attr(not(feature = "global-alloc"), expect(unused_variables, reason = "the address says it"))]
    const fn new(bytes: NonNull<u8>, units: u16, at: u16) -> Self {
        Self {
            bytes,
            units,
            #[cfg(feature = "global-alloc")]
            at,
        }
    }

    /// A block of `at_least` bytes or more, with any values. Panics from 1 MiB on.
    pub(super) fn with_capacity(at_least: usize) -> Self {
        let capacity = Self::capacity_for(at_least);
        let units = u16::try_from(capacity / UNIT).expect("a block is smaller than 1 MiB");
        #[cfg(feature = "global-alloc")]
        source::settle();
        match Class::of(units) {
            Some(class) => class.take(),
            None if units == 0 => Self::default(),
            None => Self::new(system::allocate(capacity), units, 0),
        }
    }

    /// The number of bytes that [`with_capacity`](Self::with_capacity) returns.
    pub(super) const fn capacity_for(at_least: usize) -> usize {
        match at_least {
            0 => 0,
            1..=LARGEST => UNITS[CLASS_OF[at_least.div_ceil(UNIT)] as usize] as usize * UNIT,
            _ => at_least.next_multiple_of(LARGE_STEP),
        }
    }

    pub(super) const fn capacity(&self) -> usize {
        self.units as usize * UNIT
    }

    /// Moves the bytes to a fuller span, if they are sparse and there is one. However often this is called
    /// for all blocks, they come to rest: a block moves only towards a fuller span.
    pub(super) fn move_if_sparse(&mut self) {
        let class = Class::of(self.units).filter(|class| class.is_sparse(self));
        if let Some(mut moved) = class.and_then(|class| class.take_beside_fuller(self)) {
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
        // SAFETY: only this block has these bytes, and all memory here was zeroed before its first use.
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
        Self::new(NonNull::dangling(), 0, 0)
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Block").field("capacity", &self.capacity()).finish_non_exhaustive()
    }
}

/// The unit of capacities, and the alignment of blocks.
const UNIT: usize = 16;
/// With smaller spans fewer sizes fit exactly; larger spans become empty later.
const SPAN: usize = 1 << 15;
/// The part of a span that blocks fill. The last unit may be its header.
const FILLED: usize = SPAN - UNIT;
const REGION: usize = 1 << 22;
/// Larger blocks come from the global allocator, in steps of `LARGE_STEP`.
const LARGEST: usize = FILLED / 4 / UNIT * UNIT;
const LARGE_STEP: usize = 1 << 10;
/// The number of free spans that keep their pages, for the next span that is needed. With 16, a fill under
/// Zipf's law and a million announces return 2,055 spans instead of 2,316.
const KEPT: usize = 2;

/// The next size of blocks: a thirty-second more, rounded up to the largest size of which the same number
/// fits in a span.
const fn next_size(size: usize) -> usize {
    let step = if size / 32 > UNIT { size / 32 } else { UNIT };
    let blocks = FILLED / (size + step);
    FILLED / blocks / UNIT * UNIT
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

/// A size of blocks, and the spans that have room for more of them.
struct Class {
    units: u16,
    /// Blocks per span.
    blocks: u16,
    /// Binary logarithm of the number of free blocks that make no difference between spans.
    shift: u32,
    /// Free blocks in all spans. Written under the lock; a hint without it.
    room: AtomicU32,
    spans: Lock<Spans>,
}

/// The spans that have room, the fullest first.
struct Spans([Vec<Span>; BINS]);

const BINS: usize = 16;

static ALL: [Class; CLASSES] = {
    let mut all = [const { Class::new() }; CLASSES];
    let mut class = 0;
    while class < CLASSES {
        all[class].units = UNITS[class];
        all[class].blocks = (FILLED / UNIT) as u16 / UNITS[class];
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
        Self { units: 0, blocks: 0, shift: 0, room: AtomicU32::new(0), spans: Lock::new(spans) }
    }

    /// `None` for blocks without bytes, and for those of the global allocator.
    fn of(units: u16) -> Option<&'static Self> {
        let class = CLASS_OF.get(usize::from(units)).filter(|_| units > 0)?;
        Some(&ALL[usize::from(*class)])
    }

    fn take(&self) -> Block {
        let mut spans = self.spans.write();
        let span = spans.fullest().unwrap_or_else(|| {
            // If another thread does the same, one more span has room.
            let span = ExclusiveGuard::unlocked(&mut spans, Span::fresh);
            self.refile(&mut spans, span, 0, self.blocks);
            span
        });
        self.take_from(span, &mut spans)
    }

    /// A block in another span, at least as full as the span of `sparse`.
    fn take_beside_fuller(&self, sparse: &Block) -> Option<Block> {
        let from = Span::of(sparse);
        let mut spans = self.spans.write();
        let used = from.header().used.load(Relaxed);
        // Two of each bin are enough: one may be the span itself, and of any two the emptier one finds the
        // other.
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
        Block::new(span.at(unit), self.units, unit)
    }

    fn give_back(&self, block: &mut Block) {
        let span = Span::of(block);
        let header = span.header();
        let mut spans = self.spans.write();
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
        let offset = block.bytes.as_ptr().addr() - span.0.as_ptr().addr();
        header.freed.store((offset / UNIT) as u16, Relaxed);
        self.refile(&mut spans, span, self.blocks - used - 1, self.blocks - used);
    }

    /// Whether the span of a block is less than seven eighths full, and the other spans have room for all of
    /// its blocks. Takes no lock: the result is a hint.
    fn is_sparse(&self, block: &Block) -> bool {
        let is_sparse = |used| u32::from(used) * 8 < u32::from(self.blocks) * 7;
        // The room first: the header of a span is a cache miss.
        self.room.load(Relaxed) >= u32::from(self.blocks)
            && is_sparse(Span::of(block).header().used.load(Relaxed))
    }

    /// The bin of spans with `free` free blocks. Full spans are in none.
    fn bin(&self, free: u16) -> Option<usize> {
        Some(usize::from(free.checked_sub(1)? >> self.shift))
    }

    /// Updates `room` and the bins when the number of free blocks of a span changes. A span that is new or
    /// gone has none.
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

/// The start of a span, as a pointer that is valid for its whole region, or for a span of the global
/// allocator.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Span(NonNull<u8>);

// SAFETY: only the holder of a span's lock reaches the span. All threads reach its header.
unsafe impl Send for Span {}
// SAFETY: a `Span` does not change, so to share it is to send a copy.
unsafe impl Sync for Span {}

/// The header of a span. It changes under the lock of the class. It is atomic only because owners of blocks
/// read it without the lock.
#[repr(align(16))]
struct Header {
    /// The number of blocks that have owners.
    used: AtomicU16,
    /// The first unit of the block that was freed last. Each free block leads to the one freed before it.
    freed: AtomicU16,
    /// The first unit that was never used. The units after it take no memory yet.
    fresh: AtomicU16,
    /// The index of the span in its bin.
    place: AtomicU32,
}

const NONE: u16 = u16::MAX;
/// From one header of a region to the next: each has a cache line.
const LINE: usize = 64;
const _: () = assert!(REGION / SPAN * LINE <= SPAN, "the first span of a region is for the headers");
const _: () = assert!(size_of::<Header>() == UNIT, "a header fits behind the blocks of a span");

/// The spans that belong to no class.
struct Pool {
    /// Spans that still have their pages.
    kept: Vec<Span>,
    /// Spans that have returned their pages to the system, or were never used.
    returned: Vec<Span>,
}

static POOL: Lock<Pool> = Lock::new(Pool { kept: Vec::new(), returned: Vec::new() });

impl Span {
    /// The span of a block that belongs to a class.
    fn of(block: &Block) -> Self {
        #[cfg(feature = "global-alloc")]
        if source::is_global() {
            // SAFETY: `at` units of the span lie before the block.
            return Self(unsafe { block.bytes.sub(usize::from(block.at) * UNIT) });
        }
        let start = block.bytes.as_ptr().map_addr(|address| address & !(SPAN - 1));
        Self(NonNull::new(start).expect("headers lie before a span"))
    }

    fn header(&self) -> &Header {
        #[cfg(feature = "global-alloc")]
        if source::is_global() {
            // SAFETY: the header is the end of the span, valid when zeroed, and never written but through
            // shared references. The span stays as long as it has a block, and its header is not used after
            // that.
            return unsafe { &*self.0.as_ptr().add(FILLED).cast::<Header>() };
        }
        let header = self.0.as_ptr().map_addr(|address| {
            let region = address & !(REGION - 1);
            region + (address - region) / SPAN * LINE
        });
        // SAFETY: a region begins with a header per span, which is valid when zeroed, is only written
        // through shared references, and stays for ever.
        unsafe { &*header.cast::<Header>() }
    }

    fn at(self, unit: u16) -> NonNull<u8> {
        debug_assert!(usize::from(unit) < SPAN / UNIT);
        // SAFETY: the unit is inside of the span.
        unsafe { self.0.add(usize::from(unit) * UNIT) }
    }

    /// A span without blocks, for any class.
    fn fresh() -> Self {
        let span = Self::unused();
        span.header().freed.store(NONE, Relaxed);
        span.header().fresh.store(0, Relaxed);
        span
    }

    fn unused() -> Self {
        let mut pool = POOL.write();
        if let Some(span) = pool.kept.pop() {
            return span;
        }
        #[cfg(feature = "global-alloc")]
        if source::is_global() {
            drop(pool);
            return Self(system::allocate(SPAN));
        }
        if pool.returned.is_empty() {
            // Another thread may do the same meanwhile: one more region is only address space.
            let region = ExclusiveGuard::unlocked(&mut pool, system::region);
            // SAFETY: a region has this number of spans.
            let spans = (1..REGION / SPAN).map(|span| Self(unsafe { region.add(span * SPAN) }));
            pool.returned.extend(spans.rev());
        }
        pool.returned.pop().expect("a region has more than one span")
    }

    /// Takes back a span without blocks.
    fn release(self) {
        {
            let mut pool = POOL.write();
            if pool.kept.len() < KEPT {
                return pool.kept.push(self);
            }
        }
        #[cfg(feature = "global-alloc")]
        if source::is_global() {
            return system::free(self.0, SPAN);
        }
        // No other thread knows of the span now, so no lock is needed.
        system::return_pages(self);
        POOL.write().returned.push(self);
    }
}

/// Zeroed memory from the system.
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
        // SAFETY: a mapping that the system places overlaps no other.
        let mapped = unsafe { mmap_anonymous(std::ptr::null_mut(), 2 * REGION, access, flags) };
        let Ok(mapped) = mapped else { handle_alloc_error(layout(REGION, REGION)) };
        // The system maps downwards: the upper region adjoins the previous one, and for the system both stay
        // one mapping.
        let below = REGION - mapped.addr() % REGION;
        // SAFETY: `below` is at most the length of a region, and the mapping has twice that length. So the
        // region begins and ends within the mapping.
        let region = unsafe { mapped.cast::<u8>().add(below) };
        // SAFETY: no pointer leads to the rest. A part that stays is address space without memory.
        _ = unsafe { (munmap(mapped, below), munmap(region.add(REGION).cast(), REGION - below)) };
        NonNull::new(region).expect("it lies behind the mapping's start")
    }

    /// Returns the pages of a span to the system. They are zeroed when they are used again. Where pages are
    /// larger than spans, they stay.
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
