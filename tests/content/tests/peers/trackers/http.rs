//! Over HTTP: the requests, which answers are accepted, and the cost of an answer.

use std::io::Read as _;

use flate2::{Compression, read::GzEncoder};
use swarmkeep_tracker_protocol::bittorrent::AnnounceEvent::{Completed, Started, Stopped};

use super::{servers::with, *};

async fn failure_of(reply: impl Fn() -> Reply + Send + Sync + 'static) -> String {
    let tracker = Http::new(move |_, _| reply()).await;
    let torrent = Announcer::one(&tracker.url(), &client(), &seldom());
    torrent.failure().await
}

#[tokio::test]
async fn an_announce_is_the_query_of_the_url() {
    let tracker = Http::saying(GOOD).await;
    let url = format!("http://{}/a-passkey/announce", tracker.at);
    let mut torrent = Announcer::one(&url, &client(), &seldom());
    assert_eq!(torrent.peers().await, endpoints(["192.0.2.1:6881"]));
    let asked = tracker.requests();
    let query = asked[0].strip_prefix("/a-passkey/announce?").expect("begins so");
    let request = AnnounceRequest::parse(query.as_bytes()).expect("an announce");
    let who = identity(1, 1001);
    assert_eq!((request.info_hash, request.peer_id, request.port), (who.info_hash, who.peer_id, 1001));
    assert_eq!((request.uploaded, request.downloaded, request.left), (7, 0, Some(1000)));
    assert_eq!((request.event, request.want, request.compact), (Started, None, Some(true)));
    assert_eq!(request.key.expect("a key").encoded(), b"deadbeef");
    assert_eq!((request.tracker_id, request.ip, request.ipv4, request.ipv6), (None, None, None, None));
    torrent.stop().await;
    assert_eq!(tracker.events().last(), Some(&(Stopped, Some(1000))));
    assert_eq!(tracker.connections.load(Relaxed), 1, "it was kept");
}

#[tokio::test]
async fn warnings_counts_and_the_address_seen_are_reported() {
    let tracker = Http::saying(
        b"d8:completei5e11:external ip4:\xc6\x33\x64\x0910:incompletei6e8:intervali1800e12:min intervali900e5:peers0:15:warning message8:slow\x1bnowe",
    )
    .await;
    let torrent = Announcer::one(&tracker.url(), &client(), &seldom());
    let latest = torrent.settled().await.latest.expect("an answer");
    assert_eq!((latest.seeders, latest.leechers, latest.peers), (5, 6, 0));
    assert_eq!(latest.min_interval, Some(Duration::from_secs(900)));
    assert_eq!(latest.external_ip, Some("198.51.100.9".parse().unwrap()));
    assert_eq!(latest.warning.as_deref(), Some("slow now"));
}

#[tokio::test]
async fn a_tracker_id_is_sent_from_then_on_even_if_it_is_not_repeated() {
    let tracker = Http::new(|_, nth| {
        Reply::Keep(ok(match nth {
            0 => b"d8:intervali0e5:peers0:10:tracker id4:a&=\xffe",
            _ => b"d8:intervali0e5:peers0:e",
        }))
    })
    .await;
    let torrent = Announcer::one(&tracker.url(), &client(), &often());
    torrent.until("three", |_| tracker.requests().len() >= 3).await;
    let asked = tracker.requests();
    assert!(!asked[0].contains("trackerid"));
    assert!(asked[1..].iter().all(|target| target.ends_with("&trackerid=a%26%3d%ff")), "{asked:?}");
}

#[tokio::test]
async fn torrents_share_connections() {
    let tracker = Http::saying(GOOD).await;
    let (url, client) = (tracker.url(), client());
    for number in 0..5 {
        let torrent = Announcer::start(&[&[&url]], identity(number, 1), &client, &seldom());
        assert!(torrent.settled().await.is_started);
    }
    assert_eq!(tracker.connections.load(Relaxed), 1, "one after the other");
    for torrent in &Announcer::all(10..210, &url, &client) {
        assert!(torrent.settled().await.is_started);
    }
    let connections = tracker.connections.load(Relaxed);
    assert_eq!(tracker.requests().len(), 205);
    assert!(connections <= 16, "{connections} for 200 torrents");
}

