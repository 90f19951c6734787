//! A disk that turns, as a model: what a trace of offsets would take on one.

use std::{fmt, ops::Range};

use serde::{Deserialize, Serialize};

/// A disk's parameters. The head moves, the sector comes round, the bytes pass; what flushes, the file
/// system's own records and the drive's cache cost is not in the model.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Disk {
    /// Bytes from the innermost track to the outermost.
    pub capacity: u64,
    /// Milliseconds to a neighbouring track.
    pub shortest_seek_ms: f64,
    /// Milliseconds over the whole disk. Between, the time grows with the root of the distance, as a head
    /// takes that is sped up for half of the way and slowed down for the other.
    pub longest_seek_ms: f64,
    /// Turns a minute. A seek is followed by half a turn.
    pub turns: f64,
    /// Bytes a second that pass under the head.
    pub rate: f64,
}

impl Default for Disk {
    /// A desktop disk of 1 TB and 7,200 turns a minute: 8.5 ms to a random place, 150 MB/s.
    fn default() -> Self {
        Self {
            capacity: 1_000_000_000_000,
            shortest_seek_ms: 1.0,
            longest_seek_ms: 15.0,
            turns: 7200.0,
            rate: 150e6,
        }
    }
}

/// What is done to a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    /// The first byte.
    pub at: u64,
    /// How many.
    pub len: u64,
    /// What is done with them.
    pub action: Action,
    /// Whose they are: a number that whoever records gives a meaning.
    pub whose: u32,
}

/// What can be done to a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Bytes are read.
    Read,
    /// Bytes are written.
    Write,
    /// What was written is made durable.
    Flush,
}

/// What a trace takes on a disk.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Replay {
    /// Seconds in all.
    pub seconds: f64,
    /// Of them, until the head was where it had to be.
    pub seek_seconds: f64,
    /// How often it had to go somewhere else. Passing over a gap is no seek.
    pub seeks: u64,
    /// Bytes read and written.
    pub bytes: u64,
}

/// An access on a disk's clock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Step {
    pub(crate) access: Access,
    /// Seconds at which its bytes begin to pass.
    pub(crate) begins: f64,
    pub(crate) seeks: bool,
}

impl Disk {
    /// Milliseconds to a random place from a random place, without the turn: 8.47 of the default disk.
    pub fn mean_seek_ms(&self) -> f64 {
        // The mean root of the distance of two places is 8/15 of the root of the whole.
        self.shortest_seek_ms + (self.longest_seek_ms - self.shortest_seek_ms) * 8.0 / 15.0
    }

    /// Milliseconds for half a turn.
    pub fn half_turn_ms(&self) -> f64 {
        30_000.0 / self.turns
    }

    /// Seconds that the head needs over so many bytes, with the half turn.
    fn seek(&self, distance: u64) -> f64 {
        let share = (distance as f64 / self.capacity as f64).min(1.0);
        let way = (self.longest_seek_ms - self.shortest_seek_ms) * share.sqrt();
        (self.shortest_seek_ms + way + self.half_turn_ms()) / 1e3
    }

    /// Seconds to the place `to`, and whether they are for a seek: what lies shortly ahead comes round by
    /// itself.
    fn go(&self, from: u64, to: u64) -> (f64, bool) {
        if from == to {
            return (0.0, false);
        }
        let seek = self.seek(from.abs_diff(to));
        match to.checked_sub(from) {
            Some(gap) if gap as f64 / self.rate <= seek => (gap as f64 / self.rate, false),
            _ => (seek, true),
        }
    }

    /// Does what a trace says, one after another, from a head at the beginning of the disk.
    pub fn replay(&self, trace: impl IntoIterator<Item = Access>) -> Replay {
        self.replay_with(trace, |_| {})
    }

    pub(crate) fn replay_with(
        &self,
        trace: impl IntoIterator<Item = Access>,
        mut each: impl FnMut(Step),
    ) -> Replay {
        let (mut replay, mut head) = (Replay::default(), 0);
        for access in trace {
            if access.action == Action::Flush {
                continue;
            }
            let (seconds, seeks) = self.go(head, access.at);
            replay.seconds += seconds;
            replay.seek_seconds += seconds;
            replay.seeks += u64::from(seeks);
            each(Step { access, begins: replay.seconds, seeks });
            replay.seconds += access.len as f64 / self.rate;
            replay.bytes += access.len;
            head = access.at + access.len;
        }
        replay
    }
}

