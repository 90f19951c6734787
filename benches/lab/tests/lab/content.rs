//! Runs from end to end, tiny ones: what they find, what they write, and what is left when they fail.

use std::{env, fs, path::Path, process::Command};

use swarmkeep_lab::content::{
    Error, Locality, Options, Outcome, Plan, SeedingOptions, Setup, Store, What, child, measure, run,
};
use tempfile::TempDir;

/// In memory where that is possible: what is measured is of no matter here.
fn folder() -> TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { TempDir::new_in(memory).unwrap() } else { TempDir::new().unwrap() }
}

/// Stripes of 256 KiB, of which the cache holds a tenth of what is downloaded at a time or so.
fn tiny(folder: &Path) -> Options {
    let mut options = Options::new(folder);
    (options.torrents, options.size, options.parallel, options.rounds) = (6, 12_000_001, 3, 1);
    (options.block, options.cache) = (256 << 10, 4_000_000);
    options.seeding = Some(SeedingOptions { peers: 6, requests: 2000, locality: Locality::default() });
    // It would be this process whose memory is limited: `tests/programs` traces.
    options.traced = false;
    options
}

#[test]
fn a_run_measures_every_row_and_finds_the_block_store_several_times_as_fast() {
    let folder = folder();
    let mut options = tiny(folder.path());
    (options.pictures, options.rounds) = (true, 2);
    let mut told = Vec::new();
    let report = run(&options, &mut |plan, progress| measure(plan, progress), &mut |progress| {
        told.push(progress.done as f64 + progress.share);
        assert_eq!(progress.of, 25);
    })
    .unwrap();
    assert!(told.is_sorted() && *told.last().unwrap() > 24.9, "{told:?}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left of the stores");

    assert_eq!(report.rows.len(), 12);
    for row in &report.rows {
        assert_eq!(row.bytes, 72_000_006);
        assert!(row.calls.modelled.bytes >= row.bytes && row.compared > 6_000_000, "{row:?}");
        assert!(row.seconds > 0.0 && row.flushes >= 7, "{row:?}");
        // 374 pieces, each with one call where nothing gathers them.
        assert!(row.way.cache || row.writes >= 374, "{row:?}");
        assert_eq!(row.stripes.is_some(), row.way.cache);
        assert!(row.traced.is_none(), "{row:?}");
    }
    let row = |way| report.row(way).unwrap();
    let (sparse, best) = (row(Setup::SPARSE), row(Setup::BEST));
    let speedup = report.speedup_over_sparse_files.unwrap();
    assert!((speedup - sparse.modelled() / best.modelled()).abs() < 1e-9);
    assert!(speedup > 2.0, "{speedup}");
    assert!((report.cache_earns.unwrap() * report.layout_earns.unwrap() - speedup).abs() < 1e-9);
    assert!(best.calls.modelled.seeks * 4 < sparse.calls.modelled.seeks);
    let without = row(Setup { affinity: false, ..Setup::BEST });
    assert!(best.stripes.unwrap().1 * 2 < without.stripes.unwrap().1, "{best:?}, {without:?}");
    // What is free on an aged device lies in many places.
    let aged = row(Setup { store: Store::BlockOrdered, aged: true, ..Setup::BEST }).seeks.unwrap();
    let fresh = row(Setup { store: Store::BlockOrdered, ..Setup::BEST }).seeks.unwrap();
    assert!(aged.stretches > 60 && fresh.stretches < 20, "{aged:?}, {fresh:?}");
    assert!(aged.fresh <= aged.stretches && fresh.fresh <= fresh.stretches);

    let json: serde_json::Value = serde_json::from_str(&report.json()).unwrap();
    assert_eq!(json["speedup_over_sparse_files"].as_f64(), Some(speedup));
    assert_eq!(json["rows"][0]["name"], "files-sparse");
    assert_eq!(json["options"]["disk"]["turns"], 7200.0);
    assert_eq!(json["seeding"].as_array().unwrap().len(), 5);
    assert!(json["goals"].as_array().unwrap().iter().all(|goal| goal["reached"].is_boolean()));

    let pictures = folder.path().join("pictures");
    fs::create_dir(&pictures).unwrap();
    let files = report.draw(&pictures).unwrap();
    assert_eq!(files.len(), 13);
    let text = report.markdown(Some(Path::new("pictures")));
    for file in files {
        let svg = fs::read_to_string(pictures.join(&file)).unwrap();
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"), "{file}");
        assert!(text.contains(&format!("(pictures/{file})")), "{file}");
    }
    assert!(text.contains("| block-sequential, aged, cache ") && report.text().contains("seeding"));
}

