//! Tests of the laboratory that need root, or programs of other projects.

use std::process::ExitCode;

use swarmkeep_store_tests::programs;

mod traced;

fn main() -> ExitCode {
    // One at a time: two runs could mistake each other's loop devices for remains.
    programs::run(1, [traced::all()])
}
