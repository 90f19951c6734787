//! `cargo load-report`, against a tracker.

use std::{fs, path::Path, process::Command};

use swarmkeep_lab::Tracker;

const LABORATORY: &str = env!("CARGO_BIN_EXE_swarmkeep-lab");

#[test]
fn a_report_is_three_loads_graded_drawn_and_compared() {
    let (tracker, address) = Tracker::start(Path::new(LABORATORY), &[]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path();
    let earlier = r#"<!-- swarmkeep-load: {"machine":"m","loads":[{"workers":10,"requests_per_second":1.0,"success_percent":100.0,"p50":1.0,"p95":1.0,"p99":1.0}]} -->"#;
    fs::write(directory.join("results-20200101.md"), earlier).unwrap();
    let output = Command::new(LABORATORY)
        .arg("load-report")
        .arg(directory)
        .args(["--target", &address.to_string(), "--server-pid", &tracker.pid().to_string()])
        .args(["--duration", "3s", "--warm-up", "50ms"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let files: Vec<_> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    let charts = files.iter().filter(|path| path.extension().is_some_and(|ext| ext == "svg")).count();
    assert_eq!(charts, 3, "{files:?}");
    let is_new = |path: &&std::path::PathBuf| {
        path.extension().is_some_and(|ext| ext == "md") && !path.ends_with("results-20200101.md")
    };
    let written = fs::read_to_string(files.iter().find(is_new).expect("a results file")).unwrap();
    let parts = "--concurrency 10\n;--concurrency 1000\n;## Grades;## Patterns;CPU s a million;over time: ;\
        | 1,000 ;-tail.svg);Against results-20200101.md;better: a second at 10 workers;machines differ";
    for part in parts.split(';') {
        assert!(written.contains(part), "{part}: {written}");
    }
    assert!(!written.contains("load-report"), "the commands measure one load each");
}
