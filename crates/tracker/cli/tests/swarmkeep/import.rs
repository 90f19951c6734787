//! `swarmkeep import` on files as other trackers write them.

use std::{
    fmt::Write as _,
    fs,
    io::Write,
    path::Path,
    process::{Command, Output, Stdio},
    thread,
};

use serde_json::Value;

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fixtures/imports");

struct ImportOutput {
    code: i32,
    out: String,
    errors: String,
}

fn swarmkeep(folder: &Path, words: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_swarmkeep"));
    command.arg("import").args(words.split(' ')).current_dir(folder).stdin(Stdio::null());
    command
}

fn ended(output: Output) -> ImportOutput {
    let Output { status, stdout, stderr } = output;
    let text = |bytes| String::from_utf8(bytes).unwrap();
    ImportOutput { code: status.code().unwrap(), out: text(stdout), errors: text(stderr) }
}

/// Runs `import` in a folder. Blanks separate `words`.
fn import(folder: impl AsRef<Path>, words: &str) -> ImportOutput {
    ended(swarmkeep(folder.as_ref(), words).output().unwrap())
}

/// The report of a dry run.
fn found(folder: impl AsRef<Path>, words: &str) -> Value {
    let ended = import(folder, &format!("--dry-run --json {words}"));
    assert_eq!((ended.code, &*ended.errors), (0, ""), "{words}");
    serde_json::from_str(&ended.out).unwrap()
}

/// The error of a dry run.
fn refused(folder: impl AsRef<Path>, words: &str) -> String {
    let ended = import(folder, &format!("--dry-run --json {words}"));
    assert_eq!((ended.code, &*ended.out), (1, ""), "{words}: {}", ended.errors);
    ended.errors
}

/// As [`found`], with bytes through standard input.
fn piped(words: &str, bytes: &[u8]) -> ImportOutput {
    let mut command = swarmkeep(Path::new(FIXTURES), words);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    thread::scope(|scope| {
        // The program need not read to the end.
        scope.spawn(move || _ = stdin.write_all(bytes));
        ended(child.wait_with_output().unwrap())
    })
}

#[test]
fn each_format_has_the_same_counts_and_is_recognized() {
    for (file, format, gzip) in [
        ("opentracker-scrape.benc", "scrape", false),
        ("opentracker-scrape.benc.gz", "scrape", true),
        ("opentracker-statedump.txt", "opentracker-state", false),
        ("opentracker-txtp.txt", "opentracker-txtp", false),
        ("lines.tsv", "lines", false),
    ] {
        for words in [file.to_owned(), format!("--from {format} {file}")] {
            let found = found(FIXTURES, &words);
            assert_eq!(found["files"][0]["format"], format);
            assert_eq!(found["files"][0]["gzip"], gzip);
            assert_eq!(found["files"][0]["read"], 5);
            assert_eq!(found["torrents"], 5);
            assert_eq!(found["with_downloads"], 4);
            assert_eq!(found["downloads"], 1_u64 + 17 + 1_234_567 + 4_294_967_295);
            assert_eq!(found["duplicates"], 0);
            assert_eq!(
                (&found["refused"], &found["raised"], &found["dry_run"]),
                (&0.into(), &Value::Null, &true.into())
            );
        }
    }
}

#[test]
fn files_without_downloads_are_not_mistaken_for_others() {
    let errors = refused(FIXTURES, "aquatic-scrape-export.txt");
    assert!(errors.contains("aquatic-scrape-export.txt: this is a scrape export of aquatic"), "{errors}");
    let errors = refused(FIXTURES, "opentracker-txt.txt");
    assert!(errors.contains("0 good counts and 5 wrong ones, so nothing is imported"), "{errors}");
    assert!(errors.contains("format=txtp has them"), "{errors}");
    let said = refused(FIXTURES, "--from lines opentracker-txt.txt");
    assert!(said.contains("line 1: the count is no number: \"0:3\""), "{said}");
}

#[test]
fn the_report_for_people_is_in_words() {
    let ended = import(FIXTURES, "--dry-run opentracker-scrape.benc.gz lines.tsv");
    assert_eq!(
        ended.out,
        "opentracker-scrape.benc.gz: scrape, gzip, 5 counts\n\
         lines.tsv: lines, 5 counts\n\
         5 torrents, 4 of them downloaded, 4,296,201,880 downloads in all\n\
         5 more counts of torrents that had one: the highest is used\n\
         nothing is imported: --dry-run\n"
    );
}

#[test]
fn standard_input_is_read_where_the_format_allows() {
    for file in
        ["opentracker-scrape.benc", "opentracker-scrape.benc.gz", "opentracker-statedump.txt", "lines.tsv"]
    {
        let ended = piped("--dry-run --json -", &fs::read(Path::new(FIXTURES).join(file)).unwrap());
        let found: Value =
            serde_json::from_str(&ended.out).unwrap_or_else(|_| panic!("{file}: {}", ended.errors));
        assert_eq!((&found["torrents"], &found["files"][0]["file"]), (&5.into(), &"standard input".into()));
    }
    assert_eq!(import(FIXTURES, "--dry-run - -").code, 2);
}

