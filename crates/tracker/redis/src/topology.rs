//! Which server serves which hash slot.

use std::sync::Arc;

use crate::{
    address::{Address, SlotRange},
    node::Node,
    place::SLOTS,
};

/// The servers, and the one that is master of each slot.
#[derive(Debug, Default)]
pub(crate) struct Topology {
    pub(crate) nodes: Vec<Arc<Node>>,
    /// For each slot, the index of its master in `nodes`. `None` without a Cluster.
    slots: Option<Box<[Option<u16>]>>,
    /// Why some servers of the Cluster must not receive the password.
    pub(crate) kept_out: Vec<String>,
}

impl Topology {
    pub(crate) fn single(node: Arc<Node>) -> Self {
        Self { nodes: vec![node], ..Self::default() }
    }

    /// From the ranges of a Cluster.
    pub(crate) fn cluster(ranges: &[SlotRange], mut node: impl FnMut(&Address) -> Arc<Node>) -> Self {
        let mut nodes: Vec<Arc<Node>> = Vec::new();
        let mut slots = vec![None; SLOTS.into()].into_boxed_slice();
        for range in ranges {
            let known = nodes.iter().position(|node| node.address == range.master);
            let index = known.unwrap_or_else(|| {
                nodes.push(node(&range.master));
                nodes.len() - 1
            });
            slots[usize::from(range.first)..=usize::from(range.last)].fill(Some(index as u16));
        }
        Self { nodes, slots: Some(slots), kept_out: Vec::new() }
    }

    pub(crate) const fn is_cluster(&self) -> bool {
        self.slots.is_some()
    }

    pub(crate) fn master_of(&self, slot: u16) -> Option<&Arc<Node>> {
        match &self.slots {
            None => self.nodes.first(),
            Some(slots) => slots[usize::from(slot)].map(|index| &self.nodes[usize::from(index)]),
        }
    }
}
