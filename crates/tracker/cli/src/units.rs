//! Numbers with units, as options give them.

use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};

/// A time in seconds, or in units.
pub(crate) fn time(text: &str) -> Result<Duration, String> {
    let mut units = text.split(|c: char| !c.is_ascii_alphabetic()).filter(|unit| !unit.is_empty());
    let is_known = units.all(|unit| ["ms", "s", "m", "h", "d"].contains(&unit));
    let time = text.parse().map(Duration::from_secs).or_else(|_| humantime::parse_duration(text));
    time.ok()
        .filter(|_| is_known)
        .ok_or_else(|| "expected a time such as 500ms, 10s or 1h30m; units are ms, s, m, h, d".into())
}

/// A parser of the names of some values.
pub(crate) fn named<T: Copy + Send + Sync + 'static, const N: usize>(
    all: [T; N],
    name: fn(T) -> &'static str,
) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(all.map(name))
        .map(move |given| all.into_iter().find(|one| name(*one) == given).expect("the name of one"))
}

#[cfg(test)]
mod tests {
    use std::num::NonZero;

    use swarmkeep_bittorrent::programs::bytes;

    use super::*;

    #[test]
    fn times_and_bytes_have_units_and_parts() {
        for (text, milliseconds) in
            [("500ms", 500), ("10", 10_000), ("10s", 10_000), ("1h30m", 5_400_000), ("1d1h", 90_000_000)]
        {
            assert_eq!(time(text), Ok(Duration::from_millis(milliseconds)));
        }
        for wrong in
            ["", "s", "-1s", "5M", "1w", "1.5.5s", "1h30", "99999999999999999999s", "18446744073709551615h"]
        {
            assert!(time(wrong).is_err(), "{wrong}");
        }
        for (text, number) in
            [("1000", 1000), ("512MiB", 512 << 20), ("1GB", 1_000_000_000), ("1.5GiB", 3 << 29)]
        {
            assert_eq!(bytes(text).map(NonZero::get), Ok(number), "{text}");
        }
        for wrong in ["", "0", "0GiB", "GiB", "-1", "1GiB2", "1..5GiB", "99999999999TiB", "4G", "1PB", "1.5"]
        {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
    }
}
