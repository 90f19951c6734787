//! The rules of access: lists of torrents and passkeys that change while the tracker runs, rates, and peers
//! at local addresses.

use std::{
    convert::Infallible,
    fs,
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
    time::{Duration, Instant},
};

use swarmkeep::{AnnounceEvent, Family, HashKey, InfoHash};
use swarmkeep_store_tests::{A_MINUTE, until, with};
use swarmkeep_tests::{
    Folder, Tracker,
    admin::client::get,
    any_port, build, http, listening, runtime,
    udp::{self, Client, announce, error_in},
};
use swarmkeep_tracker::{
    AccessList, Counts, ListKind, LiveRules, LocalPeers, NetworkList, PasskeyList, ProtocolCounts,
    ProxyHeader, RateLimiter, Reason, Rules, access::AccessError,
};
use swarmkeep_tracker_protocol::{
    Field, Software,
    udp::{AnnounceRequest, ConnectRequest, ConnectionId, Response, ScrapeRequest, TransactionId},
};

const KEY: HashKey = HashKey::from_bytes([3; 16]);
const LISTED: InfoHash = InfoHash::new([1; 20]);
const OTHER: InfoHash = InfoHash::new([2; 20]);

#[test]
fn a_list_of_torrents_is_accepted_while_the_tracker_runs_and_forbidden_torrents_go() {
    let folder = Folder::empty();
    let list = folder.write("list", &format!("{LISTED}\n"));
    let tracker = over(with_list(AccessList::load(ListKind::Allow, &list).expect("a good list")));
    let (mut client, id) = Client::of(tracker.udp[0]).connected();
    let of = |info_hash| AnnounceRequest { info_hash, ..announce(id) };
    assert_eq!(client.announce(of(LISTED)).0.leechers, 1);
    client.refusal(of(OTHER));
    refusal_over_http(&tracker, "", OTHER);
    assert_eq!(swarms(&tracker), 1);

    // A program that writes lists renames a new file over the old one.
    fs::rename(folder.write("new", &format!("# the other one\n{OTHER}\n")), &list).expect("a rename");
    until("the new list is in use and the old swarm gone", || swarms(&tracker) == 0);
    assert_eq!(client.announce(of(OTHER)).0.leechers, 1);
    client.refusal(of(LISTED));

    folder.write("list", "no info hash\n");
    runtime().block_on(tracker.control.load_again(|rules| &mut rules.access)).expect_err("an invalid list");
    assert_eq!(client.announce(of(OTHER)).0.leechers, 1, "the list is as it was");

    folder.write("list", &format!("{LISTED}\n"));
    until("a restored list is in use", || swarms(&tracker) == 0);
    assert_eq!(client.announce(of(LISTED)).0.leechers, 1);
}

#[test]
fn announces_are_answered_while_a_list_of_a_million_torrents_is_read() {
    let folder = Folder::empty();
    let listed = |n: u32| {
        InfoHash::new(std::array::from_fn(|place| {
            (n.wrapping_mul(0x9e37_79b9) >> (place % 4 * 8)) as u8 ^ place as u8
        }))
    };
    let text = |from: u32| (from..from + 1_000_000).map(|n| format!("{}\n", listed(n))).collect::<String>();
    let list = folder.write("list", &text(0));
    let began = Instant::now();
    let loaded = AccessList::load(ListKind::Allow, &list).expect("a good list");
    let reading = began.elapsed();
    let tracker = over(with_list(loaded));
    fs::rename(folder.write("new", &text(500_000)), &list).expect("a rename");
    let (mut client, id) = Client::of(tracker.udp[0]).connected();
    let (mut slowest, began) = (Duration::ZERO, Instant::now());
    loop {
        let asked = Instant::now();
        let answer = client.try_announce(AnnounceRequest { info_hash: listed(1_400_000), ..announce(id) });
        slowest = slowest.max(asked.elapsed());
        if answer.is_ok() {
            break;
        }
        assert!(began.elapsed() < A_MINUTE, "the new list is not in use");
    }
    // Another list is read and sorted in this time.
    let reading = reading.max(began.elapsed() / 2);
    assert!(slowest < reading / 4, "{slowest:?}, where reading takes {reading:?}");
    let refusal = client.refusal(AnnounceRequest { info_hash: listed(1), ..announce(id) });
    assert_eq!(refusal, "this tracker does not serve this torrent");
}

