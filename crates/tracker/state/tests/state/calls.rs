//! Download counts after random calls, restarts and refusals, beside the same counts in an array.

use std::sync::Arc;

use swarmkeep::{
    Budget, Changes, Cursor, Endpoint, InfoHash, PeerBuffer, PeerRecord, Random, Records, Request, Role,
    SplitMix64, SwarmSummary, TorrentRepositoryExt as _,
};
use swarmkeep_conformance::kit::{at, completed, hash, leecher, stats, stopped};
use swarmkeep_kit::folder::{Refusal, Simulated};
use swarmkeep_state::Downloads;

use crate::{STORES, StateTest, leave, v4};

const TORRENTS: usize = 24;

fn torrent(n: usize) -> InfoHash {
    hash(n as u64)
}

fn number(info_hash: &InfoHash) -> usize {
    (0..TORRENTS).find(|&n| torrent(n) == *info_hash).unwrap()
}

struct Story {
    name: &'static str,
    folder: Simulated,
    tracker: StateTest,
    rng: SplitMix64,
    counts: [u32; TORRENTS],
    newcomers: u32,
    /// Whether the latest snapshot may have removed torrents.
    is_snapshot_old: bool,
}

#[test]
fn counts_are_right_after_any_calls_stops_kills_and_refusals() {
    // The last one imports a torrent while its swarm is to be looked up as a new one.
    for seed in (0..60).chain([611]) {
        let (name, folder) = (STORES[seed as usize % 2], Simulated::new(seed));
        let tracker = StateTest::with(name, &folder, 0).unwrap();
        let (rng, counts) = (SplitMix64::new(seed), [0; TORRENTS]);
        let mut story = Story { name, folder, tracker, rng, counts, newcomers: 0, is_snapshot_old: false };
        for step in 0..150 {
            story.step(&format!("{name}, seed {seed}, step {step}"));
        }
    }
}

impl Story {
    fn below(&mut self, bound: usize) -> usize {
        let rng: &mut dyn Random = &mut self.rng;
        rng.below(bound)
    }

    fn newcomer(&mut self) -> Endpoint {
        self.newcomers += 1;
        v4(self.newcomers)
    }

    fn add(&mut self, n: usize, more: u32) {
        self.counts[n] = self.counts[n].saturating_add(more);
    }

    /// Peers of as many prefixes finish.
    fn complete(&mut self, n: usize, times: u32) {
        for _ in 0..times {
            let announce = completed(torrent(n), self.newcomer());
            assert!(self.tracker.tell(announce).changes.contains(Changes::COMPLETED));
        }
        self.add(n, times);
    }

    fn snapshot(&mut self) {
        self.tracker.state.snapshot().unwrap();
        self.is_snapshot_old = false;
    }

    fn settle(&self, at: &str) {
        self.tracker.state.settle().unwrap();
        assert_eq!(self.stored(), self.counts, "stored, {at}");
        for SwarmSummary { info_hash, stats, .. } in self.tracker.store.swarms() {
            assert_eq!(stats.downloaded, self.counts[number(&info_hash)], "shown, {at}");
        }
    }

    /// The counts that the next process finds.
    fn stored(&self) -> Vec<u32> {
        let mut downloads = Downloads::open(Arc::new(self.folder.after_kill())).unwrap();
        downloads.get_all(&std::array::from_fn::<_, TORRENTS, _>(torrent)).unwrap()
    }

    fn step(&mut self, at: &str) {
        let (n, store) = (self.below(TORRENTS), Arc::clone(&self.tracker.store));
        match self.below(16) {
            0..4 => {
                let times = 2 + self.below(3) as u32;
                self.complete(n, times);
            }
            4 => self.batch(n),
            5 => _ = self.tracker.tell(leecher(torrent(n), v4(1 << 16))),
            6 | 7 => (0..TORRENTS).skip(n % 3).step_by(3).for_each(|n| leave(&*store, &torrent(n))),
            8 => {
                store.remove(&torrent(n));
                (self.counts[n], self.is_snapshot_old) = (0, true);
            }
            9 => self.remove_where(n % 5),
            10 => {
                let more = [1, 2, 7, 1000, u32::MAX - 3][self.below(5)];
                if store.add_downloads(&torrent(n), more) {
                    self.add(n, more);
                }
            }
            11 => self.restore(n, at),
            12 => {
                let (first, count) = (self.folder.operations().len() + self.below(6), 1 + self.below(3));
                self.folder.refuse(first, count, [Refusal::Device, Refusal::Full][n % 2]);
                self.complete(n, 2);
                let _ = self.tracker.state.settle();
                self.folder.heal();
            }
            13 => self.snapshot(),
            14 => self.settle(at),
            _ => self.restart(at),
        }
    }

