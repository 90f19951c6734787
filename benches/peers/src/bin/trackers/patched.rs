//! `aquatic_udp` on swarmkeep's packed store: its published source with `patches/aquatic_udp.patch`.

use std::{
    error::Error,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;

use crate::{AQUATIC, AQUATIC_FEATURES, run};

const PATCH: &str = include_str!("../../../patches/aquatic_udp.patch");

/// Patches a copy of the source, unless that was done before, and builds it.
pub(crate) fn build() -> Result<PathBuf, Box<dyn Error>> {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let (patched, target) = (here.join("target/patched/aquatic_udp"), here.join("target/patched/target"));
    // Cargo builds anew what is written anew.
    let done = patched.join("applied.patch");
    if fs::read_to_string(&done).is_ok_and(|applied| applied == PATCH) {
        eprintln!("aquatic_udp is patched already, in {}", patched.display());
    } else {
        let published = published_source(&here.join("target/patched/published"))?;
        if patched.exists() {
            fs::remove_dir_all(&patched)?;
        }
        run(Command::new("cp").arg("-r").args([&published, &patched]))?;
        let patch = here.join("patches/aquatic_udp.patch");
        run(Command::new("patch").args(["-p1", "--fuzz=0", "-i"]).arg(patch).current_dir(&patched))?;
        fs::write(done, PATCH)?;
    }
    let swarmkeep = here.join("../../crates/store/swarmkeep").canonicalize()?;
    let swarmkeep = format!("patch.crates-io.swarmkeep.path={swarmkeep:?}");
    let mut command = Command::new("cargo");
    command.args(["build", "--release"]).args(AQUATIC_FEATURES).args(["--config", &swarmkeep]);
    // As `cargo install` builds the published one.
    command.arg("--target-dir").arg(&target).env("CARGO_INCREMENTAL", "0").current_dir(&patched);
    run(&mut command)?;
    Ok(target.join("release/aquatic_udp"))
}

/// Where Cargo keeps the published source: asked of it for a package that does nothing but depend on that.
fn published_source(asking: &Path) -> Result<PathBuf, Box<dyn Error>> {
    fs::create_dir_all(asking.join("src"))?;
    fs::write(asking.join("src/lib.rs"), "")?;
    let manifest = format!(
        "[package]\nname = \"asking\"\nedition = \"2024\"\n[dependencies]\naquatic_udp = \"={AQUATIC}\"\n"
    );
    fs::write(asking.join("Cargo.toml"), manifest)?;
    let mut command = Command::new("cargo");
    let output = command.args(["metadata", "--format-version", "1"]).current_dir(asking).output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into());
    }
    let metadata: Value = serde_json::from_slice(&output.stdout)?;
    let packages = metadata["packages"].as_array().ok_or("no packages")?;
    let manifest = packages.iter().find(|package| package["name"] == "aquatic_udp");
    let manifest = manifest.and_then(|package| package["manifest_path"].as_str()).ok_or("no aquatic_udp")?;
    Ok(PathBuf::from(manifest).parent().ok_or("a manifest in no folder")?.to_owned())
}

#[cfg(test)]
mod tests {
    use std::{
        net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
        num::NonZeroU16,
        sync::LazyLock,
        time::Duration,
    };

    use aquatic_udp_protocol::{
        AnnounceEvent::{self, Completed, None as Regular, Started, Stopped},
        AnnounceRequest, ConnectRequest, ConnectionId, InfoHash, NumberOfBytes, NumberOfPeers, PeerId,
        PeerKey, Port, Request, Response, ScrapeRequest, TransactionId,
    };

    use super::*;
    use crate::{Running, aquatic_command, free_port};

    static PROGRAM: LazyLock<PathBuf> = LazyLock::new(|| build().unwrap());
    const TORRENT: InfoHash = InfoHash([7; 20]);

    /// A client of the tracker.
    struct Client(UdpSocket, ConnectionId);

    /// Seeders, leechers, and the ports of the peers of an answer.
    type Answer = (i32, i32, Vec<u16>);

    impl Client {
        fn connect(tracker: SocketAddr) -> Self {
            let own = if tracker.is_ipv4() {
                Ipv4Addr::LOCALHOST.into()
            } else {
                IpAddr::from(Ipv6Addr::LOCALHOST)
            };
            let socket = UdpSocket::bind((own, 0)).unwrap();
            socket.connect(tracker).unwrap();
            socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
            let mut client = Self(socket, ConnectionId::new(0));
            let connect = ConnectRequest { transaction_id: TransactionId::new(1) };
            let Response::Connect(answer) = client.ask(&connect.into()) else { panic!("no connection id") };
            client.1 = answer.connection_id;
            client
        }