#[test]
fn a_list_that_was_replaced_is_not_kept() {
    let folder = Folder::empty();
    let list = folder.write("list", &format!("{LISTED}\n"));
    let loaded = AccessList::load(ListKind::Deny, &list).expect("a good list");
    let old = Arc::downgrade(loaded.list());
    let tracker = over(Rules::new());
    let mut client = Client::of(tracker.udp[0]);
    let id = client.connect();
    client.announce(AnnounceRequest { info_hash: LISTED, ..announce(id) });
    tracker.control.rules.replace(with_list(loaded));
    until("the removal of its torrents has begun", || swarms(&tracker) == 0);
    folder.write("list", &format!("{OTHER}\n"));
    until("the old list is gone", || old.upgrade().is_none());
    let rules = &tracker.control.rules;
    let in_force = list_of(rules);
    rules
        .renew(|rules| {
            let again = AccessList::load_after(rules.access.as_ref(), ListKind::Deny, &list)?;
            Ok::<_, AccessError>(with_list(again))
        })
        .expect("a good list");
    let still = list_of(rules);
    assert!(Arc::ptr_eq(in_force.list(), still.list()), "a file that has not changed is not read again");
}

fn list_of(rules: &LiveRules) -> AccessList {
    let mut list = None;
    let Ok(()) = rules.renew(|rules| {
        list.clone_from(&rules.access);
        Ok::<_, Infallible>(rules.clone())
    });
    list.expect("there is one")
}

#[test]
fn members_of_a_private_tracker_announce_with_their_passkeys() {
    let folder = Folder::empty();
    let dates = "carol-345 name=carol until=2020-01-01\ndave-6789 until=9999-12-31T23:59:59Z\n";
    let list = folder.write("passkeys", &format!("alice-1234\nbob-56789 # since May\n{dates}"));
    let passkeys = PasskeyList::load(KEY, &list).expect("a good list");
    let tracker = over(with(Rules::new(), |rules| rules.passkeys = Some(passkeys)));
    let (mut client, id) = Client::of(tracker.udp[0]).connected();
    // BEP 41: options may contain the URL in pieces, and other options may come between.
    for good in [
        &b"\x01\x02\x05/bob-\x01\x02\x0e56789/announce\x00"[..],
        b"\x09\x02ab\x02\x16/%61lice-1234/announce",
        b"\x02\x13/dave-6789/announce",
    ] {
        client.announce(AnnounceRequest { trailing: good, ..announce(id) });
    }
    let (none, wrong, expired) = (
        "this tracker is private: announce to the address with your passkey that its site gives you",
        "this passkey is not known here: get the tracker's address from its site again",
        "this passkey has expired: renew it at the tracker's site",
    );
    for (trailing, expected) in [
        (&b""[..], none),
        (b"\x02\x14/ALICE-1234/announce", wrong),
        (b"\x02\x13/carol-345/announce", expired),
        (&[b"\x02\xff/".as_slice(), &[b'a'; 254], b"\x02\x09/announce"].concat(), wrong),
    ] {
        assert_eq!(client.refusal(AnnounceRequest { trailing, ..announce(id) }), expected, "{trailing:?}");
    }
    client.send(&ScrapeRequest::new(id, TransactionId(0), &[[0; 20]]).to_vec());
    assert_eq!(error_in(&client.receive()), none, "a scrape over UDP has no room for a passkey");

    assert_eq!(refusal_over_http(&tracker, "/ALICE-1234", LISTED), wrong);
    assert_eq!(refusal_over_http(&tracker, "/carol-345", LISTED), expired);
    assert_eq!(refusal_over_http(&tracker, "", LISTED), none);
    assert_eq!(get(tracker.http[0], "/alice-1234/stats").status, 404);

    folder.write("passkeys", "bob-56789\n");
    let alice = b"\x02\x14/alice-1234/announce";
    until("a passkey is taken away", || {
        client.try_announce(AnnounceRequest { trailing: alice, ..announce(id) }).is_err()
    });
    let counts = tracker.control.metrics.counts();
    assert!(counts.udp.refused(Reason::NoPasskey) >= 6 && counts.http.refused(Reason::NoPasskey) == 3);
}

