//! Clients that stay while the tracker ends and starts again: `swarmkeep serve --state`, the program itself.

use swarmkeep_store_tests::{
    programs::{ARIA2, IP, LIBTORRENT, NAMESPACES, QBITTORRENT, TRANSMISSION},
    tests,
};
use swarmkeep_tests::serve::{PROGRAM, program, swarmkeep};

use super::*;

pub(crate) fn tests() -> Vec<Trial> {
    tests! {
        [PROGRAM, TRANSMISSION, ARIA2, LIBTORRENT, IP, NAMESPACES]:
            clients_meet_after_the_tracker_was_stopped_and_started_again;
        [PROGRAM, LIBTORRENT, ARIA2, QBITTORRENT, IP, NAMESPACES]:
            clients_meet_after_the_tracker_was_killed
    }
}

fn clients_meet_after_the_tracker_was_stopped_and_started_again() {
    meet(Protocol::Udp, "TERM", [&clients::TRANSMISSION, &clients::ARIA2, &clients::LIBTORRENT]);
}

fn clients_meet_after_the_tracker_was_killed() {
    meet(Protocol::Http, "KILL", [&clients::LIBTORRENT, &clients::ARIA2, &clients::QBITTORRENT]);
}

/// The first has the file, and the second downloads it. After the restart of the tracker, the third finds
/// both, which have not announced since.
fn meet(protocol: Protocol, signal: &str, clients: [&'static Client; 3]) {
    if !in_a_network_of_its_own() {
        return;
    }
    let [seeder, other, new] = clients;
    let row = ClientTest {
        kind: TorrentKind::V1,
        by_link: false,
        protocol,
        family: V4,
        passkey: None,
        repository: "packed",
        seeder,
        others: vec![other, new],
    };
    let (content, work) = (content(), Path::new(env!("CARGO_TARGET_TMPDIR")).join("restarts").join(signal));
    let _ = fs::remove_dir_all(&work);
    let torrent = row.torrent(&content);
    let info_hash = Metainfo::parse(&torrent).expect("it was made just now").info().info_hash();
    let places: BTreeMap<_, _> = clients
        .iter()
        .map(|client| (client.name, ClientSetup::new(&work, client, V4, &torrent, None)))
        .collect();
    fs::write(places[seeder.name].download.join(FILE), &content).expect("room for 2 MiB");
    let has_file =
        |client: &Client| fs::read(places[client.name].download.join(FILE)).is_ok_and(|file| file == content);

    let at = SocketAddr::new(row.tracker().ip(), 7969);
    let mut tracker = start(&work, at);
    let tap = Tap::between(row.tracker(), at, protocol, vec![info_hash], false);
    let so_far = || tap.transcript(&places);
    let mut shown = 0;
    let mut show = |places: &BTreeMap<&str, ClientSetup>| {
        let transcript = tap.transcript(places);
        let lines: Vec<_> = transcript.lines().skip(shown).map(str::to_owned).collect();
        shown += lines.len();
        println!("{}", lines.join("\n"));
        lines
    };

    let mut running = vec![Running::start(seeder, &places[seeder.name])];
    wait_until("the seeder announces", || tracker.scrape(&info_hash).complete == 1, so_far);
    running.push(Running::start(other, &places[other.name]));
    let both = SwarmStats { complete: 2, incomplete: 0, downloaded: 1 };
    wait_until("the other downloads, and says so", || tracker.scrape(&info_hash) == both, so_far);
    assert!(has_file(other), "{} has downloaded something else", other.name);
    if signal == "KILL" {
        // The latest snapshot may have begun before, and so may the next.
        let snapshots = || tracker.serve.log().matches("snapshot taken").count();
        let taken = snapshots();
        wait_until("two snapshots more", || snapshots() >= taken + 2, so_far);
    }
    show(&places);
    println!("scrape: {:?}", tracker.scrape(&info_hash));

    end(tracker, signal);
    tracker = start(&work, at);
    assert_eq!(tracker.scrape(&info_hash), both, "{}", tracker.serve.log());
    println!("scrape: {:?}", tracker.scrape(&info_hash));
    assert!(show(&places).iter().all(|line| !line.contains("-> announce")), "the interval is a minute");

    running.push(Running::start(new, &places[new.name]));
    wait_until("the new one downloads", || has_file(new), so_far);
    let lines = show(&places);
    let first = |what: &str| lines.iter().find(|line| line.contains(what)).expect("it was there");
    assert!(first("-> announce").contains(new.name), "it announces first");
    let found = first(" peers [");
    for client in [seeder, other] {
        assert!(found.contains(new.name) && found.contains(&places[client.name].at.to_string()), "{found}");
    }
    let all = SwarmStats { complete: 3, incomplete: 0, downloaded: 2 };
    wait_until("it says so", || tracker.scrape(&info_hash) == all, so_far);
    show(&places);
    println!("scrape: {:?}", tracker.scrape(&info_hash));
    end(tracker, "TERM");
}

fn start(work: &Path, at: SocketAddr) -> ServedTracker {
    let arguments = ["--interval=1m", "--snapshot-every=1s", "--admin=off"];
    println!("$ swarmkeep serve --state DIR {} --udp={at} --http={at}", arguments.join(" "));
    let mut command = swarmkeep(&program(), "serve");
    command.arg("--state").arg(work.join("state")).args(arguments);
    let tracker = ServedTracker::start(command, at);
    let log = tracker.serve.log();
    log.lines().filter(|line| !line.contains("running as root")).for_each(|line| println!("{line}"));
    tracker
}

/// Sends a signal by its name, and prints the last line of the log.
fn end(mut tracker: ServedTracker, signal: &str) {
    println!("$ kill -s {signal} {}", tracker.serve.pid());
    tracker.serve.signal(signal);
    let status = tracker.serve.ended();
    let log = tracker.serve.log();
    assert_eq!(status.success(), signal == "TERM", "{log}");
    println!("{}", log.lines().last().expect("it has logged"));
}
