//! Blocks against their owners, and the memory that the process takes from the system.

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

/// A block with its tag in every byte.
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
    let (block, bucket) = if cfg!(feature = "global-alloc") { (12, 20) } else { (10, 16) };
    assert_eq!((size_of::<Block>(), align_of::<Block>()), (block, 2));
    assert_eq!((size_of::<Leaf>(), size_of::<Bucket>()), (20, bucket));
}

#[test]
fn capacities_are_little_more_than_asked() {
    assert_eq!(Block::capacity_for(0), 0);
    assert!(Block::default().is_empty());
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
fn a_change_of_other_blocks_changes_no_block() {
    change_some_of_many_blocks();
}

fn change_some_of_many_blocks() {
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
            for (start, capacity) in spans.filter(|&(_, capacity)| capacity > 0).collect::<BTreeMap<_, _>>() {
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

/// Measured by the system. Each test has its own process, since only then its memory is known.
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
            .expect("a running program can run again");
        let said = String::from_utf8_lossy(&tests.stdout) + String::from_utf8_lossy(&tests.stderr);
        assert!(tests.status.success() && said.contains("1 passed"), "{said}");
    }

    /// Without the pages of the program itself, some of which are loaded during a test.
    fn resident() -> usize {
        let rollup = fs::read_to_string("/proc/self/smaps_rollup").expect("Linux has it");
        let line = rollup.lines().find_map(|line| line.strip_prefix("Anonymous:")).expect("it has this line");
        line.trim_end_matches("kB").trim().parse::<usize>().expect("it is a number") * 1024
    }

    /// Lets blocks move until none does. Returns the number of rounds.
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
                let mut blocks: Vec<_> = (0..64 * MIB / size).map(|tag| written(size, tag as u64)).collect();
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

    #[cfg(feature = "global-alloc")]
    #[test]
    fn spans_of_the_global_allocator_are_as_good() {
        alone("spans_of_the_global_allocator_are_as_good", || {
            assert!(take_global());
            change_some_of_many_blocks();
            let mut rng = SplitMix64::new(1);
            let mut blocks: Vec<_> = (0..1000).map(|tag| written(1600, tag)).collect();
            let spans =
                |blocks: &[Block]| blocks.iter().map(|block| Span::of(block).0).collect::<BTreeSet<_>>();
            assert_eq!(spans(&blocks).len(), 1000_usize.div_ceil(FILLED / Block::capacity_for(1600)));
            blocks.retain(|_| below(&mut rng, 10) == 0);
            let rounds = settle(&mut blocks, |block| block);
            assert!(rounds <= 3, "blocks move for {rounds} rounds");
            assert!(spans(&blocks).len() <= 8, "{} spans for {} blocks", spans(&blocks).len(), blocks.len());
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