/// A scrape over UDP has no URL: it is refused.
#[test]
fn each_form_of_a_members_url_is_read_over_both_protocols() {
    let folder = Folder::empty();
    let passkeys = PasskeyList::load(KEY, folder.write("passkeys", "alice-1234\n")).expect("a good list");
    let tracker = over(with(Rules::new(), |rules| rules.passkeys = Some(passkeys)));
    let (mut client, id) = Client::of(tracker.udp[0]).connected();
    let page = include_str!("../../../../docs/operate/coming-from.md");
    let forms: Vec<_> = page.split('`').filter(|code| code.contains('/') && code.contains("KEY")).collect();
    assert_eq!(forms.len(), 15, "{forms:?}");
    let wrong = "this passkey is not known here: get the tracker's address from its site again";
    let members = [("alice-1234", None), ("mallory-12", Some(wrong))];
    for (form, (key, refusal)) in forms.iter().flat_map(|form| members.map(|member| (form, member))) {
        let url = form.trim_start_matches("udp://HOST").replace("KEY", key);
        let is_scrape = form.contains("scrape");
        if !is_scrape {
            let trailing = [&[2, url.len() as u8][..], url.as_bytes()].concat();
            let answer = client.try_announce(AnnounceRequest { trailing: &trailing, ..announce(id) });
            assert_eq!(answer.err().as_deref(), refusal, "{form} {key}");
        }
        if !form.starts_with("udp:") {
            let and = if url.contains('?') { '&' } else { '?' };
            let answer = over_http(&tracker, &format!("{url}{and}{}", query(LISTED)));
            let expected = refusal.unwrap_or(if is_scrape { "5:files" } else { "8:complete" });
            assert!(answer.contains(expected), "{form} {key}: {answer}");
        }
    }
}

