//! The responses of trackers.

use swarmkeep_bittorrent::{CompactV4, CompactV6, Endpoint, Family};

use super::{
    Action, ConnectionId, MAX_SCRAPE, TransactionId,
    bytes::{Reader, Writer},
};
use crate::{Error, items, whole};

/// A response, borrowed from the packet it came in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Response<'a> {
    /// Returns a connection id.
    Connect(ConnectResponse),
    /// Returns peers.
    Announce(AnnounceResponse<'a>),
    /// Returns the counts of swarms.
    Scrape(ScrapeResponse<'a>),
    /// Returns an error.
    Error(ErrorResponse<'a>),
}

impl<'a> Response<'a> {
    /// Parses a packet that came over `family`: in BEP 15 a peer has 6 bytes over IPv4 and 18 bytes over
    /// IPv6.
    ///
    /// # Errors
    /// [`Error::TooShort`], [`Error::Action`], or [`Error::List`] if a list ends in the middle of an item.
    pub fn parse(packet: &'a [u8], family: Family) -> Result<Self, Error> {
        let mut fields = Reader::new(packet, "a response", RESPONSE_HEADER)?;
        let action = fields.u32().try_into()?;
        let transaction_id = TransactionId(fields.u32());
        Ok(match action {
            Action::Connect => {
                let mut fields = Reader::new(fields.rest(), "the rest of a connect response", 8)?;
                Self::Connect(ConnectResponse { transaction_id, connection_id: ConnectionId(fields.u64()) })
            }
            Action::Announce => {
                let mut fields = Reader::new(fields.rest(), "the rest of an announce response", 12)?;
                let (interval, leechers, seeders) = (fields.u32(), fields.u32(), fields.u32());
                let header = AnnounceResponseHeader { transaction_id, interval, leechers, seeders };
                Self::Announce(AnnounceResponse { header, peers: Peers::new(fields.rest(), family)? })
            }
            Action::Scrape => {
                let swarms = whole(fields.rest(), ScrapeStats::LEN)?;
                Self::Scrape(ScrapeResponse { transaction_id, swarms })
            }
            Action::Error => Self::Error(ErrorResponse { transaction_id, message: fields.rest() }),
        })
    }

    /// The transaction of the request.
    pub const fn transaction_id(&self) -> TransactionId {
        match self {
            Self::Connect(response) => response.transaction_id,
            Self::Announce(response) => response.header.transaction_id,
            Self::Scrape(response) => response.transaction_id,
            Self::Error(response) => response.transaction_id,
        }
    }
}

/// Action and transaction id.
const RESPONSE_HEADER: usize = 8;

/// Returns a connection id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectResponse {
    /// The transaction of the request.
    pub transaction_id: TransactionId,
    /// The id for the following requests.
    pub connection_id: ConnectionId,
}

impl ConnectResponse {
    /// Length in bytes: the length of the request, so that a forged source gets no more bytes than the
    /// attacker sent.
    pub const LEN: usize = RESPONSE_HEADER + 8;

    /// Writes the response.
    pub fn write(&self, out: &mut [u8; Self::LEN]) {
        Writer::new(out).u32(Action::Connect as u32).u32(self.transaction_id.0).u64(self.connection_id.0);
    }
}

/// An announce response up to its peers. The store writes the peers directly after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AnnounceResponseHeader {
    /// The transaction of the request.
    pub transaction_id: TransactionId,
    /// Seconds to wait before the next regular announce.
    pub interval: u32,
    /// Peers that still have to download.
    pub leechers: u32,
    /// Peers that have everything.
    pub seeders: u32,
}

impl AnnounceResponseHeader {
    /// Length in bytes.
    pub const LEN: usize = RESPONSE_HEADER + 12;

    /// Writes everything except the peers.
    pub fn write(&self, out: &mut [u8; Self::LEN]) {
        Writer::new(out)
            .u32(Action::Announce as u32)
            .u32(self.transaction_id.0)
            .u32(self.interval)
            .u32(self.leechers)
            .u32(self.seeders);
    }
}