#[test]
fn the_same_seed_gives_the_same_offsets() {
    let folder = folder();
    // Without a cache, whose threads write when they get to it.
    let way = Setup { cache: false, affinity: false, aged: true, ..Setup::BEST };
    let plan = Plan { what: What::Download(way), options: tiny(folder.path()) };
    let modelled = || match measure(&plan, &mut |_| {}).unwrap() {
        Outcome::Row(row, _) => (row.calls, row.seeks),
        Outcome::Seeding(_) => unreachable!("a row was asked for"),
    };
    assert_eq!(modelled(), modelled());
}

#[test]
fn too_little_room_is_told_before_anything_is_measured() {
    let folder = folder();
    let mut options = tiny(folder.path());
    options.size = 1 << 50;
    let error = run(&options, &mut |_, _| unreachable!("nothing is measured"), &mut |_| {}).unwrap_err();
    assert!(matches!(error, Error::Room { needed, .. } if needed > 6 << 50), "{error}");
    options.size = 1;
    let error = run(&options, &mut |_, _| unreachable!("nothing is measured"), &mut |_| {}).unwrap_err();
    assert!(matches!(error, Error::Options(_)), "{error}");
}

/// This very program, told to run [`measures_when_it_is_asked_to`] alone.
fn this_program() -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--nocapture", "--exact", "content::measures_when_it_is_asked_to"]);
    command
}

/// What the two tests below start as a process, with a plan for its last argument. Nothing else is one in
/// braces.
#[test]
fn measures_when_it_is_asked_to() {
    let plan = env::args().next_back().filter(|plan| plan.starts_with('{'));
    if let Some(plan) = plan
        && let Err(error) = child::answer(&plan, std::io::stdout())
    {
        eprintln!("{error}");
        std::process::exit(1);
    }
}

#[test]
fn a_row_is_measured_in_a_process_of_its_own_which_tells_how_far_it_is() {
    let folder = folder();
    let plan = Plan { what: What::Download(Setup::BEST), options: tiny(folder.path()) };
    let mut shares = Vec::new();
    let outcome = child::ask(this_program(), &plan, &mut |share| shares.push(share)).unwrap();
    let Outcome::Row(row, None) = outcome else { panic!("{outcome:?}") };
    assert_eq!((row.name.as_str(), row.bytes), ("block-sequential, cache", 72_000_006));
    assert!(shares.len() > 50 && shares.is_sorted() && shares.last() == Some(&1.0), "{shares:?}");
    // 4 MB of cache, and what a process of its own takes besides.
    assert!(row.memory_bytes.is_none_or(|bytes| (3_000_000..40_000_000).contains(&bytes)), "{row:?}");
}

#[test]
fn what_a_process_that_fails_says_is_told() {
    let folder = folder();
    let mut plan = Plan { what: What::Download(Setup::BEST), options: tiny(folder.path()) };
    plan.options.folder = folder.path().join("nowhere");
    let error = child::ask(this_program(), &plan, &mut |_| {}).unwrap_err().to_string();
    assert!(error.starts_with("block-sequential, cache: ") && error.contains("No such file"), "{error}");
}
