//! Load over HTTP.

use std::{net::Ipv4Addr, thread, time::Duration};

use crate::common::{HttpFake, assert_only_unsent, config, run_until, tracker};
use swarmkeep_load::{Mix, Swarms};
use swarmkeep_tracker_protocol::{
    http::{
        AnnounceHead, AnnounceRequest, AnnounceResponseWriter, FailureResponse, ScrapeRequest,
        ScrapeResponseWriter,
    },
    udp::ScrapeStats,
};

fn ok(body: &[u8]) -> Vec<u8> {
    [format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len()).as_bytes(), body].concat()
}

fn announced(ports: &[u16]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut writer = AnnounceResponseWriter::new(&mut out, ports.len(), 0);
    for (room, port) in writer.rooms().0.chunks_mut(6).zip(ports) {
        room[..4].copy_from_slice(&Ipv4Addr::LOCALHOST.octets());
        room[4..].copy_from_slice(&port.to_be_bytes());
    }
    let count = ports.len() as u32 + 1;
    let head = AnnounceHead { complete: count, incomplete: count, interval: 1800, ..AnnounceHead::default() };
    writer.finish(&head, ports.len() * 6, None).to_vec()
}

/// The answer of a right tracker.
fn right(path: &str, query: &str) -> Vec<u8> {
    if path == "/announce" {
        let request = AnnounceRequest::parse(query.as_bytes()).expect("an announce");
        assert_eq!((request.compact, request.want), (Some(true), Some(50)));
        return announced(&[1, 2, 3]);
    }
    assert_eq!(path, "/scrape");
    let mut hashes: Vec<_> =
        ScrapeRequest::parse(query.as_bytes()).expect("a scrape").info_hashes().collect();
    hashes.sort_unstable();
    hashes.dedup();
    let mut body = Vec::new();
    let mut writer = ScrapeResponseWriter::new(&mut body);
    hashes.iter().for_each(|info_hash| writer.push(info_hash, ScrapeStats::default()));
    writer.finish(None);
    body
}

#[test]
fn connections_are_kept_and_answers_checked() {
    let fake = HttpFake::start(|path, query| ok(&right(path, query)));
    let mut config = config(fake.target());
    (config.mix, config.scrape_hashes) = (Mix { connect: 0, announce: 5, scrape: 1 }, 3);
    (config.fill, config.peers, config.swarms) = (true, 100, swarmkeep_load::Swarms::Zipf(10));
    let report = run_until(&config, || fake.requests() >= 100 + 1_000);
    assert_eq!((report.failed, report.wrong), (0, 0), "{:?} {:?}", report.failures, report.wrong_answers);
    assert_eq!((fake.connections(), report.fill.announced), (4, 100));
    assert!(["announce", "stopped", "scrape"].iter().all(|kind| report.by_kind[kind].succeeded > 0));
    assert_eq!(report.peers.per_answer, 3.0);
    assert!(report.latency.all.p50 > 1.0);
}

#[test]
fn a_tracker_that_closes_is_connected_to_again() {
    for how in ["Content-Length: ", "X: "] {
        let fake = HttpFake::start(move |path, query| {
            let body = right(path, query);
            let head = format!("HTTP/1.1 200 OK\r\nConnection: close\r\n{how}{}\r\n\r\n", body.len());
            [head.into_bytes(), body].concat()
        });
        let report = run_until(&config(fake.target()), || fake.requests() >= 100);
        assert_eq!((report.failed, report.wrong), (0, 0), "{:?} {:?}", report.failures, report.wrong_answers);
        assert!(fake.connections() > 4 && report.by_kind["connect"].succeeded > 0);
    }
}

#[test]
fn each_request_may_have_a_connection_of_its_own() {
    // With a line break behind the body, as of aquatic.
    let fake = HttpFake::start(|path, query| ok(&[right(path, query), b"\r\n".to_vec()].concat()));
    let mut config = config(fake.target());
    config.connection_per_request = true;
    (config.fill, config.peers, config.swarms) = (true, 100, Swarms::Zipf(10));
    let report = run_until(&config, || fake.requests() > 200);
    assert_eq!((report.failed, report.wrong), (0, 0), "{:?} {:?}", report.failures, report.wrong_answers);
    let requests = report.succeeded + report.fill.announced;
    assert!(report.fill.announced == 100 && fake.connections() as u64 >= requests, "{requests}");
    assert!(!report.by_kind.contains_key("connect"), "it is a part of its request");
}

#[test]
fn requests_go_behind_each_other_as_a_proxy_sends_them() {
    let fake = HttpFake::start(|path, query| ok(&right(path, query)));
    let mut config = config(fake.target());
    (config.window, config.mix) = (Some(8), Mix { connect: 0, announce: 3, scrape: 1 });
    let report = run_until(&config, || fake.pipelined() > 100);
    assert_eq!((report.failed, report.wrong), (0, 0), "{:?} {:?}", report.failures, report.wrong_answers);
    assert!(["announce", "scrape"].iter().all(|kind| report.by_kind[kind].succeeded > 0));
    assert!(fake.connections() == 4 && fake.pipelined() > 0);
}

