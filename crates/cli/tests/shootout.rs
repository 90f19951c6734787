//! `swarmkeep shootout` as scripts use it.

use std::process::{Command, Output};

use serde_json::Value;
use swarmkeep::catalog;

fn shootout(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_swarmkeep"))
        .arg("shootout")
        .args(args)
        .output()
        .expect("the program starts")
}

fn json(args: &[&str]) -> Value {
    let output = shootout(args);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("one JSON object")
}

fn keys(row: &Value) -> Vec<&str> {
    row.as_object().unwrap().keys().map(String::as_str).collect()
}

#[test]
fn list_is_the_catalog() {
    let output = shootout(&["--list"]);
    assert!(output.status.success());
    let names: Vec<_> = str::from_utf8(&output.stdout).unwrap().lines().collect();
    assert_eq!(names, catalog::ALL.iter().map(|store| store.name).collect::<Vec<_>>());
}

#[test]
fn json_has_the_documented_keys() {
    let report = json(&[
        "--only",
        "packed",
        "--quick",
        "--json",
        "--swarms",
        "500",
        "--seconds",
        "0.01",
        "--threads",
        "1,2",
    ]);
    let mut top = keys(&report);
    top.sort_unstable();
    assert_eq!(top, ["machine", "rows", "seed", "version"]);

    let rows = report["rows"].as_array().unwrap();
    let mut measured: Vec<_> = rows
        .iter()
        .map(|row| (row["workload"].as_str().unwrap(), row["threads"].as_u64().unwrap()))
        .collect();
    measured.sort_unstable();
    let workloads = ["hot", "one-peer", "one-swarm", "zipf"];
    assert_eq!(measured, workloads.iter().flat_map(|&name| [(name, 1), (name, 2)]).collect::<Vec<_>>());

    for row in rows {
        assert_eq!(row["store"], "packed");
        assert_eq!(row["batch"], 1);
        assert!(row["ns_per_announce"].as_f64().unwrap() > 0.0);
        assert_eq!(row.get("p999_ns").is_some(), row["threads"] == 2);
        let has = |suffix: &str| {
            assert_eq!(
                row.get(format!("live_{suffix}")).is_some(),
                row.get(format!("rss_{suffix}")).is_some()
            );
            row.get(format!("live_{suffix}")).is_some()
        };
        let (workload, first) = (row["workload"].as_str().unwrap(), row["threads"] == 1);
        assert_eq!(has("bytes_per_swarm"), first && ["one-peer", "zipf"].contains(&workload));
        assert_eq!(has("bytes_per_peer"), first && ["one-swarm", "zipf"].contains(&workload));
    }
}

#[test]
fn memory_measures_bytes_only() {
    let report = json(&["--only", "packed", "--memory", "--json", "--swarms", "2000"]);
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 3, "no bytes of a hot swarm");
    for row in rows {
        assert!(row.get("ns_per_announce").is_none() && row.get("p999_ns").is_none());
        assert!(
            row.get("live_bytes_per_swarm").or(row.get("live_bytes_per_peer")).unwrap().as_f64().unwrap()
                > 0.0
        );
    }
}

#[test]
fn every_store_runs_and_batches() {
    let args = [
        "--all",
        "--workload",
        "zipf",
        "--json",
        "--swarms",
        "300",
        "--seconds",
        "0.001",
        "--threads",
        "2",
        "--batch",
        "7",
    ];
    let report = json(&args);
    let stores: Vec<_> =
        report["rows"].as_array().unwrap().iter().map(|row| row["store"].as_str().unwrap()).collect();
    assert_eq!(stores, catalog::ALL.iter().map(|store| store.name).collect::<Vec<_>>());
}

#[test]
fn the_table_goes_into_a_readme_and_charts_into_a_directory() {
    let directory = std::env::temp_dir().join(format!("swarmkeep-shootout-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let readme = directory.join("README.md");
    std::fs::write(&readme, "# a\n<!-- shootout:begin -->\nold\n<!-- shootout:end -->\nb\n").unwrap();
    let charts = directory.join("charts");
    let paths = [readme.to_str().unwrap(), charts.to_str().unwrap()];
    let tiny = ["--only", "packed", "--swarms", "300", "--seconds", "0.001", "--threads", "1"];
    let output = shootout(&[&tiny[..], &["--readme", paths[0], "--svg", paths[1]]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));

    assert!(String::from_utf8(output.stdout).unwrap().contains("| `packed`"));
    let text = std::fs::read_to_string(&readme).unwrap();
    assert!(
        text.starts_with("# a\n<!-- shootout:begin -->\n| store")
            && text.ends_with("<!-- shootout:end -->\nb\n"),
        "{text}"
    );
    for chart in ["zipf.svg", "hot.svg", "tail.svg", "memory.svg"] {
        assert!(std::fs::read_to_string(charts.join(chart)).unwrap().contains("packed"), "{chart}");
    }
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
fn wrong_options_say_what_is_allowed_and_exit_with_2() {
    for (args, expected) in [
        (&["--only", "packt"][..], "packed"),
        (&["--workload", "cold"], "one-swarm"),
        (&["--threads", "0"], "--threads"),
        (&["--seconds", "0"], "0.001 to 3600"),
        (&["--swarms", "10", "--peers", "5"], "every swarm of `zipf` has a peer"),
        (&["--only", "packed", "--all"], "cannot be used with"),
        (&["--fast"], "unexpected argument"),
    ] {
        let output = shootout(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        let message = String::from_utf8(output.stderr).unwrap();
        assert!(message.contains(expected), "{args:?}: {message}");
    }
}

#[test]
fn a_readme_without_marks_is_refused_before_anything_is_measured() {
    let output = shootout(&["--readme", env!("CARGO_MANIFEST_PATH")]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8(output.stderr).unwrap().contains("<!-- shootout:begin -->"));
}