/// Returns peers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AnnounceResponse<'a> {
    /// Everything except the peers.
    pub header: AnnounceResponseHeader,
    peers: Peers<'a>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Peers<'a> {
    V4(&'a [u8]),
    V6(&'a [u8]),
}

impl<'a> Peers<'a> {
    fn new(bytes: &'a [u8], family: Family) -> Result<Self, Error> {
        match family {
            Family::V4 => whole(bytes, CompactV4::LEN).map(Self::V4),
            Family::V6 => whole(bytes, CompactV6::LEN).map(Self::V6),
        }
    }
}

impl<'a> AnnounceResponse<'a> {
    /// The peers. A peer with port 0 is an error.
    pub fn peers(&self) -> impl Iterator<Item = Result<Endpoint, Error>> + use<'a> {
        let (v4, v6): (&[u8], &[u8]) = match self.peers {
            Peers::V4(peers) => (peers, &[]),
            Peers::V6(peers) => (&[], peers),
        };
        let v4 = items::<{ CompactV4::LEN }>(v4).map(Endpoint::try_from);
        let v6 = items::<{ CompactV6::LEN }>(v6).map(Endpoint::try_from);
        v4.chain(v6).map(|peer| Ok(peer?))
    }
}

/// The counts of one swarm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ScrapeStats {
    /// Peers that have everything.
    pub seeders: u32,
    /// Finished downloads.
    pub completed: u32,
    /// Peers that still have to download.
    pub leechers: u32,
}

impl ScrapeStats {
    /// Length in bytes.
    pub const LEN: usize = 12;
}

/// Returns the counts of swarms, in the order of the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScrapeResponse<'a> {
    /// The transaction of the request.
    pub transaction_id: TransactionId,
    swarms: &'a [u8],
}

impl<'a> ScrapeResponse<'a> {
    /// Length in bytes of the longest scrape response.
    pub const MOST: usize = RESPONSE_HEADER + MAX_SCRAPE * ScrapeStats::LEN;

    /// The counts, in the order of the request.
    pub fn swarms(&self) -> impl ExactSizeIterator<Item = ScrapeStats> + use<'a> {
        items::<{ ScrapeStats::LEN }>(self.swarms).map(|bytes| {
            let mut fields =
                Reader::new(&bytes, "the counts of a swarm", ScrapeStats::LEN).expect("12 bytes hold 12");
            ScrapeStats { seeders: fields.u32(), completed: fields.u32(), leechers: fields.u32() }
        })
    }
}

/// Writes a scrape response, swarm by swarm.
#[derive(Debug)]
pub struct ScrapeResponseWriter<'a>(Writer<'a>);

impl<'a> ScrapeResponseWriter<'a> {
    /// Begins the response in `out`.
    ///
    /// # Panics
    /// If `out` is shorter than 8 bytes.
    pub fn new(transaction_id: TransactionId, out: &'a mut [u8]) -> Self {
        let mut out = Writer::new(out);
        out.u32(Action::Scrape as u32).u32(transaction_id.0);
        Self(out)
    }

    /// Adds the counts of the next swarm of the request.
    ///
    /// # Panics
    /// If the buffer is full; one of [`ScrapeResponse::MOST`] bytes holds the answer to any request.
    pub fn push(&mut self, swarm: ScrapeStats) {
        self.0.u32(swarm.seeders).u32(swarm.completed).u32(swarm.leechers);
    }

    /// Returns the length of the response in bytes.
    pub fn finish(self) -> usize {
        self.0.len()
    }
}

/// Returns an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ErrorResponse<'a> {
    /// The transaction of the request.
    pub transaction_id: TransactionId,
    /// A message for people, usually in UTF-8.
    pub message: &'a [u8],
}