    /// Of each torrent, one peer finishes twice and leaves, one finishes, and one has something left.
    fn batch(&mut self, n: usize) {
        let torrents = [n, (n + 1) % TORRENTS, (n + 7) % TORRENTS];
        let [one, other, third] = [(); 3].map(|()| self.newcomer());
        let of = |info_hash| {
            [
                completed(info_hash, one),
                leecher(info_hash, other),
                completed(info_hash, one),
                completed(info_hash, other),
                completed(info_hash, third).left(5),
                stopped(info_hash, one),
            ]
        };
        let announces = (0..6).flat_map(|nth| torrents.map(|n| of(torrent(n))[nth]));
        let request = |announce| Request::new(announce, PeerBuffer::new(&mut [], &mut []));
        let mut batch: Vec<_> = announces.map(request).collect();
        self.tracker.store.announce_batch(&mut batch, at(0), &mut SplitMix64::new(1));
        torrents.into_iter().for_each(|n| self.add(n, 2));
    }

    /// Removes the swarms of every fifth torrent.
    fn remove_where(&mut self, nth: usize) {
        let mut cursor = Cursor::START;
        while !cursor.is_end() {
            let is_forbidden = |info_hash: &InfoHash| number(info_hash) % 5 == nth;
            let step = self.tracker.store.remove_where(&is_forbidden, cursor, Budget::peers(7));
            cursor = step.next;
            for swarm in step.removed {
                (self.counts[number(&swarm.info_hash)], self.is_snapshot_old) = (0, true);
            }
        }
    }

    /// The larger count is valid.
    fn restore(&mut self, n: usize, story: &str) {
        let (given, info_hash, endpoint) = (self.below(12) as u32, torrent(n), self.newcomer());
        let peer = PeerRecord { endpoint, role: Role::Seeder, last_announce: at(0), details: None };
        if given.is_multiple_of(2) {
            let swarm = SwarmSummary { info_hash, stats: stats(0, 0, given) };
            self.tracker.store.restore(&swarm, &[peer], at(0));
        } else {
            let mut records = Records::new(at(0));
            records.push(&info_hash, given, &[peer]);
            self.tracker.store.import(&[records], at(0));
        }
        self.counts[n] = given.max(self.counts[n]);
        self.settle(story);
    }

    fn restart(&mut self, at: &str) {
        self.settle(at);
        if self.is_snapshot_old {
            // A kill may undo a removal that is later than the latest snapshot.
            self.snapshot();
        }
        let (settled, store) = (self.counts, Arc::clone(&self.tracker.store));
        let is_known = |n: &usize| settled[*n] > 0 && !store.all_peers(&torrent(*n)).is_empty();
        let known: Vec<usize> = (0..TORRENTS).filter(is_known).collect();
        known.iter().for_each(|&n| self.complete(n, 1));
        let (ending, swarms) = (self.below(4), store.totals().swarms);
        match ending {
            0 => {
                known.iter().step_by(2).for_each(|&n| leave(&*store, &torrent(n)));
                self.tracker.state.close().unwrap();
                self.is_snapshot_old = false;
            }
            // The snapshot may be newer than the counts, or older.
            1 => self.snapshot(),
            2 => self.settle(at),
            // A kill or a power cut loses no more than the latest downloads.
            _ => {}
        }
        self.folder = match self.below(8) as u64 {
            0..4 => self.folder.after_kill(),
            seed => self.folder.after_power_cut(seed),
        };
        self.tracker = StateTest::with(self.name, &self.folder, 0).unwrap();
        if ending == 3 {
            let found = self.stored();
            let ranges = settled.into_iter().zip(self.counts);
            let is_known =
                found.iter().zip(ranges).all(|(found, (least, most))| (least..=most).contains(found));
            assert!(is_known, "{found:?} of {settled:?} and later downloads, {at}");
            self.counts = found.try_into().unwrap();
        }
        self.settle(at);
        let is_small = self.tracker.store.totals().swarms <= swarms;
        assert!(ending > 1 || is_small, "only the swarms of the snapshot are there, {at}");
    }
}
