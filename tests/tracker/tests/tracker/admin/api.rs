//! The answers of the API, and the rights that they need.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::Read,
    net::SocketAddr,
    time::{Instant, SystemTime},
};

use data_encoding::BASE32_NOPAD;
use serde_json::{Value, json};
use swarmkeep::{
    Announce,
    AnnounceEvent::{Completed, Started},
    HashKey, PeerBuffer, RepositoryConfig, SplitMix64, Timestamp, catalog,
};
use swarmkeep_kit::folder::{Refusal, Simulated};
use swarmkeep_store_tests::{until, with};
use swarmkeep_tracker::{AccessList, ListKind, PasskeyList, Server};
use swarmkeep_tracker_protocol::http::ScrapeResponse;

use swarmkeep_tests::{
    admin::{
        client::{Answer, ask, bearing, get, get_with},
        tracker::{ALL, AnnounceLoad, READ, Tracker, WRITE, config, hash, packed, state},
    },
    any_port,
    http::Client,
};

use crate::admin::out_of_reach;

fn api(tracker: &Tracker, path: &str) -> Value {
    let answer = get_with(tracker.admin, &format!("/api/v1/{path}"), ALL);
    assert_eq!(answer.status, 200, "{path}: {answer:?}");
    answer.json()
}

fn refusal(answer: &Answer, status: u16) -> String {
    assert_eq!(answer.status, status, "{answer:?}");
    assert_eq!(answer.header("content-type"), Some("application/problem+json"));
    let problem = answer.json();
    assert_eq!(problem["status"], status);
    problem["detail"].as_str().expect("the remedy").to_owned()
}

/// A tracker with `torrents` torrents, the nth of which has n % 5 + 1 peers.
fn with_torrents(torrents: u32) -> Tracker {
    let tracker = Tracker::over(packed());
    let announcer = tracker.announcer();
    for n in 0..torrents {
        for port in 0..=n % 5 {
            announcer.announce(
                hash(n),
                1000 + port as u16,
                u64::from(port > 0),
                if port == 0 { Completed } else { Started },
            );
        }
    }
    tracker
}

/// The items of all parts of a listing, by key, and the number of parts.
fn list(tracker: &Tracker, path: &str, items: &str, key: &str, next: &str) -> (Vec<String>, usize) {
    let (mut all, mut parts, mut more) = (Vec::new(), 0, String::new());
    loop {
        let part = api(tracker, &format!("{path}{more}"));
        parts += 1;
        all.extend(
            part[items]
                .as_array()
                .expect("a list")
                .iter()
                .map(|item| item[key].as_str().expect("text").to_owned()),
        );
        match part["next"].as_str() {
            Some(cursor) => more = format!("&{next}={cursor}"),
            None => return (all, parts),
        }
    }
}

#[test]
fn requests_for_names_that_are_not_the_trackers_are_refused() {
    let config = with(config(), |config| config.admin_hosts.push("tracker.example.com".into()));
    let tracker = Tracker::with(&config, packed());
    let status = |version: &str, host: &str| {
        let mut client = Client::of(tracker.admin);
        client.send(format!("GET /metrics HTTP/{version}\r\n{host}Connection: close\r\n\r\n").as_bytes());
        let answer = client.answer();
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
        answer.status
    };
    let known = ["127.0.0.1", "127.0.0.1:6970", "[::1]:6970", "192.0.2.1", "localhost", "LOCALHOST:6970"];
    for host in known.into_iter().chain(["tracker.example.com", "Tracker.Example.com.:443"]) {
        assert_eq!(status("1.1", &format!("Host: {host}\r\n")), 200, "{host}");
    }
    for host in ["rebound.example.net", "example.com", "127.0.0.1.example.net", "a@b", "a/b", ""] {
        assert_eq!(status("1.1", &format!("Host: {host}\r\n")), 421, "{host}");
    }
    assert_eq!(status("1.0", ""), 200, "no browser asks so");
}

