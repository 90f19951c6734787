//! Selecting peers of a swarm of few peers.

use crate::implement::SectionExt as _;
use crate::{Random, Section};

/// The peers of one family that may be selected: a run of endpoints, without the announcer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Choice<'a, const N: usize> {
    pub(super) run: &'a [[u8; N]],
    pub(super) own: Option<usize>,
}

impl<const N: usize> Choice<'_, N> {
    pub(super) const fn len(&self) -> usize {
        self.run.len() - self.own.is_some() as usize
    }

    /// Writes `count` of them, from a uniformly random one on and wrapping around, so each is equally likely
    /// to be among them.
    pub(super) fn write(&self, count: usize, rng: &mut dyn Random, section: &mut Section<'_, N>) {
        if count == 0 {
            return;
        }
        let len = self.len();
        let start = if count < len { rng.below(len) } else { 0 };
        let behind = count.min(len - start);
        self.write_range(start, start + behind, section);
        self.write_range(0, count - behind, section);
    }

    /// Writes a range of these peers, numbered without the announcer.
    fn write_range(&self, start: usize, end: usize, section: &mut Section<'_, N>) {
        let own = self.own.unwrap_or(self.run.len()).clamp(start, end);
        section.extend(&self.run[start..own]);
        // After the announcer, which is skipped, all indices are one less.
        let skipped = usize::from(end > own);
        section.extend(&self.run[(own + skipped).min(end + skipped)..end + skipped]);
    }
}
