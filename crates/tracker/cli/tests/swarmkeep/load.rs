//! `swarmkeep load` as scripts use it, against `swarmkeep serve`.

use std::{
    collections::{HashMap, HashSet},
    fs::File,
    io::{BufRead, BufReader, Read as _},
    net::UdpSocket,
    process::{Child, Command, Output, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use nix::pty::{Winsize, openpty};
use serde_json::Value;
use swarmkeep_tracker_protocol::{bittorrent::AnnounceEvent, udp::Request};

use crate::common::{A_MINUTE, Folder, Serve, start};

/// A tracker over both families, and its addresses.
fn tracker(options: &[&str]) -> (Serve, Vec<String>) {
    let serve = start(&[&["--udp=127.0.0.1:0", "--udp=[::1]:0"], options].concat());
    let addresses = serve.addresses_of("udp").iter().map(ToString::to_string).collect();
    (serve, addresses)
}

fn load(arguments: &[&str]) -> Output {
    command(arguments).output().expect("the program starts")
}

fn command(arguments: &[&str]) -> Command {
    let short = ["--duration", "300ms", "--warm-up", "50ms"];
    let mut command = Command::new(env!("CARGO_BIN_EXE_swarmkeep"));
    command.arg("load").args(arguments);
    command.args(short.iter().filter(|_| !arguments.contains(&"--duration")));
    command
}

/// Sends SIGINT and waits for the end; returns the exit code and the later text of both outputs.
fn interrupt(mut child: Child) -> (Option<i32>, String) {
    swarmkeep_tests::serve::signal(child.id(), "INT").expect("it runs");
    let began = Instant::now();
    while child.try_wait().expect("a child").is_none() {
        if began.elapsed() > A_MINUTE {
            child.kill().expect("a child");
        }
        thread::sleep(Duration::from_millis(2));
    }
    let output = child.wait_with_output().expect("a child");
    (output.status.code(), text(&output.stdout) + &text(&output.stderr))
}

/// A proxy between clients and a tracker. `change` may change each response. Ends after a while without
/// requests.
fn tap(tracker: &str, mut change: impl FnMut(&Request<'_>, &mut Vec<u8>) + Send + 'static) -> String {
    let [clients, upstream] = [(); 2].map(|()| {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("loopback");
        socket.set_read_timeout(Some(A_MINUTE)).expect("above zero");
        socket
    });
    upstream.connect(tracker).expect("loopback");
    let address = clients.local_addr().expect("bound").to_string();
    thread::spawn(move || {
        let (mut packet, mut response) = ([0; 2048], [0; 2048]);
        while let Ok((len, source)) = clients.recv_from(&mut packet) {
            upstream.send(&packet[..len]).expect("sent");
            let Ok(received) = upstream.recv(&mut response) else { return };
            let mut response = response[..received].to_vec();
            change(&Request::parse(&packet[..len]).expect("a request"), &mut response);
            clients.send_to(&response, source).expect("sent");
        }
    });
    address
}

/// A proxy that adds the announcing peer to the peers.
fn with_the_announcer(tracker: &str) -> String {
    tap(tracker, |request, response| {
        if let Request::Announce(announce) = request {
            response.extend([127, 0, 0, 1]);
            response.extend(announce.port.to_be_bytes());
        }
    })
}

/// Runs on a terminal of 80 columns; returns the lines of standard error there, and standard output.
fn on_a_terminal(arguments: &[&str]) -> (Vec<String>, String) {
    let window = Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
    let terminal = openpty(Some(&window), None).expect("a terminal");
    let mut command = command(arguments);
    let child = command.env("TERM", "xterm").stdout(Stdio::piped()).stderr(terminal.slave).spawn();
    drop(command);
    let mut screen = Vec::new();
    // A terminal without a writer ends with an error.
    let _ = File::from(terminal.master).read_to_end(&mut screen);
    let lines = text(&screen);
    let lines = lines.split(['\r', '\n', '\u{1b}']).map(|part| match part.strip_prefix('[') {
        Some(code) => code.trim_start_matches(|c: char| c.is_ascii_digit()).get(1..).unwrap_or_default(),
        None => part,
    });
    // Spaces fill each line, and the bar follows.
    let lines = lines.flat_map(|line| {
        let (line, bar) = line.split_at(line.find(['█', '░']).unwrap_or(line.len()));
        [line.trim_end().to_owned(), bar.trim_end().to_owned()]
    });
    let output = child.expect("the program starts").wait_with_output().expect("a child");
    (lines.collect(), text(&output.stdout))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("text")
}

#[test]
fn json_is_one_object_and_progress_goes_to_standard_error() {
    let (serve, addresses) = tracker(&[]);
    let [v4, v6] = &addresses[..] else { panic!("{addresses:?}") };
    let arguments = format!(
        "--target {v4} --target {v6} --concurrency 4 --window 8 --fill --peers 2000 --torrents 20 --numwant 30 \
         --mix connect=50,announce=50,scrape=1 --server-pid {} --seed 9 --json --duration 1200ms \
         --warm-up 50ms",
        serve.pid()
    );
    let output = load(&arguments.split(' ').collect::<Vec<_>>());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let json: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    let number = |pointer: &str| json.pointer(pointer).and_then(Value::as_f64).expect(pointer);
    assert!(number("/requests_per_second") > 100.0);
    assert_eq!((number("/failed"), number("/wrong"), number("/late")), (0.0, 0.0, 0.0));
    for kind in ["all", "connect", "announce", "stopped", "scrape"] {
        for value in ["min", "mean", "p50", "p90", "p95", "p99", "p999", "max"] {
            assert!(number(&format!("/latency/{kind}/{value}")) > 0.0, "{kind} {value}");
        }
    }
    // Microseconds: no answer over the loopback takes less than one.
    assert!(number("/latency/all/min") > 1.0);
    assert!(number("/peers/per_answer") > 5.0 && number("/peers/per_answer") <= 30.0);
    assert!(number("/server/cpu_seconds_per_million") > 0.0 && number("/server/rss_bytes_after") > 1e6);
    assert_eq!(number("/fill/announced"), 2000.0);
    assert_eq!(number("/settings/seed"), 9.0);
    let progress = text(&output.stderr);
    assert!(progress.starts_with("   1 s ") && progress.contains("\n   end "), "{progress}");
    assert_eq!(progress.matches("/s ").count(), 1, "{progress}");
}

#[test]
fn each_client_has_the_history_of_a_client() {
    let (_serve, addresses) = tracker(&[]);
    let (sent, seen) = mpsc::channel();
    let tap = tap(&addresses[0], move |request, _| {
        if let Request::Announce(announce) = request {
            let client = (announce.info_hash, announce.port, announce.peer_id);
            let _ = sent.send((client, announce.event, announce.left));
        }
    });
    let few = ["--peers", "40", "--torrents", "4", "--completed", "0.04", "--stopped", "0.1"];
    let output = load(&[&["--target", &tap, "--concurrency", "4", "--duration", "1s"], &few[..]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stdout));

    let (mut left_of, mut stopped, mut events) = (HashMap::new(), HashSet::new(), HashMap::new());
    for (client, event, left) in seen.try_iter() {
        assert!(!stopped.contains(&client), "{event:?} of a client that has stopped");
        let before = left_of.insert(client, left);
        match event {
            AnnounceEvent::Completed => assert!(left == 0 && before != Some(0), "a second completed"),
            _ => assert!(before.is_none_or(|before| before == left), "{before:?} left, and then {left}"),
        }
        if event == AnnounceEvent::Stopped {
            stopped.insert(client);
        }
        *events.entry(event).or_insert(0) += 1;
    }
    assert!(events.len() == 4 && events.values().all(|&count| count > 10), "{events:?}");
}

#[test]
fn the_announcing_peer_among_the_peers_is_a_note_unless_strict() {
    let (_serve, addresses) = tracker(&[]);
    let tap = with_the_announcer(&addresses[0]);
    let arguments = ["--target", &tap, "--concurrency", "2", "--peers", "100", "--torrents", "10"];
    let output = load(&arguments);
    let report = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{report}");
    let line = report.lines().find(|line| line.contains("the announcing peer among the peers"));
    assert!(line.is_some_and(|line| line.starts_with("noted ")), "{report}");

    let output = load(&[&arguments[..], &["--strict"]].concat());
    assert_eq!(output.status.code(), Some(3), "{}", text(&output.stderr));
    let report = text(&output.stdout);
    assert!(report.contains("the announcing peer among the peers") && !report.contains("noted"), "{report}");
}

#[test]
fn ctrl_c_prints_the_report_so_far() {
    let (_serve, addresses) = tracker(&[]);
    let arguments = ["--target", &addresses[0], "--concurrency", "4", "--duration", "10m"];
    let mut child =
        command(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let mut line = String::new();
    let mut progress = BufReader::new(child.stderr.take().expect("piped"));
    progress.read_line(&mut line).expect("text");
    assert!(line.starts_with("   1 s "), "{line}");
    let (code, report) = interrupt(child);
    assert_eq!(code, Some(0), "{report}");
    assert!(report.contains(" s; interrupted\n"), "{report}");
    let rate = report.lines().find_map(|line| line.strip_prefix("per second")).expect("a rate");
    assert!(rate.trim().replace(',', "").parse::<u32>().is_ok_and(|rate| rate > 0), "{report}");
}

#[test]
fn ctrl_c_before_the_measurement_says_so() {
    let (_serve, addresses) = tracker(&[]);
    for long in [&["--warm-up", "10m"][..], &["--fill", "--shape", "uniform", "--peers", "10000000"]] {
        let (sent, seen) = mpsc::channel();
        let tap = tap(&addresses[0], move |request, _| {
            if let Request::Announce(_) = request {
                let _ = sent.send(());
            }
        });
        let arguments = ["--target", &tap, "--concurrency", "2", "--duration", "1s"];
        let mut command = command(&[&arguments[..], long].concat());
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
        seen.recv_timeout(A_MINUTE).expect("an announce soon");
        let (code, said) = interrupt(child);
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains("interrupted before anything was measured"), "{said}");
    }
}

#[test]
fn a_run_of_which_most_was_refused_ends_with_1() {
    let folder = Folder::empty();
    let (_serve, addresses) = tracker(&["--allow-list", &folder.write("none", "")]);
    // Of 100 requests, 2 connect.
    let mix = ["--mix", "connect=2,announce=98", "--concurrency", "4"];
    let output = load(&[&["--target", &addresses[0]], &mix[..]].concat());
    let (report, said) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.code() == Some(1) && report.contains("error: "), "{report}");
    assert!(said.contains(" requests succeeded") && !said.contains("only 0 of"), "{said}");
}

#[test]
fn the_bar_begins_empty() {
    let (_serve, addresses) = tracker(&[]);
    let few = ["--target", &addresses[0], "--concurrency", "4", "--peers", "2000"];
    for more in [&["--duration", "1s"][..], &["--duration", "300ms"], &["--duration", "1s", "--fill"]] {
        let (lines, _) = on_a_terminal(&[&few[..], more].concat());
        let bars: Vec<_> = lines.iter().filter(|line| line.contains(['█', '░'])).collect();
        assert!(bars.first().is_some_and(|bar| !bar.contains('█')), "{more:?}: {bars:?}");
    }
}

#[test]
fn reports_and_progress_fit_in_80_columns() {
    let folder = Folder::empty();
    let (serve, both) = tracker(&[]);
    let (_refusing, refusing) = tracker(&["--allow-list", &folder.write("none", "")]);
    let noted = with_the_announcer(&both[0]);
    let (refused, pid) = (&refusing[0], serve.pid().to_string());
    let open =
        ["--rate", "123.456", "--fill", "--mix", "connect=1,announce=1,scrape=1", "--server-pid", &pid];
    let two = ["--target", &both[0], "--target", &both[1]];
    let short = ["--concurrency", "8", "--duration", "1s", "--warm-up", "50ms"];
    for arguments in [
        vec!["--target", &noted, "--strict"],
        vec!["--target", &noted],
        vec!["--target", refused, "--mix", "connect=2,announce=98"],
        [&two[..], &open].concat(),
    ] {
        let (lines, report) = on_a_terminal(&[&arguments[..], &short].concat());
        assert!(lines.iter().any(|line| line.starts_with("   1 s ")), "{lines:?}");
        let words = report.split_whitespace().collect::<Vec<_>>().join(" ");
        for part in ["requests per second each (open loop)", "announce", "p99.9", "peers per answer"] {
            assert!(words.contains(part) || !arguments.contains(&"--rate"), "{part}: {report}");
        }
        for line in lines.iter().map(String::as_str).chain(report.lines()) {
            assert!(line.chars().count() <= 80, "{} columns: {line}", line.chars().count());
        }
    }
}

#[test]
fn options_that_cannot_be_are_refused() {
    let says = |arguments: &[&str], reason: &str| {
        let output = load(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(text(&output.stderr).contains(reason), "{}", text(&output.stderr));
    };
    says(&[], "--target");
    says(&["--target", "192.0.2.1:6969"], "a load test takes down targets that are not made for it");
    says(&["--target", "127.0.0.1:1", "--duration", "61m"], "from 1 ms to 1 hour");
    says(&["--target", "127.0.0.1:1", "--mix", "announce"], "weights like connect=50,announce=50,scrape=1");
    says(&["--target", "127.0.0.1:1", "--stopped", "2"], "shares are from 0 to 1");
    says(&["--target", "127.0.0.1:1", "--peers", "10"], "each has one or more");
    says(&["--target", "127.0.0.1:1", "--timeout", "soon"], "such as 500ms");
}
