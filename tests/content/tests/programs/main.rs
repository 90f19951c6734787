//! The clients that people run, through this project's tracker, and with its peer; and disks that are full.

mod full_disk;
mod real_clients;

use std::process::ExitCode;

use swarmkeep_store_tests::programs;

fn main() -> ExitCode {
    if real_clients::ours::is_asked_for() {
        real_clients::ours::run();
        return ExitCode::SUCCESS;
    }
    programs::run(2, [full_disk::tests(), real_clients::tests()])
}
