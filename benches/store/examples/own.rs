//! The shootout over the catalog and a store of another crate:
//! `cargo run --release --package swarmkeep-benches --example own -- --all`.

fn main() -> std::process::ExitCode {
    swarmkeep_benches::shootout::main(&[swarmkeep::catalog::ALL, &[own_store::ROW]].concat())
}
