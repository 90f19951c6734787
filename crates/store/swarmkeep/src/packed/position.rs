//! The position of an endpoint in a run of endpoints.

use crate::CompactV4;

/// The position of an endpoint in a run.
#[inline]
pub(super) fn position<const N: usize>(run: &[[u8; N]], endpoint: &[u8; N]) -> Option<usize> {
    match endpoint.first_chunk() {
        Some(endpoint) if N == CompactV4::LEN => position_v4(run.as_flattened(), endpoint),
        _ => run.iter().position(|peer| peer == endpoint),
    }
}

/// Bytes of eight IPv4 endpoints.
const EIGHT: usize = 8 * CompactV4::LEN;

/// The position of an IPv4 endpoint in a run of bytes: eight endpoints at a time, with one branch for all of
/// them.
fn position_v4(run: &[u8], endpoint: &[u8; CompactV4::LEN]) -> Option<usize> {
    let wanted = Wanted::new(endpoint);
    let (eights, rest) = run.as_chunks::<EIGHT>();
    for (nth, eight) in eights.iter().enumerate() {
        if let Some(at) = wanted.position(eight) {
            return Some(8 * nth + at);
        }
    }
    match run.last_chunk::<EIGHT>() {
        _ if rest.is_empty() => None,
        // Some of these were compared already.
        Some(last) => wanted.position(last).map(|at| run.len() / CompactV4::LEN - 8 + at),
        None => rest.as_chunks().0.iter().position(|peer| peer == endpoint),
    }
}

/// An endpoint to compare with eight others at once.
#[cfg(all(target_arch = "x86_64", not(swarmkeep_safe)))]
struct Wanted([std::arch::x86_64::__m128i; 3]);

/// In SSE2, which every x86-64 has. To find a peer in a swarm of 200,000 then takes 199 instructions instead
/// of 287 (callgrind).
#[cfg(all(target_arch = "x86_64", not(swarmkeep_safe)))]
#[expect(unsafe_code, reason = "the gain is above")]
mod vectors {
    use std::arch::x86_64::{__m128i, _mm_cmpeq_epi16, _mm_movemask_epi8, _mm_set_epi64x};

    use super::{EIGHT, Wanted};
    use crate::CompactV4;

    impl Wanted {
        pub(super) fn new(endpoint: &[u8; CompactV4::LEN]) -> Self {
            let mut eight = [[0; CompactV4::LEN]; 8];
            eight.fill(*endpoint);
            Self(load(eight.as_flattened().first_chunk().expect("eight endpoints")))
        }

        #[inline]
        pub(super) fn position(&self, eight: &[u8; EIGHT]) -> Option<usize> {
            let equal = |nth: usize, other: __m128i| {
                // SAFETY: every x86-64 has SSE2.
                let mask = unsafe { _mm_movemask_epi8(_mm_cmpeq_epi16(self.0[nth], other)) };
                u64::from(mask as u16) << (16 * nth)
            };
            let [first, second, third] = load(eight);
            let equal = equal(0, first) | equal(1, second) | equal(2, third);
            // An endpoint is three words of two bytes; a word is two bits of the mask.
            let found = equal & equal >> 2 & equal >> 4 & 0x0410_4104_1041;
            (found != 0).then(|| found.trailing_zeros() as usize / CompactV4::LEN)
        }
    }

    fn load(eight: &[u8; EIGHT]) -> [__m128i; 3] {
        let word = |at: usize| i64::from_le_bytes(*eight[at..].first_chunk().expect("within the eight"));
        // SAFETY: every x86-64 has SSE2.
        [0, 16, 32].map(|at| unsafe { _mm_set_epi64x(word(at + 8), word(at)) })
    }
}

/// An endpoint to compare with eight others at once.
#[cfg(not(all(target_arch = "x86_64", not(swarmkeep_safe))))]
struct Wanted(u64);

#[cfg(not(all(target_arch = "x86_64", not(swarmkeep_safe))))]
impl Wanted {
    fn new(&[a, b, c, d, e, f]: &[u8; CompactV4::LEN]) -> Self {
        Self(u64::from_le_bytes([a, b, c, d, e, f, 0, 0]))
    }

    fn position(&self, eight: &[u8; EIGHT]) -> Option<usize> {
        let word = |at: usize| u64::from_le_bytes(*eight[at..].first_chunk().expect("within the eight"));
        let mut found = 0;
        for nth in 0..7 {
            found |= u32::from(word(CompactV4::LEN * nth) << 16 == self.0 << 16) << nth;
        }
        // The eighth endpoint ends with the chunk.
        found |= u32::from(word(EIGHT - 8) >> 16 == self.0) << 7;
        (found != 0).then_some(found.trailing_zeros() as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_found_wherever_it_is_in_a_run_and_only_where_it_begins() {
        let peers: Vec<[u8; 6]> =
            (0..if cfg!(miri) { 18 } else { 70_u8 }).map(|n| [1, n, 1, 1, n, 1]).collect();
        for len in 0..peers.len() {
            let run = &peers[..len];
            for (at, peer) in peers.iter().enumerate() {
                assert_eq!(position(run, peer), Some(at).filter(|&at| at < len), "{at} of {len}");
            }
            // Bytes of two neighbours.
            let bytes = run.as_flattened();
            for window in bytes.windows(6) {
                assert_eq!(
                    position(run, window.try_into().unwrap()),
                    run.iter().position(|peer| peer == window)
                );
            }
        }
    }
}
