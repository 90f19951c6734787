//! Metrics, read as strictly as their formats allow.

use std::collections::BTreeMap;

use swarmkeep::AnnounceEvent;
use swarmkeep_kit::folder::Simulated;
use swarmkeep_store_tests::{found, until, with};
use swarmkeep_tests::{
    admin::{
        client::{ask, bearing, get},
        tracker::{AnnounceLoad, Tracker, config, hash, packed, state},
    },
    https::CertificateAuthority,
};
use swarmkeep_tracker::SharedStore;

use crate::admin::out_of_reach;

/// The samples of one exposition, and the type of each family.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    pub(crate) types: BTreeMap<String, String>,
    pub(crate) samples: BTreeMap<(String, Vec<(String, String)>), f64>,
}

impl Metrics {
    /// Reads Prometheus' text format, or OpenMetrics.
    pub(crate) fn parse(text: &str, open: bool) -> Self {
        let mut metrics = Self::default();
        let (mut family, mut helped) = (String::new(), String::new());
        assert!(text.ends_with('\n') && text.ends_with("# EOF\n") == open, "the end");
        for line in text.lines().filter(|line| *line != "# EOF") {
            if let Some(help) = line.strip_prefix("# HELP ") {
                let (name, text) = help.split_once(' ').expect(line);
                assert!(!text.is_empty() && text.ends_with('.'), "{line}");
                helped = name.to_owned();
            } else if let Some(kind) = line.strip_prefix("# TYPE ") {
                let (name, kind) = kind.split_once(' ').expect(line);
                assert_eq!(name, helped, "help comes first");
                assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
                assert!(metrics.types.insert(name.to_owned(), kind.to_owned()).is_none(), "{line} again");
                family = name.to_owned();
            } else if let Some(unit) = line.strip_prefix("# UNIT ") {
                let (name, unit) = unit.split_once(' ').expect(line);
                assert!(open && name == family && name.ends_with(&format!("_{unit}")), "{line}");
            } else {
                metrics.sample(line, &family, open);
            }
        }
        metrics.check_histograms();
        metrics
    }

    fn sample(&mut self, line: &str, family: &str, open: bool) {
        let (series, value) = line.rsplit_once(' ').expect(line);
        let (name, labels) = match series.split_once('{') {
            Some((name, labels)) => (name, labels.strip_suffix('}').expect(line)),
            None => (series, ""),
        };
        assert!(
            name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_'),
            "{line}"
        );
        let suffix =
            name.strip_prefix(family).unwrap_or_else(|| panic!("{line} is of another family than {family}"));
        let suffixes: &[&str] = match &*self.types[family] {
            "histogram" => &["_bucket", "_sum", "_count"],
            "counter" if open => &["_total"],
            _ => &[""],
        };
        assert!(suffixes.contains(&suffix), "{line}");
        assert_eq!(name.ends_with("_total"), self.types[family] == "counter", "{line}");
        let label = |label: &str| {
            let (key, value) = label.split_once("=\"").expect(line);
            (key.to_owned(), value.strip_suffix('"').expect(line).to_owned())
        };
        let labels: Vec<_> = labels.split(',').filter(|label| !label.is_empty()).map(label).collect();
        let value: f64 = value.parse().expect(line);
        assert!(value.is_finite() && value >= 0.0, "{line}");
        assert!(self.samples.insert((name.to_owned(), labels), value).is_none(), "{line} again");
    }

    fn check_histograms(&self) {
        for (name, _) in self.types.iter().filter(|(_, kind)| *kind == "histogram") {
            let (bucket, mut series) = (format!("{name}_bucket"), BTreeMap::<_, Vec<_>>::new());
            for ((_, labels), count) in self.samples.iter().filter(|((of, _), _)| *of == bucket) {
                let (le, others): (Vec<_>, Vec<_>) = labels.iter().cloned().partition(|(key, _)| key == "le");
                let bound: f64 = le[0].1.replace("+Inf", "inf").parse().expect("a number");
                series.entry(others).or_default().push((bound, *count));
            }
            assert!(!series.is_empty(), "{name} has no buckets");
            for (labels, mut buckets) in series {
                buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
                let is_cumulative = buckets.is_sorted_by(|a, b| a.0 < b.0 && a.1 <= b.1);
                assert!(is_cumulative, "{name} {labels:?}: {buckets:?}");
                let of = |suffix: &str| self.samples[&(format!("{name}{suffix}"), labels.clone())];
                assert_eq!(buckets.last(), Some(&(f64::INFINITY, of("_count"))), "{name} {labels:?}");
                assert!(of("_sum") >= 0.0);
            }
        }
    }

