//! `cargo demo`: that it shows what it says, that it finds what is wrong, and that it leaves nothing.

use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Lines, Read},
    os::unix::fs::FileExt,
    path::PathBuf,
    process::{Child, ChildStdout, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;

/// A folder for temporary files that only one demo uses, by which it and its parts are known.
struct DemoFolder(tempfile::TempDir);

impl DemoFolder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn command(&self, line: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_swarmkeep-lab"));
        command.arg("demo").args(line.split_whitespace()).env("TMPDIR", self.0.path()).stdin(Stdio::null());
        command
    }

    /// Processes that have it as their folder for temporary files.
    fn processes(&self) -> Vec<i32> {
        let variable = format!("TMPDIR={}", self.0.path().display());
        let mut processes = Vec::new();
        for entry in fs::read_dir("/proc").unwrap().flatten() {
            let Ok(pid) = entry.file_name().to_string_lossy().parse() else { continue };
            let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
            if environment.split(|byte| *byte == 0).any(|found| found == variable.as_bytes()) {
                processes.push(pid);
            }
        }
        processes
    }

    fn files(&self) -> Vec<PathBuf> {
        fs::read_dir(self.0.path()).unwrap().map(|entry| entry.unwrap().path()).collect()
    }

    fn assert_is_left_as_it_was(&self) {
        assert_eq!((self.processes(), self.files()), (vec![], vec![]));
    }
}

/// A demo that runs and tells in JSON; killed if a test fails before it has ended.
struct Demo {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Demo {
    fn start(place: &DemoFolder, line: &str) -> Self {
        let mut command = place.command(&format!("--json {line}"));
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    fn next(&mut self) -> Option<Value> {
        self.lines.next().map(|line| serde_json::from_str(&line.unwrap()).unwrap())
    }

    /// The next event of which that holds.
    fn until(&mut self, holds: impl Fn(&Value) -> bool) -> Value {
        loop {
            let Some(event) = self.next() else { panic!("it has ended: {}", self.said()) };
            if holds(&event) {
                return event;
            }
        }
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }

    /// What it said to standard error, when it has ended.
    fn said(&mut self) -> String {
        let mut said = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        said
    }

    /// The exit code, and what it said to standard error.
    fn end(mut self) -> (Option<i32>, String) {
        while self.next().is_some() {}
        let said = self.said();
        (self.child.wait().unwrap().code(), said)
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn is(name: &'static str) -> impl Fn(&Value) -> bool {
    move |event| event["event"] == name
}

/// What a peer tells in an event of progress.
fn of<'a>(event: &'a Value, part: &str) -> &'a Value {
    let mut peers = event["peers"].as_array().unwrap().iter();
    peers.find(|peer| peer["part"] == part).unwrap()
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no number"))
}

#[test]
fn a_torrent_goes_to_both_and_nothing_is_left() {
    let place = DemoFolder::new();
    let began = Instant::now();
    let mut command = place.command("--size 32MiB --rate 6MiB");
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut most = 0;
    let seen = thread::scope(|scope| {
        let ended = scope.spawn(|| child.wait_with_output().unwrap());
        while !ended.is_finished() {
            most = most.max(place.processes().len());
            thread::sleep(Duration::from_millis(100));
        }
        ended.join().unwrap()
    });
    let Output { status, stdout, stderr } = seen;
    let (stdout, stderr) = (String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap());
    assert!(status.success() && stderr.is_empty(), "{status}\n{stdout}\n{stderr}");
    assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
    assert!(most >= 5, "the demo, a tracker, a seeder and two fetchers are {most} processes");
    let right = stdout.lines().filter(|line| line.starts_with(" right: ")).count();
    assert_eq!(right, 4, "{stdout}");
    for words in ["3 seeders, 0 leechers, 2 downloads", "0 peers left in it", " All is well. "] {
        assert!(stdout.contains(words), "no `{words}` in\n{stdout}");
    }
    place.assert_is_left_as_it_was();
}

#[test]
fn what_is_killed_goes_on_where_it_was() {
    let place = DemoFolder::new();
    let mut demo = Demo::start(&place, "--kill --size 32MiB --rate 2MiB");
    let pieces = number(&demo.until(is("torrent"))["pieces"]);
    let killed = demo.until(is("killed"));
    assert_eq!(killed["parts"], serde_json::json!(["seeder", "blocks"]));
    for pid in killed["pids"].as_array().unwrap() {
        assert!(!place.processes().contains(&(number(pid) as i32)), "{pid} is still there");
    }
    let told = number(&killed["complete"]);
    assert!(told >= pieces / 2 && told < pieces, "{told} of {pieces}");
    let back = demo.until(is("back"));
    let kept = number(&back["complete"]);
    assert!(kept > 0 && kept <= told, "{kept} of {told} after a flush, and before the next");
    // The last that is told before all of them end.
    let mut last = demo.until(is("progress"));
    let summary = loop {
        let event = demo.until(|event| is("progress")(event) || is("summary")(event));
        if is("summary")(&event) {
            break event;
        }
        last = event;
    };
    for part in ["blocks", "files"] {
        assert_eq!((number(&of(&last, part)["complete"]), number(&of(&last, part)["left"])), (pieces, 0));
    }
    let fetched = number(&of(&last, "blocks")["downloaded"]);
    assert!(fetched <= number(&back["missing"]), "{fetched} fetched, {} were missing", back["missing"]);
    let restart = &summary["restart"];
    assert!(number(&restart["fetched"]) <= number(&restart["missing"]), "{restart}");
    assert_eq!((number(&restart["kept"]), number(&restart["told"])), (kept, told));
    assert_eq!(demo.next().unwrap()["ok"], true);
    assert_eq!(demo.end(), (Some(0), String::new()));
    place.assert_is_left_as_it_was();
}

#[test]
fn whatever_ends_it_nothing_runs_on() {
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGKILL] {
        let place = DemoFolder::new();
        let mut demo = Demo::start(&place, "--size 32MiB");
        demo.until(is("progress"));
        assert_eq!(place.processes().len(), 5, "{signal}");
        demo.signal(signal);
        let began = Instant::now();
        let (code, said) = demo.end();
        assert!(began.elapsed() < Duration::from_secs(5), "{signal}: {:?}", began.elapsed());
        if signal == Signal::SIGKILL {
            // It had no time to wait for them.
            while !place.processes().is_empty() {
                assert!(began.elapsed() < Duration::from_secs(5), "{:?} run on", place.processes());
                thread::sleep(Duration::from_millis(10));
            }
            continue;
        }
        assert_eq!((code, &*said), (Some(3), "error: interrupted\n"), "{signal}");
        place.assert_is_left_as_it_was();
    }
}

#[test]
fn it_is_interrupted_while_it_prepares_too() {
    let place = DemoFolder::new();
    let mut demo = Demo::start(&place, "--size 4GiB");
    demo.until(is("started"));
    // It writes random bytes now.
    while place.files().iter().all(|folder| !folder.join("demo/first.bin").exists()) {
        thread::sleep(Duration::from_millis(5));
    }
    demo.signal(Signal::SIGINT);
    assert_eq!(demo.end().0, Some(3));
    place.assert_is_left_as_it_was();
}

#[test]
fn the_folder_is_kept_for_who_wants_it() {
    let place = DemoFolder::new();
    let mut demo = Demo::start(&place, "--size 1MiB --keep");
    let kept = demo.until(is("ended"))["kept"].as_str().unwrap().to_owned();
    assert_eq!(demo.end(), (Some(0), String::new()));
    assert_eq!(place.files(), [PathBuf::from(&kept)]);
    let length = |name: &str| fs::metadata(format!("{kept}/files/demo/{name}.bin")).unwrap().len();
    assert_eq!(["first", "second", "third"].map(length).iter().sum::<u64>(), 1 << 20);
    assert!(place.processes().is_empty());
}

/// Runs a demo, and damages a plain file at the first progress of which that holds; the exit code, and what
/// was said.
fn damaged(when: impl Fn(&Value) -> bool) -> (Option<i32>, String) {
    let place = DemoFolder::new();
    let mut demo = Demo::start(&place, "--size 32MiB --rate 4MiB");
    // Some of it was made durable, after five seconds, and is not written again.
    demo.until(|event| is("progress")(event) && event["seconds"].as_f64() > Some(6.0) && when(event));
    let [folder] = &place.files()[..] else { panic!("{:?}", place.files()) };
    let file = File::options().write(true).open(folder.join("files/demo/first.bin")).unwrap();
    let length = file.metadata().unwrap().len();
    file.write_all_at(&vec![b'!'; length as usize], 0).unwrap();
    let ended = demo.end();
    place.assert_is_left_as_it_was();
    ended
}

#[test]
fn a_file_that_is_damaged_in_the_middle_is_found() {
    let (code, said) = damaged(|_| true);
    assert_eq!(code, Some(1), "{said}");
    // By the other fetcher, if it asks for a piece of it, or in the end.
    let found = ["was sent wrong bytes", "of the plain files are not those of the torrent"];
    assert!(found.iter().any(|found| said.contains(found)), "{said}");
}

#[test]
fn a_file_that_is_damaged_at_the_end_is_found() {
    let (code, said) =
        damaged(|event| ["blocks", "files"].iter().all(|part| number(&of(event, part)["left"]) == 0));
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("of the plain files are not those of the torrent: "), "{said}");
}

