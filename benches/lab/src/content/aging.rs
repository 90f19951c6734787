//! Makes a store as after years of use: full to some share, with scattered free blocks.

use std::collections::HashMap;

use swarmkeep::{Random, SplitMix64};
use swarmkeep_content::{
    ContentExt, ContentRepository, InfoHash, NewTorrent,
    block::{BlockStore, SECTOR},
};

use crate::content::{Result, download::shuffle, mix, trace::info_hash};

/// The used share of a store afterwards.
pub(crate) const SHARE: f64 = 0.75;
/// The numbers of these torrents start here, apart from the torrents of the bench.
pub(crate) const FIRST: u32 = 1 << 30;

/// How often the store is filled and emptied.
const LIVES: u32 = 6;
/// The share to which it is filled: a store in use is rarely full to the last block.
const FULL: f64 = 0.97;
/// Torrents of a full store. 100 GB hold few torrents of the mean size, which would leave large holes.
const TORRENTS: u32 = 400;
/// The number of torrents written at the same time.
const PARALLEL: usize = 10;

/// Fills an empty store with torrents of mixed sizes, some at a time, deletes some of them at random, and
/// does that again and again, until it is full to three quarters. Of each block one sector is written: the
/// block is in use, and costs no more.
pub(crate) fn age(store: &BlockStore, seed: u64, progress: &mut dyn FnMut(f64)) -> Result<()> {
    let mut rng = SplitMix64::new(seed ^ 0x6167_6564);
    let block = u64::from(store.block_size());
    let statistics = store.statistics();
    let total = statistics.used + statistics.free.unwrap_or(0);
    let used = || store.statistics().used as f64 / total as f64;
    let lengths = mix::lengths(total, TORRENTS, block);
    let (mut numbers, mut there) = (FIRST.., HashMap::new());
    let mut add = |lengths: &[u64], there: &mut HashMap<InfoHash, u64>, rng: &mut SplitMix64| -> Result<()> {
        let mut writes = Vec::new();
        for (&length, number) in lengths.iter().zip(&mut numbers) {
            let hash = info_hash(number);
            let content = store.create(&NewTorrent::new(hash, length, block as u32)?)?;
            writes.extend((0..length / block).map(|at| (content.clone(), at * block)));
            there.insert(hash, length);
        }
        shuffle(&mut writes, rng);
        writes.into_iter().try_for_each(|(content, at)| Ok(content.write(at, &[0; SECTOR])?))
    };
    for life in 1..=LIVES {
        while used() < FULL {
            let mut room = ((FULL - used()) * total as f64) as u64;
            let mut some = Vec::new();
            while some.len() < PARALLEL && room >= block {
                let drawn = lengths[(rng.next_u64() % lengths.len() as u64) as usize];
                let length = drawn.min(room / block * block);
                room -= length;
                some.push(length);
            }
            if some.is_empty() {
                break;
            }
            add(&some, &mut there, &mut rng)?;
        }
        store.flush()?;
        // The hashes in an order that does not depend on the map.
        let mut hashes: Vec<_> = there.keys().copied().collect();
        hashes.sort_unstable();
        shuffle(&mut hashes, &mut rng);
        // More is deleted than necessary, and one torrent fills the rest.
        for hash in hashes {
            if used() <= SHARE {
                break;
            }
            store.delete(&hash)?;
            there.remove(&hash);
        }
        progress(f64::from(life) / f64::from(LIVES));
    }
    let missing = ((SHARE - used()) * total as f64) as u64 / block * block;
    if missing > 0 {
        add(&[missing], &mut there, &mut rng)?;
    }
    Ok(store.flush()?)
}

/// The runs of free blocks.
pub(crate) fn free_runs(store: &BlockStore, blocks: u32) -> Vec<std::ops::Range<u32>> {
    let (mut free, mut end) = (Vec::new(), 0);
    for (run, _) in store.owners() {
        if end < run.start {
            free.push(end..run.start);
        }
        end = run.end;
    }
    if end < blocks {
        free.push(end..blocks);
    }
    free
}

#[cfg(test)]
mod tests {
    use swarmkeep_content::block::{Allocation, FileDevice, FormatOptions};

    use super::*;

    #[test]
    fn an_aged_store_is_full_to_three_quarters_and_its_free_blocks_lie_scattered() {
        const BLOCKS: u32 = 8192;
        let image = tempfile::NamedTempFile::new().unwrap();
        image.as_file().set_len(u64::from(BLOCKS) << 16).unwrap();
        let device = FileDevice::open(image.path(), true).unwrap();
        let mut options = FormatOptions::new();
        options.block_size = Some(64 << 10);
        BlockStore::format(&device, options).unwrap();
        let store = BlockStore::boot(device, Allocation::Sequential).unwrap();
        age(&store, 1, &mut |_| {}).unwrap();
        store.audit().unwrap();
        let free = free_runs(&store, BLOCKS);
        let blocks: u32 = free.iter().map(|run| run.end - run.start).sum();
        assert!((0.245..=0.255).contains(&(f64::from(blocks) / f64::from(BLOCKS))), "{blocks} are free");
        // By chance, a run of free blocks has 4/3 of one in the mean where a quarter is free.
        let mean = f64::from(blocks) / free.len() as f64;
        assert!(mean < 3.0, "{mean} free blocks lie together");
        // All over the device.
        for quarter in 0..4 {
            let part = BLOCKS / 4 * quarter..BLOCKS / 4 * (quarter + 1);
            let here: u32 =
                free.iter().filter(|run| part.contains(&run.start)).map(|run| run.end - run.start).sum();
            assert!(here > blocks / 20, "{here} of {blocks} in quarter {quarter}");
        }
    }
}
