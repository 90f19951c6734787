//! The shootout measures this store beside those of the catalog.

use std::{env, process::Command};

#[test]
fn the_shootout_has_rows_of_this_crate_and_of_the_catalog() {
    let test = env::current_exe().expect("a path");
    // `cargo test` builds the examples first.
    let shootout = test.ancestors().nth(2).expect("the folder of the profile").join("examples/shootout");
    let flags = "--only own,packed --workload zipf --swarms 300 --seconds 0.001 --threads 1 --batch 1";
    let output = Command::new(shootout).args(flags.split(' ')).output().expect("the example starts");
    let text = String::from_utf8_lossy(&output.stdout);
    let has = |store: &str| text.contains(&format!("| `{store}`"));
    assert!(has("own") && has("packed"), "{text}{}", String::from_utf8_lossy(&output.stderr));
}
