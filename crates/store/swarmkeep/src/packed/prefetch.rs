//! Prefetching: asking for memory before it is needed.

/// Bytes of a cache line on common processors.
pub(super) const LINE: usize = 64;

/// Prefetches the first cache line of `value`. Changes only the time that a later access takes.
#[inline]
pub(super) fn prefetch<T: ?Sized>(value: &T) {
    prefetch_at(std::ptr::from_ref(value).addr());
}

/// Prefetches `LINES` cache lines from the start of `bytes` on. The number is fixed, even if it is too large:
/// the end of a loop over the actual length could not be predicted.
#[inline]
pub(super) fn prefetch_lines<const LINES: usize>(bytes: &[u8]) {
    for line in 0..LINES {
        prefetch_at(bytes.as_ptr().addr().wrapping_add(line * LINE));
    }
}

/// Prefetches the seven cache lines around `address`.
#[inline]
pub(super) fn prefetch_around(address: usize) {
    for line in 0..7 {
        prefetch_at(address.wrapping_add(line * LINE).wrapping_sub(3 * LINE));
    }
}

/// Prefetches the cache line of any address.
#[inline]
pub(super) fn prefetch_at(address: usize) {
    #[cfg(all(target_arch = "x86_64", not(any(miri, swarmkeep_safe))))]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        #[expect(unsafe_code, reason = "a batch spends most of its time waiting for memory otherwise")]
        // SAFETY: a prefetch reads nothing that a program could see, and never faults, whatever the address.
        unsafe {
            _mm_prefetch::<_MM_HINT_T0>(std::ptr::without_provenance(address));
        }
    }
    #[cfg(not(all(target_arch = "x86_64", not(any(miri, swarmkeep_safe)))))]
    let _ = address;
}
