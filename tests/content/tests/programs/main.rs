//! Popular clients with this project's tracker and its peer; and full disks.

mod full_disk;
mod real_clients;

use std::process::ExitCode;

use swarmkeep_store_tests::programs;

/// At once: each has a network of its own, and most of them wait.
const THREADS: usize = 6;

fn main() -> ExitCode {
    if real_clients::ours::is_asked_for() {
        real_clients::ours::run();
        return ExitCode::SUCCESS;
    }
    programs::run(THREADS, [full_disk::tests(), real_clients::tests()])
}
