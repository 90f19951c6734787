//! Crashes the store on a block device, and the folder of its torrent files, in every way that the medium
//! allows. Each promise must hold after a crash in any write.
//!
//! A device and a folder record the writes of a workload. From the record, the tests rebuild every state that
//! a crash could leave: any part of the writes since the last flush, whole and torn ones, sectors of garbage,
//! any of the names of a file, and parts of files. A process may also die alone: then the next one starts
//! while the cache of the device still has the writes, and the power goes later. Each state must boot, keep
//! its promises and work on. Stores and devices with one fault each prove that these tests can fail.

mod explore;
mod judge;
pub(crate) mod kills;
mod recorder;
mod workload;

use std::{collections::BTreeMap, sync::Arc};

use swarmkeep::{Random, SplitMix64};
use swarmkeep_content::{
    ContentExt, ContentRepository, Error, NewTorrent, TorrentFolder,
    block::{Allocation, Barrier, BlockDevice, BlockStore, Damage, Mutant, SECTOR},
};
use swarmkeep_kit::disk::{Change, Entry, Image, PAGE};

use crate::blocks_of;
use explore::{Explored, Plan, explore, explore_format, explore_salvage};
use judge::{Fault, check};
use recorder::{IgnoredFlush, Recorder, torrent_file_in};
use workload::{Promises, StoreWorkload, hash};

/// The number of distinct states, unless `SWARMKEEP_CRASH_STATES` gives it: half a core does 600 per second.
fn wanted() -> u64 {
    std::env::var("SWARMKEEP_CRASH_STATES")
        .map_or(10_000, |wanted| wanted.parse().expect("a number of states"))
}

#[test]
fn whatever_a_crash_leaves_keeps_every_promise() {
    let mut explored = Explored::default();
    let mut seed = 0;
    while (explored.distinct.len() as u64) < wanted() {
        let allocation = if seed % 2 == 0 { Allocation::Sequential } else { Allocation::Ordered };
        // Some have more torrents than a sector of the root can name.
        let crowd = if seed % 3 == 2 { 109 } else { 0 };
        explore(seed, Plan { allocation, crowd, ..Plan::new() }, &mut explored);
        if let Some(found) = explored.found {
            panic!("{found}");
        }
        seed += 1;
    }
    println!(
        "{} crash states ({} distinct) of {seed} workloads, around {} flushes: every promise held",
        explored.states,
        explored.distinct.len(),
        explored.flushes,
    );
}

#[test]
fn format_leaves_the_store_that_was_there_or_an_empty_one_or_none() {
    let states: Result<u64, _> = (0..16).map(|seed| explore_format(seed, None)).sum();
    println!("{} crash states of format", states.unwrap_or_else(|found| panic!("{found}")));
}

#[test]
fn a_format_without_one_of_its_flushes_is_noticed() {
    for ignored in [Barrier::Wiped, Barrier::Formatted] {
        let found = (0..16).find_map(|seed| explore_format(seed, Some(ignored)).err());
        println!("{ignored:?}: {}", found.unwrap_or_else(|| panic!("{ignored:?} goes unnoticed")));
    }
}

#[test]
fn a_salvage_that_is_cut_off_is_done_again() {
    let states: u64 = (0..5).map(explore_salvage).sum();
    println!("{states} crash states of salvage");
}

/// Finds a workload that fails under a plan, from workload `first` on: a rare failure shows late otherwise.
fn assert_found(name: &str, plan: Plan, first: u64) {
    let mut explored = Explored::default();
    for seed in first..first + 400 {
        explore(seed, plan, &mut explored);
        if let Some(found) = explored.found {
            println!("{name}, in workload {seed}, after {} states: {found}", explored.states);
            return;
        }
    }
    panic!("{name} goes unnoticed in {} states", explored.states);
}

macro_rules! mutants {
    ($($test:ident: $field:ident $wrong:expr $(, from $first:literal)?;)*) => {
        mod mutant {
            use super::*;

            $(
                #[test]
                fn $test() {
                    assert_found(stringify!($test), Plan { $field: Some($wrong), ..Plan::new() }, 0 $(+ $first)?);
                }
            )*
        }
    };
}

mutants! {
    without_the_flush_when_it_is_opened: ignored IgnoredFlush::Device(Barrier::Opened), from 12;
    without_the_flush_between_data_and_what_vouches_for_it: ignored IgnoredFlush::Device(Barrier::Data);
    without_the_flush_before_a_flush_is_reported: ignored IgnoredFlush::Device(Barrier::Maps);
    without_the_flush_between_an_inode_and_its_root: ignored IgnoredFlush::Device(Barrier::Inode);
    without_the_flush_of_the_root: ignored IgnoredFlush::Device(Barrier::Root);
    without_the_flush_of_a_cleared_bit: ignored IgnoredFlush::Device(Barrier::Cleared), from 9;
    without_the_flush_of_a_torrent_file: ignored IgnoredFlush::Files;
    without_the_flush_of_the_folder: ignored IgnoredFlush::Names;
    without_the_flush_of_what_was_mended: ignored IgnoredFlush::Device(Barrier::Mended), from 1;
    with_the_root_before_the_inode: mutant Mutant::RootBeforeInode;
    with_the_root_in_place: mutant Mutant::RootInPlace;
    with_reuse_before_the_root: mutant Mutant::ReuseBeforeRoot;
    with_reuse_after_one_root: mutant Mutant::ReuseAfterOneRoot;
    with_have_bits_beside_their_data: mutant Mutant::HaveBitsWithData;
    with_a_map_block_pointed_at_too_early: mutant Mutant::MapBlockWithContent, from 3;
    with_a_map_block_as_it_was_found: mutant Mutant::MapBlockAsFound, from 1;
    with_neighbours_as_they_are: mutant Mutant::NeighboursAsTheyAre;
    with_bits_cleared_later: mutant Mutant::ClearedLater, from 9;
    with_torn_roots_believed: mutant Mutant::TornRoot;
    with_bits_without_blocks: mutant Mutant::BitsWithoutBlocks, from 1;
    with_an_older_root_left_at_boot: mutant Mutant::OlderRootLeft, from 7;
    with_nothing_mended: mutant Mutant::NothingMended, from 2;
    with_losses_not_recorded: mutant Mutant::LostNotRecorded;
    with_any_sector_taken_for_a_map: mutant Mutant::AnyInode, from 2;
}
