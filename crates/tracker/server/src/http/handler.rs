//! Answers over HTTP: from the path and the query of a request to the body of the answer, without a
//! connection. Only the dates of members follow a clock, the machine's.

use std::{
    net::IpAddr,
    sync::{Arc, Once},
};

use swarmkeep::{
    Announce, AnnounceEvent, Families, Family, PeerBuffer, Random, SwarmStats, SwarmSummary, Timestamp,
    bittorrent::query::parameters, catalog::Repository,
};
use swarmkeep_tracker_protocol::{
    Field, Software, TrackerUrl,
    http::{
        AnnounceHead, AnnounceRequest, AnnounceResponseWriter, Escaped, FailureResponse, ScrapeRequest,
        ScrapeResponseWriter,
    },
    udp::{Action, ScrapeStats},
};
use tracing::warn;

use crate::{
    Reach,
    metrics::{Counters, Kind, Reason},
    refusal::Refusal,
    rules::{LiveRules, Rules, WhenUnavailable},
    seldom::log_stranger,
    store,
};

/// Answers HTTP requests from a repository.
///
/// The answer to an announce (BEP 3) is compact (BEP 23) unless the client asks for the long form, which
/// contains no peer ids because stores need not keep them. The stored peer is at the client's own address,
/// with the port that the client gives; `ip` counts only with [`Rules::http_ip_parameter`]. An address of the
/// other family in `ipv4` or `ipv6` (BEP 7) is not stored, but a client that gives one gets peers of both
/// families. An address that other clients cannot reach counts as not given. `key` and `trackerid` have no
/// effect: a peer is identified by its endpoint. A paused client (BEP 21) counts as one that continues.
///
/// The answer to an announce contains the client's address (BEP 24). An error is in `failure reason`; if it
/// is the tracker's fault, the answer also says when to come back (BEP 31). A scrape (BEP 48) names at most
/// [`MOST_SCRAPED`](Self::MOST_SCRAPED) torrents; a scrape of all torrents is refused.
#[derive(Debug)]
pub struct HttpHandler {
    repository: Repository,
    rules: LiveRules,
    counters: Arc<Counters>,
}

/// A request and its client.
#[derive(Debug, Clone, Copy)]
pub struct HttpRequest<'a> {
    /// The path of the URL, such as `/announce`.
    pub path: &'a str,
    /// The query, after the `?`.
    pub query: &'a [u8],
    /// The address of the client. `None` if a trusted proxy does not name one; announces are then refused.
    pub client: Option<IpAddr>,
    /// The distance from which the listener can be reached.
    pub listener: Reach,
}

impl HttpHandler {
    /// The most torrents per scrape. Clients ask for 60 to 80 at once.
    pub const MOST_SCRAPED: usize = 100;

    /// A handler that answers from `repository` by `rules`.
    pub fn new(repository: Repository, rules: LiveRules) -> Self {
        Self { repository, rules, counters: Arc::default() }
    }

    pub(crate) const fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    pub(crate) const fn rules(&self) -> &LiveRules {
        &self.rules
    }

    /// Writes the answer to `request` to `out`, and overwrites its contents. Returns the position in `out`
    /// at which the body begins; `None` if there is nothing at the path of the request.
    ///
    /// With a synchronous repository the future is ready at its first poll.
    pub async fn answer(
        &self,
        request: HttpRequest<'_>,
        now: Timestamp,
        rng: &mut dyn Random,
        out: &mut Vec<u8>,
    ) -> Option<usize> {
        self.answer_by(&self.rules.now(), request, now, rng, out).await
    }