#[test]
fn access_needs_a_token_that_has_the_scope() {
    let tracker = with_torrents(1);
    let torrent = format!("/api/v1/torrents/{}", hash(0));
    for path in ["/api/v1/stats", "/api/v1/scrape", &torrent, "/api/v1/nothing-there"] {
        let answer = get(tracker.admin, path);
        assert!(refusal(&answer, 401).contains("Authorization: Bearer"), "{path}");
        assert!(answer.header("www-authenticate").is_some_and(|value| value.starts_with("Bearer")), "{path}");
        let wrong = get_with(tracker.admin, path, "secret-for-everythinG");
        assert!(refusal(&wrong, 401).contains("this token is not known here: "), "{path}");
    }
    assert_eq!(get(tracker.admin, "/api/v1/openapi.json").status, 200, "without a token");
    let scopes = |secret| get_with(tracker.admin, "/api/v1/token", secret).json()["scopes"].clone();
    assert_eq!((scopes(ALL), scopes(READ)), (["read", "write", "peers", "members"].into(), ["read"].into()));
    let answer = get_with(tracker.admin, &format!("{torrent}/peers"), READ);
    assert!(refusal(&answer, 403).contains("scope `peers`"), "{answer:?}");

    let none = Tracker::with(&with(config(), |config| config.admin_tokens.clear()), packed());
    assert_eq!(get_with(none.admin, "/api/v1/stats", ALL).status, 401, "no tokens, no access");
}

#[test]
fn a_walk_shows_every_torrent_once() {
    let tracker = with_torrents(500);
    let expected: BTreeSet<_> = (0..500).map(|n| hash(n).to_string()).collect();
    let (all, parts) = list(&tracker, "torrents?limit=70", "torrents", "info_hash", "cursor");
    assert_eq!((all.len(), parts >= 8), (500, true), "{parts}");
    assert_eq!(all.into_iter().collect::<BTreeSet<_>>(), expected);
    let (sorted, _) = list(&tracker, "torrents?sort=info_hash&limit=70", "torrents", "info_hash", "after");
    assert_eq!(sorted, expected.into_iter().collect::<Vec<_>>());
    assert_eq!(api(&tracker, "torrents?sort=info_hash")["cost"], "whole_store");
}

#[test]
fn a_wrong_or_unknown_parameter_is_refused_with_the_allowed_ones() {
    let tracker = with_torrents(1);
    for (query, detail) in [
        ("torrents?limit=0", "from 1 to 1000"),
        ("torrents?limit=1001", "from 1 to 1000"),
        ("torrents?limit=-1", "limit: expected a number"),
        ("torrents?limit=x", "limit: expected a number"),
        ("torrents?limit=1&limit=2", "given twice: `limit`"),
        ("torrents?max=3", "unknown parameter `max`, expected one of `limit`, `cursor`, `sort`, `after`"),
        ("torrents?sort=size", "sort: unknown value `size`, expected `info_hash`"),
        ("torrents?sort=info_hash&after=00", "40 hexadecimal digits"),
        ("torrents?sort=info_hash&cursor=AAAA", "`after`"),
        ("torrents?cursor=AAAA", "begin again without"),
        ("torrents?after=00", "sort=info_hash"),
        ("torrents/00", "40 hexadecimal digits"),
        ("torrents/%FF", "40 hexadecimal digits"),
        ("busiest?limit=101", "from 1 to 100"),
        ("history?seconds=9", "from 10 to 21600"),
        ("history?minutes=9", "`seconds`"),
        ("stats?all=1", "no query parameters"),
    ] {
        let answer = get_with(tracker.admin, &format!("/api/v1/{query}"), ALL);
        let given = refusal(&answer, 400);
        assert!(given.contains(detail), "{query}: {given}");
    }
}

