//! The requests of clients.

use std::net::Ipv4Addr;

use swarmkeep_bittorrent::{AnnounceEvent, InfoHash, PeerId};

use super::{
    Action, CONNECT_MAGIC, ConnectionId, MAX_SCRAPE, Options, TransactionId,
    bytes::{Reader, Writer},
};
use crate::{Error, Field, Fields, items};

/// A request, borrowed from the packet it came in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request<'a> {
    /// Requests a connection id.
    Connect(ConnectRequest),
    /// Announces a peer.
    Announce(AnnounceRequest<'a>),
    /// Requests the counts of swarms.
    Scrape(ScrapeRequest<'a>),
}

impl<'a> Request<'a> {
    /// Parses a packet. Bytes after the fields are no error: clients send options (BEP 41) and padding.
    ///
    /// # Errors
    /// [`Error::TooShort`], [`Error::Action`] and [`Error::Magic`] if this is not a request of BEP 15; it
    /// should get no answer.
    pub fn parse(packet: &'a [u8]) -> Result<Self, Error> {
        match Header::parse(packet)?.action {
            Action::Connect => ConnectRequest::parse(packet).map(Self::Connect),
            Action::Announce => AnnounceRequest::parse(packet).map(Self::Announce),
            Action::Scrape => ScrapeRequest::parse(packet).map(Self::Scrape),
            Action::Error => Err(Error::Action(Action::Error as u32)),
        }
    }
}

/// The 16 bytes with which every request begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// The connection id; [`CONNECT_MAGIC`] in a connect request.
    pub connection_id: ConnectionId,
    /// The kind of the request.
    pub action: Action,
    /// The number that the response must repeat.
    pub transaction_id: TransactionId,
}

impl Header {
    /// Length in bytes.
    pub const LEN: usize = 16;

    /// Reads the first 16 bytes of a request.
    ///
    /// # Errors
    /// [`Error::TooShort`], or [`Error::Action`] if BEP 15 has no such action.
    pub fn parse(packet: &[u8]) -> Result<Self, Error> {
        let mut fields = Reader::new(packet, "a request", Self::LEN)?;
        Self::take(&mut fields)
    }

    fn take(fields: &mut Reader<'_>) -> Result<Self, Error> {
        Ok(Self {
            connection_id: ConnectionId(fields.u64()),
            action: fields.u32().try_into()?,
            transaction_id: TransactionId(fields.u32()),
        })
    }

    fn put<'w, 'out>(self, out: &'w mut Writer<'out>) -> &'w mut Writer<'out> {
        out.u64(self.connection_id.0).u32(self.action as u32).u32(self.transaction_id.0)
    }
}

/// Requests a connection id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectRequest {
    /// The number that the response must repeat.
    pub transaction_id: TransactionId,
}

impl ConnectRequest {
    /// Length in bytes.
    pub const LEN: usize = Header::LEN;

    fn parse(packet: &[u8]) -> Result<Self, Error> {
        let Header { connection_id: ConnectionId(magic), transaction_id, .. } = Header::parse(packet)?;
        if magic != CONNECT_MAGIC {
            return Err(Error::Magic(magic));
        }
        Ok(Self { transaction_id })
    }

    /// The packet.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        let connection_id = ConnectionId(CONNECT_MAGIC);
        Header { connection_id, action: Action::Connect, transaction_id: self.transaction_id }
            .put(&mut Writer::new(&mut out));
        out
    }
}

/// Announces a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AnnounceRequest<'a> {
    /// The id of a connect response.
    pub connection_id: ConnectionId,
    /// The number that the response must repeat.
    pub transaction_id: TransactionId,
    /// The torrent.
    pub info_hash: InfoHash,
    /// The peer id of the client.
    pub peer_id: PeerId,
    /// Bytes that it says it has downloaded.
    pub downloaded: u64,
    /// Bytes that it still has to download. 0 makes it a seeder; 2⁶⁴ − 1 is unknown.
    pub left: u64,
    /// Bytes that it says it has uploaded.
    pub uploaded: u64,
    /// The event of the announce.
    pub event: AnnounceEvent,
    /// The address that it claims. Any client can claim any address, so a tracker uses the source address of
    /// the packet instead.
    pub ip: Ipv4Addr,
    /// A number by which a client can prove that it is the same one at another address.
    pub key: u32,
    /// The number of peers that it wants. `None` (−1 on the wire, or any other negative number) leaves it to
    /// the tracker.
    pub want: Option<u32>,
    /// The port at which it listens. 0 is invalid.
    pub port: u16,
    /// The fields that cannot be read, and count as not given.
    pub unread: Fields,
    /// The bytes after the fields; see [`options`](Self::options).
    pub trailing: &'a [u8],
}