    /// As [`answer`](Self::answer), by these rules in all steps.
    pub(crate) async fn answer_by(
        &self,
        rules: &Rules,
        request: HttpRequest<'_>,
        now: Timestamp,
        rng: &mut dyn Random,
        out: &mut Vec<u8>,
    ) -> Option<usize> {
        out.clear();
        let Some((kind, passkey)) = route(rules, &request) else {
            self.counters.refused(Reason::NotFound, Software::of_query(request.query));
            return None;
        };
        if let Some(ip) = request.client {
            let family = if ip.to_canonical().is_ipv4() { Family::V4 } else { Family::V6 };
            self.counters.request(kind, family);
        }
        let hashes = |scrape: ScrapeRequest<'_>| scrape.info_hashes().take(Self::MOST_SCRAPED + 1).count();
        let scrape = (kind == Kind::Scrape).then(|| ScrapeRequest::parse(request.query).map_or(0, hashes));
        let is_in_time = |ip: IpAddr| rules.is_in_time(ip.to_canonical(), scrape.unwrap_or(0), now);
        let is_open = rules.rate.is_none() && rules.refused.is_none();
        let admitted = request.client.map_or(is_open.then_some(()).ok_or(Refusal::NoClient), is_in_time);
        let answered = match (admitted.and_then(|()| rules.member(passkey)), kind) {
            (Err(refusal), _) => Err(refusal),
            (Ok(_), Kind::Scrape) => self.scrape(request.query, out).await,
            (Ok(member), _) => self.announce(rules, (request, member), now, rng, out).await,
        };
        Some(answered.unwrap_or_else(|refusal| {
            static FIRST: Once = Once::new();
            if matches!(refusal, Refusal::NoClient) {
                let header = rules.http_proxy_header.name();
                FIRST.call_once(|| warn!("a proxy was refused, as no client was read from its {header}: let it set this header, or set http-proxy-header"));
            }
            log_stranger!(client = ?request.client, %refusal, "refused");
            let client = match refusal {
                Refusal::Unavailable => Software::Other,
                _ => Software::of_query(request.query),
            };
            self.counters.refused(refusal.reason(), client);
            out.clear();
            FailureResponse { reason: refusal.to_string().as_bytes(), retry_in: refusal.retry_in() }
                .write(out);
            0
        }))
    }

    /// Announces. The store writes the peers directly into the answer.
    async fn announce(
        &self,
        rules: &Rules,
        (HttpRequest { query, client, listener, .. }, member): (HttpRequest<'_>, Option<String>),
        now: Timestamp,
        rng: &mut dyn Random,
        out: &mut Vec<u8>,
    ) -> Result<usize, Refusal> {
        let request = AnnounceRequest::parse(query)?;
        let client = client.ok_or(Refusal::NoClient)?.to_canonical();
        let announce = announce_of(&request, rules, client, listener)?;
        self.counters.lenient(request.unread, request.peer_id);
        let is_given = |field: Field| parameters(query).any(|(name, _)| name == field.name().as_bytes());
        let is_unread = |field: Field| request.unread.iter().any(|unread| unread == field);
        rules.observe(member, &announce, |field| is_given(field) && !is_unread(field));
        let room = |family| if announce.families.contains(family) { announce.want } else { 0 };
        let (room_v4, room_v6) = (room(Families::V4), room(Families::V6));

        let mut writer = AnnounceResponseWriter::new(out, room_v4, room_v6);
        let (v4, v6) = writer.rooms();
        let mut peers = PeerBuffer::new(v4, v6);
        let answered = store::announce(&self.repository, &announce, now, rng, &mut peers).await;
        let (v4, v6) = (peers.v4.as_bytes().len(), peers.v6.as_bytes().len());
        let ((v4, v6), head) = match answered {
            Ok(answered) => {
                self.counters.changed(answered.changes);
                let SwarmStats { complete, incomplete, downloaded } = answered.stats;
                let interval = self.rules.interval(rules, rng);
                let downloaded = Some(downloaded);
                (
                    (v4, v6),
                    AnnounceHead { complete, incomplete, downloaded, interval, ..AnnounceHead::default() },
                )
            }
            Err(no_answer) => match rules.when_unavailable {
                WhenUnavailable::Error => return Err(no_answer.into()),
                WhenUnavailable::Empty => {
                    self.counters.refused(Reason::Unavailable, Software::Other);
                    let interval = self.rules.retry_interval(rules, rng);
                    ((0, 0), AnnounceHead { interval, ..AnnounceHead::default() })
                }
            },
        };
        let min_interval = rules.min_interval_secs.map(|min| min.min(head.interval));
        let head = AnnounceHead { min_interval, external_ip: Some(client), ..head };
        let body = if request.compact == Some(false) {
            writer.finish_long(&head, v4, v6)
        } else {
            writer.finish(&head, v4, announce.families.contains(Families::V6).then_some(v6))
        };
        let len = body.len();
        Ok(out.len() - len)
    }

    async fn scrape(&self, query: &[u8], out: &mut Vec<u8>) -> Result<usize, Refusal> {
        let request = ScrapeRequest::parse(query)?;
        let asked = |info_hash| SwarmSummary { info_hash, stats: SwarmStats::default() };
        // One more than the limit, to detect that there are too many.
        let mut swarms: Vec<_> = request.info_hashes().take(Self::MOST_SCRAPED + 1).map(asked).collect();
        if swarms.is_empty() {
            return Err(Refusal::FullScrape);
        }
        if swarms.len() > Self::MOST_SCRAPED {
            return Err(Refusal::TooManyTorrents(Self::MOST_SCRAPED));
        }
        // The keys of a dictionary are sorted.
        swarms.sort_unstable_by_key(|swarm| swarm.info_hash);
        swarms.dedup_by_key(|swarm| swarm.info_hash);
        store::scrape(&self.repository, &mut swarms).await?;
        let mut response = ScrapeResponseWriter::new(out);
        for SwarmSummary { info_hash, stats } in &swarms {
            let &SwarmStats { complete: seeders, incomplete: leechers, downloaded: completed } = stats;
            response.push(info_hash, ScrapeStats { seeders, completed, leechers });
        }
        response.finish(None);
        Ok(0)
    }
}

/// The kind of the request, and the passkey in its URL if the tracker is private.
fn route<'a>(rules: &Rules, request: &HttpRequest<'a>) -> Option<(Kind, Option<Escaped<'a>>)> {
    let path = request.path.as_bytes();
    let url = match rules.passkeys {
        Some(_) => TrackerUrl::new(path, request.query),
        None => TrackerUrl::without_passkey(path),
    };
    Some((if url.action? == Action::Scrape { Kind::Scrape } else { Kind::Announce }, url.passkey))
}

