//! Requests of real clients (`fixtures/README.md`) are read with the right meaning, and answered.

mod habits;
mod http;
mod udp;

use std::{collections::BTreeMap, fs, path::Path};

use swarmkeep::Family;
use swarmkeep_tests::{Tracker, any_port, build, listening};
use swarmkeep_tracker_protocol::Software;

const INFO_HASH: &str = "f20521877e62b8a298f3cf15576fd3c7b975a027";
const FILE_LEN: u64 = 2 << 20;

/// The states of a torrent in a client.
const STATES: [&str; 6] = ["magnet", "started", "partial", "completed", "paused", "stopped"];

/// Each client, the states that it does not announce, and the folders that lack it.
const CLIENTS: [(&str, &[&str], &[&str]); 11] = [
    ("anacrolix-1.59.1", &["paused"], &[]),
    ("aria2-1.36.0", &[], &["udp-ipv6"]),
    ("libtorrent-2.0.8.0", &[], &[]),
    ("libtorrent-2.1.1.0", &[], &[]),
    ("qbittorrent-4.5.2", &[], &[]),
    ("qbittorrent-5.1.0", &[], &[]),
    ("rqbit-9.1.0", &["paused", "stopped"], &[]),
    ("rtorrent-0.9.8", &[], &[]),
    ("transmission-3.00", &[], &[]),
    ("webtorrent-1.9.7", &[], &["udp-ipv6"]),
    ("webtorrent-2.8.5", &[], &["udp-ipv6"]),
];

#[test]
fn each_client_has_a_fixture_of_each_state_that_it_announces() {
    let (mut states, mut answers) = (0, 0);
    for folder in ["udp", "udp-ipv6", "http", "http-ipv6"] {
        let mut there = BTreeMap::<_, Vec<_>>::new();
        for one in captured(folder) {
            answers += usize::from(!one.answer.is_empty());
            if one.kind.starts_with("announce") {
                let query = one.request.split(|&byte| byte == b'?').nth(1).unwrap_or_default();
                let [udp, http] = [Software::of_packet(&one.request), Software::of_query(query)];
                let software = if folder.starts_with("udp") { udp } else { http };
                assert!(one.client.starts_with(software.name()), "{}: {software:?}", one.what());
            }
            there.entry(one.client).or_default().push(one.kind);
        }
        let clients = CLIENTS.iter().filter(|(_, _, elsewhere)| !elsewhere.contains(&folder));
        assert!(there.keys().eq(clients.clone().map(|(client, ..)| client)), "{folder}: {:?}", there.keys());
        for (client, silent, _) in clients {
            let kinds = &there[*client];
            assert!(kinds.iter().any(|kind| kind == "connect") == folder.starts_with("udp"), "{client}");
            for state in STATES.iter().filter(|state| !silent.contains(state)) {
                assert!(
                    kinds.contains(&format!("announce-{state}")),
                    "{folder} has of {client} only {kinds:?}"
                );
                states += 1;
            }
        }
    }
    assert_eq!((states, answers), (234, 90));
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
