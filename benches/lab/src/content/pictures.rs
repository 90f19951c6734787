//! What is kept of a row to draw it.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use swarmkeep_content::block::Owner;

use crate::content::{
    disk::{Access, Action, Disk},
    trace::number,
};

/// In place of a torrent's number: i-nodes, maps and the root.
pub(crate) const METADATA: u32 = u32::MAX;
/// So many points at most: more are no clearer, and make files large.
const POINTS: usize = 2500;

/// Points and runs of blocks of a row.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Pictures {
    /// Modelled seconds, bytes from the beginning of the device, and whose.
    pub(crate) accesses: Vec<(f64, f64, u32)>,
    /// Of how many accesses each point stands for one.
    pub(crate) each: u64,
    /// Bytes that came so far, bytes from the beginning of the first torrent as if all were one after
    /// another, and whose.
    pub(crate) arrivals: Vec<(f64, f64, u32)>,
    /// Runs of blocks: the first, the one behind the last, and whose.
    pub(crate) layout: Vec<(u32, u32, u32)>,
    /// Blocks of the device.
    pub(crate) blocks: u32,
}

impl Pictures {
    pub(crate) fn new(disk: Disk, trace: &[Access], whose: impl Fn(&Access) -> u32) -> Self {
        let each = trace.len().div_ceil(POINTS).max(1);
        let (mut accesses, mut n) = (Vec::new(), 0);
        disk.replay_with(trace.iter().copied(), |step| {
            let whose = whose(&step.access);
            // Metadata is rare, and what one looks for.
            if n % each == 0 || whose == METADATA {
                accesses.push((step.begins, step.access.at as f64, whose));
            }
            n += 1;
        });
        Self { accesses, each: each as u64, ..Self::default() }
    }

    /// Keeps where in the torrents pieces came, which have so many bytes each.
    pub(crate) fn arrivals(&mut self, trace: &[Access], size: u64) {
        let mut bytes = 0;
        for (n, access) in trace.iter().filter(|access| access.action == Action::Write).enumerate() {
            if (n as u64).is_multiple_of(self.each) {
                let at = u64::from(access.whose) * size + access.at;
                self.arrivals.push((bytes as f64, at as f64, access.whose));
            }
            bytes += access.len;
        }
    }

    /// Keeps whose each block of a device is.
    pub(crate) fn layout(&mut self, owners: &[(Range<u32>, Owner)], blocks: u32) {
        self.blocks = blocks;
        self.layout = owners
            .iter()
            .map(|(run, owner)| match owner {
                Owner::Content(info_hash) => (run.start, run.end, number(info_hash)),
                _ => (run.start, run.end, METADATA),
            })
            .collect();
    }
}
