//! From the bytes of a request to those of its answer, without a socket and without a clock.

use std::net::SocketAddr;

use swarmkeep::{
    Announce, Announced, Endpoint, Family, InfoHash, PeerBuffer, Random, SwarmStats, Timestamp, Unavailable,
    catalog::Repository,
};
use swarmkeep_tracker_protocol::{
    Error as ProtocolError,
    udp::{
        AnnounceRequest, AnnounceResponseHeader, ConnectResponse, ConnectionId, ErrorResponse, Header,
        Request, ScrapeRequest, ScrapeResponse, ScrapeResponseWriter, ScrapeStats, TransactionId,
    },
};
use tracing::{debug, warn};

use crate::{Config, ConnectionIds};

/// The most bytes of an answer over IPv4: what a link of 1,492 bytes (PPPoE) carries whole, with room for a tunnel.
pub const LONGEST_ANSWER_V4: usize = 1452;

/// The most bytes of an answer over IPv6: below the 1,280 that every link carries whole (RFC 8200).
pub const LONGEST_ANSWER_V6: usize = 1200;

/// Room for any answer.
pub type AnswerBuffer = [u8; LONGEST_ANSWER_V4];

/// What someone is told whose connection id is stale or forged. Anyone can write any source address on a packet, so this
/// must not be longer than the shortest request that it can answer.
const NOT_CONNECTED: &str = "invalid connection id";
const _: () = assert!(ErrorResponse::len_with(NOT_CONNECTED.len()) <= ScrapeRequest::LEAST);
const _: () = assert!(ScrapeResponse::MOST <= LONGEST_ANSWER_V6);

/// Answers requests from a repository.
///
/// Sources that have not shown a good connection id get nothing larger than they sent. Packets that are no requests of
/// BEP 15 (too short, of an unknown action) get no answer at all.
#[derive(Debug)]
pub struct Handler {
    repository: Repository,
    connection_ids: ConnectionIds,
    interval_secs: u32,
    default_want: usize,
    most_want: usize,
}

impl Handler {
    /// Answers from `repository`, as `config` says.
    pub fn new(repository: Repository, connection_ids: ConnectionIds, config: &Config) -> Self {
        let &Config { interval_secs, default_want, most_want, .. } = config;
        Self { repository, connection_ids, interval_secs, default_want, most_want }
    }

    /// Answers the `packet` that came from `source`: writes the answer into `out` and says how long it is, or `None` if
    /// there is nothing to send.
    ///
    /// With a synchronous repository the future is ready at its first poll.
    pub async fn answer(
        &self,
        packet: &[u8],
        source: SocketAddr,
        now: Timestamp,
        rng: &mut dyn Random,
        out: &mut AnswerBuffer,
    ) -> Option<usize> {
        let source = SocketAddr::new(source.ip().to_canonical(), source.port());
        let answered = match self.understand(packet, source, now) {
            Ok(Understood::Connect(response)) => {
                let out = out.first_chunk_mut().expect("a connect response fits");
                response.write(out);
                Ok(out.len())
            }
            Ok(Understood::Announce { transaction_id, announce }) => self
                .announce(&announce, now, rng, transaction_id, out)
                .await
                .map_err(|unavailable| Refusal { transaction_id, reason: unavailable.into() }),
            Ok(Understood::Scrape(request)) => self.scrape(request, out).await.map_err(|unavailable| {
                Refusal { transaction_id: request.transaction_id, reason: unavailable.into() }
            }),
            Err(None) => return None,
            Err(Some(refusal)) => Err(refusal),
        };
        Some(answered.unwrap_or_else(|Refusal { transaction_id, reason }| {
            debug!(%source, %reason, "refused");
            ErrorResponse { transaction_id, message: reason.to_string().as_bytes() }.write(out)
        }))
    }

