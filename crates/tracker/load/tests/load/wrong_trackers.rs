//! A fast wrong tracker fails: each fake here is wrong in one way, and detected.

use std::time::Duration;

use crate::common::{Fake, announced, assert_only_unsent, config, connected, right, run, scraped, tracker};
use swarmkeep_load::{Mix, Report, Swarms, Target};
use swarmkeep_tracker_protocol::udp::{AnnounceRequest, ConnectRequest, Request, TransactionId};

/// Measures a tracker that answers announces with `wrong`.
fn announcing(wrong: impl Fn(&AnnounceRequest<'_>) -> Vec<u8> + Send + 'static) -> Report {
    measured(move |request| match request {
        Request::Announce(announce) => wrong(announce),
        request => right(request),
    })
}

fn measured(script: impl Fn(&Request<'_>) -> Vec<u8> + Send + 'static) -> Report {
    let fake = Fake::start(move |request| vec![script(request)]);
    let mut config = config(fake.target());
    (config.timeout, config.duration) = (Duration::from_millis(250), Duration::from_millis(400));
    config.mix = Mix { connect: 1, announce: 2, scrape: 1 };
    (config.want, config.strict) = (Some(10), true);
    run(&config)
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
    type Answer = fn(&AnnounceRequest<'_>) -> Vec<u8>;
    let answers: [(&str, Answer); 4] = [
        ("the announcing peer among the peers", |announce| announced(announce, &[50, announce.port])),
        ("malformed", |_| vec![1, 2, 3]),
        ("malformed", |announce| {
            let mut half_a_peer = announced(announce, &[50]);
            half_a_peer.pop();
            half_a_peer
        }),
        ("action", |announce| connected(&ConnectRequest { transaction_id: announce.transaction_id }, 7)),
    ];
    for (reason, answer) in answers {
        found_out(&announcing(answer), reason);
    }
}

#[test]
fn another_transaction_id() {
    let report = announcing(|announce| {
        let transaction_id = TransactionId(announce.transaction_id.0 ^ 0x5555_5555);
        announced(&AnnounceRequest { transaction_id, ..*announce }, &[])
    });
    found_out(&report, "transaction id");
    assert!(report.failures["timeout"] > 0, "its requests stay without an answer");
}

#[test]
fn the_same_answer_twice() {
    let fake = Fake::start(|request| vec![right(request), right(request)]);
    let report = run(&config(fake.target()));
    assert!(
        report.wrong > 10 && report.wrong_answers.contains_key("transaction id"),
        "{:?}",
        report.wrong_answers
    );
}

#[test]
fn far_more_peers_than_requested() {
    let ports: Vec<u16> = (1..=2000).collect();
    let report = announcing(move |announce| announced(announce, &ports));
    assert!(report.wrong > 0 && report.by_kind["announce"].succeeded == 0, "{:?}", report.wrong_answers);
}

#[test]
fn fewer_swarms_than_were_scraped() {
    let report = measured(|request| match request {
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
        let report = run(&config);
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
    config.duration = Duration::from_millis(800);
    let report = run(&config);
    assert_eq!(report.wrong, 0, "{:?}", report.wrong_answers);
    assert!(
        report.succeeded > 1_000 && report.success_percent > 90.0,
        "{} {:?}",
        report.succeeded,
        report.failures
    );
}
