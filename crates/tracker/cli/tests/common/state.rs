//! A tracker that keeps its state in a folder.

use std::{net::SocketAddr, path::Path, process::Command};

use swarmkeep::{AnnounceEvent, Endpoint, InfoHash};
use swarmkeep_tests::{
    admin::client::get,
    udp::{Client, announce},
};
use swarmkeep_tracker_protocol::udp::{AnnounceRequest, ConnectionId, ScrapeStats};

use crate::common::{Serve, swarmkeep, until};

pub(crate) fn command(state: &Path, more: &[&str]) -> Command {
    let state = state.to_str().expect("text");
    let listens = more.iter().any(|argument| argument.starts_with("--udp="));
    let udp: &[&str] = if listens { &[] } else { &["--udp=127.0.0.1:0"] };
    swarmkeep(&[&["--state", state], udp, more].concat())
}

/// A tracker, and a client of it.
pub(crate) struct Tracker {
    pub(crate) serve: Serve,
    pub(crate) udp: SocketAddr,
    pub(crate) client: Client,
    pub(crate) connection_id: ConnectionId,
}

impl Tracker {
    /// Also returns its output before it listened.
    pub(crate) fn start(state: &Path, more: &[&str]) -> (Self, String) {
        Self::run(command(state, more))
    }

    pub(crate) fn run(command: Command) -> (Self, String) {
        let serve = Serve::start(command);
        let [_, said] = serve.listening();
        let udp = serve.address("udp");
        let (client, connection_id) = Client::of(udp).connected();
        (Self { serve, udp, client, connection_id }, said)
    }

    pub(crate) fn admin(&self) -> SocketAddr {
        self.serve.address("dashboard")
    }

    /// Returns the number of leechers, or of seeders if nothing is left, and the peers of the answer.
    pub(crate) fn starts(&mut self, swarm: u16, port: u16, left: u64) -> (u32, Vec<Endpoint>) {
        let request = of(self.connection_id, swarm, port, AnnounceEvent::Started, left);
        let (counts, peers) = self.client.announce(request);
        (if left == 0 { counts.seeders } else { counts.leechers }, peers)
    }

    pub(crate) fn completes(&mut self, swarm: u16, port: u16) {
        self.client.announce(of(self.connection_id, swarm, port, AnnounceEvent::Completed, 0));
    }

    /// Two peers of two prefixes complete, so that the count is kept for good.
    pub(crate) fn downloads_twice(&mut self, swarm: u16) {
        self.starts(swarm, 1, 1);
        self.completes(swarm, 1);
        self.elsewhere(swarm, 1, AnnounceEvent::Completed);
    }

    /// Announces a seeder at an address of another prefix.
    pub(crate) fn elsewhere(&self, swarm: u16, port: u16, event: AnnounceEvent) {
        let (mut client, connection_id) = Client::at([127, 0, 9, 1].into(), self.udp).connected();
        client.announce(of(connection_id, swarm, port, event, 0));
    }

    pub(crate) fn stops(&mut self, swarm: u16, port: u16) {
        self.client.announce(of(self.connection_id, swarm, port, AnnounceEvent::Stopped, 0));
    }

    pub(crate) fn scrape(&mut self, swarm: u16) -> ScrapeStats {
        self.client.scrape(self.connection_id, &[hash(swarm)])[0]
    }

    /// Waits, since the database looks up a new swarm a little later.
    pub(crate) fn has_downloads(&mut self, swarm: u16, least: u32) {
        until("it has its downloads", || self.scrape(swarm).completed >= least);
    }

    /// Returns its last output.
    pub(crate) fn stop(self) -> String {
        let (code, said) = self.serve.stop("TERM");
        assert_eq!(code, Some(0), "{said}");
        said
    }
}

pub(crate) fn of(
    connection_id: ConnectionId,
    swarm: u16,
    port: u16,
    event: AnnounceEvent,
    left: u64,
) -> AnnounceRequest<'static> {
    let (info_hash, want) = (InfoHash::new(hash(swarm)), Some(200));
    AnnounceRequest { info_hash, port, event, left, want, ..announce(connection_id) }
}

pub(crate) fn hash(swarm: u16) -> [u8; 20] {
    let mut hash = [0x5a; 20];
    hash[..2].copy_from_slice(&swarm.wrapping_mul(0x9e37).to_be_bytes());
    hash
}

pub(crate) fn metrics(admin: SocketAddr) -> String {
    get(admin, "/metrics").text().to_owned()
}

pub(crate) fn metric(admin: SocketAddr, name: &str) -> u64 {
    let text = metrics(admin);
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.unwrap_or_else(|| panic!("{name}: {text}")).parse().expect("a number")
}

/// Waits until the metrics have these lines.
pub(crate) fn metrics_show(admin: SocketAddr, lines: &[&str]) {
    until(&format!("the metrics have {lines:?}"), || {
        let text = metrics(admin);
        lines.iter().all(|line| text.contains(line))
    });
}
