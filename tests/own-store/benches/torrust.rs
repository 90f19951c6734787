//! torrust's benches over the catalog and this store: `cargo bench -- /own/`.

fn main() {
    swarmkeep_benches::torrust::main(&[swarmkeep::catalog::ALL, &[own_store::ROW]].concat());
}
