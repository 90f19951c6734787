//! Tests of every content store: its content, its errors, its costs.

mod block;
mod files;
mod hostile;
mod library;
mod stripe_cache;

use std::{
    fs, io,
    ops::Range,
    os::unix::fs::symlink,
    path::Path,
    sync::{
        Arc,
        atomic::{
            AtomicBool, AtomicU64,
            Ordering::{Relaxed, SeqCst},
        },
    },
    thread,
    time::Duration,
};

use swarmkeep_content::{
    Content, ContentConfig, ContentExt, ContentRepository, Error, InfoHash, Memory, NewTorrent,
    block::{Allocation, BlockDevice, BlockStore, FormatOptions, SECTOR, Sector},
};
use swarmkeep_kit::{device::SparseDevice, draw::Draw};
use swarmkeep_metainfo::Metainfo;
use swarmkeep_store_tests::with;
use tempfile::TempDir;

fn blocks_of(bytes: u32) -> FormatOptions {
    with(FormatOptions::new(), |options| options.block_size = Some(bytes))
}

fn hash(n: u64) -> InfoHash {
    let mut bytes = [0x5a; 20];
    bytes[..8].copy_from_slice(&n.to_be_bytes());
    InfoHash::new(bytes)
}

fn bytes(n: u64, range: Range<u64>) -> Vec<u8> {
    range.map(|at| ((at + 1).wrapping_mul(n + 0x9e37_79b9) >> 7) as u8).collect()
}

fn sector(device: &SparseDevice, at: u64) -> Sector {
    let mut read = [Sector::ZERO];
    device.read(at, &mut read).unwrap();
    read[0]
}

fn corrupt(device: &SparseDevice, at: u64, logical: usize) {
    let mut sector = sector(device, at);
    sector.0[512 * logical..512 * (logical + 1)].iter_mut().for_each(|byte| *byte ^= 0xa5);
    device.write(at, &[&[sector]]).unwrap();
}
