//! What real clients have sent (`fixtures/README.md`) means what they meant, and is answered.

mod http;
mod udp;

use std::{fs, net::SocketAddr, path::Path, thread};

use swarmkeep::{Family, HashKey, RepositoryConfig, catalog};
use swarmkeep_tracker::{Config, Server};

const INFO_HASH: &str = "f20521877e62b8a298f3cf15576fd3c7b975a027";
const FILE_LEN: u64 = 2 << 20;

/// A request that a client sent, and what it was answered.
struct Captured {
    /// The client and its version, as the folder is called.
    client: String,
    /// As the file is called.
    kind: String,
    request: Vec<u8>,
    answer: Vec<u8>,
}

impl Captured {
    /// For assertions.
    fn what(&self) -> String {
        format!("{} {}", self.client, self.kind)
    }
}

/// What there is in a folder of fixtures, in order.
fn captured(folder: &str) -> Vec<Captured> {
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
            let read = |name: String| fs::read(root.join(&client).join(name)).expect("a fixture");
            let (request, answer) = (read(format!("{kind}.bin")), read(format!("{kind}.answer.bin")));
            all.push(Captured { client: client.clone(), kind: kind.to_owned(), request, answer });
        }
    }
    all
}

/// A tracker on loopback that ends with the process: where it listens over UDP and over HTTP.
fn tracker(family: Family) -> (SocketAddr, SocketAddr) {
    let loopback = match family {
        Family::V4 => "127.0.0.1:0",
        Family::V6 => "[::1]:0",
    };
    let loopback = loopback.parse().expect("an address");
    let store = RepositoryConfig::new(HashKey::from_os().expect("randomness"));
    let repository = catalog::find("packed").expect("it is there").build(&store).expect("no limits");
    let server = Server::bind(&Config::new().udp(loopback).http(loopback), repository).expect("loopback");
    let addresses = (server.udp_addresses().expect("bound")[0], server.http_addresses().expect("bound")[0]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    thread::spawn(move || runtime.block_on(server.run(std::future::pending())));
    addresses
}
