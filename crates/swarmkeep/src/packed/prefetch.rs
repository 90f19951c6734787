//! Asking for memory before it is needed.

/// Cache lines that [`prefetch_bytes`] asks for at the most: a core has some dozens of such requests in flight, and a bucket
/// or a block of peers is rarely longer.
const MOST_LINES: usize = 8;

/// Bytes of a cache line on every machine that matters here.
const LINE: usize = 64;

/// Brings the first cache line of `value` closer, without waiting for it. Changes nothing but the time that a later look takes.
#[inline]
pub(super) fn prefetch<T: ?Sized>(value: &T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        #[expect(unsafe_code, reason = "a batch spends most of its time waiting for memory otherwise")]
        // SAFETY: a prefetch reads nothing that a program could see and never faults, whatever the address.
        unsafe {
            _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(value).cast());
        }
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = value;
}

/// Brings the cache lines of `bytes` closer, up to eight from the first on.
#[inline]
pub(super) fn prefetch_bytes(bytes: &[u8]) {
    let near = &bytes[..bytes.len().min(MOST_LINES * LINE)];
    near.chunks(LINE).for_each(prefetch);
    // Where the first byte is not the first of its line, the last chunk ends in another one.
    if let Some(last) = near.last() {
        prefetch(last);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anything_can_be_prefetched() {
        prefetch(&7_u64);
        prefetch("");
        prefetch_bytes(&[]);
        prefetch_bytes(&[1; 1]);
        prefetch_bytes(&vec![1; 100_000]);
    }
}