#[test]
fn a_torrent_is_found_by_either_way_of_writing_it_and_removed() {
    let tracker = with_torrents(3);
    let base32 = BASE32_NOPAD.encode(hash(2).as_bytes());
    for name in [hash(2).to_string(), hash(2).to_string().to_uppercase(), base32.to_lowercase(), base32] {
        let torrent = api(&tracker, &format!("torrents/{name}"));
        let counts =
            ["seeders", "leechers", "downloads"].map(|name| torrent[name].as_u64().expect("a number"));
        assert_eq!((&torrent["info_hash"], counts), (&hash(2).to_string().into(), [1, 2, 1]));
    }
    let path = format!("/api/v1/torrents/{}", hash(2));
    let removed = ask(tracker.admin, "DELETE", &path, &bearing(WRITE)).answer();
    assert_eq!((removed.status, &removed.json()["leechers"]), (200, &2.into()));
    refusal(&ask(tracker.admin, "DELETE", &path, &bearing(WRITE)).answer(), 404);
    refusal(&get_with(tracker.admin, &path, READ), 404);
}

#[test]
fn peers_are_listed_with_role_and_age_and_without_their_ids() {
    let tracker = Tracker::over(packed());
    let announcer = tracker.announcer();
    (1..=300).for_each(|port| announcer.announce(hash(0), port, u64::from(port % 3 > 0), Started));
    let path = format!("torrents/{}/peers?limit=64", hash(0));
    let (endpoints, parts) = list(&tracker, &path, "peers", "endpoint", "cursor");
    assert!(parts >= 5, "{parts}");
    let expected: BTreeSet<_> = (1..=300).map(|port| format!("127.0.0.1:{port}")).collect();
    assert_eq!((endpoints.len(), endpoints.into_iter().collect::<BTreeSet<_>>()), (300, expected));
    let answer = get_with(tracker.admin, &format!("/api/v1/torrents/{}/peers?limit=1000", hash(0)), ALL);
    assert!(!answer.text().contains("TR4060"));
    for peer in answer.json()["peers"].as_array().expect("a list") {
        let endpoint: SocketAddr = peer["endpoint"].as_str().expect("text").parse().expect("an endpoint");
        let port = endpoint.port();
        assert_eq!(peer["role"], if port.is_multiple_of(3) { "seeder" } else { "leecher" });
        assert!(peer["age_seconds"].as_u64().is_some_and(|age| age < 60), "{peer}");
        assert_eq!(peer.as_object().expect("a peer").len(), 3, "{peer}");
    }
}

#[test]
fn the_busiest_torrents_are_found_by_a_walk() {
    let tracker = with_torrents(100);
    let busiest = api(&tracker, "busiest?limit=30");
    let peers: Vec<_> = busiest["torrents"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|torrent| torrent["seeders"].as_u64().expect("one") + torrent["leechers"].as_u64().expect("one"))
        .collect();
    assert_eq!(peers, [[5; 20].as_slice(), &[4; 10]].concat());
    assert_eq!(busiest["seen"], 100);
    assert!(busiest["age_seconds"].as_f64().is_some());
    tracker.announcer().announce(hash(1000), 4000, 1, Started);
    until("walks go on while they are asked for", || api(&tracker, "busiest?limit=1")["seen"] == 101);
}

#[test]
fn statistics_follow_the_load_and_history_keeps_them() {
    // Over IPv6. The load of the next test is over IPv4.
    let tracker = Tracker::with(&with(config(), |config| config.udp = vec![any_port("::1")]), packed());
    let _load = AnnounceLoad::on(&tracker, 50);
    let asked = |of: &Value, what: &str| of[what].as_f64() > Some(0.0);
    until("a rate is shown", || asked(&api(&tracker, "stats")["udp"]["rates"], "announce"));
    until("it is kept", || asked(&api(&tracker, "history?seconds=60")["points"][0], "udp_requests"));
    let stats = api(&tracker, "stats");
    let latency =
        ["p50", "p90", "p99", "p999"].map(|share| stats["udp"]["latency"][share].as_f64().expect("a time"));
    assert!(latency.is_sorted() && latency[0] > 0.0, "{latency:?}");
    assert!(stats["http"].get("latency").is_none(), "nothing was asked over HTTP");
    assert_eq!((&stats["store"]["name"], &stats["store"]["reachable"]), (&"packed".into(), &true.into()));
    assert!(stats["process"]["resident_bytes"].as_u64() > Some(1 << 20));
    until("each torrent is announced", || api(&tracker, "totals")["torrents"] == 50);
}

