//! The two 20-byte identifiers of BEP 3: the info hash of a torrent, and the peer id.

use std::{fmt, str::FromStr};

use crate::Error;

macro_rules! twenty_bytes {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name([u8; 20]);

        impl $name {
            /// The length in bytes.
            pub const LEN: usize = 20;

            /// Returns the value with these bytes, in the order of the wire.
            pub const fn new(bytes: [u8; 20]) -> Self {
                Self(bytes)
            }

            /// Returns the bytes in the order of the wire.
            pub const fn as_bytes(&self) -> &[u8; 20] {
                &self.0
            }
        }

        impl From<[u8; 20]> for $name {
            fn from(bytes: [u8; 20]) -> Self {
                Self(bytes)
            }
        }

        impl From<$name> for [u8; 20] {
            fn from(id: $name) -> Self {
                id.0
            }
        }

        impl AsRef<[u8]> for $name {
            fn as_ref(&self) -> &[u8] {
                &self.0
            }
        }

        /// Reads 40 hexadecimal digits of either case.
        impl FromStr for $name {
            type Err = Error;

            fn from_str(hex: &str) -> Result<Self, Error> {
                parse_hex(hex).map(Self)
            }
        }

        /// Writes 40 lower-case hexadecimal digits.
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self)
            }
        }

        #[cfg(feature = "serde")]
        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        #[cfg(feature = "serde")]
        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let hex = std::borrow::Cow::<str>::deserialize(deserializer)?;
                hex.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

twenty_bytes! {
    /// The identifier of a torrent: the SHA-1 of a v1 info dictionary (BEP 3), or the SHA-256 of a v2 one
    /// truncated to 20 bytes, as clients send it to trackers (BEP 52).
    InfoHash
}

twenty_bytes! {
    /// The identifier that a client chooses for itself (BEP 3, BEP 20). It is never the identity of a peer in
    /// a swarm.
    PeerId
}

fn parse_hex(hex: &str) -> Result<[u8; 20], Error> {
    let digits: &[u8; 40] = hex.as_bytes().try_into().map_err(|_| Error::HexLength(hex.len()))?;
    let digit = |at: usize| (digits[at] as char).to_digit(16).map(|d| d as u8).ok_or(Error::HexDigit(at));
    let mut bytes = [0; 20];
    for (i, byte) in bytes.iter_mut().enumerate() {
        *byte = digit(2 * i)? << 4 | digit(2 * i + 1)?;
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEX: &str = "0123456789abcdef0123456789abcdef01234567";

    #[test]
    fn hex_survives_a_round_trip_in_either_case() {
        let id: InfoHash = HEX.parse().unwrap();
        assert_eq!(id.to_string(), HEX);
        assert_eq!(HEX.to_uppercase().parse(), Ok(id));
        assert_eq!(id.as_bytes()[..3], [0x01, 0x23, 0x45]);
    }

    #[test]
    fn wrong_hex_says_where() {
        assert_eq!("".parse::<InfoHash>(), Err(Error::HexLength(0)));
        assert_eq!(HEX[1..].parse::<PeerId>(), Err(Error::HexLength(39)));
        assert_eq!(HEX.replace("45", "4x").parse::<InfoHash>(), Err(Error::HexDigit(5)));
        assert_eq!("é".repeat(20).parse::<InfoHash>(), Err(Error::HexDigit(0)));
    }

    #[cfg(feature = "serde")]
    #[test]
    fn serde_is_the_hex_string() {
        let id: PeerId = HEX.parse().unwrap();
        let json = serde_json::to_string(&id).unwrap();
        assert_eq!(json, format!("\"{HEX}\""));
        assert_eq!(serde_json::from_str::<PeerId>(&json).unwrap(), id);
        assert!(serde_json::from_str::<PeerId>("\"00\"").is_err());
    }
}
