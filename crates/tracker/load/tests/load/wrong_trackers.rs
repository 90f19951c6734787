//! A fast wrong tracker fails: each fake here is wrong in one way, and detected.

use std::time::Duration;

use crate::common::{
    A_MINUTE, Fake, announced, assert_only_unsent, config, connected, right, run_until, scraped, tracker,
};
use swarmkeep_load::{Mix, Report, Swarms, Target};
use swarmkeep_tracker_protocol::udp::{AnnounceRequest, ConnectRequest, Request, TransactionId};

type Answer = fn(&AnnounceRequest<'_>) -> Vec<u8>;

/// Measures a tracker that answers announces with `wrong`.
fn announcing(timeout: Duration, wrong: impl Fn(&AnnounceRequest<'_>) -> Vec<u8> + Send + 'static) -> Report {
    measured(timeout, move |request| match request {
        Request::Announce(announce) => wrong(announce),
        request => right(request),
    })
}

fn measured(timeout: Duration, script: impl Fn(&Request<'_>) -> Vec<u8> + Send + 'static) -> Report {
    let fake = Fake::start(move |request| vec![script(request)]);
    // With a short time-out, an announce stays without an answer.
    let least = if timeout < A_MINUTE { 1 } else { 100 };
    let mut config = config(fake.target());
    (config.timeout, config.mix) = (timeout, Mix { connect: 1, announce: 2, scrape: 1 });
    (config.want, config.strict) = (Some(10), true);
    run_until(&config, || fake.announces() >= least)
}

#[track_caller]
fn found_out(report: &Report, reason: &str) {
    assert!(report.wrong > 0, "{:?}", report.failures);
    let reasons: Vec<_> = report.wrong_answers.keys().collect();
    assert_eq!(reasons, [reason], "{:?}", report.wrong_answers);
    assert!(!report.wrong_answers[reason].example.is_empty());
    assert_eq!(report.wrong_answers[reason].count, report.wrong);
    assert!(
        report.by_kind.get("announce").is_none_or(|of| of.succeeded == 0) || reason.starts_with("scrape")
    );
}

#[test]
fn wrong_answers_to_announces_are_found_out() {
    let answers: [(&str, Answer); 3] = [
        ("the announcing peer among the peers", |announce| announced(announce, &[50, announce.port])),
        ("malformed", |announce| {
            let mut half_a_peer = announced(announce, &[50]);
            half_a_peer.pop();
            half_a_peer
        }),
        ("action", |announce| connected(&ConnectRequest { transaction_id: announce.transaction_id }, 7)),
    ];
    for (reason, answer) in answers {
        found_out(&announcing(A_MINUTE, answer), reason);
    }
}

#[test]
fn another_transaction_id_or_none() {
    let answers: [(&str, Answer); 2] = [
        ("malformed", |_| vec![1, 2, 3]),
        ("transaction id", |announce| {
            let transaction_id = TransactionId(announce.transaction_id.0 ^ 0x5555_5555);
            announced(&AnnounceRequest { transaction_id, ..*announce }, &[])
        }),
    ];
    for (reason, answer) in answers {
        let report = announcing(Duration::from_millis(600), answer);
        found_out(&report, reason);
        assert!(report.failures["timeout"] > 0, "its requests stay without an answer");
    }
}

#[test]
fn the_same_answer_twice() {
    let fake = Fake::start(|request| vec![right(request), right(request)]);
    let report = run_until(&config(fake.target()), || fake.announces() >= 100);
    assert!(
        report.wrong > 10 && report.wrong_answers.contains_key("transaction id"),
        "{:?}",
        report.wrong_answers
    );
}

#[test]
fn far_more_peers_than_requested() {
    let ports: Vec<u16> = (1..=2000).collect();
    let report = announcing(A_MINUTE, move |announce| announced(announce, &ports));
    assert!(report.wrong > 0 && report.by_kind["announce"].succeeded == 0, "{:?}", report.wrong_answers);
}

#[test]
fn fewer_swarms_than_were_scraped() {
    let report = measured(A_MINUTE, |request| match request {
        Request::Scrape(scrape) => scraped(scrape, scrape.info_hashes().len() - 1),
        request => right(request),
    });
    found_out(&report, "scrape length");
}

#[test]
fn the_real_tracker_is_right_in_both_families_with_every_kind_and_window() {
    let tracker = tracker();
    for (window, rate) in [(None, None), (Some(32), None), (None, Some(500.0))] {
        let mut config = config(Target::Udp(tracker.udp[0]));
        config.targets.push(Target::Udp(tracker.udp[1]));
        config.strict = true;
        (config.window, config.rate, config.threads) = (window, rate, Some(2));
        (config.fill, config.peers, config.swarms) = (true, 3_000, Swarms::Zipf(30));
        config.mix = Mix { connect: 10, announce: 50, scrape: 10 };
        (config.stopped, config.scrape_hashes) = (0.2, 5);
        let requests = || tracker.control.metrics.counts().udp.all_requests();
        let before = requests();
        let report = run_until(&config, || requests() >= before + 3_000 + 600);
        assert_only_unsent(&report, rate);
        assert_eq!(report.late, 0);
        assert!(
            report.by_kind.len() == 4 && report.by_kind.values().all(|of| of.succeeded > 10),
            "{:?}",
            report.by_kind
        );
        assert!(report.peers.per_answer > 10.0);
        assert_eq!(report.fill.announced, 3_000);
    }
}

#[test]
fn a_thousand_workers_work() {
    let tracker = tracker();
    let mut config = config(Target::Udp(tracker.udp[0]));
    (config.workers, config.threads, config.sources) = (1_000, None, 4);
    // The first datagrams come all at once, and some may be lost.
    config.timeout = Duration::from_secs(5);
    let report = run_until(&config, || tracker.control.metrics.counts().udp.all_requests() >= 20_000);
    assert_eq!(report.wrong, 0, "{:?}", report.wrong_answers);
    assert!(
        report.succeeded > 1_000 && report.success_percent > 90.0,
        "{} {:?}",
        report.succeeded,
        report.failures
    );
}
