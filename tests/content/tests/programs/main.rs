//! The clients that people run, through this project's tracker, and with its peer.

mod real_clients;

use std::process::ExitCode;

use swarmkeep_store_tests::programs;

fn main() -> ExitCode {
    programs::run(2, [real_clients::tests()])
}