    /// What `packet` asks for, once its source has shown that it receives there; otherwise what to refuse it with, if
    /// anything.
    fn understand<'p>(
        &self,
        packet: &'p [u8],
        source: SocketAddr,
        now: Timestamp,
    ) -> Result<Understood<'p>, Option<Refusal>> {
        let connected = |connection_id: ConnectionId, transaction_id: TransactionId| {
            if self.connection_ids.recognise(connection_id, source.ip(), now) {
                Ok(())
            } else {
                Err(Some(Refusal { transaction_id, reason: Reason::NotConnected }))
            }
        };
        match Request::parse(packet) {
            Ok(Request::Connect(request)) => Ok(Understood::Connect(ConnectResponse {
                transaction_id: request.transaction_id,
                connection_id: self.connection_ids.issue(source.ip(), now),
            })),
            Ok(Request::Announce(request)) => {
                let transaction_id = request.transaction_id;
                connected(request.connection_id, transaction_id)?;
                let announce = self
                    .announce_of(&request, source)
                    .map_err(|reason| Some(Refusal { transaction_id, reason: reason.into() }))?;
                Ok(Understood::Announce { transaction_id, announce })
            }
            Ok(Request::Scrape(request)) => {
                connected(request.connection_id, request.transaction_id)?;
                Ok(Understood::Scrape(request))
            }
            Err(ProtocolError::Field(error)) => {
                let Header { connection_id, transaction_id, .. } = Header::parse(packet).map_err(|_| None)?;
                connected(connection_id, transaction_id)?;
                Err(Some(Refusal { transaction_id, reason: error.into() }))
            }
            Err(error) => {
                debug!(%source, %error, "ignored");
                Err(None)
            }
        }
    }

    /// The announce that a request means: its peer is at the address that the packet came from, whatever it claims.
    fn announce_of(
        &self,
        request: &AnnounceRequest<'_>,
        source: SocketAddr,
    ) -> Result<Announce, swarmkeep::bittorrent::Error> {
        let want = request.want.map_or(self.default_want, |want| want as usize).min(self.most_want);
        Ok(Announce::new(request.info_hash, Endpoint::new(source.ip(), request.port)?)
            .event(request.event)
            .left(request.left)
            .transferred(request.downloaded, request.uploaded)
            .peer_id(request.peer_id)
            .want(want))
    }

    /// Announces, with the store writing the peers into the answer itself.
    async fn announce(
        &self,
        announce: &Announce,
        now: Timestamp,
        rng: &mut dyn Random,
        transaction_id: TransactionId,
        out: &mut AnswerBuffer,
    ) -> Result<usize, Unavailable> {
        let family = announce.endpoint.family();
        let longest = match family {
            Family::V4 => LONGEST_ANSWER_V4,
            Family::V6 => LONGEST_ANSWER_V6,
        };
        let (header, room) =
            out[..longest].split_first_chunk_mut().expect("an answer is longer than its header");
        let mut peers = PeerBuffer::of(family, room);
        let Announced { stats, .. } = match &self.repository {
            Repository::Sync(store) => store.announce(announce, now, rng, &mut peers),
            Repository::Async(store) => store.announce(announce, now, rng, &mut peers).await?,
        };
        let len = AnnounceResponseHeader::LEN + peers.v4.as_bytes().len() + peers.v6.as_bytes().len();
        let SwarmStats { complete: seeders, incomplete: leechers, .. } = stats;
        AnnounceResponseHeader { transaction_id, interval: self.interval_secs, leechers, seeders }
            .write(header);
        Ok(len)
    }

    async fn scrape(&self, request: ScrapeRequest<'_>, out: &mut AnswerBuffer) -> Result<usize, Unavailable> {
        let mut response = ScrapeResponseWriter::new(request.transaction_id, out);
        for info_hash in request.info_hashes() {
            let SwarmStats { complete, incomplete, downloaded } = self.stats(&info_hash).await?;
            response.push(ScrapeStats { seeders: complete, completed: downloaded, leechers: incomplete });
        }
        Ok(response.finish())
    }

    async fn stats(&self, info_hash: &InfoHash) -> Result<SwarmStats, Unavailable> {
        match &self.repository {
            Repository::Sync(store) => Ok(store.scrape(info_hash)),
            Repository::Async(store) => store.scrape(info_hash).await,
        }
    }
}

/// A request that deserves an answer.
enum Understood<'p> {
    Connect(ConnectResponse),
    Announce { transaction_id: TransactionId, announce: Announce },
    Scrape(ScrapeRequest<'p>),
}