impl<'a> AnnounceRequest<'a> {
    /// Length in bytes without options.
    pub const LEN: usize = 98;

    /// A regular announce of a peer that does not say how much it has, in transaction 0 and without options.
    pub const fn new(connection_id: ConnectionId, info_hash: InfoHash, peer_id: PeerId, port: u16) -> Self {
        Self {
            connection_id,
            transaction_id: TransactionId(0),
            info_hash,
            peer_id,
            downloaded: 0,
            left: u64::MAX,
            uploaded: 0,
            event: AnnounceEvent::None,
            ip: Ipv4Addr::UNSPECIFIED,
            key: 0,
            want: None,
            port,
            unread: Fields::NONE,
            trailing: &[],
        }
    }

    /// The options of BEP 41 among the trailing bytes.
    pub const fn options(&self) -> Options<'a> {
        Options::new(self.trailing)
    }

    fn parse(packet: &'a [u8]) -> Result<Self, Error> {
        let mut unread = Fields::NONE;
        let mut fields = Reader::new(packet, "an announce request", Self::LEN)?;
        let Header { connection_id, transaction_id, .. } = Header::take(&mut fields)?;
        Ok(Self {
            connection_id,
            transaction_id,
            info_hash: InfoHash::new(fields.array()),
            peer_id: PeerId::new(fields.array()),
            downloaded: unread.bytes(Field::Downloaded, Some(fields.u64() as i64)).unwrap_or(0),
            left: unread.bytes(Field::Left, Some(fields.u64() as i64)).unwrap_or(u64::MAX),
            uploaded: unread.bytes(Field::Uploaded, Some(fields.u64() as i64)).unwrap_or(0),
            event: unread.event(AnnounceEvent::of_number(fields.u32())),
            ip: fields.array().into(),
            key: fields.u32(),
            want: unread.want(Some((fields.u32() as i32).into())),
            port: fields.u16(),
            unread,
            trailing: fields.rest(),
        })
    }

    /// Writes the request with its trailing bytes, and returns its length in bytes.
    ///
    /// # Panics
    /// If `out` is shorter than [`LEN`](Self::LEN) and the trailing bytes together.
    pub fn write(&self, out: &mut [u8]) -> usize {
        let Self { connection_id, transaction_id, .. } = *self;
        let mut out = Writer::new(out);
        Header { connection_id, action: Action::Announce, transaction_id }
            .put(&mut out)
            .bytes(self.info_hash.as_bytes())
            .bytes(self.peer_id.as_bytes())
            .u64(self.downloaded)
            .u64(self.left)
            .u64(self.uploaded)
            .u32(self.event as u32)
            .bytes(&self.ip.octets())
            .u32(self.key)
            .u32(self.want.unwrap_or(u32::MAX))
            .u16(self.port)
            .bytes(self.trailing)
            .len()
    }

    /// The packet.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut packet = vec![0; Self::LEN + self.trailing.len()];
        self.write(&mut packet);
        packet
    }
}

/// Requests the counts of swarms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScrapeRequest<'a> {
    /// The id of a connect response.
    pub connection_id: ConnectionId,
    /// The number that the response must repeat.
    pub transaction_id: TransactionId,
    info_hashes: &'a [u8],
}

impl<'a> ScrapeRequest<'a> {
    /// Length in bytes with one info hash; each further one takes 20 more.
    pub const LEAST: usize = Header::LEN + InfoHash::LEN;

    /// A request for `info_hashes`. A tracker answers for the first [`MAX_SCRAPE`].
    pub fn new(
        connection_id: ConnectionId,
        transaction_id: TransactionId,
        info_hashes: &'a [[u8; InfoHash::LEN]],
    ) -> Self {
        Self { connection_id, transaction_id, info_hashes: info_hashes.as_flattened() }
    }

