//! aquatic's scrape exports, which have no downloads. They are recognized, so that their other numbers are
//! not imported.

use super::lines::info_hash;

/// The reason to refuse an export.
pub(super) const NO_DOWNLOADS: &str = "a scrape export of aquatic, in which there are seeders and leechers only: aquatic counts no \
                                       downloads, so there is nothing to import from it";

/// Whether a line is of an export: `4 INFOHASH SEEDERS LEECHERS`, or with a 6 for IPv6.
pub(super) fn is_export(line: &[u8]) -> bool {
    let Some((b'4' | b'6', [b' ', rest @ ..])) = line.split_first() else { return false };
    info_hash(rest).is_ok_and(|(_, rest)| {
        let numbers: Vec<&[u8]> = rest.split(|byte| *byte == b' ').collect();
        matches!(&*numbers, [b"", seeders, leechers] if [seeders, leechers].iter().all(|number| {
            !number.is_empty() && number.iter().all(u8::is_ascii_digit)
        }))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exports_are_known_by_a_line() {
        let hash = "00112233445566778899aabbccddeeff00112233";
        for line in [format!("4 {hash} 1 2"), format!("6 {hash} 0 12345")] {
            assert!(is_export(line.as_bytes()), "{line}");
        }
        for line in
            ["4", "4 ", hash, &format!("5 {hash} 1 2"), &format!("4 {hash} 1"), &format!("4 {hash} 1 2 3")]
        {
            assert!(!is_export(line.as_bytes()), "{line}");
        }
    }
}
