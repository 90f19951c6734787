//! The limits of a store, and by how many bytes one announce may make it grow.

/// The limits of a store. A number that is never reached stands for no limit.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    pub(super) swarms: u64,
    pub(super) peers_per_swarm: u64,
    pub(super) endpoints_per_address: u64,
    pub(super) bytes: u64,
}

/// The most bytes by which one announce makes a stripe grow: a slot or a bucket, a split, tables instead of a
/// block, and spare room in a directory (1,280 bytes for leaves, 2,064 for buckets).
pub(super) const MAX_GROWTH: usize = 4096;

/// What splits of leaves leave of it for the rest of the announce, which may make its swarm a large one. They
/// reserve more, or do not take place.
pub(super) const AFTER_SPLITS: usize = 2560;

/// The most bytes by which an announce to a large swarm makes it grow if no bucket splits: the next size of a
/// block (1,648 bytes more for the largest), or the first tables of a family.
pub(super) const WITHOUT_SPLIT: usize = 2048;

/// The least limit on bytes: room for one swarm and for what some announces to it reserve.
pub(super) const MIN_BYTES: usize = 16 * MAX_GROWTH;
