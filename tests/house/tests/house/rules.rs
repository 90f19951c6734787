//! The rules of the house, checked with `cargo metadata` and `cargo tree`.

use std::{
    collections::BTreeSet,
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;

/// A part of the workspace: which packages are in it, and on which others these may depend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ring {
    Store,
    Tracker,
    Content,
    /// The laboratory and the tests that cross the rings.
    Any,
}

/// Packages of the workspace under a folder.
const FOLDERS: [(&str, Ring); 11] = [
    ("crates/store/", Ring::Store),
    ("benches/store/", Ring::Store),
    ("tests/store/", Ring::Store),
    ("crates/tracker/", Ring::Tracker),
    ("tests/tracker/", Ring::Tracker),
    ("tests/servers/", Ring::Tracker),
    ("crates/content/", Ring::Content),
    ("tests/content/", Ring::Content),
    ("benches/lab/", Ring::Any),
    ("tests/house/", Ring::Any),
    ("tests/kit/", Ring::Any),
];

/// Published packages from the inside out: none depends on one that comes later.
const OUTWARDS: &str = "swarmkeep-bittorrent swarmkeep swarmkeep-workload swarmkeep-conformance \
    swarmkeep-tracker-protocol swarmkeep-state swarmkeep-module swarmkeep-redis swarmkeep-import \
    swarmkeep-xdp swarmkeep-tracker swarmkeep-load swarmkeep-cli swarmkeep-metainfo swarmkeep-content \
    swarmkeep-peer-wire swarmkeep-peer seedkeep";

/// A peer that announces speaks the protocol of trackers.
const ACROSS: [(&str, &str); 1] = [("swarmkeep-peer", "swarmkeep-tracker-protocol")];

/// The dev-dependencies of this package may be in any ring.
const CROSSING_TESTS: &str = "swarmkeep-content-tests";

/// Apparatus of tests and benches of all rings. No published package depends on it.
const KIT: &str = "swarmkeep-kit";

/// Packages that no installed program links.
const OF_THE_LABORATORY: [&str; 5] = ["criterion", "libtest-mimic", "plotters", "proptest", "shuttle"];

