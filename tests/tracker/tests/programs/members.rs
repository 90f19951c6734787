//! Members of a private tracker: the record of their announces, and the script that sums it up.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    os::unix::{fs::PermissionsExt as _, net::UnixListener},
    process::Command,
};

use serde_json::{Value, json};
use swarmkeep_store_tests::{
    programs::{Need, Trial},
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
        [PROGRAM]:
            each_announce_of_a_member_is_a_line_of_json_in_a_file_of_this_user,
            announces_that_no_program_takes_are_counted_and_answered;
        [PYTHON]: differences_are_summed_up_per_member
    }
}

fn start(arguments: &[&str]) -> Serve {
    let mut command = swarmkeep(&program(), "serve");
    command.args(["--udp=127.0.0.1:0", "--admin=127.0.0.1:0"]).args(arguments);
    Serve::start(command)
}

const MEMBERS: &str = "alice-1234 name=alice\nbob-56789\n";

fn each_announce_of_a_member_is_a_line_of_json_in_a_file_of_this_user() {
    let folder = Folder::empty();
    let (passkeys, reports) = (folder.write_secret("passkeys", MEMBERS), folder.join("reports"));
    let to = reports.to_str().expect("text");
    let mut serve = start(&["--http=127.0.0.1:0", "--passkeys", &passkeys, "--report-to", to]);
    let (mut client, id) = Client::of(serve.address("udp")).connected();
    let request = AnnounceRequest { uploaded: 7, left: u64::MAX, ..announce(id) };
    client.announce(AnnounceRequest { trailing: b"\x02\x14/alice-1234/announce", ..request });
    client.refusal(AnnounceRequest { trailing: b"\x02\x14/carol-1234/announce", ..request });
    client.refusal(AnnounceRequest { trailing: b"\x02\x14/alice-1234/announce", port: 0, ..request });
    let query = "info_hash=aaaaaaaaaaaaaaaaaaaa&peer_id=-XX0000-abcdefghijkl&port=7000&left=0&downloaded=5";
    assert_eq!(get(serve.address("http"), &format!("/bob-56789/announce?{query}&uploaded=x")).status, 200);
    assert_eq!(get(serve.address("http"), &format!("/bob-56789/announce?{query}")).status, 200);
    serve.signal("HUP");
    serve.printed_until("settings read again");
    client.announce(AnnounceRequest { trailing: b"\x02\x13/bob-56789/announce", ..request });
    assert_eq!(serve.stop("TERM").0, Some(0));

    let text = fs::read_to_string(&reports).expect("it was made");
    let mut lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    for line in &mut lines {
        let time = line.as_object_mut().expect("an object").remove("time");
        assert!(time.and_then(|time| time.as_u64()) > Some(1_700_000_000), "{text}");
    }
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
    assert_eq!(lines, [over_udp("alice"), over_http.clone(), over_http, over_udp("58c033a1d9ea30d9")]);
    assert_eq!(fs::metadata(&reports).expect("a file").permissions().mode() & 0o777, 0o600);
}

fn announces_that_no_program_takes_are_counted_and_answered() {
    let folder = Folder::empty();
    let (passkeys, socket) = (folder.write_secret("passkeys", MEMBERS), folder.join("socket"));
    let file = folder.write("a.toml", "report-to = \"unix:socket\"\n");
    let serve = start(&["--config", &file, "--passkeys", &passkeys]);
    let (mut client, id) = Client::of(serve.address("udp")).connected();
    let request = AnnounceRequest { trailing: b"\x02\x14/alice-1234/announce", ..announce(id) };
    client.announce(request);
    let dropped_one = || {
        let metrics = get(serve.address("dashboard"), "/metrics");
        metrics.text().contains("swarmkeep_dropped_reports_total 1\n")
    };
    until("it is counted", dropped_one);
    let listener = UnixListener::bind(&socket).expect("a folder of ours");
    client.announce(request);
    let mut line = String::new();
    let (taken, _) = listener.accept().expect("the tracker connects");
    BufReader::new(taken).read_line(&mut line).expect("a line");
    assert!(line.contains("\"name\":\"alice\"") && line.ends_with("}\n"), "{line}");
    assert!(dropped_one());
}

/// Lines with a name, a peer id, uploaded, downloaded and an endpoint.
fn lines(of: &[(&str, &str, &str, &str, &str)]) -> String {
    let line = |(name, peer, uploaded, downloaded, endpoint): &(&str, &str, &str, &str, &str)| {
        format!(
            r#"{{"time":1,"name":"{name}","peer_id":"{peer}","info_hash":"aa","uploaded":{uploaded},"downloaded":{downloaded},"left":0,"event":"empty","endpoint":"{endpoint}"}}"#
        ) + "\n"
    };
    of.iter().map(line).collect()
}

/// As Gazelle's Ocelot (`worker.cpp`), by user, torrent and peer id. Ocelot credits neither a first number
/// nor a lower one; here they count, since a client counts from 0 when it starts (BEP 3).
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
        ("bob", "1", "7", "9223372036854775807", V4),
    ]);
    folder.write("reports", &first);
    assert_eq!(sums(), "alice 1130 51\nbob 7 9007199254740992\n");
    // It has begun anew, over one family after the other.
    let second = lines(&[("alice", "1", "10", "5", V6), ("alice", "1", "12", "5", V4)]);
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
}
