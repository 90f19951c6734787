//! Tests of memory, in processes of their own.

use std::{env, fmt::Display, fs, process::Command};

/// Runs the test again in a process of its own, in which no other test takes memory. Returns `true` in that
/// process. In this process it returns `false` after the test has passed in the other one.
pub fn in_a_process_of_its_own(test: &str) -> bool {
    const INSIDE: &str = "SWARMKEEP_TEST_ALONE";
    if env::var_os(INSIDE).is_some() {
        return true;
    }
    let this = env::current_exe().expect("a test is a program");
    let output =
        Command::new(this).args([test, "--exact", "--nocapture"]).env(INSIDE, "1").output().expect("it runs");
    let [stdout, stderr] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    assert!(output.status.success() && stdout.contains("1 passed"), "{stdout}\n{stderr}");
    false
}

/// Returns the resident set of this process in KiB; 0 if the system does not provide it.
pub fn resident_kb() -> u64 {
    resident_kb_of("self")
}

/// Returns the resident set of a process in KiB, given its id; 0 if the system does not provide it.
pub fn resident_kb_of(process: impl Display) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.map_or(0, |line| line.trim().trim_end_matches(" kB").parse().expect("a number"))
}