#[test]
fn arrows_between_rings_point_inwards() {
    let metadata = metadata();
    let packages = members(&metadata);
    let rings: Vec<_> = packages.iter().map(|package| (text(package, "name"), ring(package))).collect();
    let ring_of = |name: &str| rings.iter().find(|(other, _)| *other == name).map(|(_, ring)| *ring);
    let mut wrong = Vec::new();
    for package in &packages {
        let (name, ring) = (text(package, "name"), ring(package));
        for dependency in list(package, "dependencies") {
            let other = text(dependency, "name");
            let Some(inner) = ring_of(other) else { continue };
            let is_for_tests = dependency["kind"] == "dev";
            let may = ring == Ring::Any
                || inner == Ring::Store
                || inner == ring
                || (is_for_tests && name == CROSSING_TESTS)
                || ACROSS.contains(&(name, other))
                || other == KIT;
            if !may {
                wrong.push(format!("{name} ({ring:?}) -> {other} ({inner:?})"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn published_packages_depend_only_on_packages_further_in() {
    let metadata = metadata();
    let packages = members(&metadata);
    let is_published = |package: &Value| package["publish"].is_null();
    let place = |name: &str| {
        OUTWARDS.split(' ').position(|other| other == name).unwrap_or_else(|| panic!("{name} has no place"))
    };
    for package in packages.iter().filter(|package| is_published(package)) {
        for dependency in
            list(package, "dependencies").iter().filter(|dependency| dependency["kind"] != "dev")
        {
            let inner = packages.iter().find(|other| other["name"] == dependency["name"]);
            let Some(inner) = inner else { continue };
            let [name, inner_name] = [text(package, "name"), text(inner, "name")];
            let is_further_in = is_published(inner) && place(inner_name) < place(name);
            assert!(is_further_in, "{name} -> {inner_name}");
        }
    }
}

#[test]
fn published_packages_contain_the_licences_and_a_readme() {
    let metadata = metadata();
    for package in members(&metadata).into_iter().filter(|package| package["publish"].is_null()) {
        let folder = Path::new(text(package, "manifest_path")).parent().expect("its folder");
        let read = |folder: &Path, file: &str| {
            fs::read_to_string(folder.join(file))
                .unwrap_or_else(|error| panic!("{folder:?}, {file}: {error}"))
        };
        for licence in ["LICENSE-APACHE", "LICENSE-MIT"] {
            assert_eq!(read(folder, licence), read(&root(), licence), "{folder:?}");
        }
        let readme = read(folder, text(package, "readme"));
        assert!(readme.len() > 100, "{folder:?}");
        let (words, oldest) = (readme.split_whitespace().collect::<Vec<_>>(), text(package, "rust_version"));
        assert!(oldest == "1.95" || words.join(" ").contains(&format!("For Rust {oldest}")), "{folder:?}");
    }
}

#[test]
fn no_program_links_a_laboratory() {
    for (package, besides) in [("swarmkeep-cli", &["fuser"][..]), ("seedkeep", &["redb", "redis"])] {
        let linked = tree(&["--edges", "normal", "--package", package]);
        let wrong: Vec<_> =
            OF_THE_LABORATORY.iter().chain(besides).filter(|name| linked.contains(**name)).collect();
        assert!(linked.len() > 50 && wrong.is_empty(), "{package}: {wrong:?}");
    }
    for (path, code) in sources(&["crates"]) {
        // The module takes memory from the server that loads it.
        let may = path.contains("/tests/") || path.ends_with("module/src/server.rs");
        assert!(may || !code.contains("#[global_allocator]"), "{path}");
    }
}

#[test]
fn comments_end_before_column_111() {
    for (path, code) in sources(&["crates", "benches", "tests"]) {
        let is_comment =
            |line: &str| ["//", "--", "# "].iter().any(|sign| line.trim_start().starts_with(sign));
        let is_long = |(_, line): &(usize, &str)| is_comment(line) && line.chars().count() > 110;
        let long: Vec<_> = (1..).zip(code.lines()).filter(is_long).collect();
        assert!(long.is_empty(), "{path}: {long:?}");
    }
}

#[test]
fn readme_and_docs_are_short() {
    let words = |text: &str| text.split_whitespace().count();
    let readme = words(&fs::read_to_string(root().join("README.md")).expect("text"));
    let pages = files(&["docs"], &["md"]).into_iter().filter(|(path, _)| !path.contains("/docs/reports/"));
    let docs: usize = pages.map(|(_, page)| words(&page)).sum();
    assert!((300..=900).contains(&readme) && (10_000..=30_000).contains(&docs), "{readme} and {docs} words");
}

#[test]
fn testing_the_store_ring_builds_at_most_60_packages() {
    let metadata = metadata();
    let packages = members(&metadata);
    let of_store = packages.iter().filter(|package| {
        ring(package) == Ring::Store && !text(package, "manifest_path").contains("/benches/")
    });
    let names: Vec<_> = of_store.flat_map(|package| ["--package", text(package, "name")]).collect();
    let built = tree(&[&["--edges", "normal,build,dev"][..], &names].concat());
    assert!((20..=60).contains(&built.len()), "{}: {built:?}", built.len());
}

#[test]
fn no_test_stands_behind_a_feature() {
    let metadata = metadata();
    for package in members(&metadata) {
        for target in list(package, "targets") {
            let required = target.get("required-features");
            assert_eq!(required, None, "{}: {}", package["name"], target["name"]);
        }
    }
}

#[test]
fn licences_are_permissive() {
    let deny = fs::read_to_string(root().join("deny.toml")).expect("it is there");
    let deny: Value = toml::from_str(&deny).expect("TOML");
    let licences = &deny["licenses"];
    let strings = |value: &Value| {
        let values = value.as_array().expect("a list").iter();
        values.map(|value| value.as_str().expect("text").to_owned()).collect::<Vec<_>>()
    };
    let allowed = strings(&licences["allow"]);
    let exceptions = licences["exceptions"].as_array().expect("a list");
    let metadata = metadata();
    for package in list(&metadata, "packages") {
        let name = text(package, "name");
        let exception = exceptions.iter().find(|exception| exception["crate"].as_str() == Some(name));
        let besides = exception.map(|exception| strings(&exception["allow"])).unwrap_or_default();
        let expression = package["license"].as_str().unwrap_or_default().replace('/', " OR ");
        // `(A OR B) AND C`: of each part that counts, one of its choices is allowed.
        let is_allowed = expression.split(" AND ").all(|part| {
            let mut choices = part.trim_matches(['(', ')', ' ']).split(" OR ").map(str::trim);
            choices.any(|choice| allowed.iter().chain(&besides).any(|allowed| allowed == choice))
        });
        assert!(is_allowed, "{name}: {expression}");
        let source = package["source"].as_str();
        assert!(source.is_none_or(|source| source.starts_with("registry+")), "{name}: {source:?}");
    }
}

/// The root of the workspace.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("it is there")
}

/// The files with comments in these folders.
fn sources(folders: &[&str]) -> Vec<(String, String)> {
    files(folders, &["rs", "lua", "toml", "yml", "yaml", "service", "socket", "conf", "py"])
}

/// The files of some extensions in these folders.
fn files(folders: &[&str], kinds: &[&str]) -> Vec<(String, String)> {
    let mut folders: Vec<_> = folders.iter().map(|folder| root().join(folder)).collect();
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a folder of the workspace").map(Result::unwrap) {
            let (path, name) = (entry.path(), entry.file_name());
            if path.is_dir() && name != "target" {
                folders.push(path);
            } else if kinds.iter().any(|kind| path.extension().is_some_and(|own| own == *kind)) {
                found.push((path.display().to_string(), fs::read_to_string(&path).expect("text")));
            }
        }
    }
    found
}

fn cargo(arguments: &[&str]) -> String {
    let output = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .current_dir(root())
        .args(arguments)
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

fn metadata() -> Value {
    let metadata = cargo(&["metadata", "--format-version", "1", "--locked", "--all-features"]);
    serde_json::from_str(&metadata).expect("JSON")
}

/// Names of the packages that `cargo tree` shows, a name for each version.
fn tree(arguments: &[&str]) -> BTreeSet<String> {
    let shown = cargo(&[&["tree", "--locked", "--prefix", "none", "--format", "{p}"], arguments].concat());
    let versions: BTreeSet<_> = shown
        .lines()
        .filter_map(|line| {
            let mut words = line.split(' ');
            Some((words.next()?.to_owned(), words.next()?.to_owned()))
        })
        .collect();
    let mut names = BTreeSet::new();
    for (name, version) in versions {
        if !names.insert(name.clone()) {
            names.insert(format!("{name} {version}"));
        }
    }
    names
}

fn members(metadata: &Value) -> Vec<&Value> {
    let ids = list(metadata, "workspace_members");
    list(metadata, "packages").iter().filter(|package| ids.contains(&package["id"])).collect()
}

fn ring(package: &Value) -> Ring {
    let manifest = Path::new(text(package, "manifest_path")).strip_prefix(root()).expect("a member");
    let folder = FOLDERS.iter().find(|(folder, _)| manifest.starts_with(folder));
    folder.unwrap_or_else(|| panic!("{} is in no ring", manifest.display())).1
}

fn list<'a>(value: &'a Value, key: &str) -> &'a Vec<Value> {
    value[key].as_array().unwrap_or_else(|| panic!("no list {key}"))
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_else(|| panic!("no text {key}"))
}
