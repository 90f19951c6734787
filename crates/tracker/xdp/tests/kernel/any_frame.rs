//! Frames of every kind, changed at random, and a judge beside the program.

use std::net::IpAddr;

use swarmkeep_store_tests::{
    programs::{Trial, note},
    tests,
};

use crate::{
    LOADING,
    fixture::{Fixture, OURS, PATHS, TICK, Verdict, answer, connect, datagram},
    frame::Path,
};

/// The tests of this module.
pub(crate) fn tests() -> Vec<Trial> {
    tests! { [LOADING]: the_program_judges_any_frame_as_this_process_does }
}

const FRAMES: u32 = 500_000;

fn the_program_judges_any_frame_as_this_process_does() {
    let programs = [false, true].map(Fixture::new);
    programs[1].set_tick(TICK);
    let corpus = corpus();
    let mut random = Random(9);
    let mut verdicts = [0; 3];
    for n in 0..FRAMES {
        let mut frame = corpus[random.below(corpus.len())].clone();
        for _ in 0..random.below(4) {
            change(&mut frame, &mut random);
        }
        let answers = n % 2 == 1;
        let expected = judge(&frame, answers);
        let (verdict, after) = programs[usize::from(answers)].run(&frame);
        assert_eq!(verdict, expected, "{answers} {frame:02x?}");
        let expected = if verdict == Verdict::Answer { answer(&frame, TICK) } else { frame };
        assert!(after == expected, "{expected:02x?} is {after:02x?}");
        verdicts[verdict as usize] += 1;
    }
    note(format_args!("passed, answered, redirected: {verdicts:?} of {FRAMES}"));
    assert!(verdicts.iter().all(|count| *count > FRAMES / 20), "{verdicts:?}");
    let counted: u64 = programs[1].counted().iter().sum();
    assert_eq!(counted, u64::from(verdicts[Verdict::Answer as usize]), "connects only");
}

/// The rules of the program, in other words.
fn judge(frame: &[u8], answers: bool) -> Verdict {
    let Some((path, payload)) = Path::read(frame) else { return Verdict::Pass };
    let is_group = path.hardware.iter().any(|[first, ..]| first % 2 == 1);
    let is_ours = OURS.iter().any(|ours| path.to == ours.parse().unwrap());
    let (can_be_answered, has_checksum) = match path.from.ip() {
        IpAddr::V4(ip) => {
            let is_reserved = ip.octets()[0] == 0 || ip.octets()[0] >= 240;
            (!(is_reserved || ip.is_loopback() || ip.is_multicast()), true)
        }
        IpAddr::V6(ip) => {
            let checksum = &frame[payload.start - 2..payload.start];
            (ip.segments()[..4] != [0; 4] && !ip.is_multicast(), checksum != [0, 0])
        }
    };
    let is_taken = frame.len() <= 1792 && is_ours && can_be_answered && has_checksum && !is_group;
    let is_connect = payload.len() == 16 && frame[payload].starts_with(&connect()[..12]);
    match is_taken && path.from.port() != 0 {
        false => Verdict::Pass,
        true if answers && is_connect => Verdict::Answer,
        true => Verdict::Redirect,
    }
}

/// Valid frames of both families, and some that are nearly so.
fn corpus() -> Vec<Vec<u8>> {
    let mut corpus = Vec::new();
    for (from, to) in PATHS.into_iter().chain([("[fe80::7]:1", OURS[2]), ("192.0.2.1:65535", OURS[0])]) {
        for payload in [&connect()[..], b"", &[7; 98], &[7; 1700]] {
            corpus.push(datagram(from, to, payload));
        }
        let padded = [&datagram(from, to, &connect())[..], &[0; 10]].concat();
        let mut tagged = datagram(from, to, &connect());
        tagged.splice(12..12, [0x81, 0, 0, 5]);
        corpus.extend([padded, tagged]);
    }
    for (from, to) in
        [("127.0.0.1:7", OURS[0]), ("[::ffff:10.9.1.7]:7", OURS[1]), (PATHS[1].0, "[::ffff:10.9.0.1]:6969")]
    {
        corpus.push(datagram(from, to, &connect()));
    }
    corpus
}

/// Changes a frame in one of the ways in which frames go wrong.
fn change(frame: &mut Vec<u8>, random: &mut Random) {
    const BYTES: [u8; 12] = [0, 1, 6, 8, 17, 0x20, 0x40, 0x45, 0x60, 127, 224, 255];
    // Where lengths are, over IPv4 and over IPv6.
    let [ip, udp, headers] = if frame[12] == 8 { [16, 38, 42] } else { [18, 58, 62] };
    match random.below(8) {
        0 => {
            let at = random.below(frame.len());
            frame[at] ^= 1 << random.below(8);
        }
        1 => {
            let at = random.below(frame.len().min(headers + 16));
            frame[at] ^= 1 << random.below(8);
        }
        2 => {
            let at = random.below(frame.len().min(headers + 16));
            frame[at] = BYTES[random.below(BYTES.len())];
        }
        3 => frame.truncate(random.between(14, frame.len())),
        4 => {
            let len = frame.len() + random.below(80);
            frame.resize_with(len, || random.below(256) as u8);
        }
        5 => {
            let len = random.between(1700, 1900);
            frame.resize(len, 0);
        }
        // One length, or both, near the true one or anywhere.
        how => {
            let len = match random.below(4) {
                0 => random.below(1 << 16),
                1 => 24,
                _ => (frame.len() + 2).saturating_sub(headers - 8 + random.below(5)),
            };
            let header = if ip == 16 { 20 } else { 0 };
            for (at, len, is_set) in
                [(ip, len + header, how == 6), (udp, len, how == 6 || random.below(2) == 0)]
            {
                if is_set && let Some(field) = frame.get_mut(at..at + 2) {
                    field.copy_from_slice(&(len as u16).to_be_bytes());
                }
            }
        }
    }
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        for (shift, factor) in [(30, 0xbf58_476d_1ce4_e5b9_u64), (27, 0x94d0_49bb_1331_11eb)] {
            word = (word ^ word >> shift).wrapping_mul(factor);
        }
        ((word ^ word >> 31) % limit as u64) as usize
    }

    fn between(&mut self, least: usize, most: usize) -> usize {
        least + self.below(most - least + 1)
    }
}
