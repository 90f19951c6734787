//! The binary hash trees of BEP 52: SHA-256, as many leaves as a power of two.

use sha2::{Digest, Sha256};

pub(super) type Hash = [u8; 32];

/// A tree that takes its leaves one by one. Holds one hash per level.
#[derive(Debug, Clone)]
pub(super) struct HashTree {
    /// The roots of the full trees that the leaves so far are made up of, large ones first: one for each bit
    /// of `leaves`.
    roots: Vec<Hash>,
    leaves: u64,
    /// The hash in the place of missing leaves.
    missing: Hash,
}

impl HashTree {
    /// A tree in which a missing leaf is `missing`.
    pub(super) const fn new(missing: Hash) -> Self {
        Self { roots: Vec::new(), leaves: 0, missing }
    }

    pub(super) fn push(&mut self, leaf: Hash) {
        let full = self.leaves.trailing_ones();
        let root = (0..full).fold(leaf, |root, _| {
            pair(&self.roots.pop().expect("there is a root for every bit of the count"), &root)
        });
        self.roots.push(root);
        self.leaves += 1;
    }

    /// The root of a tree of 2^`levels` leaves, of which the first came and the others are missing.
    pub(super) fn root(mut self, levels: u32) -> Hash {
        let (mut right, mut missing) = (None, self.missing);
        for level in 0..levels {
            let left = (self.leaves >> level & 1 == 1).then(|| self.roots.pop()).flatten();
            right = match (left, right) {
                (Some(left), right) => Some(pair(&left, &right.unwrap_or(missing))),
                (None, Some(right)) => Some(pair(&right, &missing)),
                (None, None) => None,
            };
            missing = pair(&missing, &missing);
        }
        right.or_else(|| self.roots.pop()).unwrap_or(missing)
    }
}

/// The root of a tree of 2^`levels` missing leaves, which are 32 zero bytes each.
pub(super) fn missing(levels: u32) -> Hash {
    HashTree::new([0; 32]).root(levels)
}

/// Levels of the smallest tree of `leaves` leaves.
pub(super) const fn levels(leaves: u64) -> u32 {
    leaves.next_power_of_two().trailing_zeros()
}

/// The root of a tree of 2^`levels` leaves, of which these are the first and `missing` stands for the others.
pub(super) fn root_of(leaves: &[Hash], levels: u32, missing: Hash) -> Hash {
    let mut tree = HashTree::new(missing);
    leaves.iter().for_each(|leaf| tree.push(*leaf));
    tree.root(levels)
}

/// The hash above two.
pub(super) fn pair(left: &Hash, right: &Hash) -> Hash {
    Sha256::new().chain_update(left).chain_update(right).finalize().into()
}
