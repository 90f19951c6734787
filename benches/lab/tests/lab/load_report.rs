//! `cargo load-report`, against a tracker.

use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::process::CommandExt as _,
    process::{Child, Command, Stdio},
};

const LABORATORY: &str = env!("CARGO_BIN_EXE_swarmkeep-lab");

/// A running tracker; killed at the end.
struct Serve(Child);

impl Serve {
    /// Returns its address too.
    fn start() -> (Self, String) {
        // Under that name, it is that program.
        let mut command = Command::new(LABORATORY);
        command.arg0("swarmkeep").args(["serve", "--admin", "off", "--http", "off", "--udp", "127.0.0.1:0"]);
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stderr.as_mut().unwrap()).read_line(&mut line).unwrap();
        let address = line.split([' ', ',', ';']).find(|word| word.starts_with("127.0.0.1:"));
        (Self(child), address.unwrap_or_else(|| panic!("{line}")).to_owned())
    }
}

impl Drop for Serve {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_report_is_three_loads_graded_drawn_and_compared() {
    let (serve, address) = Serve::start();
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path();
    let earlier = r#"<!-- swarmkeep-load: {"machine":"m","loads":[{"workers":10,"requests_per_second":1.0,"success_percent":100.0,"p50":1.0,"p95":1.0,"p99":1.0}]} -->"#;
    fs::write(directory.join("results-20200101.md"), earlier).unwrap();
    let output = Command::new(LABORATORY)
        .arg("load-report")
        .arg(directory)
        .args(["--target", &address, "--server-pid", &serve.0.id().to_string()])
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
    for part in [
        "--concurrency 10\n",
        "--concurrency 1000\n",
        "## Grades",
        "## Patterns",
        "CPU s a million",
        "over time: ",
        "| 1,000 ",
        "-tail.svg)",
        "Against results-20200101.md",
        "better: a second at 10 workers",
        "machines differ",
    ] {
        assert!(written.contains(part), "{part}: {written}");
    }
    assert!(!written.contains("load-report"), "the commands measure one load each");
}
