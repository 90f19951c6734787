//! Points at which benchmarks of trackers mislead, each with a test that this one does not.

use std::{
    collections::HashSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use crate::common::{Fake, announced, config, connected, refused, right, run, run_until, tracker};
use swarmkeep_load::{Error, Mix, Swarms, Target};
use swarmkeep_tracker_protocol::udp::Request;

const STALL: Duration = Duration::from_millis(600);

/// Answers at once, but for one stall 300 ms after the first announce.
fn stalling() -> Fake {
    let (mut first, mut stalled) = (None, false);
    Fake::start(move |request| {
        if let Request::Announce(_) = request {
            let first = first.get_or_insert_with(Instant::now);
            if !stalled && first.elapsed() > Duration::from_millis(300) {
                stalled = true;
                thread::sleep(STALL);
            }
        }
        vec![right(request)]
    })
}

#[test]
fn a_stall_is_one_slow_answer_in_a_closed_loop_and_in_an_open_one_all_that_were_due() {
    let fake = stalling();
    let mut closed = config(fake.target());
    (closed.workers, closed.duration) = (1, Duration::from_millis(1200));
    let report = run(&closed);
    assert!(report.latency.all.max > 0.9 * STALL.as_micros() as f64, "{:?}", report.latency);
    assert!(report.latency.all.p90 < report.latency.all.max / 4.0, "hidden: {:?}", report.latency);

    // With room for requests, and without.
    for window in [None, Some(1)] {
        let fake = stalling();
        let mut open = config(fake.target());
        (open.workers, open.duration, open.rate) = (1, Duration::from_millis(1200), Some(200.0));
        open.window = window;
        let report = run(&open);
        assert_eq!(report.requests, 240, "none is left out for the stall");
        // Half of the requests were due in the stall, and waited for 300 ms on average.
        assert!(report.latency.all.p90 > 250_000.0, "{:?}", report.latency);
        assert!(report.latency.all.mean > 80_000.0, "{:?}", report.latency);
    }
}

#[test]
fn requests_that_are_due_and_cannot_be_sent_have_failed() {
    let (mut left, duration) = (20, Duration::from_millis(500));
    let fake = Fake::start(move |request| {
        left -= 1;
        // The answers after this one come when the time is over.
        if left == 0 {
            thread::sleep(duration);
        }
        vec![right(request)]
    });
    let mut config = config(fake.target());
    (config.workers, config.rate, config.window) = (1, Some(200.0), Some(4));
    (config.duration, config.mix) = (duration, Mix { connect: 1, announce: 1, scrape: 1 });
    let report = run(&config);
    assert_eq!((report.requests, report.succeeded + report.failed), (100, 100));
    let unsent = report.failures["never sent: the window was full until the end"];
    assert!(unsent > 70 && unsent == report.failed, "{:?}", report.failures);
}

#[test]
fn the_total_counts_failures_so_that_success_is_not_always_100_percent() {
    let mut announces = 0;
    let fake = Fake::start(move |request| {
        announces += u32::from(matches!(request, Request::Announce(_)));
        let lost = matches!(request, Request::Announce(_)) && announces % 2 == 0;
        if lost { vec![] } else { vec![right(request)] }
    });
    let mut config = config(fake.target());
    config.timeout = Duration::from_millis(300);
    config.mix = Mix { connect: 0, announce: 1, scrape: 0 };
    let report = run_until(&config, || fake.announces() >= 60);
    assert!(report.failed > 10 && report.failures["timeout"] == report.failed, "{:?}", report.failures);
    assert_eq!(report.requests, report.succeeded + report.failed);
    // Some are on their way at the end.
    assert!(report.failed + 8 >= u64::from(fake.announces() / 2), "{:?}", report.failures);
    let percent = 100.0 * report.succeeded as f64 / report.requests as f64;
    assert!((report.success_percent - percent).abs() < 0.1, "{} %", report.success_percent);
    let announces = &report.by_kind["announce"];
    assert_eq!(announces.requests, announces.succeeded + announces.failed);
}

#[test]
fn a_rate_is_of_requests_and_not_of_cycles_of_them() {
    let fake = Fake::start(|request| vec![right(request)]);
    let mut config = config(fake.target());
    (config.rate, config.duration, config.threads) = (Some(100.0), Duration::from_secs(1), Some(2));
    config.mix = Mix { connect: 1, announce: 3, scrape: 1 };
    let report = run(&config);
    assert_eq!(report.requests, 400, "100 a second of each of 4 workers, whatever they are");
    let answered = report.requests_per_second * report.seconds;
    assert!((answered - report.succeeded as f64).abs() < 1.0, "{answered}");
    assert!(
        ["connect", "announce", "scrape", "stopped"].iter().all(|kind| report.by_kind.contains_key(kind))
    );
}

#[test]
fn late_answers_are_drained_and_never_taken_for_anothers() {
    let (mut held, mut announces) = (Vec::<(Instant, Vec<u8>)>::new(), 0);
    let fake = Fake::start(move |request| {
        let mut answers = Vec::new();
        // Late answers come first, so that a client that confuses answers takes one of them.
        while held.first().is_some_and(|(since, _)| since.elapsed() > Duration::from_millis(120)) {
            answers.push(held.remove(0).1);
        }
        let is_announce = matches!(request, Request::Announce(_));
        announces += u32::from(is_announce);
        if is_announce && announces % 50 == 0 {
            held.push((Instant::now(), right(request)));
        } else {
            thread::sleep(Duration::from_micros(500));
            answers.push(right(request));
        }
        answers
    });
    let mut config = config(fake.target());
    (config.timeout, config.workers) = (Duration::from_millis(50), 1);
    let report = run_until(&config, || fake.announces() >= 400);
    assert!(report.late >= 3, "{} late", report.late);
    assert_eq!(report.wrong, 0, "{:?}", report.wrong_answers);
    assert!(report.failures["timeout"] >= report.late);
    assert_eq!(report.failed, report.failures["timeout"]);
    // The workers go on as before.
    let last = report.series.iter().rev().find(|second| second.second == 0).unwrap();
    assert!(last.succeeded > 0, "{:?}", report.series);
}

#[test]
fn connection_ids_are_used_until_they_are_old_and_then_renewed() {
    let connects = Arc::<AtomicU64>::default();
    let counted = Arc::clone(&connects);
    let fake = Fake::start(move |request| {
        let latest = counted.load(Relaxed);
        let id = match request {
            Request::Connect(connect) => {
                counted.store(latest + 1, Relaxed);
                return vec![connected(connect, latest + 1)];
            }
            Request::Announce(announce) => announce.connection_id.0,
            Request::Scrape(scrape) => scrape.connection_id.0,
        };
        // While a worker uses an id, the three others connect twice at most.
        if id > 0 && (id..id + 8).contains(&latest) {
            return vec![right(request)];
        }
        vec![refused(request, b"connection id expired")]
    });
    let mut config = config(fake.target());
    config.connection_lifetime = Duration::from_millis(500);
    let began = Instant::now();
    let report = run_until(&config, || connects.load(Relaxed) >= 12);
    let (connects, took) = (connects.load(Relaxed), began.elapsed().as_millis() as u64);
    assert_eq!((report.failed, report.wrong), (0, 0), "{:?}", report.failures);
    // Four workers, each every 479 ms or later, and once at the start.
    assert!((12..=4 * (1 + took / 450)).contains(&connects), "{connects} in {took} ms");
    assert!(report.by_kind["announce"].requests > 2 * connects, "{:?}", report.by_kind);
}

#[test]
fn a_tracker_that_has_forgotten_the_connection_is_connected_to_again() {
    let mut requests = 0;
    let fake = Fake::start(move |request| {
        requests += 1;
        if requests != 100 || matches!(request, Request::Connect(_)) {
            return vec![right(request)];
        }
        vec![refused(request, b"Connection ID missmatch.")]
    });
    let report = run_until(&config(fake.target()), || fake.announces() >= 200);
    assert_eq!(report.failures.len(), 1, "{:?}", report.failures);
    assert_eq!(report.failures["error: Connection ID missmatch."], 1);
    assert_eq!(report.by_kind["connect"].succeeded, 1, "the worker that was refused, in the measurement");
    assert!(report.success_percent > 90.0);
}

#[test]
fn requests_of_the_warm_up_are_not_counted() {
    let mut first = None;
    let fake = Fake::start(move |request| {
        let is_slow = first.get_or_insert_with(Instant::now).elapsed() < Duration::from_millis(400);
        let Request::Announce(announce) = request else { return vec![right(request)] };
        if is_slow {
            thread::sleep(Duration::from_millis(200));
        }
        // Only slow answers have a peer.
        vec![announced(announce, if is_slow { &[50] } else { &[] })]
    });
    let mut cold = config(fake.target());
    cold.workers = 1;
    cold.warm_up = Duration::from_millis(1000);
    let (report, seen) = (run(&cold), u64::from(fake.announces()));
    // Half of the warm-up was as fast as the rest; the slow half leaves no trace.
    assert!(report.requests < seen - seen / 5, "{} of {seen}", report.requests);
    assert_eq!(report.peers.total, 0, "{:?}", report.latency);
    assert!(report.seconds >= 0.29, "{}", report.seconds);
}

#[test]
fn a_worker_that_waits_in_vain_from_the_warm_up_on_has_failed() {
    let fake = Fake::start(|request| match request {
        Request::Announce(_) => vec![],
        _ => vec![right(request)],
    });
    let mut config = config(fake.target());
    (config.warm_up, config.timeout) = (Duration::from_millis(50), Duration::from_millis(300));
    config.mix = Mix { connect: 0, announce: 1, scrape: 0 };
    let began = Instant::now();
    let report = run_until(&config, || fake.announces() > 4);
    // Each of four workers sends one in the warm-up, and the next when that has failed.
    let most = 4 * (1 + began.elapsed().as_millis() as u64 / 300);
    assert!((u64::from(fake.announces())..=most).contains(&report.failed), "{} of {most}", report.failed);
    assert_eq!(report.failures["timeout"], report.failed);
}

#[test]
fn the_trackers_cpu_time_and_memory_are_reported_and_it_must_exist() {
    let tracker = tracker();
    let mut config = config(Target::Udp(tracker.udp[0]));
    (config.server_pid, config.duration) = (Some(std::process::id()), Duration::from_millis(500));
    let report = run(&config);
    let server = report.server.expect("configured");
    assert!(server.cpu_seconds > 0.0 && server.rss_bytes_before > 1 << 20, "{server:?}");
    let per_million = server.cpu_seconds * 1e6 / report.requests as f64;
    assert!((server.cpu_seconds_per_million / per_million - 1.0).abs() < 0.01, "{server:?}");

    config.server_pid = Some(u32::MAX);
    assert!(matches!(swarmkeep_load::run(&config, &mut |_| {}), Err(Error::NoProcess(u32::MAX))));
}

#[test]
fn no_answer_is_an_error_and_not_a_report() {
    let free = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut config = config(Target::Udp(free));
    config.timeout = Duration::from_millis(50);
    for fill in [false, true] {
        config.fill = fill;
        let error = swarmkeep_load::run(&config, &mut |_| {}).unwrap_err();
        assert!(error.to_string().contains("is the tracker running"), "{error}");
    }
}

#[test]
fn a_fill_tries_lost_announces_again() {
    let (mut announces, seen) = (0, Arc::new(Mutex::new(HashSet::new())));
    let writes = Arc::clone(&seen);
    let fake = Fake::start(move |request| {
        if let Request::Announce(announce) = request {
            announces += 1;
            if announces % 10 == 0 && announces < 400 {
                return vec![];
            }
            writes.lock().unwrap().insert((announce.info_hash, announce.port));
            return vec![announced(announce, &[])];
        }
        vec![right(request)]
    });
    let mut config = config(fake.target());
    (config.fill, config.peers, config.swarms) = (true, 400, Swarms::Zipf(7));
    config.timeout = Duration::from_secs(1);
    let report = run(&config);
    assert_eq!((report.fill.announced, report.fill.lost), (400, 0));
    assert_eq!(seen.lock().unwrap().len(), 400);
    // Of what is measured, a busy machine can lose one request of each worker.
    assert!(report.failed <= 4, "the fill is not measured: {:?}", report.failures);
}