#[test]
fn events_come_every_second_and_differ() {
    let (began, tracker) = (Instant::now(), Tracker::over(packed()));
    let _load = AnnounceLoad::on(&tracker, 50);
    let mut asked = ask(tracker.admin, "GET", "/api/v1/events", &bearing(READ));
    let (status, head) = asked.head();
    assert!(status == 200 && head.to_ascii_lowercase().contains("content-type: text/event-stream"), "{head}");
    let mut requests = vec![];
    until("the number has grown three times", || {
        let stats: Value = serde_json::from_str(&asked.event().expect("an event")).expect("JSON");
        requests.push(stats["udp"]["requests"]["announce"].as_u64().expect("a count"));
        requests.dedup();
        requests.len() == 4
    });
    assert!(requests.is_sorted(), "{requests:?}");
    assert!(began.elapsed().as_secs() >= 2, "{:?}", began.elapsed());
}

#[test]
fn a_full_scrape_is_everything_in_order_compressed_or_not() {
    let tracker = with_torrents(500);
    let plain = get_with(tracker.admin, "/api/v1/scrape", READ);
    let scraped = ScrapeResponse::parse(&plain.body).expect("bencoded").expect("no failure");
    let swarms: BTreeMap<_, _> = scraped.swarms().collect();
    assert!(scraped.swarms().map(|(info_hash, _)| info_hash).is_sorted());
    assert_eq!(swarms.len(), 500);
    for n in 0..500 {
        let stats = swarms[&hash(n)];
        assert_eq!([stats.seeders, stats.leechers, stats.completed], [1, n % 5, 1]);
    }
    let lines = bearing(READ) + "Accept-Encoding: br, gzip\r\n";
    let packed = ask(tracker.admin, "GET", "/api/v1/scrape", &lines).answer();
    assert_eq!(packed.header("content-encoding"), Some("gzip"));
    assert!(packed.body.len() < plain.body.len());
    let mut unpacked = Vec::new();
    flate2::read::GzDecoder::new(&*packed.body).read_to_end(&mut unpacked).expect("gzip to its end");
    assert!(unpacked == plain.body);
    let empty =
        get_with(Tracker::over(swarmkeep_tests::admin::tracker::packed()).admin, "/api/v1/scrape", READ);
    assert_eq!(empty.body, b"d5:filesdee");
}

#[test]
fn a_full_scrape_in_many_parts_has_every_torrent_once() {
    // One is read in pages of 4,096, the other sent in parts of 16,384.
    for (name, torrents) in [("btreemap-rwlock-std", 8192), ("packed", 20_000)] {
        let config = RepositoryConfig::new(HashKey::from_os().expect("entropy"));
        let repository = catalog::find(name).expect("in the catalog").build(&config).expect("no limits");
        let store = repository.as_sync().expect("it is synchronous");
        let seconds = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after it").as_secs();
        let (now, mut rng) = (Timestamp::from_secs(seconds), SplitMix64::new(1));
        for n in 0..torrents {
            let announce = Announce::new(hash(n), "192.0.2.1:6881".parse().expect("an endpoint"));
            store.announce(&announce, now, &mut rng, &mut PeerBuffer::new(&mut [], &mut []));
        }
        let tracker = Tracker::over(repository);
        let body = get_with(tracker.admin, "/api/v1/scrape", READ).body;
        let scraped = ScrapeResponse::parse(&body).expect("bencoded").expect("no failure");
        let found: Vec<_> = scraped.swarms().map(|(info_hash, _)| info_hash).collect();
        let expected: BTreeSet<_> = (0..torrents).map(hash).collect();
        assert!(found.iter().eq(&expected), "{name}: {} of {}", found.len(), expected.len());
    }
}