fn announce_of(
    request: &AnnounceRequest<'_>,
    rules: &Rules,
    client: IpAddr,
    listener: Reach,
) -> Result<Announce, Refusal> {
    rules.is_allowed(&request.info_hash)?;
    let is_reached = |ip| rules.local_peers.admits_claim(ip, client, listener);
    let named = request.ip.filter(|&ip| rules.http_ip_parameter && is_reached(ip));
    let endpoint = rules.endpoint(named.unwrap_or(client), request.port, listener)?;
    let mut families = Families::of(endpoint.family());
    // A private IPv4 address means IPv4 behind a router; an IPv6 address that is not public means no IPv6.
    let has_v4 = request.ipv4.is_some_and(|at| Reach::of_claim((*at.ip()).into()) >= Some(Reach::Private));
    let has_v6 =
        request.ipv6.is_some_and(|at| at.ip().to_canonical().is_ipv6() && is_reached((*at.ip()).into()));
    families.set(Families::V4, families.contains(Families::V4) || client.is_ipv4() || has_v4);
    families.set(Families::V6, families.contains(Families::V6) || client.is_ipv6() || has_v6);
    let want = match request.event {
        // No peer is selected, so no room is needed.
        AnnounceEvent::Stopped => 0,
        _ => rules.want(request.want),
    };
    let announce = Announce::new(request.info_hash, endpoint)
        .event(request.event)
        .transferred(request.downloaded, request.uploaded)
        .peer_id(request.peer_id)
        .want(want)
        .seeders_too(rules.may_have_a_link(request.event, request.downloaded))
        .families(families);
    // A client that does not know `left` does not have the whole torrent.
    Ok(announce.left(request.left.unwrap_or(u64::MAX)))
}

#[cfg(test)]
mod tests {
    use swarmkeep::{
        Announced, HashKey, Immediate, InfoHash, PeerId, RepositoryConfig, SplitMix64, TorrentRepository,
        catalog,
    };
    use swarmkeep_tracker_protocol::http::{AnnounceResponse, RetryIn, ScrapeResponse};

    use super::*;
    use crate::out_of_reach::out_of_reach;