#[test]
fn nothing_is_imported_after_an_error_unless_errors_are_skipped() {
    let folder = tempfile::tempdir().unwrap();
    let mut lines = String::new();
    for number in 0..20 {
        writeln!(lines, "{number:040x},{}", if number % 2 == 0 { "7" } else { "-7" }).unwrap();
    }
    fs::write(folder.path().join("half"), lines).unwrap();
    let errors = refused(&folder, "half");
    assert!(errors.contains("half: 10 good counts and 10 wrong ones, so nothing is imported; --skip-bad leaves these out:\n  line 2: the count is no number: \"-7\"\n  line 4: "), "{errors}");
    assert!(errors.contains("and 5 more"), "{errors}");
    let half = found(&folder, "--skip-bad half");
    assert_eq!(
        (&half["torrents"], &half["refused"], &half["downloads"]),
        (&10.into(), &10.into(), &70.into())
    );
    assert_eq!(half["files"][0]["wrong"].as_array().unwrap().len(), 5);
    assert_eq!(half["files"][0]["wrong"][1]["at"], "line 4");

    let whole = fs::read(Path::new(FIXTURES).join("opentracker-scrape.benc")).unwrap();
    fs::write(folder.path().join("cut"), &whole[..200]).unwrap();
    let errors = refused(&folder, "cut");
    assert!(errors.contains("byte 200: an early end: the file was cut off"), "{errors}");
    assert_eq!(found(&folder, "--skip-bad cut")["torrents"], 2);
    // One wrong file among good ones.
    fs::copy(Path::new(FIXTURES).join("lines.tsv"), folder.path().join("good")).unwrap();
    refused(&folder, "good cut");
}

#[test]
fn files_of_no_tracker_are_named() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("page"), "<!doctype html>\n").unwrap();
    let help = "begins with \"<!doctype html>\"; --from FORMAT names its format, --help lists the formats";
    for (file, error) in [
        ("page", help),
        ("--skip-bad page", help),
        ("missing", "missing: No such file"),
        (".", ".: it is a folder"),
    ] {
        let errors = refused(&folder, file);
        assert!(errors.contains(error), "{file}: {errors}");
    }
    assert_eq!(import(&folder, "page").code, 2, "without --state and without --dry-run");
    assert_eq!(import(&folder, "--from tea page").code, 2);
}

#[test]
fn an_import_without_a_copy_reports_that_the_counts_are_imported() {
    let folder = tempfile::tempdir().unwrap();
    // A folder has the name of the copy.
    fs::create_dir_all(folder.path().join("state/downloads.redb.copy.partial/x")).unwrap();
    fs::write(folder.path().join("one"), format!("{:040x}\t7\n", 1)).unwrap();
    let ImportOutput { code, out, errors } = import(folder.path(), "--state state one");
    assert!(code == 1 && out.contains("1 torrent raised"), "{out}");
    assert!(errors.contains("the counts are imported, but no copy was made: creating "), "{errors}");
}

#[test]
fn imported_counts_are_kept_once_and_raise_lower_ones() {
    let folder = tempfile::tempdir().unwrap();
    let torrents = |each: u32| {
        (0..30_000_u32)
            .map(|n| format!("{:040x}\t{}\n", n.wrapping_mul(0x9e37_79b9), n % 7 * each))
            .collect::<String>()
    };
    fs::write(folder.path().join("one"), torrents(1)).unwrap();
    fs::write(folder.path().join("two"), torrents(2)).unwrap();
    let raised = |file: &str| {
        let ended = import(folder.path(), &format!("--json --state state {file}"));
        assert_eq!((ended.code, &*ended.errors), (0, ""));
        serde_json::from_str::<Value>(&ended.out).unwrap()["raised"].as_u64().unwrap()
    };
    let with_downloads = (0..30_000).filter(|n| n % 7 > 0).count() as u64;
    assert_eq!(["one", "one", "two", "two", "one"].map(raised), [with_downloads, 0, with_downloads, 0, 0]);

    let open = || swarmkeep_state::Directory::open(folder.path().join("state")).unwrap();
    let mut counts = swarmkeep_state::Downloads::open(std::sync::Arc::new(open())).unwrap();
    for n in (0..30_000_u32).step_by(11) {
        let info_hash = format!("{:040x}", n.wrapping_mul(0x9e37_79b9)).parse().unwrap();
        assert_eq!(counts.get(&info_hash).unwrap(), n % 7 * 2);
    }
    let kept = || {
        let mut state = Command::new(env!("CARGO_BIN_EXE_swarmkeep"));
        ended(state.args(["state", "state", "--json"]).current_dir(folder.path()).output().unwrap())
    };
    let looked_at = kept();
    assert_eq!(looked_at.code, 1, "it is in use: {}", looked_at.out);
    drop(counts);
    let looked_at = kept();
    assert_eq!((looked_at.code, &*looked_at.errors), (0, ""));
    let said: Value = serde_json::from_str(&looked_at.out).unwrap();
    for (n, file) in ["downloads.redb", "downloads.redb.copy"].into_iter().enumerate() {
        assert_eq!(said["downloads"][n]["file"], file, "{said}");
        assert_eq!(said["downloads"][n]["torrents"].as_u64(), Some(with_downloads), "{said}");
    }
    assert_eq!(said["snapshots"], Value::Array(vec![]), "{said}");

    fs::write(folder.path().join("state/swarms.snapshot"), b"swarmsnp and then nothing").unwrap();
    let looked_at = kept();
    assert_eq!(looked_at.code, 1);
    let said: Value = serde_json::from_str(&looked_at.out).unwrap();
    assert_eq!(said["snapshots"][0]["file"], "swarms.snapshot");
    assert!(said["snapshots"][0]["refused"].as_str().unwrap().contains("at byte "), "{said}");

    let _tracker = open();
    let ended = import(folder.path(), "--state state one");
    assert_eq!(ended.code, 1, "a tracker has it");
    assert!(ended.errors.contains("is in use by another process: stop that one"), "{}", ended.errors);
}
