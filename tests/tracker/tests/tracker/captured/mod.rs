//! Requests of real clients (`fixtures/README.md`) are read with the right meaning, and answered.

mod http;
mod udp;

use std::{collections::BTreeMap, fs, path::Path};

use swarmkeep::Family;
use swarmkeep_tests::{Tracker, any_port, build, listening};
use swarmkeep_tracker_protocol::Software;

const INFO_HASH: &str = "f20521877e62b8a298f3cf15576fd3c7b975a027";
const FILE_LEN: u64 = 2 << 20;

/// The number of requests in each folder, and of those with a recorded response.
const FIXTURES: [(&str, usize, usize); 4] =
    [("udp", 78, 28), ("udp-ipv6", 56, 22), ("http", 66, 20), ("http-ipv6", 66, 20)];

/// The folders of the clients, and the beginnings of their peer ids.
const CLIENTS: [(&str, &[u8; 8]); 11] = [
    ("anacrolix-1.59.1", b"-GT0003-"),
    ("aria2-1.36.0", b"A2-1-36-"),
    ("libtorrent-2.0.8.0", b"-LT2080-"),
    ("libtorrent-2.1.1.0", b"-LT2110-"),
    ("qbittorrent-4.5.2", b"-qB4520-"),
    ("qbittorrent-5.1.0", b"-qB5100-"),
    ("rqbit-9.1.0", b"-rQ9100-"),
    ("rtorrent-0.9.8", b"-lt0D80-"),
    ("transmission-3.00", b"-TR3000-"),
    ("webtorrent-1.9.7", b"-WW0109-"),
    ("webtorrent-2.8.5", b"-WW0208-"),
];

/// Each folder of a protocol has each of these of each client, except those that are [`ABSENT`].
const STATES: [&str; 6] = ["magnet", "started", "partial", "completed", "paused", "stopped"];

/// The beginnings of folders and clients, and their states that cannot be recorded (`fixtures/README.md`).
const ABSENT: [(&str, &str, &[&str]); 4] = [
    // No UDP over IPv6.
    ("udp-ipv6", "aria2", &STATES),
    ("udp-ipv6", "webtorrent", &STATES),
    // A library without a pause.
    ("", "anacrolix", &["paused"]),
    // A pause and an end are not announced.
    ("", "rqbit", &["paused", "stopped"]),
];

#[test]
fn no_fixture_is_missing_and_each_announce_names_its_client() {
    for (folder, requests, answered) in FIXTURES {
        let all = captured(folder);
        let found = (all.len(), all.iter().filter(|one| !one.answer.is_empty()).count());
        assert_eq!(found, (requests, answered), "{folder}");
        for (client, state) in CLIENTS.iter().flat_map(|&(client, _)| STATES.map(|state| (client, state))) {
            let is_there = all.iter().any(|one| one.what() == format!("{client} announce-{state}"));
            let is_absent = ABSENT.iter().any(|(folders, clients, states)| {
                folder.starts_with(folders) && client.starts_with(clients) && states.contains(&state)
            });
            assert_ne!(is_there, is_absent, "{folder}: {client} {state}");
        }
        for one in all.iter().filter(|one| one.kind.starts_with("announce")) {
            let query = one.request.split(|&byte| byte == b'?').nth(1).unwrap_or_default();
            let [udp, http] = [Software::of_packet(&one.request), Software::of_query(query)];
            let software = if folder.starts_with("udp") { udp } else { http };
            assert!(one.client.starts_with(software.name()), "{}: {software:?}", one.what());
            let is_named =
                |bytes: &[u8]| CLIENTS.iter().any(|&(client, id)| one.client == client && bytes == id);
            assert!(one.request.windows(8).any(is_named), "{}", one.what());
        }
    }
}

#[test]
fn every_field_of_every_captured_request_is_read() {
    let udp = udp::FOLDERS.map(|(_, folder)| (folder, udp::check_request as fn(&CapturedExchange)));
    let http = http::FOLDERS.map(|(_, folder)| (folder, http::check_request as fn(&CapturedExchange)));
    for (folder, check) in udp.into_iter().chain(http) {
        captured(folder).iter().filter(|one| !one.answer.is_empty()).for_each(check);
    }
}

/// The peers of each swarm by their ports, and whether each is a seeder. All are at one address.
#[derive(Default)]
struct Swarms(BTreeMap<Vec<u8>, BTreeMap<u16, bool>>);

impl Swarms {
    /// The seeders and leechers of a swarm after an announce: the role follows `left`, and a client that has
    /// not said it is a leecher.
    fn after(&mut self, info_hash: &[u8], port: u16, left: Option<u64>, stopped: bool) -> (u32, u32) {
        let swarm = self.0.entry(info_hash.to_vec()).or_default();
        if stopped {
            swarm.remove(&port);
        } else {
            swarm.insert(port, left == Some(0));
        }
        let seeders = swarm.values().filter(|&&seeder| seeder).count();
        (seeders as u32, (swarm.len() - seeders) as u32)
    }
}

/// A request that a client sent, and the response to it, which is empty if only the request was recorded.
struct CapturedExchange {
    /// The client and its version, as the folder is called.
    client: String,
    /// As the file is called.
    kind: String,
    request: Vec<u8>,
    answer: Vec<u8>,
}

impl CapturedExchange {
    /// Checks that the event and the bytes left are those of the state, so that no file is in the place of
    /// another. rqbit has 0 bytes left in most states. An announce with an answer is read field by field.
    fn check_state(&self, event: &str, left: Option<u64>) {
        let is_right = matches!(
            (&*self.kind, event, left),
            ("announce-magnet", "started", _)
                | ("announce-started", "started", Some(82_152))
                | ("announce-partial", "" | "started" | "paused", Some(33_000))
                | ("announce-completed", "" | "completed", Some(0))
                | ("announce-paused", "" | "stopped", Some(82_152))
                | ("announce-stopped", "stopped", _)
        );
        let is_other = !self.answer.is_empty() || self.client.starts_with("rqbit");
        assert!(is_right || is_other, "{}: {event}, {left:?} left", self.what());
    }

    /// For assertions.
    fn what(&self) -> String {
        format!("{} {}", self.client, self.kind)
    }
}

/// The captures in a folder of fixtures, in order.
fn captured(folder: &str) -> Vec<CapturedExchange> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(folder);
    let listed = |path: &Path| -> Vec<String> {
        let entries = fs::read_dir(path).expect("a folder of fixtures");
        let mut names: Vec<_> = entries
            .map(|entry| entry.expect("an entry").file_name().into_string().expect("a plain name"))
            .collect();
        names.sort();
        names
    };
    let mut all = Vec::new();
    for client in listed(&root) {
        let names = listed(&root.join(&client));
        let kinds = names.iter().filter_map(|name| name.strip_suffix(".bin"));
        for kind in kinds.filter(|kind| !kind.ends_with(".answer")) {
            let read = |name: String| fs::read(root.join(&client).join(name));
            let request = read(format!("{kind}.bin")).expect("a fixture");
            let answer = names.contains(&format!("{kind}.answer.bin"));
            let answer = if answer { read(format!("{kind}.answer.bin")).expect("a fixture") } else { vec![] };
            all.push(CapturedExchange { client: client.clone(), kind: kind.to_owned(), request, answer });
        }
    }
    all
}

/// A tracker on loopback, over UDP and HTTP.
fn tracker(family: Family) -> Tracker {
    let loopback = any_port(match family {
        Family::V4 => "127.0.0.1",
        Family::V6 => "::1",
    });
    Tracker::over(&listening(&[loopback], &[loopback]), build("packed", |config| config))
}
