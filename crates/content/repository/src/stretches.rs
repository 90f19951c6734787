//! Sets of byte offsets that come in stretches.

use std::{collections::BTreeMap, ops::Range};

/// A set of offsets, as stretches of which no two touch: start and end. Some 50 bytes for each. Most torrents
/// have nothing that is written and not complete, and there may be many torrents.
#[expect(clippy::box_collection, reason = "no more than a pointer where there are none")]
#[derive(Debug, Clone, Default)]
pub(crate) struct Stretches(Option<Box<BTreeMap<u64, u64>>>);

static NONE: BTreeMap<u64, u64> = BTreeMap::new();

impl Stretches {
    fn map(&self) -> &BTreeMap<u64, u64> {
        self.0.as_deref().unwrap_or(&NONE)
    }

    /// Adds a range; how many of it were not there.
    pub(crate) fn insert(&mut self, range: Range<u64>) -> u64 {
        if range.is_empty() {
            return 0;
        }
        let map = self.0.get_or_insert_default();
        let Range { mut start, mut end } = range;
        let mut old = 0;
        while let Some((&from, &to)) = map.range(..=end).next_back() {
            if to < start {
                break;
            }
            map.remove(&from);
            old += to - from;
            (start, end) = (start.min(from), end.max(to));
        }
        map.insert(start, end);
        end - start - old
    }

    /// Takes a range away; how many of it were there.
    pub(crate) fn remove(&mut self, range: &Range<u64>) -> u64 {
        let mut old = 0;
        let Some(map) = self.0.as_deref_mut().filter(|_| !range.is_empty()) else { return old };
        while let Some((&from, &to)) = map.range(..range.end).next_back() {
            if to <= range.start {
                break;
            }
            map.remove(&from);
            old += to.min(range.end) - from.max(range.start);
            if range.end < to {
                map.insert(range.end, to);
            }
            if from < range.start {
                map.insert(from, range.start);
            }
        }
        old
    }

    /// The end of the stretch that `at` lies in.
    pub(crate) fn end_of(&self, at: u64) -> Option<u64> {
        self.map().range(..=at).next_back().map(|(_, &to)| to).filter(|&to| to > at)
    }

    pub(crate) fn overlaps(&self, range: &Range<u64>) -> bool {
        !range.is_empty()
            && self.map().range(..range.end).next_back().is_some_and(|(_, &to)| to > range.start)
    }

    /// The parts of a range that are in it, ascending.
    pub(crate) fn within(&self, range: &Range<u64>) -> impl Iterator<Item = Range<u64>> + use<'_> {
        let Range { start, end } = range.clone();
        let first = self.map().range(..=start).next_back().map_or(start, |(&from, _)| from);
        // `range` may be empty; a map panics when a range ends before it begins.
        let stretches = self.map().range(first..end.max(first));
        stretches.map(move |(&from, &to)| from.max(start)..to.min(end)).filter(|part| part.start < part.end)
    }

    /// The parts of a range that are not in it, ascending.
    pub(crate) fn outside(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let mut holes = Vec::new();
        let mut at = range.start;
        for stretch in self.within(range) {
            if at < stretch.start {
                holes.push(at..stretch.start);
            }
            at = stretch.end;
        }
        if at < range.end {
            holes.push(at..range.end);
        }
        holes
    }

    /// All stretches, ascending.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.map().iter().map(|(&from, &to)| from..to)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.map().is_empty()
    }
}