#[test]
fn the_list_of_torrents_is_edited_and_heeded_at_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("denied");
    std::fs::write(&path, format!("# by hand\n{}\n", hash(1))).expect("a file");
    let list = AccessList::load(ListKind::Deny, &path).expect("a list");
    let tracker = Tracker::with(&with(config(), |config| config.rules.access = Some(list)), packed());
    let announced = |n| {
        tracker.announcer().announce(hash(n), 1000, 0, Started);
        get_with(tracker.admin, &format!("/api/v1/torrents/{}", hash(n)), READ).status == 200
    };
    let edit = |method, n, secret| {
        ask(tracker.admin, method, &format!("/api/v1/access/{}", hash(n)), &bearing(secret)).answer()
    };
    assert_eq!(api(&tracker, "access"), serde_json::json!({ "kind": "deny", "entries": 1 }));
    assert_eq!([announced(1), announced(2)], [false, true]);
    refusal(&edit("PUT", 3, READ), 403);
    for _ in 0..2 {
        let entry = edit("PUT", 3, WRITE).json();
        assert_eq!((&entry["listed"], &entry["admitted"]), (&true.into(), &false.into()));
        assert!(!announced(3));
    }
    for _ in 0..2 {
        let entry = edit("DELETE", 1, WRITE).json();
        assert_eq!((&entry["listed"], &entry["admitted"]), (&false.into(), &true.into()));
        assert!(announced(1));
    }
    assert_eq!(std::fs::read_to_string(&path).expect("a file"), format!("# by hand\n{}\n", hash(3)));
    // All at once, and none is lost.
    std::thread::scope(|scope| {
        (10..30).for_each(|n| drop(scope.spawn(move || assert_eq!(edit("PUT", n, WRITE).status, 200))));
    });
    assert_eq!(api(&tracker, "access")["entries"], 21);
    let open = Tracker::over(packed());
    refusal(&ask(open.admin, "PUT", &format!("/api/v1/access/{}", hash(1)), &bearing(WRITE)).answer(), 409);
}

