//! The event of an announce.

use std::fmt;

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

impl AnnounceEvent {
    /// Returns the event that has this number in BEP 15. 4, which is in no BEP, is the `paused` of BEP 21 in
    /// libtorrent, and [`None`](Self::None): the client goes on as it was. Returns `None` for other numbers.
    pub const fn of_number(number: u32) -> Option<Self> {
        match number {
            0 | 4 => Some(Self::None),
            1 => Some(Self::Completed),
            2 => Some(Self::Started),
            3 => Some(Self::Stopped),
            _ => None,
        }
    }

    /// Returns the event that BEP 3 or BEP 21 (`paused`) has this word for; `None` for other words. `empty`
    /// and the empty text both mean [`None`](Self::None).
    pub fn of_word(word: &str) -> Option<Self> {
        match word {
            "" | "empty" | "paused" => Some(Self::None),
            "completed" => Some(Self::Completed),
            "started" => Some(Self::Started),
            "stopped" => Some(Self::Stopped),
            _ => None,
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
            let event = AnnounceEvent::of_number(number).unwrap();
            assert_eq!(event as u32, number);
            assert_eq!(AnnounceEvent::of_word(&event.to_string()), Some(event));
        }
    }

    #[test]
    fn a_paused_client_has_no_event_and_others_are_unknown() {
        assert_eq!(AnnounceEvent::of_number(4), Some(AnnounceEvent::None));
        assert_eq!(["paused", ""].map(AnnounceEvent::of_word), [Some(AnnounceEvent::None); 2]);
        assert_eq!([5, 255, u32::MAX].map(AnnounceEvent::of_number), [None; 3]);
        assert_eq!(["Started", "started ", "gone"].map(AnnounceEvent::of_word), [None; 3]);
    }
}