/// A request that gets an error response.
struct Refusal {
    transaction_id: TransactionId,
    reason: Reason,
}

/// The text of an error response. Only the first goes to sources that have not shown a good connection id.
#[derive(Debug, thiserror::Error)]
enum Reason {
    #[error("{NOT_CONNECTED}")]
    NotConnected,
    #[error(transparent)]
    Field(#[from] swarmkeep::bittorrent::Error),
    #[error("the tracker's store is not available; try again later")]
    Unavailable,
}

impl From<Unavailable> for Reason {
    fn from(unavailable: Unavailable) -> Self {
        // What went wrong behind the tracker is for whoever runs it, not for strangers.
        warn!(%unavailable);
        Self::Unavailable
    }
}

#[cfg(test)]
mod tests {
    use std::{net::IpAddr, net::Ipv4Addr, sync::Arc};

    use swarmkeep::{AnnounceEvent, catalog};
    use swarmkeep::{
        Answer, AsyncTorrentRepository, Budget, Capabilities, Cursor, HashKey, LongestHold, MemoryUse,
        PeerId, PeerRecord, Removed, RepositoryConfig, Restored, Retention, SplitMix64, SwarmSummary, Swept,
        Totals,
    };
    use swarmkeep_tracker_protocol::udp::{AnnounceResponse, ConnectRequest, Response};

    use super::*;

    const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);
    const TRANSACTION: TransactionId = TransactionId(0xdead_beef);
    const HASH: InfoHash = InfoHash::new([0xaa; 20]);

    /// A handler and a clock, as a client sees them.
    struct Tracker {
        handler: Handler,
        now: Timestamp,
        out: AnswerBuffer,
    }

    impl Tracker {
        fn over(repository: Repository) -> Self {
            let handler =
                Handler::new(repository, ConnectionIds::new([7; 16]), &Config::new().interval_secs(1234));
            Self { handler, now: NOW, out: [0; _] }
        }

        fn named(name: &str) -> Self {
            let config = RepositoryConfig::new(HashKey::from_bytes([9; 16]));
            Self::over(catalog::find(name).expect("in the catalog").build(&config).unwrap())
        }

        /// What comes back for `packet`; the answer is within the bounds, whatever it is.
        #[tokio::main(flavor = "current_thread")]
        async fn send(&mut self, packet: &[u8], source: SocketAddr) -> Option<Vec<u8>> {
            let mut rng = SplitMix64::new(1);
            let len = self.handler.answer(packet, source, self.now, &mut rng, &mut self.out).await?;
            let longest =
                if source.ip().to_canonical().is_ipv4() { LONGEST_ANSWER_V4 } else { LONGEST_ANSWER_V6 };
            assert!(len <= longest);
            Some(self.out[..len].to_vec())
        }

        fn connect(&mut self, source: SocketAddr) -> ConnectionId {
            let mut packet = [0; ConnectRequest::LEN];
            ConnectRequest { transaction_id: TRANSACTION }.write(&mut packet);
            let answer = self.send(&packet, source).expect("an answer");
            assert_eq!(answer.len(), packet.len());
            match Response::parse(&answer, Family::V4) {
                Ok(Response::Connect(response)) if response.transaction_id == TRANSACTION => {
                    response.connection_id
                }
                other => panic!("{other:?}"),
            }
        }

        fn announce(
            &mut self,
            source: SocketAddr,
            request: AnnounceRequest<'_>,
        ) -> (AnnounceResponseHeader, Vec<Endpoint>) {
            let answer = self.send(&bytes_of(request), source).expect("an answer");
            match Response::parse(&answer, family_of(source)) {
                Ok(Response::Announce(response)) => (response.header, peers_of(&response)),
                other => panic!("{other:?}"),
            }
        }

        fn refusal(&mut self, packet: &[u8], source: SocketAddr) -> String {
            let answer = self.send(packet, source).expect("an answer");
            match Response::parse(&answer, family_of(source)) {
                Ok(Response::Error(response)) if response.transaction_id == TRANSACTION => {
                    String::from_utf8(response.message.to_vec()).unwrap()
                }
                other => panic!("{other:?}"),
            }
        }

