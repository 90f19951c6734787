//! Which pieces make stripes whole.

use super::*;

#[test]
fn affinity_names_the_pieces_that_complete_begun_stripes() {
    // Smaller than a stripe of 256 KiB, larger, and across two.
    let begun = |piece: u64, length: u64, written: &[Range<u64>]| {
        let (cache, _) = cached(StripeCacheOptions::new());
        let torrent = NewTorrent::new(hash(1), length, piece as u32).unwrap();
        let content = cache.create(&torrent).unwrap();
        for range in written {
            put(&*content, 1, range.clone());
        }
        let all = cache.affinity(&hash(1), usize::MAX);
        assert_eq!(cache.affinity(&hash(1), 2), all[..all.len().min(2)]);
        all.iter().map(|best| (best.piece, best.missing / KIB)).collect::<Vec<_>>()
    };
    let (k, s) = (KIB, STRIPE);
    assert_eq!(begun(64 * k, 8 * s, &[]), []);
    // Stripe 1 misses one piece, stripe 3 three of which one has begun.
    assert_eq!(
        begun(64 * k, 8 * s, &[3 * s..3 * s + 80 * k, s..s + 128 * k, s + 192 * k..2 * s]),
        [(6, 64), (13, 176), (14, 176), (15, 176)]
    );
    // Four stripes a piece.
    assert_eq!(begun(1024 * k, 16 * s, &[s..s + 16 * k, 9 * s..9 * s + 32 * k]), [(2, 224), (0, 240)]);
    // Pieces of 96 KiB: the third lies in stripes 0 and 1, and counts for the one that misses less.
    assert_eq!(begun(96 * k, 4 * s, &[0..96 * k, s + 32 * k..2 * s]), [(2, 32), (1, 160)]);
    // The last stripe is shorter.
    assert_eq!(begun(64 * k, s + 100 * k, &[s..s + 64 * k]), [(5, 36)]);
    // Whole stripes are not begun.
    assert_eq!(begun(64 * k, 8 * s, &[0..s]), []);
}
