//! The event of an announce.

use std::{fmt, str::FromStr};

use crate::Error;

/// The `event` of an announce. The discriminants are the numbers of BEP 15.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "lowercase"))]
#[repr(u32)]
pub enum AnnounceEvent {
    /// No event: a regular announce.
    #[default]
    None = 0,
    /// The peer has just finished the download.
    Completed = 1,
    /// The first announce of a session of the peer.
    Started = 2,
    /// The peer is leaving.
    Stopped = 3,
}

impl TryFrom<u32> for AnnounceEvent {
    type Error = Error;

    fn try_from(number: u32) -> Result<Self, Error> {
        match number {
            0 => Ok(Self::None),
            1 => Ok(Self::Completed),
            2 => Ok(Self::Started),
            3 => Ok(Self::Stopped),
            other => Err(Error::Event(other)),
        }
    }
}

/// Reads the words of BEP 3. `empty` and the empty text both mean [`AnnounceEvent::None`].
impl FromStr for AnnounceEvent {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        match name {
            "" | "empty" => Ok(Self::None),
            "completed" => Ok(Self::Completed),
            "started" => Ok(Self::Started),
            "stopped" => Ok(Self::Stopped),
            _ => Err(Error::EventName),
        }
    }
}

impl fmt::Display for AnnounceEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "empty",
            Self::Completed => "completed",
            Self::Started => "started",
            Self::Stopped => "stopped",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_round_trip() {
        for number in 0..4 {
            let event = AnnounceEvent::try_from(number).unwrap();
            assert_eq!(event as u32, number);
            assert_eq!(event.to_string().parse(), Ok(event));
        }
        assert_eq!("".parse(), Ok(AnnounceEvent::None));
        assert_eq!(AnnounceEvent::try_from(4), Err(Error::Event(4)));
        assert_eq!("Started".parse::<AnnounceEvent>(), Err(Error::EventName));
    }
}
