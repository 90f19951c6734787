//! `cargo store-bench`, of which the rows are measured in processes of their own.

use std::process::{Command, Output};

use serde_json::Value;

fn store_bench(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_swarmkeep-lab")).arg("store-bench").args(arguments).output().unwrap()
}

#[test]
fn a_tiny_run_prints_one_json_object_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path().to_str().unwrap();
    let tiny = ["--torrents", "2", "--size", "8MB", "--parallel", "2", "--cache", "4MB", "--block", "256KiB"];
    let only = ["--only", "files-sparse;block-sequential, cache", "--untraced", "--json", "--folder", at];
    let output = store_bench(&[&tiny[..], &only].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report["speedup_over_sparse_files"].as_f64().unwrap() > 0.0, "{report}");
    assert_eq!(folder.path().read_dir().unwrap().count(), 0);
}

#[test]
fn options_that_are_wrong_end_with_2() {
    for wrong in ["--torrents=0", "--block=3"] {
        assert_eq!(store_bench(&[wrong]).status.code(), Some(2), "{wrong}");
    }
}
