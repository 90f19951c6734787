//! The program in the kernel's verifier, and on frames that `BPF_PROG_TEST_RUN` gives to it.

/// The files of the crate: these tests use its private parts.
#[path = "../../src"]
#[expect(dead_code, unreachable_pub, reason = "the tests use a part")]
mod xdp {
    pub(crate) mod assembler;
    pub(crate) mod attach;
    pub(crate) mod frame;
    pub(crate) mod kernel;
    pub(crate) mod program;
    pub(crate) mod queue;
}

mod any_frame;
mod fixture;
mod rules;

use std::{io::ErrorKind, process::ExitCode};

use swarmkeep_store_tests::programs::{self, Need};
use xdp::{assembler, attach, frame, kernel, program, queue};

/// The permission to load programs into the kernel.
const LOADING: Need = Need::other(
    "the right to load programs into the kernel",
    "run as root, with CAP_BPF and CAP_NET_ADMIN",
    |_| {
        let mut code = assembler::Assembler::default();
        code.set(assembler::R0, program::PASS);
        code.exit();
        let loaded = kernel::Program::load(&code.finish());
        // Other errors are faults of the crate: then the tests must fail.
        !loaded
            .is_err_and(|error| matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::Unsupported))
    },
);

fn main() -> ExitCode {
    programs::run(2, [rules::tests(), any_frame::tests()])
}