    const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);
    const HASH: InfoHash = InfoHash::new([0xaa; 20]);
    const STORES: [&str; 2] = ["packed", "btreemap-rwlock-tokio-mutex-tokio"];

    struct HandlerTest {
        handler: HttpHandler,
        rng: SplitMix64,
        listener: Reach,
    }

    #[derive(Debug, PartialEq)]
    struct Answer {
        complete: u32,
        incomplete: u32,
        downloaded: Option<u32>,
        peers: Vec<String>,
    }

    impl HandlerTest {
        fn of(repository: Repository, rules: Rules) -> Self {
            let handler = HttpHandler::new(repository, LiveRules::new(rules));
            Self { handler, rng: SplitMix64::new(1), listener: Reach::Public }
        }

        fn named(name: &str) -> Self {
            Self::with(name, Rules { interval_secs: 1234, jitter_percent: 0, ..Rules::new() })
        }

        fn with(name: &str, rules: Rules) -> Self {
            let store = RepositoryConfig::new(HashKey::from_bytes([9; 16]));
            Self::of(catalog::find(name).expect("in the catalog").build(&store).unwrap(), rules)
        }

        #[tokio::main(flavor = "current_thread")]
        async fn get(&mut self, path: &str, query: &[u8], client: Option<IpAddr>) -> Option<Vec<u8>> {
            let mut out = b"earlier contents".to_vec();
            let request = HttpRequest { path, query, client, listener: self.listener };
            let start = self.handler.answer(request, NOW, &mut self.rng, &mut out).await?;
            Some(out.split_off(start))
        }

        fn body(&mut self, client: &str, request: &AnnounceRequest<'_>) -> Vec<u8> {
            let query = query(|out| request.write(out));
            self.get("/announce", query.as_bytes(), client.parse().ok()).expect("a path that is there")
        }

        fn announce(&mut self, client: &str, request: &AnnounceRequest<'_>) -> Answer {
            let body = self.body(client, request);
            let response = AnnounceResponse::parse(&body).unwrap().expect("no failure");
            let head = response.head;
            assert_eq!(head.external_ip.map(|ip| ip.to_string()).as_deref(), Some(client));
            let rest = (head.interval, head.min_interval, head.tracker_id, head.warning);
            assert_eq!(rest, (1234, None, None, None));
            let mut peers: Vec<_> = response.endpoints().map(|peer| peer.to_string()).collect();
            peers.sort();
            let AnnounceHead { complete, incomplete, downloaded, .. } = head;
            Answer { complete, incomplete, downloaded, peers }
        }

        fn peers(&mut self, client: &str, request: &AnnounceRequest<'_>) -> Vec<String> {
            self.announce(client, request).peers
        }

        fn failure(&mut self, path: &str, query: &str) -> (String, Option<RetryIn>) {
            let body =
                self.get(path, query.as_bytes(), "192.0.2.1".parse().ok()).expect("a path that is there");
            let FailureResponse { reason, retry_in } = AnnounceResponse::parse(&body).unwrap().unwrap_err();
            (String::from_utf8(reason.to_vec()).unwrap(), retry_in)
        }

        /// Lets `count` leechers announce.
        fn fill(&mut self, count: u16, client: impl Fn(u16) -> String) {
            (0..count).for_each(|n| drop(self.announce(&client(n), &at_port(10_000 + n))));
        }
    }

    fn query(write: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut query = Vec::new();
        write(&mut query);
        String::from_utf8(query).unwrap()
    }

    fn at_port(port: u16) -> AnnounceRequest<'static> {
        AnnounceRequest { left: Some(1), ..AnnounceRequest::new(HASH, PeerId::new([1; 20]), port) }
    }

    #[test]
    fn each_form_and_each_family_has_its_own_keys() {
        let mut tracker = HandlerTest::named("packed");
        let has = |body: &[u8], key: &[u8]| body.windows(key.len()).any(|found| found == key);
        let v4 = tracker.body("192.0.2.1", &at_port(1));
        assert!(has(&v4, b"5:peers0:") && !has(&v4, b"6:peers6"));
        let v6 = tracker.body("2001:db8::1", &at_port(1));
        assert!(has(&v6, b"5:peers0:6:peers60:"));
        let long = tracker.body("192.0.2.2", &AnnounceRequest { compact: Some(false), ..at_port(2) });
        assert!(has(&long, b"5:peersld2:ip9:192.0.2.14:porti1eee"), "without peer ids");
    }

    /// libtorrent and rTorrent 0.9 have named link-local and unique local addresses in `ipv6`.
    #[test]
    fn a_claimed_address_of_the_other_family_that_can_be_reached_brings_peers_of_both() {
        let (v4, v6, both) = ("198.51.100.1", "2001:db8:1::1", (25, 25));
        for name in STORES {
            let mut tracker = HandlerTest::named(name);
            tracker.fill(40, |n| format!("192.0.2.{}", n + 1));
            tracker.fill(40, |n| format!("2001:db8::{:x}", n + 1));
            for (listener, client, claims, expected) in [
                (Reach::Public, v4, &["2001:db8:1::9"][..], both),
                (Reach::Public, v6, &["198.51.100.9"], both),
                (Reach::Public, v4, &["198.51.100.9", "::ffff:198.51.100.9"], (40, 0)),
                (Reach::Public, v6, &["2001:db8:1::9"], (0, 40)),
                (Reach::Public, v4, &["fe80::1", "fd00::1", "::1", "::", "ff02::1"], (40, 0)),
                (Reach::Public, v6, &["127.0.0.1", "0.0.0.0", "169.254.1.1", "224.0.0.1"], (0, 40)),
                // IPv4 behind a router.
                (Reach::Public, v6, &["192.168.1.2", "100.64.1.2"], both),
                // A router or a proxy forwards from the internet.
                (Reach::Private, v4, &["2001:db8:1::9"], both),
                (Reach::Private, v4, &["fd00::1", "fe80::1", "::1"], (40, 0)),
                (Reach::Loopback, v4, &["fd00::1", "::1"], (40, 0)),
                (Reach::Private, "10.0.0.1", &["fd00::1", "2001:db8:1::9"], both),
                (Reach::Loopback, "127.0.0.1", &["::1"], both),
            ] {
                tracker.listener = listener;
                for (claim, compact) in claims.iter().flat_map(|claim| [(claim, None), (claim, Some(false))])
                {
                    let (ipv4, ipv6) =
                        (format!("{claim}:9").parse().ok(), format!("[{claim}]:9").parse().ok());
                    let ip = claim.parse().ok();
                    let claims = AnnounceRequest { ip, ipv4, ipv6, compact, ..at_port(1) };
                    let peers = tracker.peers(client, &claims);
                    let count_v6 = peers.iter().filter(|peer| peer.starts_with('[')).count();
                    let counts = (peers.len() - count_v6, count_v6);
                    assert_eq!(counts, expected, "{name} {listener:?} {client} {claim}");
                }
            }
            let answer = tracker.announce("198.51.100.1", &at_port(1));
            assert_eq!(answer.incomplete, 84, "{name}: claimed addresses are not stored");
        }
    }

    #[test]
    fn a_claimed_address_counts_where_it_is_configured() {
        let config =
            Rules { interval_secs: 1234, jitter_percent: 0, http_ip_parameter: true, ..Rules::new() };
        let mut tracker = HandlerTest::with("packed", config);
        tracker.announce("192.0.2.1", &AnnounceRequest { ip: "198.51.100.1".parse().ok(), ..at_port(1) });
        assert_eq!(tracker.peers("192.0.2.2", &at_port(2)), ["198.51.100.1:1"]);
        let v6 = AnnounceRequest { ip: "2001:db8::1".parse().ok(), ..at_port(1) };
        assert_eq!(tracker.peers("192.0.2.4", &v6).len(), 2, "of both families");
        assert_eq!(tracker.peers("2001:db8::9", &at_port(9)), ["[2001:db8::1]:1"]);
        let local = ["10.0.0.1", "127.0.0.1", "fe80::1", "fd00::1", "0.0.0.0", "::"];
        let listeners = [Reach::Public, Reach::Private, Reach::Loopback];
        let claims = listeners.into_iter().flat_map(|listener| local.map(|ip| (listener, ip)));
        for (port, (listener, ip)) in (10..).zip(claims) {
            tracker.listener = listener;
            tracker.announce("192.0.2.7", &AnnounceRequest { ip: ip.parse().ok(), ..at_port(port) });
            let peers = tracker.peers("192.0.2.2", &at_port(2));
            assert!(peers.contains(&format!("192.0.2.7:{port}")), "{listener:?} {ip}");
        }
        tracker.listener = Reach::Private;
        tracker.announce("10.0.0.1", &AnnounceRequest { ip: "10.0.0.2".parse().ok(), ..at_port(9) });
        assert!(tracker.peers("192.0.2.2", &at_port(2)).contains(&"10.0.0.2:9".into()));
    }

    #[test]
    fn a_client_gets_the_number_of_peers_it_wants_within_bounds() {
        for name in STORES {
            let mut tracker = HandlerTest::named(name);
            tracker.fill(300, |n| format!("203.0.{}.{}", n / 250, n % 250));
            for compact in [None, Some(true), Some(false)] {
                for (want, got) in [
                    (None, 50),
                    (Some(0), 0),
                    (Some(1), 1),
                    (Some(200), 200),
                    (Some(i32::MAX as u32), 200),
                    (Some(u32::MAX), 50),
                ] {
                    let peers = tracker.peers("192.0.2.1", &AnnounceRequest { want, compact, ..at_port(1) });
                    assert_eq!(peers.len(), got, "{name} {want:?} {compact:?}");
                }
            }
            let stopped = AnnounceRequest { event: AnnounceEvent::Stopped, want: Some(50), ..at_port(1) };
            assert_eq!(tracker.peers("192.0.2.1", &stopped), [""; 0], "a client that leaves needs no peers");
        }
    }

    #[test]
    fn a_client_with_nothing_left_is_a_seeder() {
        let mut tracker = HandlerTest::named("packed");
        let counts = |answer: Answer| (answer.complete, answer.incomplete, answer.downloaded.unwrap());
        let mut announce = |request: AnnounceRequest<'_>| counts(tracker.announce("192.0.2.1", &request));
        assert_eq!(announce(AnnounceRequest { left: None, ..at_port(1) }), (0, 1, 0));
        let completed = AnnounceRequest { event: AnnounceEvent::Completed, ..at_port(1) };
        assert_eq!(announce(AnnounceRequest { left: None, ..completed }), (0, 1, 0), "it does not say so");
        let paused = AnnounceRequest { paused: true, left: Some(7), ..at_port(1) };
        assert_eq!(announce(paused), (0, 1, 0), "a paused client is still there (BEP 21)");
        assert_eq!(announce(AnnounceRequest { left: Some(0), ..completed }), (1, 0, 1));
        assert_eq!(announce(AnnounceRequest { event: AnnounceEvent::Stopped, ..at_port(1) }), (0, 0, 1));
    }

    #[test]
    fn an_invalid_request_is_refused_with_its_fault_and_not_stored() {
        let mut tracker = HandlerTest::named("packed");
        let good = query(|out| at_port(1).write(out));
        for (query, reason) in [
            ("", "info_hash: is missing"),
            ("info_hash=short", "info_hash: expected 20 percent-encoded bytes"),
            (&*good.replace("&port=1&", "&"), "port: is missing"),
            (&*good.replace("&port=1&", "&port=0&"), "port 0 is not an endpoint that a peer can connect to"),
        ] {
            assert_eq!(tracker.failure("/announce", query), (reason.into(), None));
        }
        let body = tracker.get("/announce", good.as_bytes(), None).unwrap();
        let failure = AnnounceResponse::parse(&body).unwrap().unwrap_err();
        assert!(failure.reason.starts_with(b"the proxy in front of the tracker"));
        assert_eq!(tracker.announce("192.0.2.1", &at_port(1)).incomplete, 1, "none of them was counted");
    }

    #[test]
    fn a_scrape_is_about_the_torrents_it_names() {
        for name in STORES {
            let mut tracker = HandlerTest::named(name);
            tracker.announce("192.0.2.1", &AnnounceRequest { left: Some(0), ..at_port(1) });
            let unknown = [0xbb, 0x01].map(|byte| InfoHash::new([byte; 20]));
            let query = query(|out| ScrapeRequest::write([unknown[0], HASH, unknown[1], HASH], out));
            // A scrape needs no client address.
            let body = tracker.get("/scrape", query.as_bytes(), None).unwrap();
            let response = ScrapeResponse::parse(&body).unwrap().unwrap();
            let nobody = ScrapeStats::default();
            let seeded = ScrapeStats { seeders: 1, ..nobody };
            let expected = [(unknown[1], nobody), (HASH, seeded), (unknown[0], nobody)];
            assert!(response.swarms().eq(expected), "{name}: {response:?}");
        }
    }

    #[test]
    fn a_scrape_is_neither_about_all_torrents_nor_about_too_many() {
        let mut tracker = HandlerTest::named("packed");
        let about = |count: usize| {
            let hashes = (0..count).map(|n| InfoHash::new([n as u8; 20]));
            query(|out| ScrapeRequest::write(hashes, out))
        };
        let body = tracker.get("/scrape", about(100).as_bytes(), None).unwrap();
        assert_eq!(ScrapeResponse::parse(&body).unwrap().unwrap().swarms().count(), 100);
        for (query, reason) in [
            (&*about(0), "there is no scrape of all torrents: name those it is about"),
            (&*about(101), "too many torrents: a scrape is about 100 at most"),
            ("info_hash=short", "info_hash: expected 20 percent-encoded bytes"),
        ] {
            assert_eq!(tracker.failure("/scrape", query), (reason.into(), None));
        }
    }

    /// Replaces the rules of the tracker during each announce, as a reload may.
    #[derive(Debug)]
    struct Reloading {
        store: Arc<dyn TorrentRepository>,
        rules: LiveRules,
    }

    impl TorrentRepository for Reloading {
        fn announce(
            &self,
            announce: &Announce,
            now: Timestamp,
            rng: &mut dyn Random,
            peers: &mut PeerBuffer<'_>,
        ) -> Announced {
            let rules = Rules { interval_secs: 999, min_interval_secs: Some(998), ..Rules::new() };
            self.rules.replace(Rules { jitter_percent: 0, ..rules });
            self.store.announce(announce, now, rng, peers)
        }

        swarmkeep::implement::forward_repository! { |reloading| reloading.store, except announce }
    }

    #[test]
    fn a_request_is_judged_and_answered_by_one_set_of_rules() {
        let mut tracker = HandlerTest::named("packed");
        let store = tracker.handler.repository.as_sync().cloned().expect("packed is synchronous");
        let rules = tracker.handler.rules.clone();
        tracker.handler.repository = Repository::Sync(Immediate(Arc::new(Reloading { store, rules })));
        let mut intervals = || {
            let body = tracker.body("192.0.2.1", &at_port(1));
            let head = AnnounceResponse::parse(&body).unwrap().expect("no failure").head;
            (head.interval, head.min_interval)
        };
        assert_eq!(intervals(), (1234, None), "the rules that were in force when the request came");
        assert_eq!(intervals(), (999, Some(998)));
    }

    #[test]
    fn a_store_out_of_reach_is_a_reason_to_come_back() {
        let mut tracker = HandlerTest::of(out_of_reach(), Rules::new());
        let query = query(|out| at_port(1).write(out));
        let expected =
            ("the tracker's store is not available; try again later".into(), Some(RetryIn::Minutes(5)));
        assert_eq!(tracker.failure("/announce", &query), expected);
        assert_eq!(tracker.failure("/scrape", &query), expected);
    }

    #[test]
    fn a_store_out_of_reach_is_an_empty_answer_if_the_rules_say_so() {
        let rules = Rules {
            jitter_percent: 0,
            min_interval_secs: Some(100),
            when_unavailable: WhenUnavailable::Empty,
            retry_interval_secs: 45,
            ..Rules::new()
        };
        let mut tracker = HandlerTest::of(out_of_reach(), rules);
        for compact in [None, Some(true), Some(false)] {
            let body = tracker.body("192.0.2.1", &AnnounceRequest { compact, ..at_port(1) });
            let response = AnnounceResponse::parse(&body).unwrap().expect("no failure");
            let head = response.head;
            assert_eq!((head.complete, head.incomplete, head.downloaded), (0, 0, None));
            assert_eq!((head.interval, head.min_interval), (45, Some(45)), "no longer than the interval");
            assert_eq!(response.endpoints().count(), 0);
        }
        let query = query(|out| ScrapeRequest::write([HASH], out));
        let text = "the tracker's store is not available; try again later";
        assert_eq!(tracker.failure("/scrape", &query).0, text);
        let metrics = crate::metrics::Metrics::default();
        metrics.http(tracker.handler.counters());
        assert_eq!(metrics.counts().http.refused(Reason::Unavailable), 4);
    }
}
