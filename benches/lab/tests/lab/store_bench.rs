//! `cargo store-bench`, tiny and without traced requests: its rows, files, and messages when it fails.

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

use serde_json::Value;

fn store_bench(folder: &Path, line: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_swarmkeep-lab"));
    command.args(["store-bench", "--untraced", "--folder"]).arg(folder);
    command.args(line.split_whitespace()).output().unwrap()
}

/// Stripes of 256 KiB, of which the cache holds a tenth of the torrents that are downloaded at a time.
const TINY: &str = "--torrents 6 --size 12000001 --parallel 3 --block 256KiB --cache 4MB";

#[test]
fn a_run_measures_every_row_and_finds_the_block_store_several_times_as_fast() {
    let folder = tempfile::tempdir().unwrap();
    let page = tempfile::tempdir().unwrap();
    let page = page.path().join("page.md");
    let line = format!("{TINY} --json --report {}", page.display());
    let output = store_bench(folder.path(), &line);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(folder.path().read_dir().unwrap().count(), 0, "nothing is left of the stores");

    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    let origin = &json["report"]["origin"];
    assert!(origin["command"].as_str().unwrap().contains(" --json ") && origin["load"].is_f64(), "{origin}");
    let rows = json["report"]["rows"].as_array().unwrap();
    let number = |row: &Value, path: &str| row.pointer(path).and_then(Value::as_f64).unwrap();
    let seconds = |name: &str| {
        let row = rows.iter().find(|row| row["name"] == name).unwrap();
        assert!(number(row, "/replay/bytes") >= 72e6 && number(row, "/compared") > 6e6, "{row}");
        assert!(number(row, "/cpu") > 0.0, "{row}");
        number(row, "/replay/seconds")
    };
    let (files, behind, block) = (seconds("files"), seconds("files, cache"), seconds("block store, cache"));
    let by_extents = seconds("files, pieces by extents");
    assert!(by_extents < 0.95 * files, "{by_extents} s in order, {files} s in random order");
    let speedup = number(&json, "/speedup");
    assert!(speedup > 2.0 && (speedup - files / block).abs() < 1e-9, "{speedup}");
    assert!((number(&json, "/order_earns") - files / by_extents).abs() < 1e-9);
    assert!((number(&json, "/cache_earns") - by_extents / behind).abs() < 1e-9);
    assert!((number(&json, "/layout_earns") - behind / block).abs() < 1e-9);
    assert!(seconds("block store, cache without affinity") > 1.5 * block);
    assert!(seconds("block store, aged, cache") > block);

    let text = fs::read_to_string(&page).unwrap();
    assert!(text.contains("| block store, aged, cache ") && text.contains("Requests** are calls"), "{text}");
    for picture in ["offsets-files.svg", "offsets-block-store.svg"] {
        let svg = fs::read_to_string(page.with_extension("").join(picture)).unwrap();
        assert!(svg.matches("<rect").count() > 20 && svg.trim_end().ends_with("</svg>"), "{picture}");
        assert!(text.contains(&format!("](page/{picture})")), "{text}");
    }
}

#[test]
fn a_run_that_cannot_measure_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let nowhere = folder.path().join("nowhere");
    for (folder, line, code, why) in [
        (folder.path(), "--torrents 0", 2, "--torrents"),
        (folder.path(), "--block 5MiB", 2, "power of two"),
        (folder.path(), "--cache 1MiB", 2, "the cache holds a stripe"),
        (folder.path(), "--size 1", 2, "as long as a block"),
        (folder.path(), "--only tape", 2, "no row"),
        (folder.path(), "--size 1000TB", 1, "bytes are needed"),
        (&nowhere, "--quick", 1, "No such file"),
    ] {
        let output = store_bench(folder, line);
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(code) && message.contains(why), "{line}: {message}");
    }
}
