//! Numbers with units, as options give them.

use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use swarmkeep_bittorrent::programs::in_units;

/// A time in seconds, or in units.
pub(crate) fn time(text: &str) -> Result<Duration, String> {
    let units = [("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];
    let milliseconds = match text.parse::<u64>() {
        Ok(seconds) => seconds.checked_mul(1000),
        Err(_) => in_units(text, &units),
    };
    milliseconds
        .map(Duration::from_millis)
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
    use super::*;

    #[test]
    fn times_have_units() {
        for (text, milliseconds) in
            [("500ms", 500), ("10", 10_000), ("10s", 10_000), ("5m", 300_000), ("1d1h", 90_000_000)]
        {
            assert_eq!(time(text), Ok(Duration::from_millis(milliseconds)));
        }
        for wrong in ["", "s", "-1s", "1w", "1.5ms", "99999999999999999999s", "18446744073709551615h"] {
            assert!(time(wrong).is_err(), "{wrong}");
        }
    }
}
