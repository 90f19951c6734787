//! The lengths of torrents and of their pieces.

/// KiB, and the share of torrents with pieces of that length or less, in thousandths, of some 700,000
/// torrents: A. Norberg, "a bittorrent filesystem", blog.libtorrent.org, December 2014.
const PIECE_LENGTHS: [(u32, u32); 11] = [
    (16, 4),
    (32, 26),
    (64, 131),
    (128, 258),
    (256, 497),
    (512, 794),
    (1024, 913),
    (2048, 959),
    (4096, 997),
    (8192, 998),
    (16384, 1000),
];

/// The piece length of torrent `i` of `of`: the length at quantile (i + ½) / `of`, so that a mix of any size
/// has the distribution, without chance.
pub(crate) fn piece_length(i: u32, of: u32) -> u32 {
    assert!(i < of, "there are {of} torrents");
    let (doubled, shares) = (2 * u64::from(i) + 1, 2 * u64::from(of));
    let entry = PIECE_LENGTHS.iter().find(|(_, share)| doubled * 1000 <= u64::from(*share) * shares);
    entry.expect("all torrents have pieces of at most the last length").0 << 10
}

fn middles(steps: u32) -> impl Iterator<Item = f64> {
    (0..steps).map(move |step| (f64::from(step) + 0.5) / f64::from(steps))
}

fn continuous_piece_length(quantile: f64) -> f64 {
    let share = quantile.clamp(0.0, 1.0) * 1000.0;
    let step =
        PIECE_LENGTHS.partition_point(|&(_, up_to)| f64::from(up_to) < share).min(PIECE_LENGTHS.len() - 1);
    let below = step.checked_sub(1).map_or(0.0, |below| f64::from(PIECE_LENGTHS[below].1));
    let (kib, up_to) = PIECE_LENGTHS[step];
    // Each step is from half its piece length to the whole.
    f64::from(kib) * 512.0 * 2_f64.powf((share - below) / (f64::from(up_to) - below))
}

/// Lengths of `count` torrents with some `bytes` bytes together; each a multiple of `unit`, and at least one.
///
/// An estimate: all torrents have the same number of pieces. Between the steps of the distribution of piece
/// lengths, lengths grow geometrically.
pub(crate) fn lengths(bytes: u64, count: u32, unit: u64) -> Vec<u64> {
    let scale = bytes as f64 / middles(count).map(continuous_piece_length).sum::<f64>();
    middles(count)
        .map(|quantile| ((continuous_piece_length(quantile) * scale) as u64).next_multiple_of(unit).max(unit))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mix_of_a_thousand_has_as_many_of_each_piece_length_as_the_paper() {
        let mut before = 0;
        for (kib, up_to) in PIECE_LENGTHS {
            let found = (0..1000).filter(|&i| piece_length(i, 1000) == kib << 10).count() as u32;
            assert_eq!(found, up_to - before, "pieces of {kib} KiB");
            before = up_to;
        }
        assert_eq!(piece_length(0, 1), 512 << 10, "the median");
    }

    #[test]
    fn lengths_of_torrents_add_up_and_differ() {
        let lengths = lengths(100 << 30, 400, 4 << 20);
        let total: u64 = lengths.iter().sum();
        assert_eq!(lengths.len(), 400);
        assert!(lengths.iter().all(|length| length % (4 << 20) == 0 && *length > 0));
        assert!((total as f64 / (100_u64 << 30) as f64 - 1.0).abs() < 0.03, "{total}");
        assert!(lengths[399] > 50 * lengths[40]);
    }
}
