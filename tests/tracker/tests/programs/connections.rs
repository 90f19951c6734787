//! Connection ids over UDP, of several trackers and across a restart.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path, process::Command};

use swarmkeep_store_tests::{programs::Trial, tests};
use swarmkeep_tests::{
    Folder,
    serve::{PROGRAM, Serve, program, swarmkeep},
    udp::{self, Client},
};
use swarmkeep_tracker_protocol::udp::ConnectionId;

pub(crate) fn tests() -> Vec<Trial> {
    tests! { [PROGRAM]:
        trackers_with_one_connection_key_accept_each_others_ids_also_after_a_restart,
        a_connection_key_that_is_no_secret_is_refused
    }
}

const SECRET: &str = "0123456789abcdef0123456789abcdef";

fn write(path: &Path, text: &str, mode: u32) {
    fs::write(path, text).expect("a file of ours");
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("ours");
}

fn command(arguments: &[&str]) -> Command {
    let mut command = swarmkeep(&program(), "serve");
    command.args(["--udp=127.0.0.1:0", "--admin=off"]).args(arguments);
    command
}

fn client(tracker: &Serve) -> Client {
    Client::of(tracker.address("udp"))
}

fn accepts(tracker: &Serve, id: ConnectionId) -> bool {
    udp::accepts(tracker.address("udp"), id)
}

fn trackers_with_one_connection_key_accept_each_others_ids_also_after_a_restart() {
    let folder = Folder::empty();
    let [one, other] = ["one", "other"].map(|name| folder.join(name));
    write(&one, &format!("{SECRET}\n"), 0o600);
    write(&other, SECRET, 0o640);
    let with = |path: &Path| Serve::start(command(&["--connection-key", path.to_str().expect("text")]));
    let (first, neighbour, apart) = (with(&one), with(&other), Serve::start(command(&[])));
    let id = client(&first).connect();
    assert!(accepts(&first, id), "its own id");
    assert!(accepts(&neighbour, id), "an id of a tracker with the same secret");
    assert!(!accepts(&apart, id), "an id of a tracker with another key");
    assert!(!accepts(&first, client(&apart).connect()), "an id of a tracker with a random key");
    first.stop("TERM");
    assert!(accepts(&with(&one), id), "an id from before the restart");
    // Without a secret, a restart forgets all ids.
    let id = client(&apart).connect();
    apart.stop("TERM");
    assert!(!accepts(&Serve::start(command(&[])), id), "an id of another random key");
}

fn a_connection_key_that_is_no_secret_is_refused() {
    let folder = Folder::empty();
    let path = folder.join("key");
    let refuse = |expected: &str| {
        let key = path.to_str().expect("text");
        let (code, message) = Serve::refused(command(&["--connection-key", key]));
        let expected = format!("connection-key: {key}: {expected}");
        assert!(code == Some(2) && message.contains(&expected), "{expected}: {message}");
        let _ = fs::remove_file(&path);
    };
    refuse("cannot read it: No such file");
    let with_more = format!("{}\nmore", SECRET.repeat(128));
    let longer = [SECRET.repeat(129), with_more].map(|text| (text, "more than 4096"));
    let shorter = [("", "0"), ("\n", "0"), (&SECRET[1..], "31")];
    for (text, bytes) in shorter.map(|(text, bytes)| (text.to_owned(), bytes)).into_iter().chain(longer) {
        write(&path, &text, 0o600);
        refuse(&format!("it has {bytes} bytes, and a secret has 32 to 4096"));
    }
    for mode in [0o604, 0o602, 0o644] {
        write(&path, SECRET, mode);
        refuse("everybody can read or change it: chmod o= it");
    }
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).expect("ours");
    write(&path, SECRET, 0o600);
    refuse("everybody can put another in its place: chmod o-w its folder");
    // A sticky folder is judged before the bytes.
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o1777)).expect("ours");
    write(&path, &("k".repeat(40) + "\n\n"), 0o600);
    refuse("all of its bytes are equal");
    assert!(Command::new("mkfifo").arg(&path).status().is_ok_and(|made| made.success()));
    refuse("it is not a regular file");
    fs::create_dir(&path).expect("a folder of ours");
    refuse("it is not a regular file");
}
