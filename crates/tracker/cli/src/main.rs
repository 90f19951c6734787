//! The `swarmkeep` program.

use std::process::ExitCode;

fn main() -> ExitCode {
    swarmkeep_cli::main()
}
