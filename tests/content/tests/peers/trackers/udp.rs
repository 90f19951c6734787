//! Over UDP: the time of each packet, and which answers are accepted.

use swarmkeep_peer::trackers::UrlError;
use swarmkeep_store_tests::{A_MINUTE, with};
use swarmkeep_tracker_protocol::bittorrent::AnnounceEvent::{None as Regular, Started, Stopped};

use super::*;

#[tokio::test]
async fn an_announce_has_its_fields_and_the_path_of_its_url() {
    let tracker = Udp::good().await;
    // It goes in pieces (BEP 41).
    let path_and_query = format!("/some/announce?passkey={}", "abc".repeat(300));
    let url = format!("udp://{}{path_and_query}", tracker.at);
    let mut torrent = Announcer::one(&url, &client(), &seldom());
    assert_eq!(torrent.peers().await, endpoints(["192.0.2.1:6881"]));
    let asked = tracker.requests();
    assert!(asked[0].0.is_connect());
    let UdpRequest::Announce { connection, event, left, want, key, path, .. } = &asked[1].0 else { panic!() };
    assert_eq!((*connection, *event, *left, *want, *key), (99, Started, 1000, None, 0xdead_beef));
    assert_eq!(path, path_and_query.as_bytes());
    let status = torrent.settled().await;
    let latest = status.latest.expect("an answer");
    assert_eq!((latest.seeders, latest.leechers, latest.peers), (2, 3, 1));
    assert_eq!((latest.interval, status.error, status.failures), (Duration::from_secs(1800), None, 0));
    assert!(status.next_in.expect("it is the only one") > Duration::from_secs(1740));
}

#[tokio::test]
async fn a_silent_tracker_gets_the_same_request_at_doubling_waits_and_then_none() {
    let tracker = Udp::silent().await;
    let (client, began) = (of(waiting(Duration::from_millis(600))), Instant::now());
    let torrent = Announcer::one(&tracker.url(), &client, &seldom());
    assert_eq!(torrent.failure().await, "no answer in time");
    let asked = tracker.requests();
    assert_eq!(asked.len(), 3);
    assert!(asked.iter().all(|(one, ..)| *one == asked[0].0), "one transaction");
    let waited = [asked[1].2, asked[2].2, Instant::now()].map(|at| (at - began).as_millis());
    assert!(waited[0] >= 600 && waited[1] >= 1800 && waited[2] >= 4200, "{waited:?}");
    sleep(Duration::from_millis(300)).await;
    assert_eq!(tracker.requests().len(), 3);
}

#[tokio::test]
async fn a_lost_datagram_costs_one_wait() {
    let tracker = Udp::new(|asked, nth| if nth % 2 == 0 { vec![] } else { vec![asked.good_answer()] }).await;
    let client = of(waiting(Duration::from_secs(1)));
    let torrent = Announcer::one(&tracker.url(), &client, &seldom());
    assert!(torrent.settled().await.is_started);
    let mut asked: Vec<_> = tracker.requests().into_iter().map(|(asked, ..)| asked).collect();
    // A busy machine may send more copies: up to three of each.
    assert!((4..=6).contains(&asked.len()), "{asked:?}");
    asked.dedup();
    assert!(matches!(asked[..], [UdpRequest::Connect { .. }, UdpRequest::Announce { .. }]), "{asked:?}");
}

#[tokio::test]
async fn answers_to_another_transaction_or_to_none_are_ignored() {
    let tracker = Udp::new(|asked, _| {
        let mut other = asked.answer(666, 1);
        other[4] ^= 1;
        vec![other, vec![], vec![0; 7], vec![0xff; 2000], asked.good_answer()]
    })
    .await;
    let torrent = Announcer::one(&tracker.url(), &client(), &seldom());
    let latest = torrent.settled().await.latest.expect("the good one");
    assert_eq!(latest.interval, Duration::from_secs(1800));
    let asked = tracker.requests();
    assert!(matches!(asked[1].0, UdpRequest::Announce { connection: 99, .. }), "{asked:?}");
}

#[tokio::test]
async fn an_answer_from_another_port_is_not_believed() {
    let forger = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let tracker = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let url = format!("udp://{}", tracker.local_addr().unwrap());
    let torrent = Announcer::one(&url, &of(quick()), &seldom());
    let mut packet = [0; 2048];
    let answer = |packet: &[u8]| [&[0; 4], &packet[12..16], &[7; 8]].concat();
    let (_, from) = tracker.recv_from(&mut packet).await.unwrap();
    // The right transaction, but from the wrong sender.
    forger.send_to(&answer(&packet), from).unwrap();
    assert_eq!(torrent.failure().await, "no answer in time");
    while let Ok((len, _)) = tracker.try_recv_from(&mut packet) {
        assert_eq!(len, 16, "it still asks for a connection id");
    }
    // The same bytes from the right sender are accepted.
    let torrent = Announcer::one(&url, &client(), &seldom());
    loop {
        let (len, from) = timeout(A_MINUTE, tracker.recv_from(&mut packet)).await.expect("in time").unwrap();
        if packet[..8] == [7; 8] {
            assert_eq!(len, 98);
            break;
        }
        tracker.send_to(&answer(&packet), from).await.unwrap();
    }
    drop(torrent);
}