#[test]
fn a_field_that_cannot_be_read_refuses_no_announce_and_is_counted() {
    let tracker = over(Rules::new());
    let (mut client, id) = Client::of(tracker.udp[0]).connected();
    for event in [0, 4, 5] {
        let mut packet = announce(id).to_vec();
        packet[83] = event;
        client.send(&packet);
        assert_eq!(client.receive()[3], 1, "event {event}");
    }
    let answer = over_http(&tracker, &format!("/announce?{}&event=gone&left=&left=x", query(LISTED)));
    assert!(answer.contains("8:complete"), "{answer}");
    // Refused announces do not count.
    for refused in [announce(ConnectionId(1)), AnnounceRequest { port: 0, ..announce(id) }] {
        client.refusal(AnnounceRequest { left: u64::MAX, ..refused });
    }
    over_http(&tracker, &format!("/announce?{}&left=&port=0", query(LISTED)));
    let Counts { udp, http, .. } = tracker.control.metrics.counts();
    let counted =
        |of: ProtocolCounts| Field::ALL.iter().map(move |&field| of.lenient(Software::Other, field));
    assert_eq!(counted(udp).collect::<Vec<_>>(), [1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(counted(http).collect::<Vec<_>>(), [1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn an_address_that_asks_too_often_over_http_gets_an_error() {
    let limiter = Arc::new(RateLimiter::new(KEY, 1, 20, 1024));
    let tracker = over(with(Rules::new(), |rules| rules.rate = Some(limiter)));
    let began = Instant::now();
    let answered = (0..30).filter(|_| {
        !over_http(&tracker, &format!("/announce?{}", query(LISTED)))
            .contains("too many requests from your address; try again later8:retry in")
    });
    let (answered, most) = (answered.count() as u64, 20 + began.elapsed().as_secs() + 1);
    assert!((20..=most).contains(&answered), "{answered} of 30");
}

/// Over UDP without an answer. A client behind a proxy is where the proxy's header says.
#[test]
fn networks_are_refused_and_admitted_again_while_the_tracker_runs() {
    let folder = Folder::empty();
    let list = folder.write("networks", "127.0.0.2\n198.51.100.0/24\n");
    let tracker = over(with(Rules::new(), |rules| {
        rules.refused = Some(NetworkList::load((), &list).expect("a good list"));
        rules.http_proxies.push("127.0.0.9/32".parse().expect("a network"));
        rules.http_proxy_header = ProxyHeader::XRealIp;
    }));
    let refused = || tracker.control.metrics.counts().udp.refused(Reason::RefusedAddress);
    let stranger = Client::at([127, 0, 0, 2].into(), tracker.udp[0]);
    stranger.socket.set_nonblocking(true).expect("a socket");
    let connect = ConnectRequest { transaction_id: TransactionId(7) }.to_bytes();
    for (n, packet) in [&connect[..], &announce(ConnectionId(7)).to_vec()[..]].into_iter().enumerate() {
        stranger.send(packet);
        until("it is refused", || refused() == n as u64 + 1);
        assert!(stranger.socket.recv(&mut [0; 2048]).is_err());
    }
    Client::of(tracker.udp[0]).connected();

    let over_http = |from: [u8; 4], header: &str, path: &str| {
        let mut client = http::Client::at(from.into(), tracker.http[0]);
        let request = http::request(path);
        let (lines, _) = request.split_at(request.len() - 2);
        client.send(&[lines, header.as_bytes(), b"\r\n"].concat());
        !String::from_utf8_lossy(&client.answer().body).contains("failure reason")
    };
    let (announce, scrape) = (format!("/announce?{}", query(LISTED)), http::scrape_path(LISTED));
    for (from, header, is_admitted) in [
        ([127, 0, 0, 1], "X-Real-IP: 198.51.100.7\r\n", true),
        ([127, 0, 0, 2], "X-Real-IP: 203.0.113.7\r\n", false),
        ([127, 0, 0, 9], "X-Real-IP: 203.0.113.7\r\n", true),
        ([127, 0, 0, 9], "X-Real-IP: 198.51.100.7\r\n", false),
        ([127, 0, 0, 9], "X-Forwarded-For: 203.0.113.7\r\n", false),
    ] {
        let admitted = [&announce, &scrape].map(|path| over_http(from, header, path));
        assert_eq!(admitted, [is_admitted; 2], "{from:?}, {header}");
    }

    fs::rename(folder.write("new", "198.51.100.0/24\n"), &list).expect("a rename");
    until("the new list is in use", || over_http([127, 0, 0, 2], "", &announce));
    let (mut client, id) = Client::at([127, 0, 0, 2].into(), tracker.udp[0]).connected();
    assert_eq!(client.announce(udp::announce(id)).0.leechers, 1);
}

/// A scrape of 64 torrents takes as much work as some seven announces, and seven tokens.
#[test]
fn a_scrape_takes_a_token_per_ten_torrents() {
    let hashes: Vec<_> = (0..64).map(|n| [n; 20]).collect();
    let query = (0..64).map(|n| format!("info_hash={}", format!("%{n:02x}").repeat(20)));
    let query = query.collect::<Vec<_>>().join("&");
    for is_udp in [false, true] {
        let limiter = Arc::new(RateLimiter::new(KEY, 1, 20, 1024));
        let tracker = over(with(Rules::new(), |rules| rules.rate = Some(limiter)));
        let refused = || {
            let Counts { udp, http, .. } = tracker.control.metrics.counts();
            udp.refused(Reason::TooOften) + http.refused(Reason::TooOften)
        };
        let (client, id) = Client::of(tracker.udp[0]).connected();
        let (began, mut answered) = (Instant::now(), 0);
        for _ in 0..10 {
            if is_udp {
                client.send(&ScrapeRequest::new(id, TransactionId(7), &hashes).to_vec());
            } else {
                answered += u64::from(over_http(&tracker, &format!("/scrape?{query}")).contains("5:files"));
            }
        }
        client.socket.set_nonblocking(true).expect("a socket");
        until("each is answered or refused", || {
            while client.socket.recv(&mut [0; 2048]).is_ok() {
                answered += 1;
            }
            answered + refused() == 10
        });
        let most = (20 + began.elapsed().as_secs() + 1) / 7;
        assert!((2..=most).contains(&answered), "{is_udp}: {answered} of 10");
    }
}

#[test]
fn a_tracker_at_a_loopback_address_accepts_peers_at_loopback_and_a_rule_replaces_their_address() {
    let tracker = over(Rules::new());
    let (mut client, id) = Client::of(tracker.udp[0]).connected();
    client.announce(announce(id));

    let everywhere = listening(&[any_port("0.0.0.0")], &[any_port("0.0.0.0")]);
    let tracker = Tracker::over(&everywhere, build("packed", |config| config));
    let here = SocketAddr::from((Ipv4Addr::LOCALHOST, tracker.udp[0].port()));
    let (mut client, id) = Client::of(here).connected();
    assert!(client.refusal(announce(id)).starts_with("this tracker takes no peers at local addresses"));
    assert_eq!(swarms(&tracker), 0);

    let at = LocalPeers::At { v4: Some(Ipv4Addr::new(203, 0, 113, 5)), v6: None };
    tracker.control.rules.replace(with(Rules::new(), |rules| rules.local_peers = at));
    client.announce(announce(id));
    let (_, peers) = client.announce(AnnounceRequest { port: 7000, ..announce(id) });
    assert_eq!(peers, ["203.0.113.5:6881".parse().expect("an endpoint")]);
    assert_eq!(tracker.control.metrics.counts().udp.refused(Reason::Address), 1);
}

#[test]
fn a_client_that_has_only_a_link_finds_seeders_if_the_rules_allow_it() {
    let tracker = over(Rules::new());
    let (mut client, id) = Client::of(tracker.udp[0]).connected();
    let seeds =
        |port, downloaded, event| AnnounceRequest { left: 0, port, downloaded, event, ..announce(id) };
    let over_http = |event, downloaded| {
        let port = 7000;
        let hash = "%aa".repeat(20);
        let query = format!("info_hash={hash}&peer_id=-XX0000-abcdefghijkl&port={port}&left=0&compact=1");
        let answer = over_http(&tracker, &format!("/announce?{query}{event}&downloaded={downloaded}"));
        assert!(answer.contains("5:peers0:") || answer.contains("5:peers6:"), "{answer}");
        answer.contains("5:peers6:")
    };
    client.announce(seeds(6881, 1 << 20, AnnounceEvent::Started));
    for given in [false, true] {
        tracker.control.rules.replace(with(Rules::new(), |rules| rules.seeders_for_links = given));
        let mut over_udp = |event, downloaded| {
            let answer = client.announce(seeds(7000, downloaded, event));
            assert_eq!((answer.0.seeders, answer.0.leechers), (2, 0));
            answer.1.iter().map(|peer| peer.port()).eq([6881])
        };
        assert_eq!(over_udp(AnnounceEvent::Started, 0), given);
        assert_eq!(over_http("&event=started", 0), given);
        // These were in the swarm before, or have some of its pieces.
        assert!(!over_udp(AnnounceEvent::None, 0) && !over_http("", 0));
        assert!(!over_udp(AnnounceEvent::Started, 1) && !over_http("&event=started", 1));
        assert!(!over_udp(AnnounceEvent::Completed, 0));
    }
}

#[test]
fn each_request_is_answered_once_although_the_store_answers_later() {
    let tracker = over_store("btreemap-rwlock-tokio-mutex-tokio", Rules::new());
    let (client, id) = Client::of(tracker.udp[0]).connected();
    for n in (0..200).step_by(2) {
        let ids = [n, n + 1].map(TransactionId);
        // The first is refused at once, and the second waits for the store.
        for (transaction_id, id) in ids.into_iter().zip([ConnectionId(0), id]) {
            client.send(&AnnounceRequest { transaction_id, ..announce(id) }.to_vec());
        }
        let answered = [(); 2].map(|()| {
            let answer = client.receive();
            Response::parse(&answer, Family::V4).expect("valid").transaction_id()
        });
        assert!(answered == ids || answered == [ids[1], ids[0]], "{answered:?} to {ids:?}");
    }
}

fn over(rules: Rules) -> Tracker {
    over_store("packed", rules)
}

fn over_store(name: &str, rules: Rules) -> Tracker {
    let mut config = listening(&[any_port("127.0.0.1"), any_port("::1")], &[any_port("127.0.0.1")]);
    config.rules = rules;
    Tracker::over(&config, build(name, |config| config))
}

fn with_list(list: AccessList) -> Rules {
    with(Rules::new(), |rules| rules.access = Some(list))
}

fn swarms(tracker: &Tracker) -> u64 {
    runtime().block_on(tracker.control.repository.totals()).expect("a store in this process").swarms
}

fn query(info_hash: InfoHash) -> String {
    let hash: String = info_hash.as_bytes().iter().map(|byte| format!("%{byte:02x}")).collect();
    format!("info_hash={hash}&peer_id=-XX0000-abcdefghijkl&port=6881&left=1")
}

fn over_http(tracker: &Tracker, path: &str) -> String {
    String::from_utf8_lossy(&get(tracker.http[0], path).body).into_owned()
}

fn refusal_over_http(tracker: &Tracker, prefix: &str, info_hash: InfoHash) -> String {
    let answer = over_http(tracker, &format!("{prefix}/announce?{}", query(info_hash)));
    let (_, failure) = answer.split_once("14:failure reason").unwrap_or_else(|| panic!("{answer}"));
    let (len, text) = failure.split_once(':').expect("bencoded");
    text[..len.parse().expect("bencoded")].into()
}
