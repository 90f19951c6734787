//! The shootout over the catalog and this store: `cargo run --release --example shootout -- --all`.

fn main() -> std::process::ExitCode {
    swarmkeep_benches::shootout::main(&[swarmkeep::catalog::ALL, &[own_store::ROW]].concat())
}
