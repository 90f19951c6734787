//! Members of a private tracker: the record of their announces, and the script that sums it up.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    os::unix::{fs::PermissionsExt as _, net::UnixListener},
    process::Command,
};

use serde_json::{Value, json};
use swarmkeep_store_tests::{
    found,
    programs::{FAKETIME, Need, Trial, faketime},
    tests, until,
};
use swarmkeep_tests::{
    Folder,
    admin::client::get,
    serve::{PROGRAM, Serve, program, swarmkeep},
    udp::{Client, announce},
};
use swarmkeep_tracker_protocol::udp::AnnounceRequest;

const PYTHON: Need = Need::program("python3", "python3");

pub(crate) fn tests() -> Vec<Trial> {
    tests! {
        [PROGRAM, FAKETIME]: each_announce_of_a_member_is_a_line_of_json_in_a_file_of_this_user;
        [PROGRAM]: announces_that_no_program_takes_are_counted_and_answered;
        [PYTHON]: differences_are_summed_up_per_member
    }
}

fn command(arguments: &[&str]) -> Command {
    let mut command = swarmkeep(&program(), "serve");
    command.args(["--udp=127.0.0.1:0", "--admin=127.0.0.1:0"]).args(arguments);
    command
}

const MEMBERS: &str = "alice-1234 name=alice\nbob-56789\ndave-6789 name=dave until=2099-01-01\n";

fn each_announce_of_a_member_is_a_line_of_json_in_a_file_of_this_user() {
    let folder = Folder::empty();
    let (passkeys, reports) = (folder.write_secret("passkeys", MEMBERS), folder.join("reports"));
    let to = reports.to_str().expect("text");
    let mut command = command(&["--http=127.0.0.1:0", "--passkeys", &passkeys, "--report-to", to]);
    command.env("LD_PRELOAD", faketime().expect("a need of this test"));
    command.env("FAKETIME_TIMESTAMP_FILE", folder.write("clock", "+0"));
    command.envs([("FAKETIME_NO_CACHE", "1"), ("FAKETIME_DONT_FAKE_MONOTONIC", "1")]);
    let mut serve = Serve::start(command);
    let (mut client, id) = Client::of(serve.address("udp")).connected();
    let request = AnnounceRequest { uploaded: 7, left: u64::MAX, ..announce(id) };
    client.announce(AnnounceRequest { trailing: b"\x02\x14/alice-1234/announce", ..request });
    client.refusal(AnnounceRequest { trailing: b"\x02\x14/carol-1234/announce", ..request });
    client.refusal(AnnounceRequest { trailing: b"\x02\x14/alice-1234/announce", port: 0, ..request });
    let query = "info_hash=aaaaaaaaaaaaaaaaaaaa&peer_id=-XX0000-abcdefghijkl&port=7000&left=0&downloaded=5";
    assert_eq!(get(serve.address("http"), &format!("/bob-56789/announce?{query}&uploaded=x")).status, 200);
    assert_eq!(get(serve.address("http"), &format!("/bob-56789/announce?{query}")).status, 200);
    let of_dave = AnnounceRequest { trailing: b"\x02\x13/dave-6789/announce", ..request };
    client.announce(of_dave);
    serve.signal("HUP");
    serve.printed_until("settings read again");
    folder.write("clock", "+36500d");
    assert!(client.refusal(of_dave).contains("has expired"));
    client.announce(AnnounceRequest { trailing: b"\x02\x13/bob-56789/announce", ..request });
    assert_eq!(serve.stop("TERM").0, Some(0));

    let text = fs::read_to_string(&reports).expect("it was made");
    let mut lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let mut times = Vec::new();
    for line in &mut lines {
        let time = line.as_object_mut().expect("an object").remove("time");
        times.push(time.and_then(|time| time.as_u64()).expect("a number"));
    }
    assert!(times[0] > 1_700_000_000 && times[3] < 4_070_908_800 && times[4] > 4_070_908_800, "{text}");
    let over_udp = |name: &str| {
        json!({
            "name": name, "peer_id": request.peer_id.to_string(), "info_hash": request.info_hash.to_string(),
            "uploaded": 7, "downloaded": 0, "left": null, "event": "started", "endpoint": "127.0.0.1:6881",
        })
    };
    let over_http = json!({
        "name": "58c033a1d9ea30d9", "peer_id": "2d5858303030302d6162636465666768696a6b6c",
        "info_hash": "61".repeat(20), "uploaded": null, "downloaded": 5, "left": 0, "event": "empty",
        "endpoint": "127.0.0.1:7000",
    });
    let [alice, dave, bob] = ["alice", "dave", "58c033a1d9ea30d9"].map(over_udp);
    assert_eq!(lines, [alice, over_http.clone(), over_http, dave, bob]);
    assert_eq!(fs::metadata(&reports).expect("a file").permissions().mode() & 0o777, 0o600);
}

