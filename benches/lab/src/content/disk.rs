//! A model of a disk that turns, and the time of a trace of offsets on it.

use serde::{Deserialize, Serialize};

// A desktop disk of 1 TB and 7,200 turns per minute: 8.5 ms to a random place, 150 MB/s. The head moves, the
// sector comes round, the bytes pass; the cost of flushes and of the drive's cache is not in the model.

/// Bytes from the innermost track to the outermost.
const CAPACITY: u64 = 1_000_000_000_000;
/// Milliseconds to a neighbouring track.
const SHORTEST_SEEK_MS: f64 = 1.0;
/// Milliseconds over the whole disk. Between, the time grows with the root of the distance, as a head takes
/// that is sped up for half of the way and slowed down for the other.
const LONGEST_SEEK_MS: f64 = 15.0;
/// Milliseconds to a random place from a random place, without the turn: 8.47. The mean root of the distance
/// of two places is 8/15 of the root of the whole.
const MEAN_SEEK_MS: f64 = SHORTEST_SEEK_MS + (LONGEST_SEEK_MS - SHORTEST_SEEK_MS) * 8.0 / 15.0;
/// Turns per minute. A seek is followed by half a turn.
const TURNS: f64 = 7200.0;
const HALF_TURN_MS: f64 = 30_000.0 / TURNS;
/// Bytes per second that pass under the head.
const RATE: f64 = 150e6;

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

/// Seconds that the head needs over `distance` bytes, with the half turn.
fn seek(distance: u64) -> f64 {
    let share = (distance as f64 / CAPACITY as f64).min(1.0);
    let way = (LONGEST_SEEK_MS - SHORTEST_SEEK_MS) * share.sqrt();
    (SHORTEST_SEEK_MS + way + HALF_TURN_MS) / 1e3
}

/// Seconds to the place `to`, and whether they are for a seek: bytes shortly ahead come round by themselves.
fn go(from: u64, to: u64) -> (f64, bool) {
    if from == to {
        return (0.0, false);
    }
    let seek = seek(from.abs_diff(to));
    match to.checked_sub(from) {
        Some(gap) if gap as f64 / RATE <= seek => (gap as f64 / RATE, false),
        _ => (seek, true),
    }
}

/// Replays the accesses one after another, from a head at the beginning of the disk.
pub(crate) fn replay(trace: &[Access]) -> Replay {
    let (mut replay, mut head) = (Replay::default(), 0);
    let each = trace.len().div_ceil(POINTS).max(1);
    for (n, access) in trace.iter().enumerate() {
        let (seconds, seeks) = go(head, access.at);
        replay.seconds += seconds;
        replay.seeks += u64::from(seeks);
        if n.is_multiple_of(each) {
            replay.points.push((replay.seconds, access.at as f64));
        }
        replay.seconds += access.len as f64 / RATE;
        replay.bytes += access.len;
        head = access.at + access.len;
    }
    replay.requests = trace.len() as u64;
    replay
}

/// The disk in words.
pub(crate) fn modelled() -> String {
    format!(
        "{} GB, {TURNS:.0} turns per minute, {:.0} MB/s;\n\
         a seek takes {SHORTEST_SEEK_MS} ms + {} ms × √(distance / capacity), {MEAN_SEEK_MS:.1} ms in the mean, and half a turn of \
         {HALF_TURN_MS:.2} ms",
        CAPACITY / 1_000_000_000,
        RATE / 1e6,
        LONGEST_SEEK_MS - SHORTEST_SEEK_MS,
    )
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
        // A quarter of the disk: 1 + 14 × ½ + 60,000 / 7,200 / 2 ms.
        close(seek(250_000_000_000), 0.008 + 0.004_166_666_666_666_667);
        close(seek(1_000_000_000_000), 0.015 + 0.004_166_666_666_666_667);
        close(seek(5_000_000_000_000), 0.015 + 0.004_166_666_666_666_667);
        close(MEAN_SEEK_MS, 8.466_666_666_666_667);
        close(HALF_TURN_MS, 4.166_666_666_666_667);
    }

    #[test]
    fn the_head_passes_over_a_short_gap_ahead_and_seeks_backwards() {
        // 150,000 bytes are 1 ms away by waiting.
        assert_eq!(go(0, 150_000), (0.001, false));
        assert_eq!(go(7, 7), (0.0, false));
        let (seconds, seeks) = go(150_000, 0);
        assert!(seeks);
        close(seconds, (1.0 + 14.0 * (150_000_f64 / 1e12).sqrt()) / 1e3 + 0.5 / 120.0);
        // 15 MB ahead would be 100 ms of waiting.
        assert!(go(0, 15_000_000).1);
    }

    #[test]
    fn a_replay_adds_ways_and_bytes() {
        // From 0: 1 ms of bytes; on: 1 ms; a quarter of the disk away: a seek of 12.17 ms and 2 ms of bytes.
        let far = 300_000 + 250_000_000_000;
        let replay = super::replay(&[access(0, 150_000), access(150_000, 150_000), access(far, 300_000)]);
        assert_eq!((replay.requests, replay.seeks, replay.bytes), (3, 1, 600_000));
        let begins: Vec<_> = replay.points.iter().map(|(seconds, _)| *seconds).collect();
        close(begins[2], 0.002 + 0.012_166_666_666_666_667);
        close(replay.seconds, 0.004 + 0.012_166_666_666_666_667);
    }
}
