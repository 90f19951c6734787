//! Answers of opentracker to `GET /stats` with counts of downloads, one torrent per line.
//!
//! `mode=statedump` has `INFOHASH:BASE:DOWNLOADS`. The base is the time of the last announce, in minutes
//! since 1970. The option `-l` reads this format again. `mode=tpbs&format=txtp` has
//! `INFOHASH:SEEDERS:LEECHERS:DOWNLOADS`. The same without `p` ends before the downloads, and looks like a
//! statedump with times in 1970.

use std::ops::RangeInclusive;

use swarmkeep_bittorrent::InfoHash;

use super::{
    input::Input,
    lines::{each, info_hash, number},
    reading::{Entries, Stop},
};

/// The times at which opentracker can run: from 2005 to 2099, in minutes since 1970.
pub(super) const BASES: RangeInclusive<u64> = 18_408_960..=68_374_080;

const NO_STATE: &str = "not INFOHASH:MINUTES:DOWNLOADS";

/// Reads a statedump.
pub(super) fn read_state(input: &mut Input<'_>, entries: &mut Entries<'_>) -> Result<(), Stop> {
    each(input, entries, |line| {
        let (info_hash, [base, downloads]) = fields(line, NO_STATE)?;
        if !time(base) {
            let base = base.escape_ascii();
            return Err(format!(
                "\"{base}\" is no time in minutes since 1970: if it is a number of seeders, no downloads are in this file, and \
                 format=txtp has them"
            ));
        }
        Ok((info_hash, number(downloads, "the count")?))
    })
}

/// Reads an answer to `format=txtp`.
pub(super) fn read_txtp(input: &mut Input<'_>, entries: &mut Entries<'_>) -> Result<(), Stop> {
    each(input, entries, |line| {
        let (info_hash, [seeders, leechers, downloads]) =
            fields(line, "not INFOHASH:SEEDERS:LEECHERS:DOWNLOADS")?;
        number(seeders, "the number of seeders")?;
        number(leechers, "the number of leechers")?;
        Ok((info_hash, number(downloads, "the count")?))
    })
}

/// Whether digits are a time in a statedump.
fn time(digits: &[u8]) -> bool {
    number(digits, "").is_ok_and(|base| BASES.contains(&base.into()))
}

/// The info hash, and the `N` fields behind it.
fn fields<'a, const N: usize>(line: &'a [u8], otherwise: &str) -> Result<(InfoHash, [&'a [u8]; N]), String> {
    let (info_hash, rest) = info_hash(line)?;
    let fields = rest.strip_prefix(b":").ok_or(otherwise)?;
    let fields: Vec<&[u8]> = fields.split(|byte| *byte == b':').collect();
    Ok((info_hash, fields.try_into().map_err(|_| otherwise)?))
}

#[cfg(test)]
mod tests {
    use crate::{Format, tests::read};

    const HASH: &str = "00112233445566778899AABBCCDDEEFF00112233";

    #[test]
    fn of_a_statedump_the_last_number_counts() {
        let read = read(Format::OpentrackerState, format!("{HASH}:29912345:17\n").as_bytes());
        assert_eq!(read.counts, [(HASH.parse().unwrap(), 17)]);
        assert!(read.refused.is_empty());
    }

    #[test]
    fn seeders_and_leechers_are_not_taken_for_a_statedump() {
        let read = read(Format::OpentrackerState, format!("{HASH}:12:3456\n").as_bytes());
        assert!(read.counts.is_empty());
        assert!(read.refused[0].starts_with("line 1: \"12\" is no time in minutes"), "{:?}", read.refused);
    }

    #[test]
    fn of_seeders_leechers_and_downloads_the_last_counts() {
        let read = read(Format::OpentrackerTxtp, format!("{HASH}:5:6:7\n").as_bytes());
        assert_eq!(read.counts, [(HASH.parse().unwrap(), 7)]);
    }

    #[test]
    fn wrong_lines_have_errors_with_their_numbers() {
        for (format, fields, error) in [
            (Format::OpentrackerState, ":29912345", "not INFOHASH:MINUTES:DOWNLOADS"),
            (Format::OpentrackerState, ":29912345:1:2", "not INFOHASH:MINUTES:DOWNLOADS"),
            (Format::OpentrackerState, " 29912345 1", "not INFOHASH:MINUTES:DOWNLOADS"),
            (Format::OpentrackerState, ":29912345:-1", "the count is no number: \"-1\""),
            (Format::OpentrackerState, ":29912345:", "the count is no number: \"\""),
            (
                Format::OpentrackerState,
                ":99999999999999999999999:1",
                "\"99999999999999999999999\" is no time",
            ),
            (Format::OpentrackerTxtp, ":1:2", "not INFOHASH:SEEDERS:LEECHERS:DOWNLOADS"),
            (Format::OpentrackerTxtp, ":1:2:3:4", "not INFOHASH:SEEDERS:LEECHERS:DOWNLOADS"),
            (Format::OpentrackerTxtp, ":1:-2:3", "the number of leechers is no number: \"-2\""),
            (Format::OpentrackerTxtp, ":x:2:3", "the number of seeders is no number: \"x\""),
            (Format::OpentrackerTxtp, ":1:2:9999999999", "the count is above 4,294,967,295: 9999999999"),
        ] {
            let read = read(format, format!("{HASH}{fields}\n").as_bytes());
            assert!(read.counts.is_empty());
            assert!(read.refused[0].starts_with(&format!("line 1: {error}")), "{:?}", read.refused);
        }
    }
}
