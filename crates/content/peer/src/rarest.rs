//! Pieces by the number of peers that have them.

use rand::{Rng, RngExt};

/// Pieces, the rarest first. The cost of an update does not depend on the number of pieces. Equally rare ones
/// are in random order, so that not all peers fetch the same piece.
#[derive(Debug, Default)]
pub(crate) struct Rarest {
    /// How many peers have each piece, without the peers that have all.
    counts: Vec<u32>,
    order: Vec<u32>,
    /// Where each piece stands in `order`, or [`OUT`].
    places: Vec<u32>,
    /// `begins[n]`: where the pieces begin that `n` peers have, or more.
    begins: Vec<u32>,
}

const OUT: u32 = u32::MAX;

impl Rarest {
    /// Pieces that no peer has yet.
    pub(crate) fn new(pieces: u32, rng: &mut impl Rng) -> Self {
        let mut all = Self {
            counts: vec![0; pieces as usize],
            order: Vec::with_capacity(pieces as usize),
            places: vec![OUT; pieces as usize],
            begins: vec![0],
        };
        (0..pieces).for_each(|piece| all.insert(piece, rng));
        all
    }

    /// The pieces that are in, the rarest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.order.iter().copied()
    }

    pub(crate) const fn len(&self) -> usize {
        self.order.len()
    }

    pub(crate) fn contains(&self, piece: u32) -> bool {
        self.places[piece as usize] != OUT
    }

    /// Inserts a piece that is out.
    pub(crate) fn insert(&mut self, piece: u32, rng: &mut impl Rng) {
        let count = self.count(piece);
        self.reach(count);
        self.places[piece as usize] = self.order.len() as u32;
        self.order.push(piece);
        // From the end to its place: the first piece of each higher count becomes the last of it.
        for more in (count + 1..self.begins.len()).rev() {
            self.swap(self.places[piece as usize] as usize, self.begins[more] as usize);
            self.begins[more] += 1;
        }
        self.shuffle(piece, rng);
    }

    /// Removes a piece that is in.
    pub(crate) fn remove(&mut self, piece: u32) {
        for more in self.count(piece) + 1..self.begins.len() {
            self.begins[more] -= 1;
            self.swap(self.places[piece as usize] as usize, self.begins[more] as usize);
        }
        let last = self.order.len() - 1;
        self.swap(self.places[piece as usize] as usize, last);
        self.order.pop();
        self.places[piece as usize] = OUT;
    }

    pub(crate) fn gained(&mut self, piece: u32, rng: &mut impl Rng) {
        let count = self.count(piece);
        self.reach(count + 1);
        self.counts[piece as usize] += 1;
        if self.contains(piece) {
            self.begins[count + 1] -= 1;
            self.swap(self.places[piece as usize] as usize, self.begins[count + 1] as usize);
            self.shuffle(piece, rng);
        }
    }

    pub(crate) fn lost(&mut self, piece: u32, rng: &mut impl Rng) {
        let count = self.count(piece);
        self.counts[piece as usize] -= 1;
        if self.contains(piece) {
            self.swap(self.places[piece as usize] as usize, self.begins[count] as usize);
            self.begins[count] += 1;
            self.shuffle(piece, rng);
        }
    }

    fn count(&self, piece: u32) -> usize {
        self.counts[piece as usize] as usize
    }

    fn reach(&mut self, count: usize) {
        if self.begins.len() <= count {
            self.begins.resize(count + 1, self.order.len() as u32);
        }
    }

    /// Moves a piece to a random place among the pieces of its count.
    fn shuffle(&mut self, piece: u32, rng: &mut impl Rng) {
        let count = self.count(piece);
        let end = self.begins.get(count + 1).map_or(self.order.len() as u32, |&end| end);
        let place = rng.random_range(self.begins[count]..end);
        self.swap(self.places[piece as usize] as usize, place as usize);
    }

    fn swap(&mut self, one: usize, other: usize) {
        self.order.swap(one, other);
        for place in [one, other] {
            self.places[self.order[place] as usize] = place as u32;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rand::{SeedableRng, rngs::SmallRng};

    use super::*;

    #[test]
    fn the_order_follows_the_counts_after_any_update() {
        let mut rng = SmallRng::seed_from_u64(1);
        let mut rarest = Rarest::new(20, &mut rng);
        let mut counts = [0_u32; 20];
        let mut out = BTreeSet::new();
        for _ in 0..20_000 {
            let piece = rng.random_range(0..20_u32);
            match rng.random_range(0..4) {
                0 if counts[piece as usize] < 9 => {
                    counts[piece as usize] += 1;
                    rarest.gained(piece, &mut rng);
                }
                1 if counts[piece as usize] > 0 => {
                    counts[piece as usize] -= 1;
                    rarest.lost(piece, &mut rng);
                }
                2 if out.insert(piece) => rarest.remove(piece),
                3 if out.remove(&piece) => rarest.insert(piece, &mut rng),
                _ => {}
            }
            let order: Vec<_> = rarest.iter().collect();
            assert!(order.is_sorted_by_key(|&piece| counts[piece as usize]), "{order:?} {counts:?}");
            let there: BTreeSet<_> = order.iter().copied().collect();
            assert_eq!((there.len(), order.len()), (20 - out.len(), 20 - out.len()));
            assert!(there.is_disjoint(&out));
        }
    }

    #[test]
    fn equally_rare_pieces_are_in_random_order() {
        let firsts: BTreeSet<_> = (0..200)
            .map(|seed| Rarest::new(8, &mut SmallRng::seed_from_u64(seed)).iter().next().unwrap())
            .collect();
        assert_eq!(firsts.len(), 8);
    }
}