#[test]
fn passkeys_are_made_listed_dated_and_revoked_and_shown_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("passkeys");
    std::fs::write(&path, "# by hand\nalice-1234 # a comment\r\nbob-56789 name=bob\nbob-56789")
        .expect("ours");
    let list = PasskeyList::load(HashKey::from_bytes([1; 16]), &path).expect("a list");
    let config = with(config(), |config| {
        config.rules.passkeys = Some(list);
        config.http.push(any_port("127.0.0.1"));
    });
    let server = Server::bind(&config, packed()).expect("loopback");
    let admin = server.admin_address().expect("bound").expect("configured");
    let tracker = swarmkeep_tests::Tracker::of(server);
    let call = |method: &str, path: &str| {
        let answer = ask(admin, method, &format!("/api/v1/passkeys{path}"), &bearing(ALL)).answer();
        assert_eq!(answer.status, 200, "{method} {path}: {answer:?}");
        answer.json()
    };
    let admitted = |passkey: &str| {
        let query = "info_hash=aaaaaaaaaaaaaaaaaaaa&peer_id=-XX0000-abcdefghijkl&port=6881&left=1";
        let answer = get(tracker.http[0], &format!("/{passkey}/announce?{query}"));
        String::from_utf8_lossy(&answer.body).contains("8:complete")
    };
    refusal(&ask(admin, "GET", "/api/v1/passkeys", &bearing(READ)).answer(), 403);
    refusal(&ask(admin, "POST", "/api/v1/passkeys", &bearing(WRITE)).answer(), 403);
    for wrong in ["name=a%20b", "name=", "until=2027", "until=2027-02-30", "limit=1"] {
        let answer = ask(admin, "POST", &format!("/api/v1/passkeys?{wrong}"), &bearing(ALL)).answer();
        assert!(refusal(&answer, 400).contains(wrong.split('=').next().expect("a name")), "{answer:?}");
    }
    let answer = ask(admin, "GET", "/api/v1/passkeys?name=a+b", &bearing(ALL)).answer();
    assert!(refusal(&answer, 400).contains("`+` (%2B in a URL)"), "{answer:?}");

    let made: Vec<_> = (0..4).map(|_| call("POST", "?name=carol&until=2099-01-01")).collect();
    let text = |value: &Value| value.as_str().expect("text").to_owned();
    let [passkey, other] = [0, 1].map(|n| text(&made[n]["passkey"]));
    assert!(passkey.len() == 32 && passkey != other && admitted(&passkey), "{made:?}");
    let mut expected: Vec<_> = made.iter().map(|one| text(&one["fingerprint"])).collect();
    expected.sort();
    let (mut listed, mut after) = (Vec::new(), String::new());
    loop {
        let page = call("GET", &format!("?name=carol&limit=2{after}"));
        listed.extend(page["passkeys"].as_array().expect("a list").clone());
        let Some(next) = page["next"].as_str() else { break };
        after = format!("&after={next}");
    }
    assert_eq!(listed.iter().map(|one| text(&one["fingerprint"])).collect::<Vec<_>>(), expected);
    let until = "2099-01-01T00:00:00Z";
    let first = json!({ "fingerprint": expected[0], "name": "carol", "until": until, "expired": false });
    assert_eq!(listed[0], first);

    let place = format!("/{}", text(&made[0]["fingerprint"]));
    assert_eq!(call("PUT", &format!("{place}?until=2020-01-01"))["expired"], true);
    assert!(!admitted(&passkey) && admitted(&other));
    assert_eq!(call("PUT", &format!("{place}?name=dora"))["until"], "2020-01-01T00:00:00Z");
    assert_eq!(call("PUT", &format!("{place}?until="))["until"], Value::Null);
    assert!(admitted(&passkey) && admitted("alice-1234"));
    assert_eq!(call("DELETE", &place)["name"], "dora");
    refusal(&ask(admin, "DELETE", &format!("/api/v1/passkeys{place}"), &bearing(ALL)).answer(), 404);
    assert!(!admitted(&passkey));
    let all = call("GET", "");
    let alice = all["passkeys"].as_array().expect("a list").iter().find(|one| one["name"] == Value::Null);
    let alice = text(&alice.expect("without a name")["fingerprint"]);
    assert_eq!(alice, "75bc0ac56f0279b4");
    call("PUT", &format!("/{alice}?until=2099-01-01"));
    call("PUT", "/58c033a1d9ea30d9?until=2099-01-01");
    let file = std::fs::read_to_string(&path).expect("a file");
    let bob = format!("bob-56789 name=bob until={until}\n").repeat(2);
    let by_hand = format!("# by hand\nalice-1234 until={until} # a comment\r\n{bob}");
    let added = format!("\n{other} name=carol until={until}\n");
    assert!(file.starts_with(&by_hand) && file.contains(&added), "{file}");
    assert!(!all.to_string().contains(&other) && !file.contains(&passkey));
}

#[test]
fn health_says_whether_the_tracker_can_serve() {
    let good = Tracker::over(packed());
    let bad = Tracker::over(out_of_reach::repository());
    for (tracker, path, status, says) in [
        (&good, "/health/live", 200, "live"),
        (&good, "/health/ready", 200, "ready"),
        (&bad, "/health/live", 200, "live"),
        (&bad, "/health/ready", 503, "unavailable"),
    ] {
        let answer = get(tracker.admin, path);
        assert_eq!((answer.status, &answer.json()["status"]), (status, &says.into()), "{path}");
    }
}

