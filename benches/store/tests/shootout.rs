//! `cargo shootout` as scripts use it.

use std::{
    collections::BTreeSet,
    fs,
    path::Path,
    process::{Command, Output},
};

use serde_json::Value;
use swarmkeep::catalog;
use tempfile::TempDir;

fn shootout(line: &str) -> Output {
    let args = line.split_whitespace();
    Command::new(env!("CARGO_BIN_EXE_shootout")).args(args).output().expect("the program starts")
}

fn json(line: &str) -> Value {
    let output = shootout(&format!("--json {line}"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("one JSON object")
}

#[test]
fn list_is_the_catalog() {
    let output = shootout("--list");
    assert!(output.status.success());
    let names: Vec<_> = str::from_utf8(&output.stdout).unwrap().lines().collect();
    assert_eq!(names, catalog::ALL.iter().map(|store| store.name).collect::<Vec<_>>());
}

#[test]
fn rows_of_another_crate_stand_beside_those_of_the_catalog() {
    // `cargo test` without `--test` builds the examples.
    let examples = Path::new(env!("CARGO_BIN_EXE_shootout")).with_file_name("examples");
    let shootout = "--only own,packed --workload zipf --swarms 300 --seconds 0.001 --threads 1 --batch 1";
    for (example, flags, before, after) in
        [("own", shootout, "| `", "`"), ("own_torrust", "--test update_one", "_in_parallel/", "/1")]
    {
        let mut command = Command::new(examples.join(example));
        let output = command.args(flags.split(' ')).output().expect("the example starts");
        let text = String::from_utf8_lossy(&output.stdout);
        let has = |store: &str| text.contains(&format!("{before}{store}{after}"));
        assert!(has("own") && has("packed"), "{text}{}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn json_has_the_documented_keys() {
    let flags = "--only packed --quick --swarms 500 --seconds 0.01 --threads 1,2";
    let report = json(flags);
    let mut top: Vec<_> = report.as_object().unwrap().keys().map(String::as_str).collect();
    top.sort_unstable();
    let keys = "command commit date load machine not_a_measurement quick repeat rows seed version";
    assert_eq!(top.join(" "), keys);
    assert_eq!((&report["quick"], report["date"].as_str().unwrap().len()), (&true.into(), 10));
    assert_eq!(report["command"], format!("shootout --json {flags}"));
    assert!(report["not_a_measurement"].as_str().unwrap().starts_with("quick"), "{report}");

    let rows = report["rows"].as_array().unwrap();
    let number = |row: &Value, key: &str| row[key].as_u64().unwrap();
    let mut measured: Vec<_> = rows
        .iter()
        .map(|row| (row["workload"].as_str().unwrap(), number(row, "threads"), number(row, "batch")))
        .collect();
    measured.sort_unstable();
    let workloads = ["hot", "one-peer", "one-swarm", "zipf"];
    let ways = [(1, 1), (1, 32), (2, 1), (2, 32)];
    let all = workloads.iter().flat_map(|&name| ways.map(|(threads, batch)| (name, threads, batch)));
    assert_eq!(measured, all.collect::<Vec<_>>());

    for row in rows {
        assert_eq!(row["store"], "packed");
        assert!(row["ns_per_announce"].as_f64().unwrap() > 0.0);
        assert!(row["harness_ns"].as_f64().unwrap() > 0.0);
        let way = (number(row, "threads"), number(row, "batch"));
        assert_eq!(row.get("p999_ns").is_some(), way == (2, 32));
        let has = |number: &str| row.get(number).is_some();
        let (workload, first) = (row["workload"].as_str().unwrap(), way == (1, 1));
        assert_eq!(has("rss_bytes_per_swarm"), first && ["one-peer", "zipf"].contains(&workload));
        assert_eq!(has("rss_bytes_per_peer"), first && ["one-swarm", "zipf"].contains(&workload));
    }
}

#[test]
fn memory_measures_bytes_only() {
    let report = json("--only packed --memory --swarms 2000");
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 3, "no bytes of a hot swarm");
    for row in rows {
        assert!(row.get("ns_per_announce").is_none() && row.get("p999_ns").is_none());
        let bytes = row.get("rss_bytes_per_swarm").or(row.get("rss_bytes_per_peer")).unwrap();
        assert!(bytes.as_f64().unwrap() > 0.0);
    }
}

#[test]
fn every_store_runs_and_batches() {
    let report = json("--all --workload zipf --swarms 300 --seconds 0.001 --threads 2 --batch 7");
    let stores: Vec<_> =
        report["rows"].as_array().unwrap().iter().map(|row| row["store"].as_str().unwrap()).collect();
    assert_eq!(stores, catalog::ALL.iter().map(|store| store.name).collect::<Vec<_>>());
}

#[test]
fn the_table_goes_into_a_readme_and_charts_into_a_directory() {
    let folder = tempfile::tempdir().unwrap();
    let readme = written(&folder, "# a\n<!-- shootout:begin -->\nold\n<!-- shootout:end -->\nb\n");
    let charts = folder.path().join("charts").display().to_string();
    let tiny = "--only packed --swarms 300 --seconds 0.001 --threads 1";
    let output = shootout(&format!("{tiny} --readme {readme} --svg {charts}"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));

    let stdout = String::from_utf8(output.stdout).unwrap();
    assert!(stdout.starts_with("`shootout --only packed ") && stdout.contains("| `packed`"), "{stdout}");
    let text = fs::read_to_string(&readme).unwrap();
    assert!(
        text.starts_with("# a\n<!-- shootout:begin -->\n| store")
            && text.ends_with("<!-- shootout:end -->\nb\n")
            && text.contains("\nBy `shootout --only packed "),
        "{text}"
    );
    let columns = text.lines().nth(2).unwrap().split('|').count() - 2;
    assert_eq!(columns, 6, "{text}");
    for chart in ["stores.svg", "zipf.svg", "hot.svg", "tail.svg", "memory.svg"] {
        let svg = fs::read_to_string(format!("{charts}/{chart}")).unwrap();
        assert!(svg.contains("packed") && (chart != "stores.svg" || svg.contains("\n1.00\n")), "{chart}");
    }
}

#[test]
fn figures_are_measured_on_stores_that_have_room_for_them() {
    let folder = tempfile::tempdir().unwrap();
    let readme = written(&folder, "<!-- figures:begin --><!-- figures:end -->\n");
    let report = json(&format!("--figures --quick --readme {readme}"));
    assert_eq!((&report["repeat"], &report["divided_by"]), (&1.into(), &100.into()));
    let stores: BTreeSet<_> =
        report["rows"].as_array().unwrap().iter().map(|row| row["store"].as_str().unwrap()).collect();
    assert_eq!(stores.len(), 4, "one of each family: {stores:?}");

    let (table, figures) = (fs::read_to_string(&readme).unwrap(), report["figures"].as_array().unwrap());
    assert!(figures.len() > 20);
    for figure in figures {
        let what = figure["what"].as_str().unwrap();
        assert!(table.contains(&format!("| {what} ")), "{table}");
        let cells = figure["stores"].as_array().unwrap();
        assert_eq!(cells[0]["store"], "packed", "{what}");
        let packed_only =
            ["10 M", "sweeps until", "these", "paced", "flood"].iter().any(|word| what.contains(word));
        assert_eq!(cells.len(), if packed_only { 1 } else { 4 }, "{what}");
        for cell in cells {
            let [least, median, most] = ["least", "median", "most"].map(|key| cell[key].as_f64().unwrap());
            assert!(least <= median && median <= most, "{what}: {cell}");
            if what.starts_with("allocations") {
                assert_eq!(most, 0.0, "{cell}");
            } else if !what.starts_with("RSS after") && !what.contains("flood") {
                assert!(least > 0.0, "{what}: {cell}");
            }
        }
        assert_eq!(figure.get("harness").is_some(), what.starts_with("announce, "), "{what}");
    }
}

#[test]
fn growth_is_measured_and_drawn() {
    let folder = tempfile::tempdir().unwrap();
    let charts = folder.path().display();
    let stores = "--only packed,dashmap-mutex-std";
    let report = json(&format!("--growth --quick {stores} --threads 1,2 --svg {charts}"));
    let rows = report["rows"].as_array().unwrap();
    let count = |workload: &str| rows.iter().filter(|row| row["workload"] == workload).count();
    assert_eq!(["swarm-size", "swarms", "threads"].map(count), [2 * 11, 2 * 4, 2 * 2]);
    for row in rows {
        assert!(row["ns_per_announce"].as_f64().unwrap() > 0.0);
    }
    for chart in
        ["bytes-by-swarm-size", "ns-by-swarm-size", "bytes-by-swarms", "ns-by-swarms", "announces-by-threads"]
    {
        let svg = fs::read_to_string(format!("{charts}/{chart}.svg")).unwrap();
        assert!(svg.contains("packed") && svg.contains("dashmap-mutex-std"), "{chart}");
        assert!(svg.matches("<circle").count() >= 4, "{chart}");
    }
}

fn written(folder: &TempDir, text: &str) -> String {
    let path = folder.path().join("page.md");
    fs::write(&path, text).unwrap();
    path.display().to_string()
}

#[test]
fn wrong_options_name_the_allowed_ones_and_exit_with_2() {
    for (args, expected) in [
        ("--only packt", "packed"),
        ("--workload cold", "one-swarm"),
        ("--threads 0", "--threads"),
        ("--seconds 0", "0.001 to 3600"),
        ("--swarms 10 --peers 5", "every swarm of `zipf` has a peer"),
        ("--only packed --all", "cannot be used with"),
        ("--figures --growth", "cannot be used with"),
        ("--repeat 0", "--repeat"),
        ("--fast", "unexpected argument"),
    ] {
        let output = shootout(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        let message = String::from_utf8(output.stderr).unwrap();
        assert!(message.contains(expected), "{args:?}: {message}");
    }
}

#[test]
fn a_readme_without_marks_is_refused_before_anything_is_measured() {
    let folder = tempfile::tempdir().unwrap();
    for text in ["", "<!-- shootout:end --> <!-- shootout:begin -->"] {
        let output = shootout(&format!("--readme {}", written(&folder, text)));
        assert_eq!(output.status.code(), Some(1));
        assert!(String::from_utf8(output.stderr).unwrap().contains("<!-- shootout:begin -->"));
    }
}
