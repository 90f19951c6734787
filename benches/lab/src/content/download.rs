//! The client: it downloads torrents some at a time, piece by piece in random order.

use std::{cmp::Reverse, collections::BinaryHeap, sync::Arc};

use swarmkeep::{Random, SplitMix64};
use swarmkeep_content::{
    Content, ContentExt, ContentRepository, Geometry, NewTorrent, PieceBits, stripe_cache::StripeCache,
};

use crate::content::{Error, Result, mix, payload::Payload, trace::info_hash};

/// The torrents of a download.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DownloadPlan {
    pub(crate) torrents: u32,
    /// Bytes of each.
    pub(crate) size: u64,
    /// The number of torrents at a time. All get the same number of bytes per second.
    pub(crate) parallel: u32,
    pub(crate) seed: u64,
    /// Bytes of an aligned part of a torrent whose pieces come one after another; 0 for none.
    pub(crate) extent: u64,
}

/// Pieces of each torrent that are read and compared afterwards, besides the first and the last.
const SAMPLE: u32 = 14;

impl DownloadPlan {
    pub(crate) fn bytes(&self) -> u64 {
        u64::from(self.torrents) * self.size
    }

    pub(crate) fn new_torrent(&self, number: u32) -> Result<NewTorrent> {
        let piece_length = mix::piece_length(number, self.torrents);
        Ok(NewTorrent::new(info_hash(number), self.size, piece_length)?)
    }

    pub(crate) fn longest_piece(&self) -> u32 {
        mix::piece_length(self.torrents - 1, self.torrents)
    }

    fn begin(&self, store: &dyn ContentRepository, number: u32, rng: &mut SplitMix64) -> Result<Download> {
        let torrent = self.new_torrent(number)?;
        let pieces = torrent.geometry.pieces();
        let mut order: Vec<_> = (0..pieces).collect();
        shuffle(&mut order, rng);
        if self.extent > 0 {
            let each = (self.extent / u64::from(torrent.geometry.piece_length())).max(1) as u32;
            let mut extents: Vec<_> = (0..pieces.div_ceil(each)).collect();
            shuffle(&mut extents, rng);
            order.sort_by_key(|piece| extents[(piece / each) as usize]);
        }
        let content = store.create(&torrent)?;
        Ok(Download { content, number, geometry: torrent.geometry, order, picked: PieceBits::none(pieces) })
    }

    /// Downloads all of it into `store`, and flushes it after each torrent. If there is a cache, it
    /// chooses the next piece. `progress` receives the number of bytes of each piece.
    ///
    /// A whole piece is written with one call and then marked, as by a client that checks its hash first.
    pub(crate) fn download(
        &self,
        store: &dyn ContentRepository,
        affinity: Option<&StripeCache>,
        payload: &Payload,
        progress: &mut dyn FnMut(u64),
    ) -> Result<()> {
        let mut rng = SplitMix64::new(self.seed);
        let mut torrents: Vec<Option<Download>> = Vec::new();
        let mut coming = BinaryHeap::new();
        let mut waiting = 0..self.torrents;
        let mut start = |now: u64, torrents: &mut Vec<Option<Download>>, rng: &mut SplitMix64| {
            let Some(number) = waiting.next() else { return Ok::<_, Error>(None) };
            let torrent = self.begin(store, number, rng)?;
            let comes = now + torrent.pause(rng);
            torrents.push(Some(torrent));
            Ok(Some(Reverse((comes, number))))
        };
        for _ in 0..self.parallel {
            coming.extend(start(0, &mut torrents, &mut rng)?);
        }
        while let Some(Reverse((now, number))) = coming.pop() {
            let slot = &mut torrents[number as usize];
            let torrent = slot.as_mut().expect("it is not complete");
            let piece = torrent.pick(affinity);
            let geometry = torrent.geometry;
            let buffers = payload.buffers(geometry, number, piece);
            let range = geometry.piece(piece)?;
            torrent.content.write_at(range.start, &buffers)?;
            torrent.content.mark_complete(piece)?;
            progress(range.end - range.start);
            if torrent.picked.count() < geometry.pieces() {
                coming.push(Reverse((now + torrent.pause(&mut rng), number)));
            } else {
                *slot = None;
                store.flush()?;
                coming.extend(start(now, &mut torrents, &mut rng)?);
            }
        }
        Ok(store.flush()?)
    }

