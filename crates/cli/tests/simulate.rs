//! `swarmkeep simulate` as scripts use it.

use std::process::{Command, Output};

use serde_json::Value;

fn simulate(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_swarmkeep"))
        .arg("simulate")
        .args(args)
        .output()
        .expect("the program starts")
}

fn json(args: &[&str]) -> Value {
    let output = simulate(args);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("one JSON object")
}

const SMALL: [&str; 4] = ["--torrents", "1000", "--peers", "10000"];

#[test]
fn json_has_what_every_arrangement_needs_and_every_failure_does() {
    let report = json(&[&SMALL[..], &["--json"]].concat());
    assert_eq!(report["population"]["torrents"], 1000);
    assert_eq!(report["simulated_peers"], 10_000, "each of them");
    let needs = report["needs"].as_array().unwrap();
    let arrangements: Vec<_> = needs.iter().map(|needs| needs["arrangement"].as_str().unwrap()).collect();
    assert_eq!(arrangements, ["one machine", "sharded by info hash", "trackers on a Redis"]);
    assert_eq!(needs[0]["machines"], 1);
    assert!(needs.iter().all(|needs| needs["cores"].as_f64().unwrap() > 0.0));

    let failures = report["failures"].as_array().unwrap();
    let of =
        |key: &str| failures.iter().find(|failed| failed["key"] == key).unwrap_or_else(|| panic!("{key}"));
    let number = |key: &str, what: &str| of(key)[what].as_f64().unwrap_or_else(|| panic!("{what} of {key}"));
    // Who starts empty has half of its peers after half an interval, and all of them after one and its jitter.
    let back = of("one-empty")["back_seconds"].as_array().unwrap();
    let [half, .., nearly_all] = [0, 1, 2].map(|n| back[n].as_f64().unwrap());
    assert!((800.0..1000.0).contains(&half) && (1650.0..1990.0).contains(&nearly_all), "{back:?}");
    assert!(number("one-empty", "missing_percent") > 2.0 * number("one-snapshot", "missing_percent"));
    assert_eq!(number("one-planned", "poor_percent").round(), 0.0);
    assert_eq!(number("shared-planned", "unanswered"), 0.0, "within the patience of a tracker");
    assert!(number("shared-tracker", "unanswered") > 0.0 && number("shared-tracker", "lost_percent") < 1.0);
    assert!(number("sharded-dies", "hit_percent") < 100.0);
    assert!(number("shared-failover", "lost_percent") < number("shared-empty", "lost_percent"));
}

#[test]
fn a_seed_gives_the_same_twice_and_another_one_something_else() {
    let run = |seed: &str| simulate(&[&SMALL[..], &["--seed", seed]].concat()).stdout;
    let one = run("1");
    assert!(str::from_utf8(&one).unwrap().starts_with("## Population\n\n|"));
    assert_eq!(one, run("1"));
    assert_ne!(one, run("2"));
}

#[test]
fn files_and_charts_are_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let files = [path("found.json"), path("found.md"), path("charts")];
    let args = ["--check", "--json", &files[0], "--markdown", &files[1], "--charts", &files[2]];
    let output = simulate(&[&SMALL[..], &args].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(std::fs::read(&files[1]).unwrap(), output.stdout);
    let found: Value = serde_json::from_slice(&std::fs::read(&files[0]).unwrap()).unwrap();
    assert!(found["check"].as_array().is_some_and(|rows| rows.len() > 40));
    for chart in ["cores", "memory", "machines", "imbalance", "recovery", "announces"] {
        let drawn = std::fs::read_to_string(folder.path().join(format!("charts/{chart}.svg"))).unwrap();
        assert!(drawn.contains("</svg>") && drawn.len() > 3000, "{chart}");
    }
}

#[test]
fn what_cannot_be_is_refused_and_says_what_to_do() {
    for (args, says) in [
        (&["--torrents", "100", "--peers", "99"][..], "every swarm has a peer"),
        (&["--torrents", "3", "--peers", "1000"], "give a larger share"),
        (&["--interval", "45m"], "would be forgotten after --lifetime"),
        (&["--restart", "1h"], "an hour is simulated"),
        (&["--ipv6", "1.5"], "expected a share"),
        (&["--interval", "500ms"], "less than a second"),
    ] {
        let output = simulate(args);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {stderr}");
        assert!(stderr.contains(says), "{args:?}: {stderr}");
    }
}