        fn ask(&self, request: &Request) -> Response {
            let (mut packet, mut answer) = (Vec::new(), [0; 2048]);
            request.write_bytes(&mut packet).unwrap();
            self.0.send(&packet).unwrap();
            let len = self.0.recv(&mut answer).unwrap();
            Response::parse_bytes(&answer[..len], self.0.local_addr().unwrap().is_ipv4()).unwrap()
        }

        fn announce(&self, port: u16, left: i64, event: AnnounceEvent) -> Answer {
            let response = self.ask(
                &AnnounceRequest {
                    connection_id: self.1,
                    action_placeholder: Default::default(),
                    transaction_id: TransactionId::new(2),
                    info_hash: TORRENT,
                    peer_id: PeerId([1; 20]),
                    bytes_downloaded: NumberOfBytes::new(0),
                    bytes_left: NumberOfBytes::new(left),
                    bytes_uploaded: NumberOfBytes::new(0),
                    event: event.into(),
                    ip_address: Ipv4Addr::UNSPECIFIED.into(),
                    key: PeerKey::new(3),
                    peers_wanted: NumberOfPeers::new(-1),
                    port: Port::new(NonZeroU16::new(port).unwrap()),
                }
                .into(),
            );
            let (counts, mut peers): (_, Vec<(IpAddr, u16)>) = match response {
                Response::AnnounceIpv4(answer) => {
                    let peers = answer.peers.iter();
                    (
                        answer.fixed,
                        peers
                            .map(|peer| (Ipv4Addr::from(peer.ip_address).into(), peer.port.0.get()))
                            .collect(),
                    )
                }
                Response::AnnounceIpv6(answer) => {
                    let peers = answer.peers.iter();
                    (
                        answer.fixed,
                        peers
                            .map(|peer| (Ipv6Addr::from(peer.ip_address).into(), peer.port.0.get()))
                            .collect(),
                    )
                }
                other => panic!("{other:?}"),
            };
            assert!(peers.iter().all(|(ip, _)| *ip == self.0.local_addr().unwrap().ip()), "{peers:?}");
            peers.sort_unstable();
            let ports = peers.into_iter().map(|(_, port)| port).collect();
            (counts.seeders.0.get(), counts.leechers.0.get(), ports)
        }

        /// Seeders, downloads and leechers.
        fn scrape(&self) -> [i32; 3] {
            let request = ScrapeRequest {
                connection_id: self.1,
                transaction_id: TransactionId::new(4),
                info_hashes: vec![TORRENT],
            };
            let Response::Scrape(answer) = self.ask(&request.into()) else { panic!("no scrape") };
            let [of] = answer.torrent_stats[..] else { panic!("{answer:?}") };
            [of.seeders.0.get(), of.completed.0.get(), of.leechers.0.get()]
        }
    }

    #[test]
    fn patched_aquatic_answers_as_before() {
        let port = free_port().unwrap();
        let listen = SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
        let mut server = Running::start(&aquatic_command(&PROGRAM, listen, false).unwrap()).unwrap();
        server.wait_until_it_answers(port).unwrap();
        // Each IP version has swarms of its own.
        for tracker in [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()] {
            let client = Client::connect((tracker, port).into());
            assert_eq!(client.scrape(), [0, 0, 0]);
            // The counts leave out the peer that announces.
            assert_eq!(client.announce(1001, 0, Started), (0, 0, vec![]));
            assert_eq!(client.announce(1002, 9, Started), (1, 0, vec![1001]));
            assert_eq!(client.announce(1001, 0, Regular), (0, 1, vec![1002]));
            assert_eq!(client.announce(1002, 0, Completed), (1, 0, vec![1001]));
            assert_eq!(client.scrape(), [2, 1, 0]);
            // Seeders get seeders.
            assert_eq!(client.announce(1003, 0, Started), (2, 0, vec![1001, 1002]));
            assert_eq!(client.announce(1001, 0, Stopped), (2, 0, vec![]));
            assert_eq!(client.scrape(), [2, 1, 0]);
        }
    }

    #[test]
    fn settings_that_the_store_cannot_keep_are_refused() {
        for setting in ["[statistics]\npeer_clients = true", "[cleaning]\nmax_peer_age = 0"] {
            let config =
                std::env::temp_dir().join(format!("swarmkeep-peers-refused-{}", free_port().unwrap()));
            fs::write(&config, setting).unwrap();
            let output = Command::new(&*PROGRAM).arg("-c").arg(&config).output().unwrap();
            fs::remove_file(&config).unwrap();
            assert!(!output.status.success(), "{setting}: {output:?}");
        }
    }
}