    /// Checks that every piece of all torrents is complete, and that a sample of them reads as written.
    /// Returns the number of compared bytes.
    pub(crate) fn verify(&self, store: &dyn ContentRepository, payload: &Payload) -> Result<u64> {
        let mut rng = SplitMix64::new(!self.seed);
        let mut compared = 0;
        for number in 0..self.torrents {
            let content = store.open(&info_hash(number))?;
            let (geometry, complete) = (content.geometry(), content.pieces()?);
            let pieces = geometry.pieces();
            let wrong = |piece, what| Error::Failed(format!("piece {piece} of torrent {number} {what}"));
            if let Some(piece) = (0..pieces).find(|&piece| !complete.contains(piece)) {
                return Err(wrong(piece, "is not complete any more"));
            }
            let random = (0..SAMPLE).map(|_| (rng.next_u64() % u64::from(pieces)) as u32);
            for piece in random.chain([0, pieces - 1]) {
                let bytes = content.read_piece(piece)?;
                if bytes != payload.piece(geometry, number, piece) {
                    return Err(wrong(piece, "does not read as it was written"));
                }
                compared += bytes.len() as u64;
            }
        }
        Ok(compared)
    }
}

struct Download {
    content: Arc<dyn Content>,
    number: u32,
    geometry: Geometry,
    /// The order of pieces by default, the next one last.
    order: Vec<u32>,
    picked: PieceBits,
}

impl Download {
    /// The next piece; there is one.
    fn pick(&mut self, affinity: Option<&StripeCache>) -> u32 {
        let best = affinity.and_then(|cache| cache.affinity(&info_hash(self.number), 1).first().copied());
        let piece = best.map(|best| best.piece).or_else(|| {
            while let Some(piece) = self.order.pop() {
                if !self.picked.contains(piece) {
                    return Some(piece);
                }
            }
            None
        });
        let piece = piece.expect("a torrent with all pieces is not asked");
        self.picked.insert(piece);
        piece
    }

    /// The time until the next piece arrives: random, and in proportion to its length.
    fn pause(&self, rng: &mut SplitMix64) -> u64 {
        let share = (rng.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
        (-(1.0 - share).ln() * f64::from(self.geometry.piece_length())) as u64
    }
}

/// Shuffles; each order has the same probability (Fisher and Yates).
pub(crate) fn shuffle<T>(items: &mut [T], rng: &mut SplitMix64) {
    for at in (1..items.len()).rev() {
        items.swap(at, (rng.next_u64() % (at as u64 + 1)) as usize);
    }
}

#[cfg(test)]
mod tests {
    use swarmkeep_content::{ContentConfig, Memory, stripe_cache::StripeCacheOptions};

    use super::*;

    const PLAN: DownloadPlan = DownloadPlan { torrents: 5, size: 3_000_001, parallel: 2, seed: 1, extent: 0 };

    #[test]
    fn all_pieces_come_once_and_right_with_and_without_affinity() {
        let payload = Payload::new(PLAN.longest_piece());
        let cache = |cached: bool| {
            let memory = Arc::new(Memory::new(&ContentConfig::new("")));
            let mut options = StripeCacheOptions::new();
            (options.stripe, options.write_memory, options.threads) = (Some(512 << 10), 1 << 20, 1);
            let cache = StripeCache::new(memory, options).unwrap();
            let mut bytes = 0;
            PLAN.download(&cache, cached.then_some(&cache), &payload, &mut |more| bytes += more).unwrap();
            assert_eq!(bytes, PLAN.bytes());
            assert!(PLAN.verify(&cache, &payload).unwrap() > PLAN.bytes() / 4);
            cache.cache_statistics()
        };
        let (with, without) = (cache(true), cache(false));
        assert!(with.partial < without.partial / 2, "{with:?}, {without:?}");
    }

    #[test]
    fn torrents_that_are_downloaded_at_a_time_get_as_many_bytes() {
        let store = Memory::new(&ContentConfig::new(""));
        let plan = DownloadPlan { torrents: 4, size: 8 << 20, parallel: 4, seed: 3, extent: 0 };
        let payload = Payload::new(plan.longest_piece());
        let (mut bytes, mut halves) = (0, Vec::new());
        plan.download(&store, None, &payload, &mut |more| {
            bytes += more;
            if halves.is_empty() && bytes >= plan.bytes() / 2 {
                halves = store.list().unwrap();
            }
        })
        .unwrap();
        for summary in halves {
            let share = f64::from(summary.complete) / f64::from(summary.geometry.pieces());
            assert!((0.25..=0.75).contains(&share), "{share} of {summary:?}");
        }
    }

    #[test]
    fn a_piece_that_is_lost_or_altered_fails_the_verification() {
        let store = Memory::new(&ContentConfig::new(""));
        let payload = Payload::new(PLAN.longest_piece());
        PLAN.download(&store, None, &payload, &mut |_| {}).unwrap();
        let torrent = store.open(&info_hash(3)).unwrap();
        torrent.mark_incomplete(0).unwrap();
        let error = || PLAN.verify(&store, &payload).unwrap_err().to_string();
        assert!(error().starts_with("piece 0 of torrent 3 is not complete"), "{}", error());
        torrent.write(0, &vec![1; torrent.geometry().piece_length() as usize]).unwrap();
        torrent.mark_complete(0).unwrap();
        assert!(error().starts_with("piece 0 of torrent 3 does not read"), "{}", error());
    }
}
