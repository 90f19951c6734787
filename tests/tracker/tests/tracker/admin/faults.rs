//! Clients that misbehave, and strangers that flood: their cost, and that others are served all the same.

use std::{
    collections::VecDeque,
    io::{Read as _, Write as _},
    net::TcpStream,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use serde_json::json;
use swarmkeep_store_tests::{A_MINUTE, in_a_process_of_its_own, resident_kb, until};

use swarmkeep_tests::{
    admin::{
        client::{ask, bearing, get, get_with},
        tracker::{ALL, READ, Tracker, packed},
    },
    http::{self, Client},
};

#[test]
fn scrapers_that_never_read_cost_little_and_keep_no_client_out() {
    let this = "admin::faults::scrapers_that_never_read_cost_little_and_keep_no_client_out";
    if !in_a_process_of_its_own(this) {
        return;
    }
    let tracker = Tracker::over(packed());
    let (before, request) = (resident_kb(), http::request("/metrics").repeat(2000));
    // Far more answers than the system buffers for a client that does not read: 2,000 of 20 KB each.
    let deaf: Vec<_> = (0..64)
        .map(|_| {
            let mut client = Client::of(tracker.admin);
            client.stream().set_nonblocking(true).expect("a socket");
            let _ = client.stream().write(&request);
            client
        })
        .collect();
    let mut resident = 0;
    until("memory stands still", || {
        let earlier = std::mem::replace(&mut resident, resident_kb());
        thread::sleep(Duration::from_millis(300));
        resident.abs_diff(earlier) < 64
    });
    assert_eq!(get(tracker.admin, "/health/live").status, 200);
    assert_eq!(get_with(tracker.admin, "/api/v1/stats", ALL).status, 200);
    let grown = resident_kb().saturating_sub(before);
    assert!(grown < 48 << 10, "{grown} KiB for {} connections", deaf.len());
}

#[test]
fn health_checks_are_answered_during_a_flood_of_silent_connections() {
    let tracker = Tracker::over(packed());
    let (stop, made, admin) = (AtomicBool::new(false), AtomicU64::new(0), tracker.admin);
    thread::scope(|scope| {
        let flood = scope.spawn(|| {
            let (mut silent, enough) = (VecDeque::new(), Instant::now() + 2 * A_MINUTE);
            while !stop.load(Relaxed) && Instant::now() < enough {
                let Ok(mut stream) = TcpStream::connect_timeout(&admin, Duration::from_secs(1)) else {
                    continue;
                };
                if made.fetch_add(1, Relaxed) % 2 == 0 {
                    // It may be closed by now.
                    let _ = stream.write_all(b"GET /metrics HTT");
                }
                silent.push_back(Client::on(stream));
                if silent.len() > 300 {
                    silent.pop_front();
                }
                thread::sleep(Duration::from_micros(500));
            }
            silent
        });
        until("no place and no turn is left", || made.load(Relaxed) > 1000);
        for _ in 0..30 {
            assert_eq!(get(admin, "/health/ready").status, 200);
        }
        stop.store(true, Relaxed);
        let silent = flood.join().expect("no panic");
        // After all of them.
        (0..5).for_each(|_| assert_eq!(get(admin, "/health/live").status, 200));
        let open = silent.iter().filter(|client| client.is_open()).count();
        assert!(open <= 64, "{open} are open");
    });
}

#[test]
fn heads_that_are_too_long_end_their_connection() {
    let tracker = Tracker::over(packed());
    for head in [
        format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(100_000)),
        format!("GET / HTTP/1.1\r\nA: {}", "x".repeat(100_000)),
    ] {
        let mut client = Client::of(tracker.admin);
        let _ = client.stream().write_all(head.as_bytes());
        let answer = client.rest();
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{answer}");
    }
    assert_eq!(get(tracker.admin, "/health/live").status, 200);
}

#[test]
fn strangers_are_answered_at_a_pace_and_bearers_at_once() {
    let tracker = Tracker::over(packed());
    let asked = Instant::now();
    let mut client = Client::of(tracker.admin);
    client.send(&http::request("/health/live").repeat(500));
    (0..500).for_each(|_| assert_eq!(client.answer().json()["status"], "live"));
    // A hundred at once, and 200 a second.
    assert!(asked.elapsed() > Duration::from_millis(1500), "{:?}", asked.elapsed());

    // A bearer that took turns with them would get as many answers as each of these.
    let mut strangers: Vec<_> = (0..50).map(|_| Client::of(tracker.admin)).collect();
    for stranger in &mut strangers {
        stranger.send(&http::request("/health/live").repeat(100));
        assert_eq!(stranger.answer().json()["status"], "live");
    }
    let request = format!("GET /api/v1/token HTTP/1.1\r\nHost: localhost\r\n{}\r\n", bearing(READ));
    client.send(request.repeat(100).as_bytes());
    (0..100).for_each(|_| assert_eq!(client.answer().json()["scopes"], json!(["read"])));
    let (stranger, mut answers) = (strangers[49].stream(), Vec::new());
    stranger.set_nonblocking(true).expect("a socket");
    let _ = stranger.read_to_end(&mut answers);
    let answers = String::from_utf8_lossy(&answers).matches("HTTP/1.1 200").count();
    assert!(answers < 50, "{answers} answers to a stranger, 100 to the bearer");
}

#[test]
fn stopping_ends_streams_without_waiting() {
    let mut tracker = Tracker::over(packed());
    let mut events = ask(tracker.admin, "GET", "/api/v1/events", &bearing(READ));
    assert_eq!(events.head().0, 200);
    events.event().expect("an event");
    let _idle = Client::of(tracker.admin);
    let mut deaf = Client::of(tracker.admin);
    deaf.stream().set_nonblocking(true).expect("a socket");
    let requests = http::request("/metrics").repeat(2000);
    until("it reads no more, since its answers are not read", || deaf.stream().write(&requests).is_err());
    tracker.stop();
    while events.event().is_some() {}
    assert!(TcpStream::connect(tracker.admin).is_err(), "nothing listens any more");
}
