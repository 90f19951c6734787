//! Which address sent wrong bytes.

use std::{collections::BTreeMap, net::IpAddr};

use sha1::{Digest, Sha1};

use crate::picker::BLOCK;

/// The senders and digests of the blocks of wrong pieces, until the pieces are right.
///
/// If one peer sent all of a piece, it is to blame. Otherwise one peer alone sends the piece again: if it is
/// wrong again, that peer is to blame; if it is right, the senders of the blocks that differ are.
#[derive(Debug, Default)]
pub(crate) struct Blame {
    wrong: BTreeMap<u32, Vec<(IpAddr, [u8; 20])>>,
}

impl Blame {
    /// The most pieces that are remembered. Beyond that, a peer is to blame only if it sent all of a piece.
    const MOST: usize = 64;

    /// Records a wrong piece. Returns the address to blame, or `None` if it may be one of several.
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

    /// Records a right piece. Returns the addresses to blame if it was wrong before.
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
    fn a_right_piece_shows_the_sender_of_a_wrong_block() {
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
