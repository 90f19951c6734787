//! torrust's benches over the catalog and a store of another crate:
//! `cargo run --release --package swarmkeep-benches --example own_torrust -- --bench`.

fn main() {
    swarmkeep_benches::torrust::main(&[swarmkeep::catalog::ALL, &[own_store::ROW]].concat());
}
