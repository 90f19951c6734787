//! A model of a disk that turns, and the time of a trace of offsets on it.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A disk's parameters. The head moves, the sector comes round, the bytes pass; the cost of flushes and
/// of the drive's cache is not in the model.
#[derive(Debug)]
pub(crate) struct Disk {
    /// Bytes from the innermost track to the outermost.
    capacity: u64,
    /// Milliseconds to a neighbouring track.
    shortest_seek_ms: f64,
    /// Milliseconds over the whole disk. Between, the time grows with the root of the distance, as a head
    /// takes that is sped up for half of the way and slowed down for the other.
    longest_seek_ms: f64,
    /// Turns per minute. A seek is followed by half a turn.
    turns: f64,
    /// Bytes per second that pass under the head.
    rate: f64,
}

/// A desktop disk of 1 TB and 7,200 turns per minute: 8.5 ms to a random place, 150 MB/s.
pub(crate) const DISK: Disk = Disk {
    capacity: 1_000_000_000_000,
    shortest_seek_ms: 1.0,
    longest_seek_ms: 15.0,
    turns: 7200.0,
    rate: 150e6,
};

/// Bytes that are read or written, by byte of the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Access {
    pub(crate) at: u64,
    pub(crate) len: u64,
}

/// The time of a trace on a disk.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct Replay {
    pub(crate) requests: u64,
    /// How often the head had to go somewhere else. Passing over a gap is no seek.
    pub(crate) seeks: u64,
    pub(crate) bytes: u64,
    pub(crate) seconds: f64,
    /// The second at which the bytes of an access begin to pass, and the first byte; of some accesses.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub(crate) points: Vec<(f64, f64)>,
}

/// The most points: more are no clearer, and make files large.
const POINTS: usize = 2500;

impl Disk {
    /// Milliseconds to a random place from a random place, without the turn: 8.47 of the default disk.
    fn mean_seek_ms(&self) -> f64 {
        // The mean root of the distance of two places is 8/15 of the root of the whole.
        self.shortest_seek_ms + (self.longest_seek_ms - self.shortest_seek_ms) * 8.0 / 15.0
    }

    /// Milliseconds for half a turn.
    fn half_turn_ms(&self) -> f64 {
        30_000.0 / self.turns
    }

    /// Seconds that the head needs over `distance` bytes, with the half turn.
    fn seek(&self, distance: u64) -> f64 {
        let share = (distance as f64 / self.capacity as f64).min(1.0);
        let way = (self.longest_seek_ms - self.shortest_seek_ms) * share.sqrt();
        (self.shortest_seek_ms + way + self.half_turn_ms()) / 1e3
    }

    /// Seconds to the place `to`, and whether they are for a seek: bytes shortly ahead come round by
    /// themselves.
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

    /// Replays the accesses one after another, from a head at the beginning of the disk.
    pub(crate) fn replay(&self, trace: &[Access]) -> Replay {
        let (mut replay, mut head) = (Replay::default(), 0);
        let each = trace.len().div_ceil(POINTS).max(1);
        for (n, access) in trace.iter().enumerate() {
            let (seconds, seeks) = self.go(head, access.at);
            replay.seconds += seconds;
            replay.seeks += u64::from(seeks);
            if n.is_multiple_of(each) {
                replay.points.push((replay.seconds, access.at as f64));
            }
            replay.seconds += access.len as f64 / self.rate;
            replay.bytes += access.len;
            head = access.at + access.len;
        }
        replay.requests = trace.len() as u64;
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

#[cfg(test)]
mod tests {
    use super::*;

    fn access(at: u64, len: u64) -> Access {
        Access { at, len }
    }

    fn close(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1e-9, "{found} is not {expected}");
    }

    #[test]
    fn a_seek_takes_as_long_as_computed_by_hand() {
        let disk = DISK;
        // A quarter of the disk: 1 + 14 × ½ + 60,000 / 7,200 / 2 ms.
        close(disk.seek(250_000_000_000), 0.008 + 0.004_166_666_666_666_667);
        close(disk.seek(1_000_000_000_000), 0.015 + 0.004_166_666_666_666_667);
        close(disk.seek(5_000_000_000_000), 0.015 + 0.004_166_666_666_666_667);
        close(disk.mean_seek_ms(), 8.466_666_666_666_667);
        close(disk.half_turn_ms(), 4.166_666_666_666_667);
    }

    #[test]
    fn the_head_passes_over_a_short_gap_ahead_and_seeks_backwards() {
        let disk = DISK;
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
        let disk = DISK;
        // From 0: 1 ms of bytes; on: 1 ms; a quarter of the disk away: a seek of 12.17 ms and 2 ms of bytes.
        let far = 300_000 + 250_000_000_000;
        let replay = disk.replay(&[access(0, 150_000), access(150_000, 150_000), access(far, 300_000)]);
        assert_eq!((replay.requests, replay.seeks, replay.bytes), (3, 1, 600_000));
        let begins: Vec<_> = replay.points.iter().map(|(seconds, _)| *seconds).collect();
        close(begins[2], 0.002 + 0.012_166_666_666_666_667);
        close(replay.seconds, 0.004 + 0.012_166_666_666_666_667);
    }
}
