//! Asking for memory before it is needed.

/// Bytes of a cache line on every machine that matters here.
const LINE: usize = 64;

/// Brings the first cache line of `value` closer, without waiting for it. Changes nothing but the time that a
/// later look takes.
#[inline]
pub(super) fn prefetch<T: ?Sized>(value: &T) {
    prefetch_at(std::ptr::from_ref(value).cast());
}

/// Brings so many cache lines closer, from the first one of `bytes` on: rather too many than a loop as long
/// as the bytes, whose end could not be predicted.
#[inline]
pub(super) fn prefetch_lines<const LINES: usize>(bytes: &[u8]) {
    for line in 0..LINES {
        prefetch_at(bytes.as_ptr().wrapping_add(line * LINE));
    }
}

#[inline]
fn prefetch_at(address: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(any(miri, swarmkeep_safe))))]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        #[expect(unsafe_code, reason = "a batch spends most of its time waiting for memory otherwise")]
        // SAFETY: a prefetch reads nothing that a program could see, and never faults, whatever the address.
        unsafe {
            _mm_prefetch::<_MM_HINT_T0>(address.cast());
        }
    }
    #[cfg(not(all(target_arch = "x86_64", not(any(miri, swarmkeep_safe)))))]
    let _ = address;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anything_can_be_prefetched() {
        prefetch(&7_u64);
        prefetch("");
        prefetch_lines::<8>(&[]);
        prefetch_lines::<100>(&[1; 100]);
    }
}
