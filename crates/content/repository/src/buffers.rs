//! Lists of buffers, taken apart from the front.

use std::ops::Range;

/// The rest of a list of buffers.
pub(crate) struct Parts<B, I: Iterator<Item = B>> {
    first: Option<B>,
    rest: I,
}

/// A buffer that can be cut in two.
pub(crate) trait Buffer: Sized {
    fn size(&self) -> usize;
    fn cut(self, at: usize) -> (Self, Self);
}

impl Buffer for &[u8] {
    fn size(&self) -> usize {
        self.len()
    }

    fn cut(self, at: usize) -> (Self, Self) {
        self.split_at(at)
    }
}

impl Buffer for &mut [u8] {
    fn size(&self) -> usize {
        self.len()
    }

    fn cut(self, at: usize) -> (Self, Self) {
        self.split_at_mut(at)
    }
}

impl<B: Buffer, I: Iterator<Item = B>> Parts<B, I> {
    pub(crate) const fn new(rest: I) -> Self {
        Self { first: None, rest }
    }

    /// The next `len` bytes, which must exist.
    pub(crate) fn take(&mut self, mut len: u64) -> Vec<B> {
        let mut taken = Vec::new();
        while len > 0 {
            let buffer =
                self.first.take().or_else(|| self.rest.next()).expect("the parts are as long as the buffers");
            let at = buffer.size().min(usize::try_from(len).unwrap_or(usize::MAX));
            let (now, later) = buffer.cut(at);
            len -= at as u64;
            if at > 0 {
                taken.push(now);
            }
            if later.size() > 0 {
                self.first = Some(later);
            }
        }
        taken
    }
}

/// A range of the concatenated buffers.
pub(crate) fn range_of<B: Buffer>(buffers: impl Iterator<Item = B>, range: Range<u64>) -> Vec<B> {
    let mut parts = Parts::new(buffers);
    parts.take(range.start);
    parts.take(range.end - range.start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_the_bytes_in_their_order_wherever_they_are_cut() {
        let buffers: [&[u8]; 5] = [b"abc", b"", b"d", b"", b"efgh"];
        for first in 0..=8 {
            let mut parts = Parts::new(buffers.into_iter());
            let [one, other] = [first, 8 - first].map(|len| parts.take(len));
            assert!(one.iter().chain(&other).all(|part| !part.is_empty()));
            assert_eq!(
                (one.concat().len() as u64, [one, other].concat().concat()),
                (first, b"abcdefgh".to_vec())
            );
        }
    }
}