#[test]
fn chunked_bodies_are_read() {
    let fake = HttpFake::start(|path, query| {
        let body = right(path, query);
        let (one, two) = body.split_at(body.len() / 2);
        let mut out = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
        for part in [one, two, b""] {
            out.extend(format!("{:x}\r\n", part.len()).bytes());
            out.extend(part);
            out.extend(b"\r\n");
        }
        out
    });
    let report = run_until(&config(fake.target()), || fake.requests() >= 100);
    assert_eq!((report.failed, report.wrong), (0, 0), "{:?} {:?}", report.failures, report.wrong_answers);
    assert!(report.by_kind["announce"].succeeded > 0 && report.peers.per_answer == 3.0);
}

#[test]
fn wrong_answers_are_found_out() {
    let own = |query: &str| AnnounceRequest::parse(query.as_bytes()).map_or(1, |request| request.port);
    type Script = fn(&str, u16) -> Vec<u8>;
    let scripts: [(&str, Script); 5] = [
        ("the announcing peer among the peers", |_, own| ok(&announced(&[1, own]))),
        ("malformed", |_, _| ok(b"<html>")),
        ("malformed", |_, _| b"220 smtp.example\r\n\r\n".to_vec()),
        ("malformed", |_, _| [ok(b"de"), b"de".to_vec()].concat()),
        ("counts", |_, _| ok(b"d8:completei0e10:incompletei0e8:intervali60e5:peers0:e")),
    ];
    for (reason, script) in scripts {
        let fake = HttpFake::start(move |path, query| script(path, own(query)));
        let mut config = config(fake.target());
        (config.mix, config.stopped) = (Mix { connect: 0, announce: 1, scrape: 0 }, 0.0);
        config.strict = true;
        let report = run_until(&config, || fake.requests() >= 100);
        assert!(report.wrong > 0, "{reason}: {:?}", report.failures);
        assert_eq!(report.wrong_answers.keys().collect::<Vec<_>>(), [reason], "{:?}", report.wrong_answers);
        assert_eq!(report.by_kind["announce"].succeeded, 0);
    }
    let fake = HttpFake::start(|path, query| match path {
        "/scrape" => ok(b"d5:filesd20:aaaaaaaaaaaaaaaaaaaad8:completei1eeee"),
        _ => ok(&right(path, query)),
    });
    let mut config = config(fake.target());
    config.mix = Mix { connect: 0, announce: 1, scrape: 1 };
    let report = run_until(&config, || fake.requests() >= 100);
    assert_eq!(report.wrong_answers.keys().collect::<Vec<_>>(), ["unasked"]);
}

#[test]
fn failures_have_their_reasons() {
    let mut calls = (0..10).cycle();
    let fake = HttpFake::start(move |path, query| match calls.next().expect("no end") {
        3 => b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n".to_vec(),
        5 => {
            let mut body = Vec::new();
            FailureResponse { reason: b"not here", retry_in: None }.write(&mut body);
            ok(&body)
        }
        7 => Vec::new(),
        9 => {
            thread::sleep(Duration::from_millis(400));
            ok(&right(path, query))
        }
        _ => ok(&right(path, query)),
    });
    let mut config = config(fake.target());
    (config.workers, config.timeout) = (1, Duration::from_millis(200));
    let report = run_until(&config, || fake.requests() >= 40);
    let reasons: Vec<_> = report.failures.keys().map(String::as_str).collect();
    assert_eq!(reasons, ["closed before it was answered", "error: not here", "status 503", "timeout"]);
    assert_eq!((report.wrong, report.late), (0, 0), "late answers come on closed connections");
    assert!(report.succeeded > 0);
}

#[test]
fn the_real_tracker_is_right_in_both_families_and_loops() {
    let tracker = tracker();
    // Per worker: each has 25 ms for an answer before its next request is due.
    for rate in [None, Some(40.0)] {
        let url = |n: usize| format!("http://{}/announce", tracker.http[n]).parse().expect("a URL");
        let mut config = config(url(0));
        config.strict = true;
        config.targets.push(url(1));
        (config.workers, config.rate, config.threads) = (8, rate, Some(2));
        (config.fill, config.peers, config.swarms) = (true, 3_000, Swarms::Zipf(30));
        config.mix = Mix { connect: 0, announce: 50, scrape: 10 };
        (config.stopped, config.scrape_hashes) = (0.2, 5);
        let requests = || tracker.control.metrics.counts().http.all_requests();
        let before = requests();
        let report = run_until(&config, || requests() >= before + 3_000 + 90);
        assert_only_unsent(&report, rate);
        assert!(
            ["announce", "stopped", "scrape"].iter().all(|kind| report.by_kind[kind].succeeded > 0),
            "{:?}",
            report.by_kind
        );
        assert!(report.peers.per_answer > 10.0);
    }
}
