//! Trackers on a store on Redis, and their clients.

use std::{net::SocketAddr, path::PathBuf, process::Command};

use swarmkeep::{AnnounceEvent, Endpoint, InfoHash, PeerId};

use swarmkeep_tests::{
    Folder,
    serve::{Serve, swarmkeep},
    udp::{Announced, Client, announce},
};
use swarmkeep_tracker_protocol::{
    http::{AnnounceRequest, AnnounceResponse, Escaped},
    udp,
};

use swarmkeep_tests::admin::client::{Answer, ask, bearing};

/// Of the admin server, for everything.
const TOKEN: &str = "secret-for-everything";

/// The common setup of several trackers.
pub(crate) struct TrackerSetup {
    program: PathBuf,
    pub(crate) folder: Folder,
}

impl TrackerSetup {
    pub(crate) fn new() -> Self {
        let folder = Folder::empty();
        folder.write_secret("tokens", &format!("{TOKEN} read,write,peers\n"));
        Self { program: swarmkeep_tests::serve::program(), folder }
    }

    /// `swarmkeep serve` on free ports, over the store at these URLs.
    pub(crate) fn serve(&self, urls: &[String], arguments: &[&str]) -> Command {
        let mut command = swarmkeep(&self.program, "serve");
        command.args(["--udp=127.0.0.1:0", "--http=127.0.0.1:0", "--admin=127.0.0.1:0", "--jitter=0"]);
        command.arg("--admin-tokens").arg(self.folder.join("tokens"));
        command.arg("--repository=redis").args(arguments);
        if !urls.is_empty() {
            command.env("SWARMKEEP_REDIS_URL", urls.join(","));
        }
        command
    }

    /// `swarmkeep config` with these options.
    pub(crate) fn config(&self, arguments: &[&str]) -> Command {
        let mut command = swarmkeep(&self.program, "config");
        command.args(arguments);
        command
    }

    pub(crate) fn tracker(&self, urls: &[String], arguments: &[&str]) -> Tracker {
        Tracker::of(Serve::start(self.serve(urls, arguments)))
    }
}

/// One tracker at work.
pub(crate) struct Tracker {
    pub(crate) serve: Serve,
    pub(crate) udp: SocketAddr,
    pub(crate) http: SocketAddr,
    admin: SocketAddr,
}

/// The answer to an announce: the interval and the peers, or an error.
pub(crate) type TrackerAnswer = Result<(u32, Vec<Endpoint>), String>;

impl Tracker {
    fn of(serve: Serve) -> Self {
        let [udp, http, admin] = ["udp", "http", "dashboard"].map(|protocol| serve.address(protocol));
        Self { serve, udp, http, admin }
    }

    /// Announces a peer over HTTP.
    pub(crate) fn announce(
        &self,
        hash: InfoHash,
        port: u16,
        left: u64,
        event: AnnounceEvent,
    ) -> TrackerAnswer {
        let request = AnnounceRequest {
            left: Some(left),
            event,
            ..AnnounceRequest::new(hash, PeerId::new([1; 20]), port)
        };
        let mut query = Vec::new();
        request.write(&mut query);
        let path = format!("/announce?{}", str::from_utf8(&query).expect("escaped"));
        let Answer { status, body, .. } = ask(self.http, "GET", &path, "").answer();
        assert_eq!(status, 200);
        match AnnounceResponse::parse(&body).expect("a response") {
            Ok(response) => Ok((response.head.interval, sorted(response.endpoints()))),
            Err(failure) => Err(String::from_utf8_lossy(failure.reason).into_owned()),
        }
    }

    /// Announces a leecher of [`swarmkeep_tests::udp::HASH`] over UDP.
    pub(crate) fn announce_by_udp(&self, port: u16) -> TrackerAnswer {
        let (mut client, id) = Client::of(self.udp).connected();
        of_udp(client.try_announce(udp::AnnounceRequest { port, ..announce(id) }))
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        ask(self.admin, "GET", path, &bearing(TOKEN)).answer()
    }

    pub(crate) fn delete(&self, path: &str) -> Answer {
        ask(self.admin, "DELETE", path, &bearing(TOKEN)).answer()
    }

    /// The value of a metric, if it is there.
    pub(crate) fn metric(&self, series: &str) -> Option<f64> {
        let text = self.get("/metrics");
        let value = text.text().lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        value.map(|value| value.parse().expect("a number"))
    }

    /// Whether it says that it can serve.
    pub(crate) fn is_ready(&self) -> bool {
        self.get("/health/ready").status == 200
    }
}

/// An answer over UDP.
pub(crate) fn of_udp(answer: Announced) -> TrackerAnswer {
    answer.map(|(header, peers)| (header.interval, sorted(peers.into_iter())))
}

fn sorted(peers: impl Iterator<Item = Endpoint>) -> Vec<Endpoint> {
    let mut peers: Vec<_> = peers.collect();
    peers.sort_unstable_by_key(ToString::to_string);
    peers
}

/// A peer of this machine.
pub(crate) fn at(port: u16) -> Endpoint {
    Endpoint::new([127, 0, 0, 1].into(), port).expect("above 0")
}

/// An info hash in a path.
pub(crate) fn escaped(info_hash: &InfoHash) -> String {
    let mut room = Vec::new();
    let escaped = Escaped::encode(info_hash.as_bytes(), &mut room).encoded();
    String::from_utf8_lossy(escaped).into_owned()
}
