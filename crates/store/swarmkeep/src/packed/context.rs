//! The state that all shards of a store share.

use std::sync::Mutex;

use super::{
    bounds::{Bounds, MAX_GROWTH, MIN_BYTES},
    clock::Clock,
    hash::EndpointHash,
    hints::Hints,
    place::Placement,
};
use crate::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    totals::AtomicTotals,
};

/// The shared state of all shards.
pub(super) struct StoreContext {
    pub(super) placement: Placement,
    pub(super) hash: EndpointHash,
    pub(super) clock: Clock,
    pub(super) hints: Hints,
    /// Held by the thread that makes room for more hints.
    pub(super) making_room: Mutex<()>,
    pub(super) totals: AtomicTotals,
    /// The bytes of all shards, and the bytes that announces in flight have reserved.
    pub(super) bytes: AtomicU64,
    pub(super) bounds: Bounds,
}

impl StoreContext {
    /// Makes room for the hints for a leaf of each shard, if the limit on bytes allows it.
    #[cold]
    pub(super) fn make_room_for_hints(&self, leaf: usize) {
        let bytes = self.hints.bytes_for(leaf) as u64;
        // Room for swarms comes first: the reservations of announces must still fit.
        let limit = self.bounds.bytes.saturating_sub(MIN_BYTES as u64);
        let fits = |now: u64| now.checked_add(bytes).filter(|&sum| sum <= limit);
        // Meanwhile, other threads use no hints for this leaf.
        let Ok(_one) = self.making_room.try_lock() else { return };
        if !self.hints.has_room(leaf) && self.bytes.fetch_update(Relaxed, Relaxed, fits).is_ok() {
            self.hints.make_room(leaf);
        }
    }

    /// A word that is as good as random, and another one when a peer has been evicted.
    pub(super) fn draw(&self) -> u64 {
        self.hash.hash(&self.totals.load().evicted.peers.to_le_bytes())
    }

    /// Whether `announces` more announces may exceed a limit.
    pub(super) fn is_nearly_full(&self, announces: usize) -> bool {
        let more = announces as u64;
        self.bytes.load(Relaxed).saturating_add(more * MAX_GROWTH as u64) > self.bounds.bytes
            || self.totals.swarms().saturating_add(more) > self.bounds.swarms
    }
}