    /// The requested info hashes, at most [`MAX_SCRAPE`], in the order of the answer.
    pub fn info_hashes(&self) -> impl ExactSizeIterator<Item = InfoHash> + use<'a> {
        items(self.info_hashes).take(MAX_SCRAPE).map(InfoHash::new)
    }

    fn parse(packet: &'a [u8]) -> Result<Self, Error> {
        let mut fields = Reader::new(packet, "a scrape request", Self::LEAST)?;
        let Header { connection_id, transaction_id, .. } = Header::take(&mut fields)?;
        let rest = fields.rest();
        // Without one that is cut short.
        let info_hashes = &rest[..rest.len() - rest.len() % InfoHash::LEN];
        Ok(Self { connection_id, transaction_id, info_hashes })
    }

    /// Writes the request, and returns its length in bytes.
    ///
    /// # Panics
    /// If `out` is shorter than 16 bytes plus 20 bytes per info hash.
    pub fn write(&self, out: &mut [u8]) -> usize {
        let Self { connection_id, transaction_id, info_hashes } = *self;
        let mut out = Writer::new(out);
        Header { connection_id, action: Action::Scrape, transaction_id }
            .put(&mut out)
            .bytes(info_hashes)
            .len()
    }

    /// The packet.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut packet = vec![0; Header::LEN + self.info_hashes.len()];
        self.write(&mut packet);
        packet
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONNECT: [u8; 16] = [0, 0, 0x04, 0x17, 0x27, 0x10, 0x19, 0x80, 0, 0, 0, 0, 0xde, 0xad, 0xbe, 0xef];

    /// The table of BEP 15, field by field.
    fn announce_bytes() -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend([1, 2, 3, 4, 5, 6, 7, 8]); // 0 connection id
        bytes.extend([0, 0, 0, 1]); // 8 action
        bytes.extend([0xde, 0xad, 0xbe, 0xef]); // 12 transaction id
        bytes.extend([0xaa; 20]); // 16 info hash
        bytes.extend(*b"-XX0001-abcdefghijkl"); // 36 peer id
        bytes.extend([0, 0, 0, 0, 0, 0, 1, 0]); // 56 downloaded
        bytes.extend([0, 0, 0, 0, 0, 1, 0, 0]); // 64 left
        bytes.extend([0, 0, 0, 0, 1, 0, 0, 0]); // 72 uploaded
        bytes.extend([0, 0, 0, 2]); // 80 event
        bytes.extend([192, 0, 2, 7]); // 84 IP address
        bytes.extend([0, 0, 0, 9]); // 88 key
        bytes.extend([0xff; 4]); // 92 num_want
        bytes.extend([0x1a, 0xe1]); // 96 port
        bytes
    }

    fn announce() -> AnnounceRequest<'static> {
        let (id, peer_id) = (ConnectionId(0x0102_0304_0506_0708), PeerId::new(*b"-XX0001-abcdefghijkl"));
        AnnounceRequest {
            transaction_id: TransactionId(0xdead_beef),
            downloaded: 0x100,
            left: 0x1_0000,
            uploaded: 0x100_0000,
            event: AnnounceEvent::Started,
            ip: Ipv4Addr::new(192, 0, 2, 7),
            key: 9,
            ..AnnounceRequest::new(id, InfoHash::new([0xaa; 20]), peer_id, 6881)
        }
    }

    #[test]
    fn connect_is_the_table_of_bep_15() {
        let request = ConnectRequest { transaction_id: TransactionId(0xdead_beef) };
        assert_eq!(request.to_bytes(), CONNECT);
        assert_eq!(Request::parse(&CONNECT), Ok(Request::Connect(request)));
        let padded = [&CONNECT[..], &[0; 100]].concat();
        assert_eq!(Request::parse(&padded), Ok(Request::Connect(request)));
    }

    #[test]
    fn announce_is_the_table_of_bep_15() {
        let bytes = announce_bytes();
        assert_eq!(bytes.len(), AnnounceRequest::LEN);
        assert_eq!(Request::parse(&bytes), Ok(Request::Announce(announce())));
        assert_eq!(announce().to_vec(), bytes);
    }

    #[test]
    fn bytes_after_an_announce_are_kept_and_no_error() {
        for trailing in [&b"\x02\x09/announce"[..], b"\x02", b"\x00\x00", &[0xff; 1000]] {
            let bytes = [&announce_bytes()[..], trailing].concat();
            let expected = AnnounceRequest { trailing, ..announce() };
            assert_eq!(Request::parse(&bytes), Ok(Request::Announce(expected)));
            assert_eq!(expected.to_vec(), bytes);
        }
    }

    #[test]
    fn a_negative_number_of_wanted_peers_leaves_it_to_the_tracker() {
        for (wire, want) in
            [(-1, None), (i32::MIN, None), (0, Some(0)), (1, Some(1)), (i32::MAX, Some(0x7fff_ffff))]
        {
            let mut bytes = announce_bytes();
            bytes[92..96].copy_from_slice(&wire.to_be_bytes());
            let Ok(Request::Announce(request)) = Request::parse(&bytes) else { panic!("{wire}") };
            assert_eq!((request.want, request.unread == Fields::NONE), (want, wire >= -1));
        }
    }

    /// libtorrent 2.0 (qBittorrent, Deluge) sends 4 for the `paused` of BEP 21, in a first announce too.
    /// opentracker and aquatic ignore unknown numbers. WebTorrent 1.9 sends -1 for `left` before it has the
    /// metadata of a link.
    #[test]
    fn numbers_out_of_range_count_as_not_given() {
        for (event, unread) in
            [(4, &[][..]), (5, &[Field::Event]), (255, &[Field::Event]), (1 << 31, &[Field::Event])]
        {
            let mut bytes = announce_bytes();
            bytes[80..84].copy_from_slice(&u32::to_be_bytes(event));
            let expected = AnnounceRequest { event: AnnounceEvent::None, ..announce() };
            assert_eq!(parse_all(&bytes), (expected, unread.to_vec()), "{event}");
        }
        for negative in [i64::MIN, -2, -1] {
            let mut bytes = announce_bytes();
            bytes[56..80].copy_from_slice([negative.to_be_bytes(); 3].as_flattened());
            let expected = AnnounceRequest { downloaded: 0, left: u64::MAX, uploaded: 0, ..announce() };
            let unread = vec![Field::Uploaded, Field::Downloaded, Field::Left];
            assert_eq!(parse_all(&bytes), (expected, unread), "{negative}");
        }
        assert_eq!(parse_all(&announce_bytes()), (announce(), vec![]));
    }

    /// The announce, and its fields that cannot be read.
    fn parse_all(bytes: &[u8]) -> (AnnounceRequest<'_>, Vec<Field>) {
        let Ok(Request::Announce(request)) = Request::parse(bytes) else { panic!("{bytes:?}") };
        (AnnounceRequest { unread: Fields::NONE, ..request }, request.unread.iter().collect())
    }

    #[test]
    fn scrape_is_the_table_of_bep_15() {
        let bytes =
            [&[1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 2, 0, 0, 0, 5][..], &[0xaa; 20], &[0xbb; 20]].concat();
        let hashes = [[0xaa; 20], [0xbb; 20]];
        let request = ScrapeRequest::new(ConnectionId(0x0102_0304_0506_0708), TransactionId(5), &hashes);
        assert_eq!(Request::parse(&bytes), Ok(Request::Scrape(request)));
        assert!(request.info_hashes().eq(hashes.map(InfoHash::new)));
        assert_eq!(request.to_vec(), bytes);
        let cut = [&bytes[..], &[0xcc; 19]].concat();
        assert_eq!(Request::parse(&cut), Ok(Request::Scrape(request)));
    }

    #[test]
    fn a_scrape_asks_about_74_info_hashes_at_most() {
        let hashes = [[1; 20]; 80];
        let request = ScrapeRequest::new(ConnectionId(1), TransactionId(1), &hashes);
        assert_eq!(request.info_hashes().len(), 74);
    }

    #[test]
    fn other_bytes_are_refused_with_a_reason() {
        let error = |bytes: &[u8]| Request::parse(bytes).unwrap_err();
        assert_eq!(error(&[]), Error::TooShort { what: "a request", least: 16, got: 0 });
        assert_eq!(error(&CONNECT[..15]), Error::TooShort { what: "a request", least: 16, got: 15 });
        let announce = announce_bytes();
        let short = Error::TooShort { what: "an announce request", least: 98, got: 97 };
        assert_eq!(error(&announce[..97]), short);
        let mut scrape = [0; 35];
        scrape[11] = 2;
        assert_eq!(error(&scrape), Error::TooShort { what: "a scrape request", least: 36, got: 35 });
        for action in [3, 4, 255] {
            let mut bytes = announce.clone();
            bytes[11] = action;
            assert_eq!(error(&bytes), Error::Action(action.into()));
        }
        let mut connect = CONNECT;
        connect[7] = 0x81;
        assert_eq!(error(&connect), Error::Magic(0x0417_2710_1981));
    }
}