#[test]
fn a_part_that_dies_is_told_of() {
    for (part, name) in
        [("tracker", "the tracker"), ("seeder", "the seeder"), ("blocks", "the fetcher over a block store")]
    {
        let place = DemoFolder::new();
        let mut demo = Demo::start(&place, "--size 32MiB");
        let started = demo.until(|event| is("started")(event) && event["part"] == part);
        demo.until(is("progress"));
        kill(Pid::from_raw(number(&started["pid"]) as i32), Signal::SIGKILL).unwrap();
        let expected = format!("error: {name} has ended unexpectedly (signal: 9 (SIGKILL))");
        let (code, said) = demo.end();
        assert!(code == Some(1) && said.starts_with(&expected), "{said}");
        place.assert_is_left_as_it_was();
    }
}

#[test]
fn who_has_seen_enough_ends_it() {
    let place = DemoFolder::new();
    let mut demo = Demo::start(&place, "--size 32MiB");
    demo.until(is("torrent"));
    let Demo { child, lines } = &mut demo;
    // As `head` closes the pipe.
    let closed = std::mem::replace(lines, BufReader::new(other_pipe()).lines());
    drop(closed);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    place.assert_is_left_as_it_was();
}

/// One from which nothing comes.
fn other_pipe() -> ChildStdout {
    let mut child = Command::new("true").stdout(Stdio::piped()).spawn().unwrap();
    let pipe = child.stdout.take().unwrap();
    child.wait().unwrap();
    pipe
}

#[test]
fn too_little_is_refused() {
    let output = DemoFolder::new().command("--size 1MiB --rate 0").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let output = DemoFolder::new().command("--size 1KiB").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("from 1MiB to 1TiB"));
}
