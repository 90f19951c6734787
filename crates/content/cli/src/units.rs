//! Values as options give them.

use std::{net::SocketAddr, num, num::NonZero, str::FromStr};

/// A number of bytes.
pub(crate) fn bytes(text: &str) -> Result<NonZero<u64>, String> {
    let units = [("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("TiB", 1 << 40)];
    counted(text, &units)
        .and_then(NonZero::new)
        .ok_or_else(|| "expected bytes above 0, such as 536870912, 512MiB or 4GiB".into())
}

pub(crate) fn number<N: FromStr<Err = num::ParseIntError>>(text: &str) -> Result<N, String> {
    let least = if "0".parse::<N>().is_ok() { "" } else { " above 0" };
    text.parse().map_err(|error: num::ParseIntError| match error.kind() {
        num::IntErrorKind::PosOverflow => "the number is too large".into(),
        _ => format!("expected a whole number{least}"),
    })
}

pub(crate) fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse()
        .map_err(|_| "expected an address and port, such as 192.0.2.1:6881 or [2001:db8::1]:6881".into())
}

/// A whole number of one of the units, or of ones.
fn counted(text: &str, units: &[(&str, u64)]) -> Option<u64> {
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
    fn wrong_numbers_and_addresses_are_answered_with_the_expected_ones() {
        assert_eq!(number::<u32>("0"), Ok(0));
        assert_eq!(number::<u32>("-1").unwrap_err(), "expected a whole number");
        assert_eq!(number::<u32>("5000000000").unwrap_err(), "the number is too large");
        assert_eq!(number::<NonZero<u64>>("0").unwrap_err(), "expected a whole number above 0");
        assert!(address("192.0.2.1").unwrap_err().starts_with("expected an address and port"));
    }
}
