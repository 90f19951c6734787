//! The optional fields of an announce, and how both protocols read them.

use swarmkeep_bittorrent::AnnounceEvent;

/// An optional field of an announce: its absence has a safe meaning. A value that cannot be read counts as
/// not given, and the announce is not refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Field {
    /// The event. Without it, the announce is a regular one.
    Event,
    /// Bytes that the client has uploaded; none without it.
    Uploaded,
    /// Bytes that the client has downloaded; none without it.
    Downloaded,
    /// Bytes that the client still has to download. Without it, it is a leecher.
    Left,
    /// The number of peers that the client wants. Without it, the tracker chooses.
    Want,
    /// Whether the client wants the compact form, over HTTP.
    Compact,
    /// Whether the client needs no peer ids, over HTTP.
    NoPeerId,
    /// The address that the client claims, over HTTP.
    Ip,
    /// The IPv4 endpoint that the client claims, over HTTP.
    Ipv4,
    /// The IPv6 endpoint that the client claims, over HTTP.
    Ipv6,
}

impl Field {
    /// Every variant. The variants up to [`Want`](Self::Want) are in both protocols.
    pub const ALL: &'static [Self] = &[
        Self::Event,
        Self::Uploaded,
        Self::Downloaded,
        Self::Left,
        Self::Want,
        Self::Compact,
        Self::NoPeerId,
        Self::Ip,
        Self::Ipv4,
        Self::Ipv6,
    ];

    /// Its name in a query.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Event => "event",
            Self::Uploaded => "uploaded",
            Self::Downloaded => "downloaded",
            Self::Left => "left",
            Self::Want => "numwant",
            Self::Compact => "compact",
            Self::NoPeerId => "no_peer_id",
            Self::Ip => "ip",
            Self::Ipv4 => "ipv4",
            Self::Ipv6 => "ipv6",
        }
    }
}

/// A set of fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fields(u16);

impl Fields {
    /// No field.
    pub const NONE: Self = Self(0);

    /// The fields of the set.
    pub fn iter(self) -> impl Iterator<Item = Field> {
        Field::ALL.iter().copied().filter(move |&field| self.0 >> field as u16 & 1 == 1)
    }

    /// The value of `field`, which is in the set if it cannot be read. The last of several values counts.
    pub(crate) fn value<T>(&mut self, field: Field, value: Option<T>) -> Option<T> {
        let place = field as u16;
        self.0 = self.0 & !(1 << place) | u16::from(value.is_none()) << place;
        value
    }

    /// The event, `None` if there is no such event.
    pub(crate) fn event(&mut self, event: Option<AnnounceEvent>) -> AnnounceEvent {
        self.value(Field::Event, event).unwrap_or_default()
    }

    /// A number of bytes. Clients that do not know it send -1: over UDP, this is 2⁶⁴ − 1.
    pub(crate) fn bytes(&mut self, field: Field, number: Option<i64>) -> Option<u64> {
        self.value(field, number.and_then(|number| number.try_into().ok()))
    }

    /// The number of wanted peers. -1 is no fault: BEP 15 has it for a number that the tracker chooses.
    pub(crate) fn want(&mut self, number: Option<i64>) -> Option<u32> {
        let number =
            self.value(Field::Want, number.filter(|number| (-1..=i64::from(i32::MAX)).contains(number)));
        number.and_then(|number| number.try_into().ok())
    }
}