#[tokio::test]
async fn of_a_silent_server_all_torrents_learn_together() {
    let tracker = Http::new(|_, _| Reply::Nothing).await;
    for torrent in &Announcer::all(0..100, &tracker.url(), &of(quick())) {
        assert_eq!(torrent.failure().await, "no answer in time");
    }
    assert!(tracker.connections.load(Relaxed) <= 16);
}

#[tokio::test]
async fn a_connection_that_was_closed_while_it_was_kept_costs_no_failure() {
    // Closed at once, or when it is used again.
    for when_used in [false, true] {
        let good = || ok(b"d8:intervali0e5:peers0:e");
        let tracker = Http::new(move |_, nth| match (when_used, nth % 2) {
            (false, _) => Reply::Close(good()),
            (true, 0) => Reply::Keep(good()),
            (true, _) => Reply::Close(vec![]),
        })
        .await;
        // After a failure, nothing would come for minutes.
        let mut options = often();
        options.first_back_off = Duration::from_secs(600);
        let torrent = Announcer::one(&tracker.url(), &client(), &options);
        torrent.until("some", |_| tracker.requests().len() >= 5).await;
        assert_eq!(torrent.handle.status()[0].v4.failures, 0, "{when_used}");
    }
}

#[tokio::test]
async fn an_answer_costs_no_more_memory_than_is_of_use() {
    let chunks = |count| {
        let chunk = [&b"10000\r\n"[..], &[b'x'; 0x10000], b"\r\n"].concat();
        [&b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"[..], &chunk.repeat(count)].concat()
    };
    let endless = Http::new(move |_, _| Reply::Forever(chunks(1))).await;
    let torrent = Announcer::one(&endless.url(), &of(quick()), &seldom());
    // The second head in the middle of chunks may be found to be wrong first.
    let failure = torrent.failure().await;
    assert!(!failure.is_empty());
    assert!(endless.sent.load(Relaxed) < 16 << 20, "{} bytes", endless.sent.load(Relaxed));

    let told = failure_of(|| Reply::Keep(ok(&vec![b'x'; 300 * 1024]))).await;
    assert_eq!(told, "an answer of more than 262144 bytes");
    assert_eq!(failure_of(move || Reply::Keep(chunks(5))).await, told);
    let unbounded = || [&b"HTTP/1.1 200 OK\r\n\r\n"[..], &vec![b'x'; 300 * 1024]].concat();
    assert_eq!(failure_of(move || Reply::Close(unbounded())).await, told);
}

#[tokio::test]
async fn a_head_without_end_is_not_read_to_its_end() {
    let endless = Http::new(|_, nth| {
        Reply::Forever(if nth == 0 { b"HTTP/1.1 200 OK\r\n".to_vec() } else { b"X-Y: z\r\n".repeat(1000) })
    })
    .await;
    let torrent = Announcer::one(&endless.url(), &of(quick()), &seldom());
    torrent.failure().await;
    for headers in ["X: y\r\n".repeat(1000), format!("X: {}\r\n", "y".repeat(100_000))] {
        let failure = failure_of(move || Reply::Keep(with("200 OK", &headers, b""))).await;
        assert!(failure.contains("message head is too large"), "{failure}");
    }
}

#[tokio::test]
async fn an_answer_may_take_only_so_long_wherever_it_is_slow() {
    let began = std::time::Instant::now();
    let replies: [fn() -> Reply; 3] =
        [|| Reply::Nothing, || Reply::Slowly(ok(GOOD)), || Reply::Slowly(ok(&[b'x'; 200]))];
    for reply in replies {
        let tracker = Http::new(move |_, _| reply()).await;
        let torrent = Announcer::one(&tracker.url(), &of(quick()), &seldom());
        assert_eq!(torrent.failure().await, "no answer in time");
    }
    let took = began.elapsed();
    assert!(took.as_millis() >= 2300, "3 times 800 ms: {took:?}");
}

#[tokio::test]
async fn a_redirect_is_followed_with_its_own_query_but_not_for_ever() {
    let good = Http::saying(GOOD).await;
    // Some servers name an encoding that their empty body does not have.
    let to = format!("{GZIP}Location: http://{}/there/announce?x=1\r\n", good.at);
    let from = Http::new(move |_, _| Reply::Keep(with("302 Found", &to, b""))).await;
    let torrent = Announcer::one(&from.url(), &client(), &seldom());
    assert!(torrent.settled().await.is_started);
    assert_eq!(good.requests(), ["/there/announce?x=1"]);

    let round = Http::new(|_, _| Reply::Keep(with("301 Moved", "Location: /announce?round\r\n", b""))).await;
    let torrent = Announcer::one(&round.url(), &client(), &seldom());
    assert_eq!(torrent.failure().await, "more than 4 redirects");
    assert_eq!(round.requests().len(), 5);

    for (to, expected) in [
        ("udp://127.0.0.1:1/announce", "HTTP does not lead to UDP"),
        ("ftp://127.0.0.1/", "\"ftp\" is no way to ask a tracker"),
        ("http://127.0.0.1:1/admin?announce", "127.0.0.1:1 is not public"),
        ("http://", "not a URL"),
    ] {
        let headers = format!("Location: {to}\r\n");
        let failure = failure_of(move || Reply::Keep(with("307 There", &headers, b""))).await;
        assert!(
            failure.starts_with(&format!("redirected to {to:?}: ")) && failure.contains(expected),
            "{failure}"
        );
    }
}

#[tokio::test]
async fn a_torrent_makes_no_requests_of_services_that_are_no_trackers() {
    let service = Http::saying(GOOD).await;
    for target in ["/api/reboot/announce", "/announce?id=1"] {
        let url = format!("http://{}{target}", service.at);
        let failure = Announcer::one(&url, &client(), &seldom()).failure().await;
        assert!(failure.contains("is not exactly an announce URL"), "{target}: {failure}");
    }
    assert_eq!(service.connections.load(Relaxed), 0);
    let torrent = Announcer::one(&format!("http://{}/a-passkey/announce", service.at), &client(), &seldom());
    assert!(torrent.settled().await.is_started, "a tracker beside it gets the announce");
}

#[tokio::test]
async fn a_refusal_is_reported_in_the_trackers_words_and_its_retry_time_is_kept() {
    for (body, status, expected, waits) in [
        (&b"d14:failure reason4:gonee"[..], "200 OK", "refused: gone", Some(0..1)),
        (b"d14:failure reason4:gone8:retry ini5ee", "200 OK", "refused: gone", Some(240..301)),
        (b"d14:failure reason4:gone8:retry in5:nevere", "200 OK", "refused: gone", None),
        (b"d14:failure reason4:gone8:retry ini99999999ee", "200 OK", "refused: gone", Some(86_000..86_401)),
        (b"d14:failure reason6:a\x1b[2Jbe", "404 Not Found", "refused: a [2Jb", Some(0..1)),
        (b"<html>", "503 Service Unavailable\r\nRetry-After: 120", "HTTP status 503", Some(60..121)),
        (b"", "503 No\r\nRetry-After: 120\r\nContent-Encoding: gzip", "HTTP status 503", Some(60..121)),
        (b"<html>", "500 Oh", "HTTP status 500", Some(0..1)),
    ] {
        let reply = move |_: &str, _| Reply::Keep(with(status, "", body));
        let tracker = Http::new(reply).await;
        let mut options = often();
        options.first_back_off = Duration::from_millis(900);
        let torrent = Announcer::one(&tracker.url(), &client(), &options);
        let status = torrent.settled().await;
        assert_eq!(status.error.expect("a failure").to_string(), expected);
        let next = status.next_in.map(|next| next.as_secs());
        assert_eq!(next.is_some(), waits.is_some(), "{expected}");
        assert!(
            next.zip(waits.clone()).is_none_or(|(next, waits)| waits.contains(&next)),
            "{next:?} {waits:?}"
        );
        if waits.is_none() {
            sleep(Duration::from_millis(1300)).await;
            assert_eq!(tracker.requests().len(), 1, "never is never");
        }
    }
}

const GZIP: &str = "Content-Encoding: gzip\r\n";

fn gzip(body: &[u8]) -> Vec<u8> {
    let mut packed = Vec::new();
    GzEncoder::new(body, Compression::fast()).read_to_end(&mut packed).unwrap();
    packed
}

/// As libtorrent takes them: `bdecode` ends with the dictionary, `parse_tracker_response` has 1800 for an
/// interval that is no integer, `http_connection` unpacks gzip that it did not request, and `http_parser`
/// does not count headers.
#[tokio::test]
async fn answers_of_small_trackers_are_taken() {
    let many = (0..80).map(|n| format!("X-{n}: y\r\n")).collect::<String>();
    for (answer, interval) in [
        (ok(&[GOOD, b"\r\n"].concat()), 1800),
        (ok(b"d8:interval3:9005:peers0:e"), 900),
        (ok(b"d8:interval4:soon5:peers0:e"), 1800),
        (ok(b"d8:intervali-1e5:peers0:e"), 1800),
        (ok(b"de"), 1800),
        (with("200 OK", GZIP, &gzip(GOOD)), 1800),
        (with("200 OK", "Content-Encoding: utf-8\r\n", GOOD), 1800),
        (with("200 OK", &many, GOOD), 1800),
    ] {
        let tracker = Http::new(move |_, _| Reply::Keep(answer.clone())).await;
        let torrent = Announcer::one(&tracker.url(), &client(), &seldom());
        let FamilyStatus { latest, error, .. } = torrent.settled().await;
        assert_eq!(latest.map(|latest| latest.interval.as_secs()), Some(interval), "{error:?}");
    }
}

#[tokio::test]
async fn invalid_answers_are_failures() {
    for (answer, expected) in [
        (ok(b"<html>hello</html>"), "not an answer to an announce: not bencoded"),
        (ok(b""), "not an answer to an announce: not bencoded"),
        (ok(&[&b"\n"[..], GOOD].concat()), "not an answer to an announce: not bencoded"),
        (ok(&gzip(GOOD)), "not an answer to an announce: not bencoded"),
        (with("200 OK", GZIP, &gzip(&[0; 2 << 20])), "an answer of more than 1048576 bytes"),
        (ok(&b"l".repeat(100_000)), "not an answer to an announce: not bencoded: too many"),
        (with("200 OK", GZIP, b"\x1f\x8b"), "an answer with an encoding that cannot be read: gzip: "),
        (with("200 OK", "Content-Encoding: br\r\n", b"\x1b"), "not an answer to an announce: not bencoded"),
        (with("302 Found", "", b""), "HTTP status 302"),
        (b"SSH-2.0-OpenSSH\r\n".to_vec(), "127.0.0.1:"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort".to_vec(), "127.0.0.1:"),
        (b"\0\xff\0".to_vec(), "127.0.0.1:"),
        (vec![], "127.0.0.1:"),
    ] {
        let failure = failure_of(move || Reply::Close(answer.clone())).await;
        assert!(failure.starts_with(expected), "{failure}, expected {expected}");
    }
    // No server listens there.
    let closed = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let failure = Announcer::one(&format!("http://{closed}/announce"), &client(), &seldom()).failure().await;
    assert!(failure.starts_with(&format!("{closed}: ")) && failure.contains("refused"), "{failure}");
}

/// Answers each `completed` with the result of `completed`, and all others well.
async fn asked_for_completed(
    stop_patience: Duration,
    completed: impl Fn() -> Reply + Send + Sync + 'static,
) -> (Http, Announcer) {
    let tracker = Http::new(move |target, _| match target.contains("event=completed") {
        true => completed(),
        false => Reply::Keep(ok(GOOD)),
    })
    .await;
    let mut options = seldom();
    options.stop_patience = stop_patience;
    let torrent = Announcer::one(&tracker.url(), &client(), &options);
    torrent.settled().await;
    torrent.left.store(0, Relaxed);
    torrent.handle.completed();
    (tracker, torrent)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_completed_that_is_on_its_way_is_waited_for_and_not_sent_again() {
    let (tracker, torrent) = asked_for_completed(seldom().stop_patience, || {
        std::thread::sleep(Duration::from_millis(200));
        Reply::Keep(ok(GOOD))
    })
    .await;
    torrent.until("it to be sent", |_| tracker.events().len() == 2).await;
    torrent.stop().await;
    assert_eq!(tracker.events(), [(Started, Some(1000)), (Completed, Some(0)), (Stopped, Some(0))]);
}

// On one thread, the torrent sends nothing before `stop` unless the test waits.
#[tokio::test]
async fn a_completed_that_is_not_answered_keeps_no_stopped() {
    let stops = async |is_sent: bool| {
        // Half of the patience is for the `completed`.
        let (tracker, torrent) = asked_for_completed(Duration::from_secs(6), || Reply::Nothing).await;
        if is_sent {
            torrent.until("it to be sent", |_| tracker.events().len() == 2).await;
        }
        torrent.stop().await;
        assert_eq!(tracker.events(), [(Started, Some(1000)), (Completed, Some(0)), (Stopped, Some(0))]);
    };
    tokio::join!(stops(true), stops(false));
}
