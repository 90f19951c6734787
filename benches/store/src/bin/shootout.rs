//! `cargo shootout` over the catalog.

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: swarmkeep_kit::allocations::Counting = swarmkeep_kit::allocations::Counting;

fn main() -> ExitCode {
    swarmkeep_benches::shootout::main(swarmkeep::catalog::ALL)
}
