//! Text with one torrent per line: an info hash in hexadecimal digits, and numbers behind it.

use std::str;

use swarmkeep_bittorrent::InfoHash;

use super::{
    input::{Input, LineEnd},
    reading::{Entries, Stop},
};

/// Longer than any right line.
pub(super) const LONGEST: usize = 256;

/// Separators between an info hash and its count, as programs of databases print them.
pub(super) const BETWEEN: &[u8] = b"\t, :|";

/// Reads `INFOHASH COUNT` lines.
pub(super) fn read(input: &mut Input<'_>, entries: &mut Entries<'_>) -> Result<(), Stop> {
    each(input, entries, |line| {
        let (info_hash, rest) = info_hash(line)?;
        match rest.split_first() {
            Some((between, count)) if BETWEEN.contains(between) => {
                Ok((info_hash, number(count, "the count")?))
            }
            _ => Err("an info hash without a tab, comma, blank, colon or bar and a count behind it".into()),
        }
    })
}

/// Reads lines, each with `parse`.
pub(super) fn each(
    input: &mut Input<'_>,
    entries: &mut Entries<'_>,
    mut parse: impl FnMut(&[u8]) -> Result<(InfoHash, u32), String>,
) -> Result<(), Stop> {
    let mut line = Vec::with_capacity(LONGEST);
    for number in 1.. {
        let parsed = match input.line(LONGEST, &mut line).map_err(|error| Stop::reading(error, input))? {
            LineEnd::Nothing => break,
            LineEnd::Newline if line.is_empty() => continue,
            LineEnd::Newline => parse(&line),
            LineEnd::TooLong => Err(format!("more than {LONGEST} characters")),
            LineEnd::File => Err("a last line without its end: the file was cut off".into()),
        };
        match parsed {
            Ok((info_hash, downloads)) => entries.take(info_hash, downloads),
            Err(error) => entries.refuse(format!("line {number}"), error),
        }
    }
    Ok(())
}

/// The info hash at the beginning of a line, and the rest.
pub(super) fn info_hash(line: &[u8]) -> Result<(InfoHash, &[u8]), String> {
    let digits = line.iter().take_while(|byte| byte.is_ascii_alphanumeric()).count();
    let (hash, rest) = line.split_at(digits);
    let parsed = str::from_utf8(hash).ok().and_then(|hash| hash.parse().ok());
    let hash = parsed.ok_or_else(|| match digits {
        40 => "an info hash that is not hexadecimal".to_owned(),
        _ => format!("{digits} digits where an info hash has 40"),
    })?;
    Ok((hash, rest))
}

/// A number of downloads. `name` is for errors.
pub(super) fn number(digits: &[u8], name: &str) -> Result<u32, String> {
    let text = str::from_utf8(digits).ok().filter(|_| digits.iter().all(u8::is_ascii_digit));
    let Some(text) = text.filter(|text| !text.is_empty()) else {
        return Err(format!("{name} is no number: \"{}\"", digits.escape_ascii()));
    };
    text.parse().map_err(|_| format!("{name} is above 4,294,967,295: {text}"))
}

#[cfg(test)]
mod tests {
    use crate::{Format, tests::read};

    const HASH: &str = "00112233445566778899aabbccddeeff00112233";

    #[test]
    fn counts_stand_behind_separators_of_databases() {
        let lines = format!(
            "{HASH}\t1\n{HASH},2\r\n{HASH} 3\n\n{}:4\n{HASH}|5\n{HASH}\t4294967295\n",
            HASH.to_uppercase()
        );
        let read = read(Format::Lines, lines.as_bytes());
        let counts: Vec<_> = read.counts.iter().map(|(_, downloads)| *downloads).collect();
        assert_eq!(counts, [1, 2, 3, 4, 5, u32::MAX]);
        assert!(read.counts.iter().all(|(hash, _)| hash.to_string() == HASH));
        assert_eq!((read.refused.as_slice(), read.broken), (&[][..], None));
    }

    #[test]
    fn a_wrong_line_has_an_error_with_its_number_and_does_not_end_the_file() {
        let good = format!("{HASH},7\n");
        for (line, error) in [
            (HASH.to_owned(), "an info hash without a tab, comma, blank, colon or bar and a count behind it"),
            (
                format!("{HASH};1"),
                "an info hash without a tab, comma, blank, colon or bar and a count behind it",
            ),
            (format!("{HASH},"), "the count is no number: \"\""),
            (format!("{HASH},-1"), "the count is no number: \"-1\""),
            (format!("{HASH},+1"), "the count is no number: \"+1\""),
            (format!("{HASH},1 "), "the count is no number: \"1 \""),
            (format!("{HASH},0x1"), "the count is no number: \"0x1\""),
            (format!("{HASH},4294967296"), "the count is above 4,294,967,295: 4294967296"),
            (format!("{HASH},{}", "9".repeat(100)), "the count is above 4,294,967,295: 99999"),
            (format!("{HASH}0,1"), "41 digits where an info hash has 40"),
            ("info_hash,completed".to_owned(), "4 digits where an info hash has 40"),
            (format!("{}g,1", &HASH[1..]), "an info hash that is not hexadecimal"),
            (format!("{HASH},{}", "1".repeat(1 << 20)), "more than 256 characters"),
        ] {
            let read = read(Format::Lines, format!("{good}{line}\n{good}").as_bytes());
            assert_eq!((read.counts.len(), read.broken), (2, None), "{line}");
            assert!(read.refused[0].starts_with(&format!("line 2: {error}")), "{:?}", read.refused);
        }
    }

    #[test]
    fn a_line_that_was_cut_off_is_not_believed() {
        let read = read(Format::Lines, format!("{HASH},7\n{HASH},12").as_bytes());
        assert_eq!(read.refused, ["line 2: a last line without its end: the file was cut off"]);
        assert_eq!(read.counts.len(), 1);
    }
}
