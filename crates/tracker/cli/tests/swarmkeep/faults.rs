//! Faults under load: settings and lists that change or break, a process that stands still, a signal to stop.

use std::{fs, net::UdpSocket, time::Duration};

use crate::common::{
    Folder, Serve, interval, interval_asking_every, load::under_load, start, start_at_file, state::metric,
    swarmkeep, until,
};
use swarmkeep_tests::udp::CONNECT;

#[test]
fn settings_and_lists_that_change_or_break_under_load_lose_no_answer() {
    let folder = Folder::empty();
    let list = folder.join("denied");
    let denied = |from: u32| (from..from + 50_000).map(|n| format!("{n:040x}\n")).collect::<String>();
    fs::write(&list, denied(0)).expect("ours");
    let settings = |interval: u32| {
        format!("udp = [\"127.0.0.1:0\"]\ninterval = {interval}\ndeny-list = \"{}\"\n", list.display())
    };
    let file = folder.write("a.toml", &settings(600));
    let mut serve = start_at_file(&["--config", &file, "--log", "info"]);
    let [udp, _] = serve.addresses();
    let mut printed = String::new();
    let report = under_load(udp[0], |_| {
        for n in 0..24 {
            match n % 4 {
                0 => drop(folder.write("a.toml", &settings(600 + n))),
                1 => fs::write(&list, "broken\n").expect("ours"),
                2 => fs::write(&list, denied(n)).expect("ours"),
                _ => drop(folder.write("a.toml", "interval = \"soon\"\n")),
            }
            serve.signal("HUP");
            let end = ["settings read again", "the settings stay as they were"][n as usize % 2];
            printed += &serve.printed_until(end);
        }
    });
    assert_eq!((report.failed, report.wrong), (0, 0), "{:?} {:?}", report.failures, report.wrong_answers);
    assert_eq!(serve.stop("TERM").0, Some(0));
    let both = ["is not an info hash", "interval: `soon` is not a value"];
    assert!(both.iter().all(|said| printed.contains(said)), "{printed}");
}

#[test]
fn a_tracker_that_stood_still_counts_lost_requests_and_answers_again() {
    let serve = Serve::start({
        let interval = ["--interval=600", "--longest-interval=900", "--jitter=0"];
        let listening = ["--udp=127.0.0.1:0", "--admin=127.0.0.1:0"];
        let mut command = swarmkeep(&[&listening[..], &interval].concat());
        command.env_remove("SWARMKEEP_ADMIN");
        command
    });
    let [udp, _] = serve.addresses();
    let admin = serve.address("dashboard");
    let drops = || metric(admin, "swarmkeep_udp_socket_drops_total");
    // A busy machine may stretch it already.
    assert!(drops() == 0 && (600..=900).contains(&interval(udp[0])));
    serve.signal("STOP");
    let flooder = UdpSocket::bind("127.0.0.1:0").expect("loopback");
    for _ in 0..100_000 {
        flooder.send_to(&CONNECT, udp[0]).expect("loopback");
    }
    serve.signal("CONT");
    let asked = || interval_asking_every(Duration::from_millis(500), udp[0]);
    // It has lost requests, so for some seconds its answers have a longer interval.
    until("the interval is stretched", || (601..=900).contains(&asked()));
    until("the lost datagrams are counted", || drops() >= 10_000);
    assert_eq!(serve.stop("TERM").0, Some(0));
}

#[test]
fn a_tracker_that_stops_ends_before_the_load_and_reports_no_lost_requests() {
    for signal in ["TERM", "INT"] {
        let serve = start(&["--udp=127.0.0.1:0"]);
        let [udp, _] = serve.addresses();
        let report = under_load(udp[0], |_| {
            let (code, printed) = serve.stop(signal);
            assert_eq!(code, Some(0), "{printed}");
            assert!(!printed.contains("unanswered"), "{printed}");
        });
        // Each worker waits for one answer at a time; the last one cannot come.
        assert!(report.interrupted && report.wrong == 0, "{report:?}");
    }
}

#[test]
fn a_tracker_that_reads_a_long_list_stops_before_it_has_read_it() {
    let folder = Folder::empty();
    let list = |len: u64| (0..len).map(|n| format!("passkey-{n:016}\n")).collect::<String>();
    let passkeys = folder.write_secret("passkeys", &list(1));
    let serve = start(&["--udp=127.0.0.1:0", "--passkeys", &passkeys]);
    folder.write("passkeys", &list(3_000_000));
    serve.signal("HUP");
    serve.signal("HUP");
    let (code, printed) = serve.stop("TERM");
    assert_eq!(code, Some(0));
    assert!(!printed.contains("settings read again"), "{printed}");
}
