//! The limits of a store, and by how many bytes one announce may make it grow.

/// The limits of a store. A number that is never reached stands for no limit.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    pub(super) swarms: u64,
    pub(super) peers_per_swarm: u64,
    pub(super) endpoints_per_address: u64,
    pub(super) bytes: u64,
}

impl Bounds {
    /// The most bytes that the store keeps between announces: [`SLACK`] less than its limit.
    pub(super) const fn settled(&self) -> u64 {
        if self.bytes == u64::MAX { u64::MAX } else { self.bytes - SLACK as u64 }
    }
}

/// The most bytes by which one announce makes a shard grow: a slot or a bucket, a split, tables instead of a
/// block, and spare room in a directory (1,280 bytes for leaves, 2,064 for buckets).
pub(super) const MAX_GROWTH: usize = 4096;

/// The part of it that splits of leaves leave to the rest of the announce, which may make its swarm a large
/// one. They reserve more, or do not take place.
pub(super) const AFTER_SPLITS: usize = 2560;

/// The bytes within the limit on which announces draw before they make room. Eight reserve at once, and one
/// that grows by more than it frees leaves the rest to the next ones.
pub(super) const SLACK: usize = 8 * MAX_GROWTH;

/// The least limit on bytes: the slack, and room for some swarms.
pub(super) const MIN_BYTES: usize = 2 * SLACK;
