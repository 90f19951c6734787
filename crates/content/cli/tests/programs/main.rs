//! The program `seedkeep` with other programs, and on machines with special rights or devices.

#[path = "../common/mod.rs"]
mod common;
mod full;
#[cfg(feature = "mount")]
mod mount;
mod others;

use std::process::ExitCode;

use swarmkeep_store_tests::programs;

fn main() -> ExitCode {
    let tests = [
        #[cfg(feature = "mount")]
        mount::tests(),
        full::tests(),
        others::tests(),
    ];
    programs::run(2, tests)
}
