//! The program `swarmkeep` on machines with special rights or programs.

#[path = "../common/mod.rs"]
#[expect(dead_code, reason = "the other tests use the rest")]
mod common;

mod clock;
mod full_disk;
mod root;
mod stuck;

use std::process::ExitCode;

use swarmkeep_store_tests::programs;

fn main() -> ExitCode {
    programs::run(2, [clock::tests(), full_disk::tests(), root::tests(), stuck::tests()])
}