        /// Lets `count` leechers with the addresses that `source` gives announce.
        fn fill(&mut self, count: u16, source: impl Fn(u16) -> IpAddr) {
            for n in 0..count {
                let source = SocketAddr::new(source(n), 1000);
                let connection_id = self.connect(source);
                self.announce(source, AnnounceRequest { port: 10_000 + n, ..request(connection_id) });
            }
        }
    }

    fn family_of(source: SocketAddr) -> Family {
        if source.ip().to_canonical().is_ipv4() { Family::V4 } else { Family::V6 }
    }

    fn peers_of(response: &AnnounceResponse<'_>) -> Vec<Endpoint> {
        response.peers().map(|peer| peer.expect("no peer at port 0")).collect()
    }

    fn request(connection_id: ConnectionId) -> AnnounceRequest<'static> {
        AnnounceRequest {
            connection_id,
            transaction_id: TRANSACTION,
            info_hash: HASH,
            peer_id: PeerId::new([1; 20]),
            downloaded: 0,
            left: 1,
            uploaded: 0,
            event: AnnounceEvent::Started,
            ip: Ipv4Addr::UNSPECIFIED,
            key: 0,
            want: None,
            port: 6881,
            trailing: &[],
        }
    }

    fn bytes_of(request: AnnounceRequest<'_>) -> Vec<u8> {
        let mut packet = vec![0; AnnounceRequest::LEN + request.trailing.len()];
        request.write(&mut packet);
        packet
    }

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn peers_find_each_other_over_a_store_of_either_kind() {
        for name in ["packed", "btreemap-rwlock-tokio-mutex-tokio"] {
            let mut tracker = Tracker::named(name);
            for (first, second) in [("192.0.2.1:9", "192.0.2.2:9"), ("[2001:db8::1]:9", "[2001:db8::2]:9")] {
                let (first, second) = (at(first), at(second));
                let id = tracker.connect(first);
                let (header, peers) = tracker.announce(first, AnnounceRequest { left: 0, ..request(id) });
                let nobody = AnnounceResponseHeader {
                    transaction_id: TRANSACTION,
                    interval: 1234,
                    leechers: 0,
                    seeders: 1,
                };
                assert_eq!(header.interval, nobody.interval);
                assert_eq!(header.transaction_id, nobody.transaction_id);
                assert_eq!(peers, [], "{name}");

                let id = tracker.connect(second);
                let (_, peers) = tracker.announce(second, AnnounceRequest { port: 7000, ..request(id) });
                assert_eq!(peers, [Endpoint::new(first.ip(), 6881).unwrap()], "{name}");
                let (header, _) = tracker.announce(
                    second,
                    AnnounceRequest { port: 7000, left: 0, event: AnnounceEvent::Completed, ..request(id) },
                );
                assert_eq!(header.leechers, 0);
            }
            let id = tracker.connect(at("192.0.2.3:9"));
            let hashes = [[0xbb; 20], [0xaa; 20]];
            let mut packet = [0; 56];
            ScrapeRequest::new(id, TRANSACTION, &hashes).write(&mut packet);
            let answer = tracker.send(&packet, at("192.0.2.3:9")).unwrap();
            let Ok(Response::Scrape(response)) = Response::parse(&answer, Family::V4) else { panic!() };
            let counts = ScrapeStats { seeders: 4, completed: 2, leechers: 0 };
            assert!(response.swarms().eq([ScrapeStats::default(), counts]), "{name}");
        }
    }

    #[test]
    fn a_peer_is_where_its_packet_came_from_whatever_it_claims() {
        let mut tracker = Tracker::named("packed");
        let id = tracker.connect(at("192.0.2.1:9"));
        tracker.announce(
            at("192.0.2.1:9"),
            AnnounceRequest { ip: Ipv4Addr::new(198, 51, 100, 1), ..request(id) },
        );
        let id = tracker.connect(at("192.0.2.2:9"));
        let (_, peers) = tracker.announce(at("192.0.2.2:9"), request(id));
        assert_eq!(peers, ["192.0.2.1:6881".parse().unwrap()]);
    }

    #[test]
    fn an_ipv4_mapped_source_is_an_ipv4_one() {
        let mut tracker = Tracker::named("packed");
        let id = tracker.connect(at("192.0.2.1:9"));
        tracker.announce(at("[::ffff:192.0.2.1]:9"), request(id));
        let id = tracker.connect(at("[::ffff:192.0.2.2]:9"));
        let (_, peers) = tracker.announce(at("[::ffff:192.0.2.2]:9"), request(id));
        assert_eq!(peers, ["192.0.2.1:6881".parse().unwrap()]);
    }

    #[test]
    fn a_client_gets_the_number_of_peers_it_wants_within_bounds() {
        let mut tracker = Tracker::named("packed");
        tracker
            .fill(300, |n| Ipv4Addr::new(10, 0, 0, 0).to_bits().wrapping_add(n.into()).to_be_bytes().into());
        let source = at("192.0.2.1:9");
        let id = tracker.connect(source);
        for (want, got) in [(None, 50), (Some(0), 0), (Some(1), 1), (Some(200), 200), (Some(201), 200)] {
            let (header, peers) = tracker.announce(source, AnnounceRequest { want, ..request(id) });
            assert_eq!((header.leechers, peers.len()), (301, got), "{want:?}");
        }
        let (_, peers) =
            tracker.announce(source, AnnounceRequest { event: AnnounceEvent::Stopped, ..request(id) });
        assert_eq!(peers, [], "who leaves needs nobody");
    }

    #[test]
    fn an_answer_over_ipv6_takes_1200_bytes_at_most() {
        let mut tracker = Tracker::named("packed");
        tracker.fill(100, |n| IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, n]));
        let source = at("[2001:db8:1::1]:9");
        let id = tracker.connect(source);
        let (_, peers) = tracker.announce(source, AnnounceRequest { want: Some(200), ..request(id) });
        assert_eq!(peers.len(), 65);
    }

    #[test]
    fn trailing_bytes_of_any_kind_are_no_error() {
        let mut tracker = Tracker::named("packed");
        let source = at("192.0.2.1:9");
        let id = tracker.connect(source);
        for trailing in [&b"\x02\x09/announce"[..], b"\x02\xff", &[0xff; 1900]] {
            tracker.announce(source, AnnounceRequest { trailing, ..request(id) });
        }
    }

    #[test]
    fn a_good_source_is_told_what_is_wrong() {
        let mut tracker = Tracker::named("packed");
        let source = at("192.0.2.1:9");
        let id = tracker.connect(source);
        let no_port = bytes_of(AnnounceRequest { port: 0, ..request(id) });
        assert_eq!(tracker.refusal(&no_port, source), "port 0 is not an endpoint anybody can connect to");
        let mut no_event = bytes_of(request(id));
        no_event[83] = 9;
        assert!(tracker.refusal(&no_event, source).starts_with("9 is not an announce event"));
        let (header, _) = tracker.announce(source, request(id));
        assert_eq!(header.leechers, 1, "none of them was counted");
    }

    #[test]
    fn who_shows_no_good_connection_id_gets_no_more_than_it_sent() {
        let mut tracker = Tracker::named("packed");
        let source = at("192.0.2.1:9");
        let (forged, stale) = (ConnectionId(0x1234_5678_9abc_def0), tracker.connect(source));
        tracker.now = NOW.saturating_add(130);
        let borrowed = tracker.connect(at("192.0.2.2:9"));
        for id in [forged, stale, borrowed] {
            let mut wrong_event = bytes_of(request(id));
            wrong_event[83] = 9;
            let mut scrape = vec![0; ScrapeRequest::LEAST];
            ScrapeRequest::new(id, TRANSACTION, &[[0xaa; 20]]).write(&mut scrape);
            let no_port = bytes_of(AnnounceRequest { port: 0, ..request(id) });
            for packet in [bytes_of(request(id)), no_port, wrong_event, scrape] {
                assert_eq!(tracker.refusal(&packet, source), "invalid connection id");
                assert!(tracker.send(&packet, source).unwrap().len() <= packet.len());
            }
        }
        let id = tracker.connect(source);
        assert_eq!(tracker.announce(source, request(id)).0.leechers, 1, "none of them was counted");
    }

    #[test]
    fn what_is_no_request_gets_no_answer() {
        let mut tracker = Tracker::named("packed");
        let source = at("192.0.2.1:9");
        let id = tracker.connect(source);
        let announce = bytes_of(request(id));
        for len in 0..announce.len() {
            assert_eq!(tracker.send(&announce[..len], source), None, "{len} bytes");
        }
        for action in [0, 3, 4, 0xff] {
            let mut packet = announce.clone();
            packet[11] = action;
            assert_eq!(tracker.send(&packet, source), None, "action {action}");
        }
        let mut scrape = announce;
        scrape[11] = 2;
        assert_eq!(tracker.send(&scrape[..35], source), None, "a scrape of nothing");
    }

    #[test]
    fn a_store_out_of_reach_is_an_error_for_the_client() {
        let mut tracker = Tracker::over(Repository::Async(Arc::new(OutOfReach)));
        let source = at("192.0.2.1:9");
        let id = tracker.connect(source);
        let text = "the tracker's store is not available; try again later";
        assert_eq!(tracker.refusal(&bytes_of(request(id)), source), text);
        let mut scrape = [0; 36];
        ScrapeRequest::new(id, TRANSACTION, &[[0xaa; 20]]).write(&mut scrape);
        assert_eq!(tracker.refusal(&scrape, source), text);
    }

    /// Never answers with anything but [`Unavailable`].
    #[derive(Debug)]
    struct OutOfReach;

    fn unavailable<'a, T: Send + 'a>() -> Answer<'a, T> {
        Box::pin(std::future::ready(Err(Unavailable::new("the cable is cut"))))
    }

    impl AsyncTorrentRepository for OutOfReach {
        fn announce<'a>(
            &'a self,
            _: &'a Announce,
            _: Timestamp,
            _: &'a mut dyn Random,
            _: &'a mut PeerBuffer<'_>,
        ) -> Answer<'a, Announced> {
            unavailable()
        }
        fn scrape<'a>(&'a self, _: &'a InfoHash) -> Answer<'a, SwarmStats> {
            unavailable()
        }
        fn totals(&self) -> Answer<'_, Totals> {
            unavailable()
        }
        fn walk<'a>(&'a self, _: Cursor, _: usize, _: &'a mut Vec<SwarmSummary>) -> Answer<'a, Cursor> {
            unavailable()
        }
        fn page<'a>(
            &'a self,
            _: Option<&'a InfoHash>,
            _: usize,
            _: &'a mut Vec<SwarmSummary>,
        ) -> Answer<'a, ()> {
            unavailable()
        }
        fn peers<'a>(
            &'a self,
            _: &'a InfoHash,
            _: Cursor,
            _: usize,
            _: &'a mut Vec<PeerRecord>,
        ) -> Answer<'a, Cursor> {
            unavailable()
        }
        fn sweep(&self, _: Timestamp, _: Retention, _: Budget) -> Answer<'_, Swept> {
            unavailable()
        }
        fn remove<'a>(&'a self, _: &'a InfoHash) -> Answer<'a, Option<SwarmStats>> {
            unavailable()
        }
        fn remove_where<'a>(
            &'a self,
            _: &'a (dyn Fn(&InfoHash) -> bool + Sync),
            _: Cursor,
            _: Budget,
        ) -> Answer<'a, Removed> {
            unavailable()
        }
        fn restore<'a>(
            &'a self,
            _: &'a SwarmSummary,
            _: &'a [PeerRecord],
            _: Timestamp,
        ) -> Answer<'a, Restored> {
            unavailable()
        }
        fn add_downloads<'a>(&'a self, _: &'a InfoHash, _: u32) -> Answer<'a, bool> {
            unavailable()
        }
        fn capabilities(&self) -> Capabilities {
            Capabilities::new(LongestHold::Visits(1))
        }
        fn memory(&self) -> Answer<'_, MemoryUse> {
            unavailable()
        }
    }
}