#[test]
fn failed_snapshots_are_in_the_statistics_and_after_three_in_a_row_the_tracker_is_not_ready() {
    let disk = Simulated::new(1);
    let state = state(&disk);
    let tracker = Tracker::keeping(&state);
    let snapshots = || api(&tracker, "stats")["snapshots"].clone();
    let soon = |failed: u64| until("it is counted", || snapshots()["failed"] == failed);
    let ready = || get(tracker.admin, "/health/ready");
    soon(0);
    let first = snapshots()["latest"].as_u64().expect("it was taken");
    disk.refuse(0, usize::MAX, Refusal::Full);
    for failed in 1..=3 {
        assert_eq!(ready().status, 200, "{failed}");
        state.snapshot().expect_err("no room");
        soon(failed);
    }
    let full = "No space left on device";
    let expected = json!({ "taken": 1, "failed": 3, "failed_in_a_row": 3, "failure": full, "latest": first });
    assert_eq!(snapshots(), expected);
    let reason = format!("3 snapshots in a row have failed: {full}");
    assert_eq!((ready().status, ready().json()), (503, json!({ "status": "unkept", "reason": reason })));
    assert_eq!(get(tracker.admin, "/health/live").status, 200, "another start would lose all");

    disk.heal();
    state.snapshot().expect("room");
    until("it is ready again", || ready().status == 200);
    assert_eq!(snapshots()["failed_in_a_row"], 0);
    assert_eq!(snapshots().get("failure"), None);
}

#[test]
fn nothing_of_this_is_at_a_public_address() {
    let config = with(config(), |config| config.http.push(any_port("127.0.0.1")));
    let tracker = swarmkeep_tests::Tracker::over(&config, packed());
    for path in ["/", "/metrics", "/health/live", "/health/ready", "/api/v1/stats", "/api/v1/openapi.json"] {
        assert_eq!(get_with(tracker.http[0], path, ALL).status, 404, "{path}");
    }
}

#[test]
fn the_page_contains_everything_and_may_not_be_framed_or_kept() {
    let tracker = Tracker::over(packed());
    let [first, second] = [(); 2].map(|()| get(tracker.admin, "/"));
    let policy = first.header("content-security-policy").expect("a policy");
    for rule in [
        "default-src 'none'",
        "script-src 'nonce-",
        "connect-src 'self'",
        "frame-ancestors 'none'",
        "base-uri 'none'",
    ] {
        assert!(policy.contains(rule), "{policy}");
    }
    assert!(
        !policy.contains("unsafe") && policy != second.header("content-security-policy").expect("a policy")
    );
    let nonce = policy.split("'nonce-").nth(1).and_then(|rest| rest.split('\'').next()).expect("a nonce");
    let page = first.text();
    for element in ["<script", "<style"] {
        let all = page.matches(element).count();
        assert!(all > 0 && page.matches(&format!("{element} nonce=\"{nonce}\"")).count() == all, "{element}");
    }
    for foreign in ["http://", "https://", "//cdn", "@import", "url("] {
        assert!(!page.contains(foreign), "{foreign}");
    }
    for path in ["/", "/metrics", "/health/live", "/api/v1/stats", "/nothing"] {
        let answer = get(tracker.admin, path);
        for (name, value) in [
            ("x-content-type-options", "nosniff"),
            ("referrer-policy", "no-referrer"),
            ("cache-control", "no-store"),
        ] {
            assert_eq!(answer.header(name), Some(value), "{name} of {path}");
        }
        assert!(
            answer
                .header("content-security-policy")
                .is_some_and(|policy| policy.contains("frame-ancestors 'none'"))
        );
    }
}