#[tokio::test]
async fn answers_that_are_none_are_failures_and_no_more() {
    for (wrong, expected) in [
        (&b"\0\0\0\x01\0\0\0\0\0\0"[..], "not an answer to an announce"),
        (b"\0\0\0\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0abc", "not an answer to an announce: 3 bytes"),
        (b"\0\0\0\x02\0\0\0\0", "an answer to something else"),
        (b"\0\0\0\x09\0\0\0\0", "not an answer to an announce: 9 is not"),
        (b"\0\0\0\x03\0\0\0\0go\x1baway", "refused: go away"),
        (b"\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", "an answer to something else"),
    ] {
        let tracker = Udp::new(move |asked, _| {
            let mut answer = wrong.to_vec();
            answer[4..8].copy_from_slice(&asked.id().0.to_be_bytes());
            vec![if asked.is_connect() { asked.good_answer() } else { answer }]
        })
        .await;
        let failure = Announcer::one(&tracker.url(), &client(), &seldom()).failure().await;
        assert!(failure.starts_with(expected), "{failure}");
        assert_eq!(tracker.requests().len(), 2);
    }
}

#[tokio::test]
async fn a_connection_id_that_is_good_no_more_is_replaced_without_a_failure() {
    // Answers everything, except announces with an id other than its latest.
    for is_silent in [true, false] {
        let mut connections = 0;
        let tracker = Udp::new(move |asked, _| match asked {
            UdpRequest::Announce { event: Regular, connection: 1, .. } if is_silent => vec![],
            UdpRequest::Announce { event: Regular, connection: 1, .. } => {
                vec![asked.error("Invalid Connection ID")]
            }
            UdpRequest::Connect { .. } => {
                connections += 1;
                vec![asked.answer(connections, 0)]
            }
            _ => vec![asked.answer(1, 0)],
        })
        .await;
        let client = of(waiting(Duration::from_secs(1)));
        let torrent = Announcer::one(&tracker.url(), &client, &often());
        torrent.settled().await;
        torrent.until("a second", |_| tracker.connects() >= 2 && tracker.events().len() >= 3).await;
        assert_eq!(torrent.settled().await.failures, 0, "silent: {is_silent}");
    }
}

#[tokio::test]
async fn torrents_share_a_socket_and_a_connection_id() {
    let tracker = Udp::good().await;
    for torrent in &Announcer::all(0..200, &tracker.url(), &client()) {
        assert!(torrent.settled().await.is_started);
    }
    assert_eq!((tracker.connects(), tracker.events().len()), (1, 200));
    let from = tracker.requests()[0].1;
    assert!(tracker.requests().iter().all(|asked| asked.1 == from));
}

#[tokio::test]
async fn of_a_silent_tracker_all_torrents_learn_together() {
    let tracker = Udp::silent().await;
    for torrent in &Announcer::all(0..200, &tracker.url(), &of(quick())) {
        assert_eq!(torrent.failure().await, "no answer in time");
    }
    // Three of one announce. A torrent that begins after its failure has three of its own.
    assert!(tracker.requests().len() <= 12, "{}", tracker.requests().len());
}

#[tokio::test]
async fn stopping_notifies_trackers_that_got_started_and_waits_only_briefly() {
    // Takes the `started` and is silent from then on.
    let mute = Udp::new(|asked, _| match asked {
        UdpRequest::Announce { event: Stopped, .. } => vec![],
        _ => vec![asked.good_answer()],
    })
    .await;
    let (good, silent) = (Udp::good().await, Udp::silent().await);
    let (good_url, mute_url, silent_url) = (good.url(), mute.url(), silent.url());
    let patient = of(ClientOptions::new());
    let tiers: [&[&str]; 3] = [&[&good_url], &[&mute_url], &[&silent_url]];
    let options = with(seldom(), |options| options.stop_patience = Duration::from_millis(1500));
    let torrent = Announcer::start(&tiers, identity(1, 1), &patient, &options);
    torrent.until("both good trackers", |all| all[0].v4.is_started && all[1].v4.is_started).await;
    let began = std::time::Instant::now();
    torrent.stop().await;
    assert!(began.elapsed().as_millis() >= 1400, "{:?}", began.elapsed());
    assert_eq!(good.events(), [Started, Stopped]);
    assert_eq!(mute.events(), [Started, Stopped]);
    assert_eq!(silent.events(), []);

    // A tracker that failed never got a `started`, so it needs no `stopped`.
    let torrent = Announcer::one(&silent_url, &of(quick()), &seldom());
    torrent.failure().await;
    let asked = silent.requests().len();
    torrent.stop().await;
    assert_eq!(silent.requests().len(), asked);
}

