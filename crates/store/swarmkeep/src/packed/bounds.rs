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
/// block, and spare room in a directory (1,280 bytes for leaves, 2,064 for buckets). If the splits of leaves by
/// one announce take more than half of it, they reserve more, or do not take place.
pub(super) const MAX_GROWTH: usize = 4096;

/// The same for an announce that replaces a peer in a large swarm: two buckets, each by at most one size of
/// blocks.
pub(super) const MAX_REPLACEMENT: usize = 512;

/// The least limit on bytes: room for one swarm and for what some announces to it reserve.
pub(super) const MIN_BYTES: usize = 16 * MAX_GROWTH;
