//! Values as options give them.

use std::{net::SocketAddr, num, str::FromStr};

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

#[cfg(test)]
mod tests {
    use std::num::NonZero;

    use super::*;

    #[test]
    fn wrong_numbers_and_addresses_are_answered_with_the_expected_ones() {
        assert_eq!(number::<u32>("0"), Ok(0));
        assert_eq!(number::<u32>("-1").unwrap_err(), "expected a whole number");
        assert_eq!(number::<u32>("5000000000").unwrap_err(), "the number is too large");
        assert_eq!(number::<NonZero<u64>>("0").unwrap_err(), "expected a whole number above 0");
        assert!(address("192.0.2.1").unwrap_err().starts_with("expected an address and port"));
    }
}
