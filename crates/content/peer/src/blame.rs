//! Who brought bytes that were wrong.

use std::{collections::BTreeMap, net::IpAddr};

use sha1::{Digest, Sha1};

use crate::picker::BLOCK;

/// What was brought of pieces that were wrong, until they are right.
///
/// If one peer brought all of a piece, it is to blame. Else the piece comes again, from one peer alone: if it
/// is wrong again, that peer is to blame; if it is right, those are whose blocks differ.
#[derive(Debug, Default)]
pub(crate) struct Blame {
    wrong: BTreeMap<u32, Vec<(IpAddr, [u8; 20])>>,
}

impl Blame {
    /// Pieces that are remembered at once; of the others, nobody is blamed but who brought all of one.
    const MOST: usize = 64;

    /// A piece was wrong. Who is to blame, or nobody if several may be.
    pub(crate) fn wrong(&mut self, piece: u32, data: &[u8], from: &[IpAddr]) -> Option<IpAddr> {
        let (&first, others) = from.split_first()?;
        if others.iter().all(|other| *other == first) {
            return Some(first);
        }
        if self.wrong.len() < Self::MOST || self.wrong.contains_key(&piece) {
            self.wrong.insert(piece, from.iter().copied().zip(digests(data)).collect());
        }
        None
    }

    /// A piece was right. Who is to blame for its having been wrong before.
    pub(crate) fn right(&mut self, piece: u32, data: &[u8]) -> Vec<IpAddr> {
        let Some(before) = self.wrong.remove(&piece) else { return Vec::new() };
        let wrong = before.into_iter().zip(digests(data)).filter(|((_, before), now)| before != now);
        let mut to_blame: Vec<_> = wrong.map(|((from, _), _)| from).collect();
        to_blame.sort_unstable();
        to_blame.dedup();
        to_blame
    }
}

fn digests(data: &[u8]) -> impl Iterator<Item = [u8; 20]> + '_ {
    data.chunks(BLOCK as usize).map(|block| Sha1::digest(block).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_brought_a_wrong_block_among_right_ones_is_found_when_the_piece_is_right() {
        let [one, two, three] = [1, 2, 3].map(|n| IpAddr::from([127, 0, 0, n]));
        let right: Vec<u8> = (0..4 * BLOCK).map(|n| (n / 7) as u8).collect();
        let mut wrong = right.clone();
        wrong[2 * BLOCK as usize + 5] ^= 1;
        let mut blame = Blame::default();
        assert_eq!(blame.wrong(7, &wrong, &[one, two, three, one]), None);
        assert!(blame.right(8, &right).is_empty());
        assert_eq!(blame.right(7, &right), [three]);
        assert!(blame.right(7, &right).is_empty());
        assert_eq!(blame.wrong(7, &wrong, &[two; 4]), Some(two));
    }
}
