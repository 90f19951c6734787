//! Tests of the library through its public interface.

mod catalog;
mod dropped_futures;
mod exports;
mod snapshots;

#[test]
fn the_documentation_names_every_feature() {
    let (_, features) =
        include_str!("../../Cargo.toml").split_once("\n[features]\n").expect("they are there");
    let (features, _) = features.split_once("\n[").expect("dependencies follow");
    let named = features.lines().filter_map(|line| line.split_once(" = ")).map(|(name, _)| name);
    for name in named.filter(|name| *name != "default") {
        assert!(include_str!("../../src/lib.rs").contains(&format!("\n//! | `{name}` |")), "{name}");
    }
}