#[tokio::test]
async fn a_started_that_may_have_arrived_is_followed_by_stopped() {
    let tracker = Udp::new(|asked, _| match asked {
        UdpRequest::Announce { event: Started, .. } => vec![],
        _ => vec![asked.good_answer()],
    })
    .await;
    let torrent = Announcer::one(&tracker.url(), &of(ClientOptions::new()), &seldom());
    torrent.until("it to be sent", |_| tracker.events() == [Started]).await;
    torrent.stop().await;
    assert_eq!(tracker.events(), [Started, Stopped]);
}

#[tokio::test]
async fn found_peers_wait_for_a_receiver_and_need_none() {
    let mut nth = 0;
    let tracker = Udp::new(move |asked, _| {
        let mut answer = asked.answer(99, 0);
        if !asked.is_connect() {
            nth += 1;
            let len = answer.len();
            answer[len - 1] = nth;
        }
        vec![answer]
    })
    .await;
    let options = with(often(), |options| options.shortest_interval = Duration::from_millis(50));
    let mut torrent = Announcer::one(&tracker.url(), &client(), &options);
    torrent.until("some", |_| tracker.events().len() >= 6).await;
    let mut found = torrent.peers().await;
    while found.len() < 5 {
        found.extend(torrent.peers().await);
    }
    let ports: Vec<_> = found.iter().take(5).map(|peer| peer.port()).collect();
    assert_eq!(ports, [1, 2, 3, 4, 5].map(|n| 0x1a00 + n));
    torrent.found.close();
    let before = tracker.events().len();
    torrent.until("announces go on", |_| tracker.events().len() >= before + 3).await;
    torrent.stop().await;
}

#[tokio::test]
async fn a_torrent_without_trackers_works_and_lists_refused_urls() {
    let torrent = Announcer::start(&[], identity(1, 1), &client(), &seldom());
    torrent.handle.completed();
    assert_eq!(torrent.handle.status(), []);
    torrent.stop().await;

    let urls = ["\u{1b}[2J", "udp://t.example:1", "udp://T.example:1/"];
    let spawn = |trackers: Trackers| trackers.spawn(Default::default, mpsc::channel(1).0);
    let left_out = spawn(Trackers::new([urls], identity(1, 1), client(), &seldom()));
    let [(text, UrlError::Syntax(_)), (_, UrlError::Twice)] = left_out.refused() else {
        panic!("{:?}", left_out.refused())
    };
    assert_eq!(text, "[2J");

    let many = (0..10_000).map(|n| [format!("udp://192.0.2.1:{}", n + 1), "nonsense".into()]);
    let many = spawn(Trackers::new(many, identity(1, 1), client(), &seldom()));
    assert_eq!((many.refused().len(), many.status().len()), (256, 256));
}

#[tokio::test]
async fn a_name_that_is_not_found_and_a_family_without_address_are_reported() {
    let client = of(hosting("v4only.test", ["127.0.0.1".parse().unwrap()]));
    let torrent = Announcer::one("udp://no-such-name.invalid:1", &client, &seldom());
    let failure = torrent.failure().await;
    assert!(failure.starts_with("no-such-name.invalid is not found: "), "{failure}");
    let tracker = Udp::good().await;
    let url = format!("udp://v4only.test:{}", tracker.at.port());
    let torrent = Announcer::one(&url, &client, &seldom());
    let status = torrent.until("both", |all| all[0].v4.is_started && all[0].v6.error.is_some()).await;
    assert_eq!(status[0].v6.error.as_ref().unwrap().to_string(), "there is no IPv6 address");
    assert_eq!(status[0].v6.failures, 0);
}

#[tokio::test]
async fn of_several_addresses_the_next_is_tried_after_a_failure() {
    let tracker = Udp::at("127.0.0.2:0", |asked, _| vec![asked.good_answer()]).await.expect("loopback");
    let addresses = ["127.0.0.3", "127.0.0.2"].map(|address| address.parse().unwrap());
    let client = of(with(hosting("two.test", addresses), |options| options.udp_wait = quick().udp_wait));
    let torrent = Announcer::one(&format!("udp://two.test:{}", tracker.at.port()), &client, &often());
    let status = torrent.until("the second", |all| all[0].v4.is_started).await;
    let good = &status[0].v4;
    assert_eq!((good.address, good.is_asking, good.error.is_some()), (Some(tracker.at), false, false));
}

#[tokio::test]
async fn a_torrent_that_is_dropped_says_no_more() {
    let tracker = Udp::new(|asked, _| vec![asked.answer(99, 0)]).await;
    let torrent = Announcer::one(&tracker.url(), &client(), &often());
    torrent.settled().await;
    drop(torrent);
    sleep(Duration::from_millis(50)).await;
    let asked = tracker.requests().len();
    sleep(Duration::from_millis(500)).await;
    assert_eq!(tracker.requests().len(), asked);
}