    /// The sum over all label sets that contain `wanted`.
    pub(crate) fn sum(&self, name: &str, wanted: &[(&str, &str)]) -> f64 {
        let has = |labels: &[(String, String)]| {
            wanted.iter().all(|wanted| labels.iter().any(|(key, value)| (&**key, &**value) == *wanted))
        };
        let found: Vec<_> =
            self.samples.iter().filter(|((of, labels), _)| of == name && has(labels)).collect();
        assert!(!found.is_empty(), "no {name} {wanted:?}");
        found.into_iter().map(|(_, value)| value).sum()
    }
}

fn scrape(tracker: &Tracker) -> Metrics {
    let answer = get(tracker.admin, "/metrics");
    assert_eq!(answer.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    Metrics::parse(answer.text(), false)
}

#[test]
fn metrics_count_requests_and_name_no_peer() {
    let tracker = Tracker::over(packed());
    let announcer = tracker.announcer();
    for port in 1..=5 {
        let left = if port > 2 { u64::MAX } else { 0 };
        announcer.announce(hash(1), 2000 + port, left, AnnounceEvent::Started);
    }
    announcer.announce(hash(1), 2005, 0, AnnounceEvent::Completed);
    announcer.announce(hash(1), 2001, 0, AnnounceEvent::Stopped);
    announcer.announce(hash(2), 0, 0, AnnounceEvent::Started);
    ask(tracker.admin, "GET", "/api/v1/stats", &bearing("not-one-of-them")).answer();
    until("a sample and a sweep", || {
        let metrics = scrape(&tracker);
        metrics.sum("swarmkeep_peers", &[]) == 4.0
            && metrics.sum("swarmkeep_sweep_passes_total", &[]) > 0.0
            && metrics.sum("swarmkeep_answer_duration_seconds_count", &[]) == 9.0
    });

    let text = get(tracker.admin, "/metrics");
    for private in [&hash(1).to_string(), "127.0.0.1", "TR4060", "not-a-label", ":2001"] {
        assert!(!text.text().contains(private), "{private}");
    }
    let metrics = scrape(&tracker);
    let (udp, transmission) = (("protocol", "udp"), ("client", "transmission"));
    for (name, labels, value) in [
        ("swarmkeep_requests_total", &[udp, ("kind", "connect"), ("family", "ipv4")][..], 1.0),
        ("swarmkeep_requests_total", &[udp, ("kind", "announce"), ("family", "ipv4")], 8.0),
        ("swarmkeep_requests_total", &[("family", "ipv6")], 0.0),
        ("swarmkeep_requests_total", &[("protocol", "http")], 0.0),
        ("swarmkeep_refused_requests_total", &[udp, ("reason", "malformed")], 1.0),
        ("swarmkeep_refused_requests_total", &[], 1.0),
        ("swarmkeep_refused_requests_by_client_total", &[udp, ("reason", "malformed"), transmission], 1.0),
        ("swarmkeep_lenient_announces_total", &[udp, ("field", "left"), transmission], 3.0),
        ("swarmkeep_lenient_announces_total", &[], 3.0),
        ("swarmkeep_peers_joined_total", &[udp], 5.0),
        ("swarmkeep_peers_left_total", &[udp], 1.0),
        ("swarmkeep_downloads_total", &[udp], 1.0),
        ("swarmkeep_answer_duration_seconds_count", &[udp], 9.0),
        ("swarmkeep_torrents", &[], 1.0),
        ("swarmkeep_torrent_downloads", &[], 1.0),
        ("swarmkeep_peers", &[("family", "ipv4"), ("role", "seeder")], 2.0),
        ("swarmkeep_peers", &[("family", "ipv4"), ("role", "leecher")], 2.0),
        ("swarmkeep_peers", &[("family", "ipv6")], 0.0),
        ("swarmkeep_store_up", &[], 1.0),
        ("swarmkeep_admin_wrong_tokens_total", &[], 1.0),
        ("swarmkeep_store_limit_bytes", &[], 1024.0 * 1024.0 * 1024.0),
        ("swarmkeep_build_info", &[("store", "packed")], 1.0),
        ("swarmkeep_interval_stretch_ratio", &[], 1.0),
        ("swarmkeep_clock_ahead_seconds", &[], 0.0),
    ] {
        assert_eq!(metrics.sum(name, labels), value, "{name} {labels:?}");
    }
    let present = "swarmkeep_store_bytes swarmkeep_process_resident_memory_bytes \
        swarmkeep_process_cpu_seconds_total swarmkeep_process_open_fds swarmkeep_process_start_time_seconds \
        swarmkeep_received_bytes_total swarmkeep_sent_bytes_total swarmkeep_answer_duration_seconds_sum \
        swarmkeep_sweep_passes_total swarmkeep_sweep_step_duration_seconds_count";
    for name in present.split(' ') {
        assert!(metrics.sum(name, &[]) > 0.0, "{name}");
    }
    let labels = "protocol kind family reason field client role le counted version store";
    for (name, has) in metrics.samples.keys() {
        assert!(name.starts_with("swarmkeep_"), "{name}");
        assert!(has.iter().all(|(key, _)| labels.split(' ').any(|label| label == key)), "{name} {has:?}");
    }
}

#[test]
fn counters_only_grow_and_series_stay_the_same_under_load() {
    let tracker = Tracker::over(packed());
    let _load = AnnounceLoad::on(&tracker, 100);
    let mut earlier = scrape(&tracker);
    let requests = |metrics: &Metrics| metrics.sum("swarmkeep_requests_total", &[]);
    for _ in 0..5 {
        let has_load = |later: &Metrics| requests(later) >= requests(&earlier) + 1_000.0;
        let later = found("requests", || Some(scrape(&tracker)).filter(has_load));
        assert_eq!(earlier.types, later.types);
        assert!(earlier.samples.keys().eq(later.samples.keys()), "series come and go");
        for (series, value) in &earlier.samples {
            let gauge = later.types.get(&series.0).is_some_and(|kind| kind == "gauge");
            assert!(
                gauge || later.samples[series] >= *value,
                "{series:?} went from {value} to {}",
                later.samples[series]
            );
        }
        earlier = later;
    }
}

#[test]
fn open_metrics_are_for_clients_that_accept_them() {
    let tracker = Tracker::over(packed());
    let accept =
        "Accept: application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.3\r\n";
    let answer = ask(tracker.admin, "GET", "/metrics", accept).answer();
    let openmetrics = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    assert_eq!(answer.header("content-type"), Some(openmetrics));
    let open = Metrics::parse(answer.text(), true);
    let text = scrape(&tracker);
    assert!(open.samples.keys().eq(text.samples.keys()), "the same series in both");
}

#[test]
fn metrics_without_a_store_say_so() {
    let tracker = Tracker::over(out_of_reach::repository());
    let metrics = scrape(&tracker);
    assert_eq!(metrics.sum("swarmkeep_store_up", &[]), 0.0);
    assert!(!metrics.types.contains_key("swarmkeep_torrents"));
}

/// Names of metrics in an expression of Prometheus' query language.
fn names_in(expression: &str) -> impl Iterator<Item = &str> {
    expression
        .split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .filter(|word| word.starts_with("swarmkeep_"))
}

#[test]
fn grafana_and_the_alerts_ask_only_for_metrics_that_exist() {
    let dashboard = include_str!("../../../../../crates/tracker/server/packaging/grafana.json");
    let dashboard: serde_json::Value = serde_json::from_str(dashboard).expect("JSON");
    assert!(
        dashboard["title"].is_string()
            && dashboard["schemaVersion"].is_number()
            && dashboard["uid"].is_string()
    );
    let tracker = Tracker::keeping(&state(&Simulated::new(1)));
    let shared = || SharedStore { seconds_ahead: Some(0), evicted: Some(0), ..SharedStore::default() };
    tracker.metrics.watch_shared_store(shared);
    let secured = with(config(), |config| config.tls = Some(CertificateAuthority::new().tls()));
    let secured = scrape(&Tracker::with(&secured, packed()));
    assert_eq!(secured.sum("swarmkeep_certificate_expiration_timestamp_seconds", &[]), 4_107_456_000.0);
    let metrics = [scrape(&tracker), secured];
    let exists = |name: &str| metrics.iter().flat_map(|all| all.samples.keys()).any(|(of, _)| of == name);
    let mut asked = 0;
    let mut ids = std::collections::BTreeSet::new();
    for panel in dashboard["panels"].as_array().expect("panels") {
        assert!(ids.insert(panel["id"].as_u64().expect("an id")), "{panel}");
        assert!(panel["gridPos"]["w"].is_number() && panel["title"].is_string(), "{panel}");
        for target in panel["targets"].as_array().into_iter().flatten() {
            let expression = target["expr"].as_str().expect("an expression");
            for name in names_in(expression) {
                asked += 1;
                assert!(exists(name), "{name} in {expression}");
            }
        }
    }
    assert!(asked >= 20, "{asked}");

    let alerts = include_str!("../../../../../crates/tracker/server/packaging/alerts.yml");
    let missing: Vec<_> = names_in(alerts).filter(|name| !exists(name)).collect();
    assert_eq!(missing, [""; 0]);
    // The alerts of docs/operate/admin.md.
    let rules: Vec<_> = alerts.split("- alert: ").skip(1).collect();
    let asked_for = "snapshot_refused snapshot_timestamp_seconds downloads_refused store_layout_refused \
        store_clock_ahead_seconds certificate_expiration_timestamp_seconds";
    for name in asked_for.split(' ') {
        let expressions =
            rules.iter().filter_map(|rule| rule.split_once("expr: ")?.1.split("labels:").next());
        let asking = expressions.filter(|expression| expression.contains(&format!("swarmkeep_{name}")));
        assert_eq!(asking.count(), 1, "{name}");
    }
}
