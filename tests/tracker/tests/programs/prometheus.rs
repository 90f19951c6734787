//! Metrics, alert rules and dashboard, as Prometheus itself reads them.

use std::{
    fs,
    io::Write,
    net::{SocketAddr, TcpListener, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
};

use serde_json::Value;
use swarmkeep_kit::folder::Simulated;
use swarmkeep_store_tests::{
    programs::{PROMETHEUS, Trial},
    tests, until,
};
use swarmkeep_tests::admin::{
    client::get,
    tracker::{AnnounceLoad, Tracker, state},
};

pub(crate) fn tests() -> Vec<Trial> {
    tests! {
        [PROMETHEUS]:
            rules_fire_when_they_should,
            a_shared_store_counts_once_on_the_dashboard,
            metrics_alerts_and_dashboard_are_understood,
    }
}

fn packaging() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../crates/tracker/server/packaging"))
}

fn promtool(words: &[&str], input: &str) {
    let mut promtool = Command::new("promtool");
    promtool.args(words).current_dir(packaging());
    promtool.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut promtool = promtool.spawn().expect("it runs");
    promtool.stdin.take().expect("piped").write_all(input.as_bytes()).expect("it reads");
    let ended = promtool.wait_with_output().expect("it ends");
    let told = [ended.stdout, ended.stderr].concat();
    assert!(ended.status.success(), "{words:?}: {}", String::from_utf8_lossy(&told));
}

fn rules_fire_when_they_should() {
    promtool(&["test", "rules", "alerts.test.yml"], "");
    let [alerts, tests] = ["alerts.yml", "alerts.test.yml"]
        .map(|file| fs::read_to_string(packaging().join(file)).expect("text"));
    for name in alerts.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")) {
        assert!(tests.contains(&format!("\"{name}\"")), "{name} has no test");
    }
}

/// Of three trackers, two share a store.
fn a_shared_store_counts_once_on_the_dashboard() {
    let (folder, mut tests) = (tempfile::tempdir().expect("a folder of ours"), String::new());
    for instance in ["a", "b", "c"] {
        let labels = |more: &str| format!(r#"{{job="swarmkeep",instance="{instance}"{more}}}"#);
        let (peers, info) = (labels(r#",family="ipv4",role="seeder""#), labels(r#",id="0a1b2c3d""#));
        let mut series = |name: &str, labels: &str, values: &str| {
            tests += &format!("      - {{series: 'swarmkeep_{name}{labels}', values: '{values}x60'}}\n");
        };
        series("peers", &peers, "100");
        ["torrents", "store_bytes"].into_iter().for_each(|name| series(name, &labels(""), "100"));
        for name in ["evicted_torrents_total", "evicted_peers_total"] {
            series(name, &labels(""), "0+6000");
        }
        if instance != "c" {
            series("store_info", &info, "1");
        }
    }
    tests += "    promql_expr_test:\n";
    let all = expressions();
    let of_stores = || all.iter().filter(|expression| expression.contains("store_info"));
    assert_eq!(of_stores().count(), 8);
    for expression in of_stores() {
        let labels =
            if expression.contains("by (family") { r#"{family="ipv4", role="seeder"}"# } else { "{}" };
        tests += &format!(
            "      - {{expr: 'round({})', eval_time: 1h, exp_samples: [{{labels: '{labels}', value: 200}}]}}\n",
            expression.replace("10s", "10m"),
        );
    }
    let file = folder.path().join("tests.yml");
    fs::write(&file, format!("tests:\n  - interval: 1m\n    input_series:\n{tests}"))
        .expect("a folder of ours");
    promtool(&["test", "rules", file.to_str().expect("UTF-8")], "");
}

/// What the dashboard asks, of all trackers.
fn expressions() -> Vec<String> {
    let dashboard = fs::read_to_string(packaging().join("grafana.json")).expect("text");
    let dashboard: Value = serde_json::from_str(&dashboard).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
    let known = [("$job", "swarmkeep"), ("$instance", ".*"), ("$__rate_interval", "10s")];
    let replaced =
        |text: &str| known.iter().fold(text.to_owned(), |text, (name, value)| text.replace(name, value));
    targets.map(|target| replaced(target["expr"].as_str().expect("an expression"))).collect()
}

/// A program, until it is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.kill().and_then(|()| self.0.wait()).expect("it is ours");
    }
}

/// The answer of Prometheus to a query.
fn answer_of(prometheus: SocketAddr, path: &str) -> Value {
    let answer = get(prometheus, path).json();
    assert_eq!(answer["status"], "success", "{path}: {answer}");
    answer["data"].clone()
}

fn query(prometheus: SocketAddr, expression: &str) -> Vec<Value> {
    let encoded: String = expression.bytes().map(|byte| format!("%{byte:02x}")).collect();
    let data = answer_of(prometheus, &format!("/api/v1/query?query={encoded}"));
    data["result"].as_array().expect("a vector").clone()
}

fn metrics_alerts_and_dashboard_are_understood() {
    let tracker = Tracker::keeping(&state(&Simulated::new(1)));
    let _load = AnnounceLoad::on(&tracker, 10);
    promtool(&["check", "metrics"], get(tracker.admin, "/metrics").text());

    let folder = tempfile::tempdir().expect("a folder of ours");
    let config = folder.path().join("prometheus.yml");
    let alerts = packaging().join("alerts.yml");
    let here = [
        ("127.0.0.1:6970", &*tracker.admin.to_string()),
        ("15s", "1s"),
        ("alerts.yml", alerts.to_str().expect("UTF-8")),
    ];
    let text = fs::read_to_string(packaging().join("prometheus.yml")).expect("text");
    let text = here.iter().fold(text, |text, (theirs, ours)| text.replace(theirs, ours));
    fs::write(&config, text).expect("a folder of ours");
    promtool(&["check", "config", config.to_str().expect("UTF-8")], "");
    let free = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("loopback");
    let program = Command::new("prometheus")
        .arg(format!("--config.file={}", config.display()))
        .arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()))
        .arg(format!("--web.listen-address={free}"))
        .stderr(Stdio::null())
        .spawn();
    let _program = Running(program.expect("it runs"));
    let is_up = || !query(free, "count_over_time(up[1m]) >= 4 and up == 1").is_empty();
    let is_ready = || TcpStream::connect(free).is_ok() && get(free, "/-/ready").status == 200;
    until("it has read the metrics", || is_ready() && is_up());

    for expression in expressions() {
        // No request is refused, and there are no snapshots.
        let may_be_empty =
            ["refused_requests", "snapshot_timestamp"].iter().any(|name| expression.contains(name));
        assert!(may_be_empty || !query(free, &expression).is_empty(), "nothing for {expression}");
    }
    let rules = answer_of(free, "/api/v1/rules");
    let rules = rules["groups"][0]["rules"].as_array().expect("rules");
    assert!(rules.len() >= 9);
    for rule in rules {
        assert_eq!((&rule["health"], &rule["state"]), (&"ok".into(), &"inactive".into()), "{rule}");
    }
}
