//! The `seedkeep` program.

use std::process::ExitCode;

fn main() -> ExitCode {
    seedkeep::main()
}
