//! Answers over UDP: from the bytes of requests to the bytes of answers, without a socket or a clock.

use std::{fmt::Write as _, sync::Arc};

use arrayvec::{ArrayString, ArrayVec};
use swarmkeep::{
    Announced, AsyncTorrentRepository, Random, SwarmStats, SwarmSummary, Timestamp, TorrentRepository,
};
use swarmkeep_tracker_protocol::{
    Software,
    udp::{
        AnnounceResponseHeader, ErrorResponse, MAX_SCRAPE, ScrapeResponse, ScrapeResponseWriter, ScrapeStats,
        TransactionId,
    },
};

use super::{
    AnswerBuffer, Batch, ConnectionIds, LONGEST_ANSWER_V6,
    batch::{Exchange, RequestState},
    packet::{BatchContext, PacketOutcome},
    waiting::{Announces, Scrape, Written, WrittenAnnounce, scrapes},
};
use crate::{
    Reach,
    metrics::{Counters, Reason},
    refusal::Refusal,
    rules::{LiveRules, Rules, WhenUnavailable},
    seldom::log_stranger,
    store::{self, NoAnswer},
};

const _: () = assert!(ScrapeResponse::MOST <= LONGEST_ANSWER_V6);

/// Answers batches of requests in two steps. [`admit`](Self::admit) answers requests that need no store;
/// [`finish`](Self::finish) answers the rest.
///
/// A source without a valid connection id gets no more bytes than it sent. A packet that is not a request of
/// BEP 15 (too short, or with an unknown action) gets no answer.
#[derive(Debug)]
pub struct Handler {
    connection_ids: Arc<ConnectionIds>,
    rules: LiveRules,
    counters: Arc<Counters>,
}

impl Handler {
    /// A handler that answers by `rules`.
    pub fn new(connection_ids: Arc<ConnectionIds>, rules: LiveRules) -> Self {
        Self { connection_ids, rules, counters: Arc::default() }
    }

    pub(crate) const fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// Reads all requests of `batch`, which a socket of this reach has received, and answers requests that
    /// need no store. Returns whether others wait for the store.
    pub fn admit(&self, batch: &mut Batch, listener: Reach, now: Timestamp) -> bool {
        batch.listener.reach = listener;
        self.admit_all(&mut batch.exchanges(), now)
    }