impl ErrorResponse<'_> {
    /// Whether another connection id could help. BEP 15 has no number for that error; trackers use this word.
    pub fn is_about_the_connection(&self) -> bool {
        self.message.to_ascii_lowercase().windows(10).any(|word| word == b"connection")
    }

    /// Length in bytes of a response with a message of `message` bytes.
    pub const fn len_with(message: usize) -> usize {
        RESPONSE_HEADER + message
    }

    /// Writes the response, and as much of the message as fits. Returns its length in bytes.
    ///
    /// # Panics
    /// If `out` is shorter than 8 bytes.
    pub fn write(&self, out: &mut [u8]) -> usize {
        let mut out = Writer::new(out);
        out.u32(Action::Error as u32).u32(self.transaction_id.0);
        let fits = self.message.len().min(out.room());
        out.bytes(&self.message[..fits]).len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: TransactionId = TransactionId(0xdead_beef);

    #[test]
    fn connect_is_the_table_of_bep_15() {
        let bytes = [0, 0, 0, 0, 0xde, 0xad, 0xbe, 0xef, 1, 2, 3, 4, 5, 6, 7, 8];
        let response =
            ConnectResponse { transaction_id: ID, connection_id: ConnectionId(0x0102_0304_0506_0708) };
        let mut out = [0; ConnectResponse::LEN];
        response.write(&mut out);
        assert_eq!(out, bytes);
        assert_eq!(Response::parse(&bytes, Family::V4), Ok(Response::Connect(response)));
    }

    fn announce_bytes(peers: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0, 0, 0, 1, 0xde, 0xad, 0xbe, 0xef]; // 0 action, 4 transaction id
        bytes.extend([0, 0, 0x07, 0x08]); // 8 interval
        bytes.extend([0, 0, 0, 3]); // 12 leechers
        bytes.extend([0, 0, 0, 2]); // 16 seeders
        bytes.extend(peers); // 20
        bytes
    }

    #[test]
    fn announce_is_the_table_of_bep_15() {
        let header = AnnounceResponseHeader { transaction_id: ID, interval: 1800, leechers: 3, seeders: 2 };
        let mut out = [0; AnnounceResponseHeader::LEN];
        header.write(&mut out);
        assert_eq!(out[..], announce_bytes(&[]));

        let bytes = announce_bytes(&[10, 1, 2, 3, 0x1a, 0xe1, 10, 1, 2, 4, 0x1a, 0xe2]);
        let Ok(Response::Announce(response)) = Response::parse(&bytes, Family::V4) else { panic!() };
        assert_eq!(response.header, header);
        let expected = ["10.1.2.3:6881", "10.1.2.4:6882"].map(|text| Ok(text.parse().unwrap()));
        assert!(response.peers().eq(expected));
    }

    #[test]
    fn over_ipv6_a_peer_takes_18_bytes() {
        let mut peer = [0; 18];
        peer[..4].copy_from_slice(&[0x20, 0x01, 0x0d, 0xb8]);
        peer[15..].copy_from_slice(&[7, 0x1a, 0xe1]);
        let bytes = announce_bytes(&peer);
        let Ok(Response::Announce(response)) = Response::parse(&bytes, Family::V6) else { panic!() };
        assert!(response.peers().eq([Ok("[2001:db8::7]:6881".parse().unwrap())]));
        let cut = announce_bytes(&[0; 19]);
        assert_eq!(Response::parse(&cut, Family::V6), Err(Error::List { len: 19, each: 18 }));
        assert_eq!(Response::parse(&cut, Family::V4), Err(Error::List { len: 19, each: 6 }));
    }

    #[test]
    fn a_peer_at_port_0_is_an_error() {
        let bytes = announce_bytes(&[10, 1, 2, 3, 0, 0]);
        let Ok(Response::Announce(response)) = Response::parse(&bytes, Family::V4) else { panic!() };
        assert!(response.peers().eq([Err(Error::Field(swarmkeep_bittorrent::Error::PortZero))]));
    }

    #[test]
    fn scrape_is_the_table_of_bep_15() {
        let mut bytes = vec![0, 0, 0, 2, 0xde, 0xad, 0xbe, 0xef];
        bytes.extend([0, 0, 0, 5, 0, 0, 0, 6, 0, 0, 0, 7]); // seeders, completed, leechers
        bytes.extend([0; 12]);
        let swarms = [ScrapeStats { seeders: 5, completed: 6, leechers: 7 }, ScrapeStats::default()];
        let mut out = [0; ScrapeResponse::MOST];
        let mut writer = ScrapeResponseWriter::new(ID, &mut out);
        swarms.into_iter().for_each(|swarm| writer.push(swarm));
        let len = writer.finish();
        assert_eq!(out[..len], bytes);
        let Ok(Response::Scrape(response)) = Response::parse(&bytes, Family::V4) else { panic!() };
        assert!(response.swarms().eq(swarms));
        bytes.push(0);
        assert_eq!(Response::parse(&bytes, Family::V4), Err(Error::List { len: 25, each: 12 }));
    }

    #[test]
    fn an_error_takes_no_more_room_than_it_is_given() {
        let response = ErrorResponse { transaction_id: ID, message: b"no such thing" };
        let mut out = [0; 64];
        let len = response.write(&mut out);
        assert_eq!(out[..len], *b"\0\0\0\x03\xde\xad\xbe\xefno such thing");
        assert_eq!(len, ErrorResponse::len_with(13));
        assert_eq!(Response::parse(&out[..len], Family::V4), Ok(Response::Error(response)));
        assert_eq!(response.write(&mut out[..10]), 10);
        assert_eq!(out[..10], *b"\0\0\0\x03\xde\xad\xbe\xefno");
    }

    #[test]
    fn other_bytes_are_refused_with_a_reason() {
        let error = |bytes: &[u8]| Response::parse(bytes, Family::V4).unwrap_err();
        assert_eq!(error(&[0; 7]), Error::TooShort { what: "a response", least: 8, got: 7 });
        let short = Error::TooShort { what: "the rest of a connect response", least: 8, got: 7 };
        assert_eq!(error(&[0; 15]), short);
        assert_eq!(error(&[0, 0, 0, 4, 0, 0, 0, 0]), Error::Action(4));
    }
}
