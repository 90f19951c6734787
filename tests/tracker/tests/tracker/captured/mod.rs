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

#[test]
fn no_fixture_is_missing_and_each_announce_names_its_client() {
    for (folder, requests, answered) in FIXTURES {
        let all = captured(folder);
        let found = (all.len(), all.iter().filter(|one| !one.answer.is_empty()).count());
        assert_eq!(found, (requests, answered), "{folder}");
        for one in all.iter().filter(|one| one.kind.starts_with("announce")) {
            let query = one.request.split(|&byte| byte == b'?').nth(1).unwrap_or_default();
            let [udp, http] = [Software::of_packet(&one.request), Software::of_query(query)];
            let software = if folder.starts_with("udp") { udp } else { http };
            assert!(one.client.starts_with(software.name()), "{}: {software:?}", one.what());
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