    pub(super) fn admit_all(&self, exchanges: &mut [Exchange<'_>], now: Timestamp) -> bool {
        let (ids, counters) = (self.connection_ids.at(now), &*self.counters);
        let context = BatchContext { ids, rules: &self.rules.now(), now, counters };
        let (mut wait, mut bytes) = (false, 0);
        for Exchange { source, listener, packet, answer, state, .. } in exchanges {
            bytes += packet.len() as u64;
            **state = match context.understand(packet, *source, listener.reach) {
                PacketOutcome::Connect(response) => {
                    let answer = answer.first_chunk_mut().expect("a connect response fits");
                    response.write(answer);
                    RequestState::Answered(answer.len())
                }
                PacketOutcome::Announce(transaction_id, announce) => {
                    RequestState::Announce(transaction_id, announce)
                }
                PacketOutcome::Scrape(transaction_id) => RequestState::Scrape(transaction_id),
                // An error is longer than a connect, whose source may be forged.
                PacketOutcome::Refused(_, refusal @ (Refusal::TooOften | Refusal::RefusedAddress)) => {
                    self.counters.refused(refusal.reason(), Software::of_packet(packet));
                    RequestState::Ignored
                }
                PacketOutcome::Refused(transaction_id, refusal) => {
                    log_stranger!(%source, %refusal, "refused");
                    self.refuse(refusal, Software::of_packet(packet), transaction_id, answer)
                }
                PacketOutcome::Nothing => {
                    self.counters.refused(Reason::Malformed, Software::of_packet(packet));
                    RequestState::Ignored
                }
            };
            wait |= state.waits();
        }
        self.counters.received(bytes);
        wait
    }

    /// Answers the requests that wait for a synchronous store: all announces in one batch, then the scrapes.
    pub fn finish(
        &self,
        store: &dyn TorrentRepository,
        batch: &mut Batch,
        now: Timestamp,
        rng: &mut dyn Random,
    ) {
        self.finish_all(store, &mut batch.exchanges(), now, rng);
    }

    pub(super) fn finish_all(
        &self,
        store: &dyn TorrentRepository,
        exchanges: &mut [Exchange<'_>],
        now: Timestamp,
        rng: &mut dyn Random,
    ) {
        self.announce(store, exchanges, now, rng);
        for Scrape { transaction_id, request, answer, state } in scrapes(exchanges) {
            let asked = |info_hash| SwarmSummary { info_hash, stats: SwarmStats::default() };
            let mut swarms: ArrayVec<_, MAX_SCRAPE> = request.info_hashes().map(asked).collect();
            store.scrape_batch(&mut swarms);
            let mut response = ScrapeResponseWriter::new(transaction_id, answer);
            swarms.iter().for_each(|swarm| response.push(counts(swarm.stats)));
            *state = RequestState::Answered(response.finish());
        }
    }

    fn announce(
        &self,
        store: &dyn TorrentRepository,
        exchanges: &mut [Exchange<'_>],
        now: Timestamp,
        rng: &mut dyn Random,
    ) {
        let mut announces = Announces::new();
        announces.collect(exchanges);
        if !announces.requests.is_empty() {
            store.announce_batch(&mut announces.requests, now, rng);
        }
        self.answer_announces(announces.written(), exchanges, rng);
    }

    /// Answers the announces from an asynchronous store.
    pub(super) async fn announce_async(
        &self,
        store: &dyn AsyncTorrentRepository,
        batch: &mut Batch,
        now: Timestamp,
        rng: &mut dyn Random,
    ) {
        let mut exchanges = batch.exchanges();
        let mut announces = Announces::new();
        announces.collect(&mut exchanges);
        if !announces.requests.is_empty() {
            // `answered` logs an error; `answer_announces` answers the announces that have no result.
            let _ = store::answered(store.announce_batch(&mut announces.requests, now, rng)).await;
        }
        self.answer_announces(announces.written(), &mut exchanges, rng);
    }

    /// Answers the scrapes from an asynchronous store.
    pub(super) async fn scrape_async(&self, store: &dyn AsyncTorrentRepository, batch: &mut Batch) {
        let mut lost = false;
        for Scrape { transaction_id, request, answer, state } in scrapes(&mut batch.exchanges()) {
            // After one scrape without an answer, the others do not wait for the store.
            let scraped = match lost {
                false => store::scrape_async(store, request.info_hashes()).await,
                true => Err(NoAnswer),
            };
            lost |= scraped.is_err();
            *state = match scraped {
                Ok(stats) => {
                    let mut response = ScrapeResponseWriter::new(transaction_id, answer);
                    stats.into_iter().for_each(|stats| response.push(counts(stats)));
                    RequestState::Answered(response.finish())
                }
                Err(no_answer) => self.refuse(no_answer.into(), Software::Other, transaction_id, answer),
            };
        }
    }

    /// Answers requests that wait for the store with the error that the tracker is overloaded; announces as
    /// [`Rules::when_unavailable`] says.
    pub(super) fn turn_all_away(&self, exchanges: &mut [Exchange<'_>], rng: &mut dyn Random) {
        let rules = self.rules.now();
        for Exchange { answer, state, .. } in exchanges {
            **state = match **state {
                RequestState::Announce(transaction_id, _) => {
                    self.answer_without_store(Refusal::Overloaded, transaction_id, &rules, rng, answer)
                }
                RequestState::Scrape(transaction_id) => {
                    self.refuse(Refusal::Overloaded, Software::Other, transaction_id, answer)
                }
                _ => continue,
            };
        }
    }

    /// Writes an error as the answer, without an allocation: floods provoke it.
    fn refuse(
        &self,
        refusal: Refusal,
        client: Software,
        transaction_id: TransactionId,
        out: &mut AnswerBuffer,
    ) -> RequestState {
        self.counters.refused(refusal.reason(), client);
        let mut text = ArrayString::<256>::new();
        // A long text is cut.
        let _ = write!(text, "{refusal}");
        RequestState::Answered(ErrorResponse { transaction_id, message: text.as_bytes() }.write(out))
    }

    /// Answers an announce that the store has not answered.
    fn answer_without_store(
        &self,
        refusal: Refusal,
        transaction_id: TransactionId,
        rules: &Rules,
        rng: &mut dyn Random,
        out: &mut AnswerBuffer,
    ) -> RequestState {
        match rules.when_unavailable {
            WhenUnavailable::Error => self.refuse(refusal, Software::Other, transaction_id, out),
            WhenUnavailable::Empty => {
                self.counters.refused(refusal.reason(), Software::Other);
                let header = out.first_chunk_mut().expect("an answer is longer than its header");
                let interval = self.rules.retry_interval(rules, rng);
                AnnounceResponseHeader { transaction_id, interval, leechers: 0, seeders: 0 }.write(header);
                RequestState::Answered(header.len())
            }
        }
    }

    /// Answers the announces that were passed to the store.
    fn answer_announces(&self, announces: Written, exchanges: &mut [Exchange<'_>], rng: &mut dyn Random) {
        let rules = self.rules.now();
        for WrittenAnnounce { place, transaction_id, answered } in announces {
            let Exchange { answer, state, .. } = &mut exchanges[place];
            **state = match answered {
                Some((Announced { stats, changes, .. }, peers)) => {
                    self.counters.changed(changes);
                    let SwarmStats { complete: seeders, incomplete: leechers, .. } = stats;
                    let header = answer.first_chunk_mut().expect("an answer is longer than its header");
                    let interval = self.rules.interval(&rules, rng);
                    AnnounceResponseHeader { transaction_id, interval, leechers, seeders }.write(header);
                    RequestState::Answered(header.len() + peers)
                }
                None => self.answer_without_store(Refusal::Unavailable, transaction_id, &rules, rng, answer),
            };
        }
    }
}

const fn counts(SwarmStats { complete, incomplete, downloaded, .. }: SwarmStats) -> ScrapeStats {
    ScrapeStats { seeders: complete, completed: downloaded, leechers: incomplete }
}

#[cfg(test)]
mod tests {
    use std::{
        net::{IpAddr, Ipv4Addr, SocketAddr},
        time::Instant,
    };

    use swarmkeep::{
        AnnounceEvent, Endpoint, Family, HashKey, Immediate, InfoHash, PeerId, RepositoryConfig, SplitMix64,
        catalog::{self, Repository},
    };
    use swarmkeep_conformance::Delayed;
    use swarmkeep_tracker_protocol::udp::{
        AnnounceRequest, AnnounceResponse, Client, ConnectRequest, ConnectionId, Response, ScrapeRequest,
    };

    use super::*;
    use crate::{
        ConnectionKey,
        metrics::{Kind, Metrics, ProtocolCounts},
        out_of_reach::{out_of_reach, packed},
        udp::LONGEST_ANSWER_V4,
    };

    const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);
    const TRANSACTION: TransactionId = TransactionId(0xdead_beef);
    const HASH: InfoHash = InfoHash::new([0xaa; 20]);

    fn rules() -> Rules {
        Rules { interval_secs: 1234, jitter_percent: 0, ..Rules::new() }
    }

    struct HandlerTest {
        handler: Handler,
        repository: Repository,
        now: Timestamp,
        rng: SplitMix64,
        batch: Batch,
    }

    impl HandlerTest {
        fn over(repository: Repository) -> Self {
            let rng = SplitMix64::new(1);
            let ids = Arc::new(ConnectionIds::new(ConnectionKey::new(b"of this test")));
            let handler = Handler::new(ids, LiveRules::new(rules()));
            Self { handler, repository, now: NOW, rng, batch: Batch::new() }
        }

        fn named(name: &str) -> Self {
            let config = RepositoryConfig::new(HashKey::from_bytes([9; 16]));
            Self::over(catalog::find(name).expect("in the catalog").build(&config).unwrap())
        }

        fn counts(&self) -> ProtocolCounts {
            let metrics = Metrics::default();
            metrics.udp(self.handler.counters());
            metrics.counts().udp
        }

        fn refused(&self, reason: Reason) -> u64 {
            self.counts().refused(reason)
        }

        fn send(&mut self, packet: &[u8], source: SocketAddr) -> Option<Vec<u8>> {
            self.send_all(&[(packet, source)]).pop().map(|(answer, _)| answer)
        }

        /// The answers to the packets of one batch. Checks the length of each.
        #[tokio::main(flavor = "current_thread")]
        async fn send_all(&mut self, packets: &[(&[u8], SocketAddr)]) -> Vec<(Vec<u8>, SocketAddr)> {
            let Self { handler, repository, now, rng, batch } = self;
            batch.clear();
            packets.iter().for_each(|&(packet, source)| batch.push(packet, source));
            if handler.admit(batch, Reach::Private, *now) {
                match repository {
                    Repository::Sync(Immediate(store)) => handler.finish(&**store, batch, *now, rng),
                    Repository::Async(store) => {
                        handler.announce_async(&**store, batch, *now, rng).await;
                        handler.scrape_async(&**store, batch).await;
                    }
                }
            }
            let answers: Vec<_> = batch.answers().map(|(answer, source)| (answer.to_vec(), source)).collect();
            for (answer, source) in &answers {
                assert!(answer.len() <= if source.is_ipv4() { LONGEST_ANSWER_V4 } else { LONGEST_ANSWER_V6 });
            }
            answers
        }

        fn connect(&mut self, source: SocketAddr) -> ConnectionId {
            let packet = ConnectRequest { transaction_id: TRANSACTION }.to_bytes();
            let answer = self.send(&packet, source).expect("an answer");
            assert_eq!(answer.len(), packet.len());
            let (mut client, now) = (Client::new(Family::V4), Instant::now());
            client.answer(&packet, &answer, now).expect("a response");
            client.connection_id(now).expect("that response")
        }

        fn announce(
            &mut self,
            source: SocketAddr,
            request: AnnounceRequest<'_>,
        ) -> (AnnounceResponseHeader, Vec<Endpoint>) {
            let answer = self.send(&request.to_vec(), source).expect("an answer");
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

        /// Announces `count` leechers; number n is at the address `source(n)`.
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
            transaction_id: TRANSACTION,
            left: 1,
            event: AnnounceEvent::Started,
            ..AnnounceRequest::new(connection_id, HASH, PeerId::new([1; 20]), 6881)
        }
    }

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn peers_find_each_other_over_a_store_of_either_kind() {
        for name in ["packed", "btreemap-rwlock-tokio-mutex-tokio"] {
            let mut tracker = HandlerTest::named(name);
            for (first, second) in [("192.0.2.1:9", "192.0.2.2:9"), ("[2001:db8::1]:9", "[2001:db8::2]:9")] {
                let (first, second) = (at(first), at(second));
                let id = tracker.connect(first);
                let (header, peers) = tracker.announce(first, AnnounceRequest { left: 0, ..request(id) });
                assert_eq!((header.transaction_id, header.interval), (TRANSACTION, 1234));
                assert_eq!(peers, [], "{name}");
                let leecher = AnnounceRequest { port: 7000, ..request(tracker.connect(second)) };
                let (header, peers) = tracker.announce(second, leecher);
                assert_eq!((header.leechers, peers), (1, vec![Endpoint::new(first.ip(), 6881).unwrap()]));
                let event = AnnounceEvent::Completed;
                tracker.announce(second, AnnounceRequest { left: 0, event, ..leecher });
            }
            let source = at("192.0.2.3:9");
            let scrape = ScrapeRequest::new(tracker.connect(source), TRANSACTION, &[[0xbb; 20], [0xaa; 20]]);
            let answer = tracker.send(&scrape.to_vec(), source).unwrap();
            let Ok(Response::Scrape(response)) = Response::parse(&answer, Family::V4) else { panic!() };
            let counts = ScrapeStats { seeders: 4, completed: 2, leechers: 0 };
            assert!(response.swarms().eq([ScrapeStats::default(), counts]), "{name}");
        }
    }

    #[test]
    fn a_peer_is_at_the_source_of_its_packet_whatever_it_claims() {
        let mut tracker = HandlerTest::named("packed");
        let id = tracker.connect(at("192.0.2.1:9"));
        let claims = AnnounceRequest { ip: Ipv4Addr::new(198, 51, 100, 1), ..request(id) };
        // An IPv4-mapped source is an IPv4 one.
        tracker.announce(at("[::ffff:192.0.2.1]:9"), claims);
        let id = tracker.connect(at("[::ffff:192.0.2.2]:9"));
        let (_, peers) = tracker.announce(at("[::ffff:192.0.2.2]:9"), request(id));
        assert_eq!(peers, ["192.0.2.1:6881".parse().unwrap()]);
        assert_eq!(tracker.counts().requests(Kind::Announce, Family::V4), 2);
    }

    #[test]
    fn a_client_gets_the_number_of_peers_it_wants_within_bounds() {
        let mut tracker = HandlerTest::named("packed");
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
        assert_eq!(peers, [], "a client that leaves needs no peers");
        // An answer over IPv6 takes 1,200 bytes at most.
        tracker.fill(100, |n| IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, n]));
        let source = at("[2001:db8:1::1]:9");
        let id = tracker.connect(source);
        let (_, peers) = tracker.announce(source, AnnounceRequest { want: Some(200), ..request(id) });
        assert_eq!(peers.len(), 65);
    }

    #[test]
    fn a_client_without_a_valid_connection_id_gets_no_more_than_it_sent() {
        let mut tracker = HandlerTest::named("packed");
        let source = at("192.0.2.1:9");
        let (forged, stale) = (ConnectionId(0x1234_5678_9abc_def0), tracker.connect(source));
        tracker.now = NOW.saturating_add(130);
        let borrowed = tracker.connect(at("192.0.2.2:9"));
        for id in [forged, stale, borrowed] {
            let scrape = ScrapeRequest::new(id, TRANSACTION, &[[0xaa; 20]]).to_vec();
            let no_port = AnnounceRequest { port: 0, ..request(id) }.to_vec();
            for packet in [request(id).to_vec(), no_port, scrape] {
                assert_eq!(tracker.refusal(&packet, source), "invalid connection id");
                assert!(tracker.send(&packet, source).unwrap().len() <= packet.len());
            }
        }
        assert_eq!(tracker.refused(Reason::NotConnected), 3 * 3 * 2);
        let id = tracker.connect(source);
        assert_eq!(tracker.announce(source, request(id)).0.leechers, 1, "none of them was counted");
    }

    #[test]
    fn other_packets_get_no_answer() {
        let mut tracker = HandlerTest::named("packed");
        let source = at("192.0.2.1:9");
        let id = tracker.connect(source);
        let announce = request(id).to_vec();
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
    fn a_store_out_of_reach_or_overloaded_is_an_error_for_the_client() {
        let mut tracker = HandlerTest::over(out_of_reach());
        let source = at("192.0.2.1:9");
        let id = tracker.connect(source);
        let text = "the tracker's store is not available; try again later";
        assert_eq!(tracker.refusal(&request(id).to_vec(), source), text);
        let scrape = ScrapeRequest::new(id, TRANSACTION, &[[0xaa; 20]]).to_vec();
        assert_eq!(tracker.refusal(&scrape, source), text);

        tracker.batch.clear();
        [request(id).to_vec(), scrape].iter().for_each(|packet| tracker.batch.push(packet, source));
        assert!(tracker.handler.admit(&mut tracker.batch, Reach::Public, NOW));
        tracker.handler.turn_all_away(&mut tracker.batch.exchanges(), &mut tracker.rng);
        let is_refused =
            |(answer, _): (&[u8], _)| answer.ends_with(b"the tracker is overloaded; try again later");
        assert_eq!(tracker.batch.answers().filter(|&answer| is_refused(answer)).count(), 2);
        assert_eq!(tracker.refused(Reason::Overloaded), 2);
    }

    #[test]
    fn a_store_out_of_reach_is_an_empty_answer_if_the_rules_say_so() {
        let mut tracker = HandlerTest::over(out_of_reach());
        let empty = Rules { when_unavailable: WhenUnavailable::Empty, retry_interval_secs: 45, ..rules() };
        tracker.handler.rules.replace(empty);
        for source in [at("192.0.2.1:9"), at("[2001:db8::1]:9")] {
            let id = tracker.connect(source);
            let empty =
                AnnounceResponseHeader { transaction_id: TRANSACTION, interval: 45, leechers: 0, seeders: 0 };
            assert_eq!(tracker.announce(source, request(id)), (empty, vec![]));
            let mut scrape = [0; 36];
            ScrapeRequest::new(id, TRANSACTION, &[[0xaa; 20]]).write(&mut scrape);
            let text = "the tracker's store is not available; try again later";
            assert_eq!(tracker.refusal(&scrape, source), text, "no counts are better than wrong ones");
        }
        assert_eq!(tracker.refused(Reason::Unavailable), 4);

        let source = at("192.0.2.1:9");
        let id = tracker.connect(source);
        tracker.batch.clear();
        tracker.batch.push(&request(id).to_vec(), source);
        assert!(tracker.handler.admit(&mut tracker.batch, Reach::Public, NOW));
        tracker.handler.turn_all_away(&mut tracker.batch.exchanges(), &mut tracker.rng);
        // The interval of 45 s, no leechers, no seeders, and no peers.
        let empty = |(answer, _): (&[u8], _)| answer[8..] == [0, 0, 0, 45, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(tracker.batch.answers().filter(|&answer| empty(answer)).count(), 1);
        assert_eq!(tracker.refused(Reason::Overloaded), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn scrapes_wait_together_for_a_store_that_never_answers() {
        let mut rng = SplitMix64::new(1);
        let ids = Arc::new(ConnectionIds::new(ConnectionKey::new(b"of this test")));
        let handler = Handler::new(Arc::clone(&ids), LiveRules::new(rules()));
        let source = at("192.0.2.1:9");
        let id = ids.at(NOW).issue(source.ip());
        let scrape = ScrapeRequest::new(id, TRANSACTION, &[[0xaa; 20]]).to_vec();
        let mut batch = Batch::new();
        (0..Batch::MOST).for_each(|_| batch.push(&scrape, source));
        assert!(handler.admit(&mut batch, Reach::Private, NOW));
        let start = tokio::time::Instant::now();
        let silent = Delayed::new(packed(), |_| Box::pin(std::future::pending()));
        handler.announce_async(&silent, &mut batch, NOW, &mut rng).await;
        handler.scrape_async(&silent, &mut batch).await;
        assert!(start.elapsed().as_secs() < 10, "{:?}", start.elapsed());
        assert_eq!(batch.answers().count(), Batch::MOST);
    }

    #[test]
    fn a_batch_of_everything_is_answered_as_one_by_one() {
        for name in ["packed", "btreemap-rwlock-tokio-mutex-tokio"] {
            let (mut together, mut alone) = (HandlerTest::named(name), HandlerTest::named(name));
            let sources: Vec<_> = (1..=Batch::MOST as u8).map(|n| at(&format!("192.0.2.{n}:9"))).collect();
            let packets: Vec<_> = (sources.iter().enumerate())
                .map(|(n, &source)| {
                    let id = together.connect(source);
                    assert_eq!(alone.connect(source), id);
                    let mut packet = AnnounceRequest { port: 1000 + n as u16, ..request(id) }.to_vec();
                    match n % 8 {
                        3 => packet.truncate(50),
                        4 => packet[0] ^= 1,
                        5 => packet[97] = 0,
                        6 => packet[..16]
                            .copy_from_slice(&ConnectRequest { transaction_id: TRANSACTION }.to_bytes()),
                        7 => {
                            packet.truncate(36);
                            ScrapeRequest::new(id, TRANSACTION, &[[0xbb; 20]]).write(&mut packet);
                        }
                        _ => {}
                    }
                    (packet, source)
                })
                .collect();
            let packets: Vec<_> = packets.iter().map(|(packet, source)| (&packet[..], *source)).collect();
            let one_by_one: Vec<_> = (packets.iter())
                .filter_map(|&(packet, source)| Some((alone.send(packet, source)?, source)))
                .collect();
            assert_eq!(one_by_one.len(), 28, "all but those cut short are answered");
            assert_eq!(together.send_all(&packets), one_by_one, "{name}");
        }
    }
}