impl fmt::Display for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} GB, {:.0} turns per minute, {:.0} MB/s;\n\
             a seek takes {} ms + {} ms × √(distance / capacity), {:.1} ms in the mean, and half a turn of {:.2} ms",
            self.capacity / 1_000_000_000,
            self.turns,
            self.rate / 1e6,
            self.shortest_seek_ms,
            self.longest_seek_ms - self.shortest_seek_ms,
            self.mean_seek_ms(),
            self.half_turn_ms(),
        )
    }
}

/// How many runs there are in ranges of bytes, if what touches is one.
pub(crate) fn runs(mut ranges: Vec<Range<u64>>) -> u64 {
    ranges.sort_by_key(|range| range.start);
    let (mut runs, mut end) = (0, None);
    for range in ranges {
        if end.is_none_or(|end| end < range.start) {
            runs += 1;
        }
        end = Some(end.unwrap_or(0).max(range.end));
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(at: u64, len: u64) -> Access {
        Access { at, len, action: Action::Write, whose: 0 }
    }

    const FLUSH: Access = Access { at: 0, len: 0, action: Action::Flush, whose: 0 };

    fn close(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1e-9, "{found} is not {expected}");
    }

    #[test]
    fn a_seek_takes_what_one_reckons_by_hand() {
        let disk = Disk::default();
        // A quarter of the disk: 1 + 14 × ½ + 60,000 / 7,200 / 2 ms.
        close(disk.seek(250_000_000_000), 0.008 + 0.004_166_666_666_666_667);
        close(disk.seek(1_000_000_000_000), 0.015 + 0.004_166_666_666_666_667);
        close(disk.seek(5_000_000_000_000), 0.015 + 0.004_166_666_666_666_667);
        close(disk.mean_seek_ms(), 8.466_666_666_666_667);
        close(disk.half_turn_ms(), 4.166_666_666_666_667);
    }

    #[test]
    fn what_lies_shortly_ahead_is_passed_over_and_what_lies_behind_is_sought() {
        let disk = Disk::default();
        // 150,000 bytes are 1 ms away by waiting.
        assert_eq!(disk.go(0, 150_000), (0.001, false));
        assert_eq!(disk.go(7, 7), (0.0, false));
        let (seconds, seeks) = disk.go(150_000, 0);
        assert!(seeks);
        close(seconds, (1.0 + 14.0 * (150_000_f64 / 1e12).sqrt()) / 1e3 + 0.5 / 120.0);
        // 15 MB ahead would be 100 ms of waiting.
        assert!(disk.go(0, 15_000_000).1);
    }

    #[test]
    fn a_replay_adds_ways_and_bytes() {
        let disk = Disk::default();
        // From 0: 1 ms of bytes; on: 1 ms; a quarter of the disk away: a seek of 12.17 ms and 2 ms of bytes.
        let far = 300_000 + 250_000_000_000;
        let replay = disk.replay([access(0, 150_000), FLUSH, access(150_000, 150_000), access(far, 300_000)]);
        assert_eq!((replay.seeks, replay.bytes), (1, 600_000));
        close(replay.seek_seconds, 0.012_166_666_666_666_667);
        close(replay.seconds, 0.004 + 0.012_166_666_666_666_667);
    }

    #[test]
    fn random_places_take_the_mean() {
        let (disk, mut seed) = (Disk::default(), 1_u64);
        let trace = (0..200_000).map(|_| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            access(((u128::from(seed) * 1_000_000_000_000) >> 64) as u64, 0)
        });
        let replay = disk.replay(trace);
        let mean = replay.seek_seconds / 200_000.0 * 1e3;
        assert!((mean - 12.63).abs() < 0.05, "{mean}");
    }

    #[test]
    fn ranges_that_touch_are_one_run() {
        assert_eq!(runs(vec![10..20, 0..10, 30..40]), 2);
        assert_eq!(runs(vec![]), 0);
    }
}
