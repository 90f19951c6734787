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

/// Writes four torrents of 32 stripes in random order, as a fetcher with 4 MiB of 32 would; calls that wrote,
/// and stripes that were written whole.
fn fetch(affinity: bool) -> (u64, u64) {
    let (cache, _) = cached(StripeCacheOptions::new().write_memory(16 * STRIPE));
    let stripes = 32;
    let mut draw = Draw(3);
    let torrents = [1, 2, 3, 4].map(|n| (n, create(&*cache, n, stripes * STRIPE)));
    let pieces = torrents[0].1.geometry().pieces();
    let mut left: Vec<_> =
        (0..4).flat_map(|torrent| (0..pieces).map(move |piece| (torrent, piece))).collect();
    draw.shuffle(&mut left);
    let mut wanted = BTreeMap::from_iter(left.iter().copied().map(|key| (key, ())));
    while let Some((torrent, piece)) = left.pop() {
        if !wanted.contains_key(&(torrent, piece)) {
            continue;
        }
        let (n, content) = &torrents[torrent];
        let best = if affinity { cache.affinity(&hash(*n), 1) } else { Vec::new() };
        let now = best.first().map_or(piece, |best| best.piece);
        if now != piece {
            left.push((torrent, piece));
        }
        wanted.remove(&(torrent, now)).expect("it was not complete");
        put(&**content, *n, content.geometry().piece(now).unwrap());
        assert!(content.mark_complete(now).unwrap());
    }
    cache.flush().unwrap();
    let statistics = cache.cache_statistics();
    for (n, content) in &torrents {
        assert_eq!(content.pieces().unwrap().count(), pieces);
        holds(&**content, *n, 0..stripes * STRIPE);
    }
    (statistics.calls, statistics.whole)
}

#[test]
fn with_affinity_a_random_order_gives_whole_stripes() {
    let (random, with) = (fetch(false), fetch(true));
    println!(
        "of 128 stripes and 1,024 pieces, calls and whole stripes: random {random:?}, with affinity {with:?}"
    );
    assert_eq!(with, (128, 128));
    assert!(random.0 > 600 && random.1 < 8, "{random:?}");
}
