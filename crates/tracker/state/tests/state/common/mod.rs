//! What the tests of download counts share: a small world of torrents, a model of their counts, and random
//! changes.
#![allow(dead_code, unreachable_pub)]

use std::{collections::BTreeMap, sync::Arc};

use swarmkeep::{Random, SplitMix64};
use swarmkeep_state::{Change, Downloads, Folder, InfoHash, Options, Result};

/// The counts that should be there, of every torrent of the [`world`] that has one.
pub type Model = BTreeMap<InfoHash, u32>;

pub type Changes = Vec<(InfoHash, Change)>;

/// Ascending info hashes: spread evenly, and alike in their first 8 and 19 bytes.
pub fn world(size: usize) -> Vec<InfoHash> {
    let mut rng = SplitMix64::new(size as u64);
    let mut world: Vec<InfoHash> = (0..size)
        .map(|n| {
            let mut bytes = [0x5a; 20];
            let random = |rng: &mut SplitMix64| rng.next_u64().to_be_bytes();
            match n % 4 {
                0 => bytes[8..16].copy_from_slice(&random(&mut rng)),
                1 => bytes[19] = n as u8,
                _ => bytes[..8].copy_from_slice(&random(&mut rng)),
            }
            InfoHash::new(bytes)
        })
        .collect();
    world.sort();
    world.dedup();
    world
}

/// Up to `most` changes, at least one; large counts and forgets among them, and torrents that come twice.
pub fn random_changes(rng: &mut dyn Random, world: &[InfoHash], most: usize) -> Changes {
    let count = 1 + rng.below(most);
    (0..count)
        .map(|_| {
            let add = match rng.below(12) {
                0 => 0,
                1 => u64::from(u32::MAX) - rng.below(3) as u64,
                2 => rng.next_u64(),
                _ => 1 + rng.below(5) as u64,
            };
            (world[rng.below(world.len())], Change { forget: rng.below(5) == 0, add })
        })
        .collect()
}

pub fn apply(model: &Model, changes: &Changes) -> Model {
    let mut model = model.clone();
    for (info_hash, change) in changes {
        let count = model.entry(*info_hash).or_default();
        let before = if change.forget { 0 } else { *count };
        *count = u32::try_from(u64::from(before).saturating_add(change.add)).unwrap_or(u32::MAX);
    }
    model.retain(|_, count| *count > 0);
    model
}

/// All counts of the world, as `get_sorted` has them; `get` has the same.
pub fn counts(downloads: &Downloads, world: &[InfoHash]) -> Result<Model> {
    let mut counts = Vec::new();
    downloads.get_sorted(world, &mut counts)?;
    assert_eq!(counts.len(), world.len());
    for (info_hash, count) in world.iter().zip(&counts).step_by(7) {
        assert_eq!(downloads.get(info_hash)?, *count, "{info_hash}");
    }
    Ok(world.iter().copied().zip(counts).filter(|&(_, count)| count > 0).collect())
}

/// Sizes at which a dozen commits seal and merge.
pub fn small() -> Options {
    Options::default().log_bytes(2048).log_entries(12)
}

pub fn open(folder: &(impl Folder + Clone + 'static)) -> Result<Downloads> {
    Downloads::open_with(Arc::new(folder.clone()), small())
}