fn announces_that_no_program_takes_are_counted_and_answered() {
    let folder = Folder::empty();
    let (passkeys, socket) = (folder.write_secret("passkeys", MEMBERS), folder.join("socket"));
    let file = folder.write("a.toml", "report-to = \"unix:socket\"\n");
    let mut serve = Serve::start(command(&["--config", &file, "--passkeys", &passkeys]));
    let (mut client, id) = Client::of(serve.address("udp")).connected();
    let request = AnnounceRequest { trailing: b"\x02\x14/alice-1234/announce", ..announce(id) };
    client.announce(request);
    let dropped_one = || {
        let metrics = get(serve.address("dashboard"), "/metrics");
        metrics.text().contains("swarmkeep_dropped_reports_total 1\n")
    };
    until("it is counted", dropped_one);
    let listener = UnixListener::bind(&socket).expect("a folder of ours");
    listener.set_nonblocking(true).expect("a socket");
    let mut take_one = || {
        client.announce(request);
        let (taken, _) = found("the tracker connects", || listener.accept().ok());
        let (mut taken, mut line) = (BufReader::new(taken), String::new());
        taken.read_line(&mut line).expect("a line");
        assert!(line.contains("\"name\":\"alice\"") && line.ends_with("}\n"), "{line}");
        taken
    };
    drop(take_one());
    // The program has been started again.
    let taken = take_one();
    assert!(dropped_one());
    // More than fit into the socket.
    (0..1500).for_each(|_| drop(client.announce(request)));
    serve.signal("TERM");
    serve.printed_until("stopped");
    assert_eq!(taken.lines().count(), 1500, "they are written at the end");
}

/// Lines with a name, a peer id, uploaded, downloaded and an endpoint.
fn lines(of: &[(&str, &str, &str, &str, &str)]) -> String {
    let line = |(name, peer, uploaded, downloaded, endpoint): &(&str, &str, &str, &str, &str)| {
        format!(
            r#"{{"time":4102444800,"name":"{name}","peer_id":"{peer}","info_hash":"aa","uploaded":{uploaded},"downloaded":{downloaded},"left":0,"event":"empty","endpoint":"{endpoint}"}}"#
        ) + "\n"
    };
    of.iter().map(line).collect()
}

/// As Gazelle's Ocelot (`worker.cpp`), by user, torrent and peer id. Ocelot credits neither a first number
/// nor a lower one; here they count at a start, since a client then counts from 0 (BEP 3).
fn differences_are_summed_up_per_member() {
    const V4: &str = "192.0.2.1:1";
    const V6: &str = "[2001:db8::1]:1";
    let folder = Folder::empty();
    let sums = || {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../crates/tracker/server/packaging/members.py");
        let output =
            Command::new("python3").args([script, "sums", "reports"]).current_dir(folder.path()).output();
        let output = output.expect("python3");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    };
    let first = lines(&[
        ("alice", "1", "0", "0", V4),
        ("alice", "1", "100", "50", V4),
        // The same client over the other family, of which an earlier announce comes later.
        ("alice", "1", "100", "50", V6),
        ("alice", "1", "130", "50", V4),
        ("alice", "1", "120", "null", V6),
        ("alice", "2", "1000", "1", V4),
        // A request that waited longer than the one before it, and a piece that was bad.
        ("alice", "2", "999", "0", V4),
        ("bob", "1", "7", "9223372036854775807", V4),
    ]);
    folder.write("reports", &first);
    assert_eq!(sums(), "alice 1130 51\nbob 7 9007199254740992\n");
    assert_eq!(fs::metadata(folder.join("sums")).expect("a file").permissions().mode() & 0o777, 0o600);
    // It has begun anew, over one family after the other.
    let second = lines(&[("alice", "1", "10", "5", V6), ("alice", "1", "12", "5", V4)]);
    let second = "{\"half\":\n7\n".to_owned() + &second.replace("empty", "started");
    folder.write("reports", &(first.clone() + &second + "{\"time\":"));
    for _ in 0..2 {
        assert_eq!(sums(), "alice 1142 56\nbob 7 9007199254740992\n", "each line counts once");
    }
    folder.write("reports.1", &(first + &second + &lines(&[("bob", "1", "9", "null", V4)])));
    folder.write("reports", &lines(&[("carol", "1", "1", "1", V6)]));
    assert_eq!(sums(), "alice 1142 56\nbob 9 9007199254740992\ncarol 1 1\n");
    // More than 2^63 in all.
    let peers: Vec<_> = (0..1025).map(|peer| peer.to_string()).collect();
    let many: Vec<_> = peers.iter().map(|peer| ("dave", &**peer, "9223372036854775807", "0", V4)).collect();
    folder.write("reports", &lines(&many));
    assert!(sums().ends_with("carol 1 1\ndave 9223372036854775807 0\n"));
    // Of a client that starts twice, the first number of a session in between is lost.
    let story = [("0", "started"), ("1000", "stopped"), ("0", "empty"), ("0", "started"), ("600", "empty")];
    let line = |(uploaded, event)| lines(&[("ella", "1", uploaded, "0", V4)]).replace("empty", event);
    folder.write("reports", &story.map(line).concat());
    assert!(sums().ends_with("\nella 1600 0\n"));
    // Of a client that was away for 30 days, only the sum is kept.
    for (uploaded, sum) in [("5", 5), ("7", 12)] {
        folder.write("reports", &lines(&[("erin", "1", uploaded, "0", V4)]).replace("4102444800", "1"));
        assert!(sums().ends_with(&format!("\nerin {sum} 0\n")));
    }
}
