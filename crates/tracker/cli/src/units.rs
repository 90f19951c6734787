//! Numbers with units, as options give them.

use std::{num::NonZero, time::Duration};

use clap::builder::{PossibleValuesParser, TypedValueParser};

/// A number of bytes.
///
/// # Errors
/// The expected format.
pub fn bytes(text: &str) -> Result<NonZero<u64>, String> {
    let units = [("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("TiB", 1 << 40)];
    counted(text, &units)
        .and_then(NonZero::new)
        .ok_or_else(|| "expected bytes above 0, such as 536870912, 512MiB or 4GiB".into())
}

/// A time in milliseconds, seconds, minutes or hours.
///
/// # Errors
/// The expected format.
pub fn time(text: &str) -> Result<Duration, String> {
    let units = [("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000)];
    let milliseconds = match text.parse::<u64>() {
        Ok(seconds) => seconds.checked_mul(1000),
        Err(_) => counted(text, &units),
    };
    milliseconds
        .map(Duration::from_millis)
        .ok_or_else(|| "expected a time such as 500ms, 10s, 5m or 1h".into())
}

/// A parser of the names of some values.
pub(crate) fn named<T: Copy + Send + Sync + 'static, const N: usize>(
    all: [T; N],
    name: fn(T) -> &'static str,
) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(all.map(name))
        .map(move |given| all.into_iter().find(|one| name(*one) == given).expect("the name of one"))
}

/// A whole number of one of the units, or of ones.
pub fn counted(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let in_unit = units.iter().find_map(|(name, unit)| Some((text.strip_suffix(name)?, *unit)));
    let (number, unit) = in_unit.unwrap_or((text, 1));
    number.parse::<u64>().ok()?.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_ones_or_powers_of_1024() {
        assert_eq!(bytes("1000").map(NonZero::get), Ok(1000));
        assert_eq!(bytes("512MiB").map(NonZero::get), Ok(512 << 20));
        assert_eq!(bytes("4GiB").map(NonZero::get), Ok(4 << 30));
        for wrong in ["", "0", "0GiB", "GiB", "1GB", "-1", "99999999999TiB"] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn times_have_units() {
        for (text, milliseconds) in
            [("500ms", 500), ("10", 10_000), ("10s", 10_000), ("5m", 300_000), ("1h", 3_600_000)]
        {
            assert_eq!(time(text), Ok(Duration::from_millis(milliseconds)));
        }
        for wrong in ["", "s", "-1s", "1d", "1.5s", "99999999999999999999s", "18446744073709551615h"] {
            assert!(time(wrong).is_err(), "{wrong}");
        }
    }
}
