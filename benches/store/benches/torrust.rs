//! torrust's benches over the catalog.

fn main() {
    swarmkeep_benches::torrust::main(swarmkeep::catalog::ALL);
}
