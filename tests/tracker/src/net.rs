//! The network of a tracker and its clients: the loopback, or the ends of a veth pair.

use std::{
    fs::{self, File},
    net::{IpAddr, SocketAddr},
    os::fd::OwnedFd,
    panic::resume_unwind,
    process::Command,
    thread::{self, scope},
};

use nix::{
    mount::{MsFlags, mount},
    sched::{CloneFlags, setns, unshare},
    unistd::gettid,
};
use swarmkeep::catalog::Repository;
use swarmkeep_store_tests::{
    programs::{IP, Need, find},
    until, with,
};
use swarmkeep_tracker::{Config, Server, Xdp, XdpMode};
use swarmkeep_xdp::{Attached, Datagrams, Settings};

use crate::{
    Tracker,
    udp::{Client, announce},
};

/// The needs of [`Wire`].
pub const A_WIRE: [Need; 2] = [
    IP,
    Need::other("network namespaces with XDP", "run as root, with Linux 6.1 or later", |_| {
        let attach = || Wire::new(1).client.run(|| drop(program_that_passes_all("c")));
        let may_make_networks = || unshare(CloneFlags::CLONE_NEWNET).is_ok();
        find("ip").is_some()
            && thread::spawn(may_make_networks).join().is_ok_and(|may| may)
            && thread::spawn(attach).join().is_ok()
    }),
];

/// A network namespace, until this is dropped.
#[derive(Debug)]
pub struct Namespace(OwnedFd);

impl Namespace {
    fn new() -> Self {
        let new = || {
            unshare(CloneFlags::CLONE_NEWNET).expect("a need of this test");
            Self(File::open("/proc/thread-self/ns/net").expect("Linux has it").into())
        };
        thread::spawn(new).join().unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// Runs `run` in it. Threads and processes that `run` starts stay there.
    pub fn run<T: Send>(&self, run: impl FnOnce() -> T + Send) -> T {
        let inside = || {
            setns(&self.0, CloneFlags::CLONE_NEWNET).expect("a need of this test");
            // `/sys` names the interfaces of the process that mounted it.
            unshare(CloneFlags::CLONE_NEWNS).expect("as above");
            mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_SLAVE, None::<&str>)
                .expect("as above");
            mount(Some("sysfs"), "/sys", Some("sysfs"), MsFlags::empty(), None::<&str>).expect("as above");
            run()
        };
        scope(|scope| scope.spawn(inside).join()).unwrap_or_else(|panic| resume_unwind(panic))
    }
}

/// A veth pair between two namespaces: `s` with the server, and `c` with its clients.
#[derive(Debug)]
pub struct Wire {
    /// Where the server is.
    pub server: Namespace,
    /// Where clients are.
    pub client: Namespace,
}

/// The addresses at the server's end.
const SERVER: [&str; 3] = ["10.9.0.1", "fd09::1", "10.9.0.9"];
/// The addresses at the clients' end.
const CLIENTS: [&str; 4] = ["10.9.0.2", "fd09::2", "10.9.0.3", "10.9.0.4"];

impl Wire {
    /// With addresses, up. Each end receives with this number of queues.
    pub fn new(queues: usize) -> Self {
        let wire = Self { server: Namespace::new(), client: Namespace::new() };
        wire.client.run(|| {
            let there = gettid();
            let [s, c] = [1, 2].map(|end| {
                format!("address 02:00:00:00:09:0{end} numrxqueues {queues} numtxqueues {queues}")
            });
            wire.server.run(|| ip(&format!("link add s {s} type veth peer name c {c} netns {there}")));
        });
        for (namespace, end, addresses) in
            [(&wire.server, "s", &SERVER[..]), (&wire.client, "c", &CLIENTS[..])]
        {
            namespace.run(|| {
                for address in addresses {
                    let (bits, nodad) = if address.contains(':') { (64, "nodad") } else { (24, "") };
                    ip(&format!("address add {address}/{bits} dev {end} {nodad}"));
                }
                ip("link set lo up");
                ip(&format!("link set {end} up"));
            });
        }
        wire
    }

    /// Lets programs at the server's end look up routes.
    pub fn look_up_routes(&self) {
        for family in ["ipv4", "ipv6"] {
            let path = format!("/proc/sys/net/{family}/conf/lo/forwarding");
            self.server.run(|| fs::write(path, "1").expect("a network of ours"));
        }
    }

    /// A client at an address of its end, of the tracker at port 6969 of an address of the other.
    pub fn udp_client(&self, from: &str, to: &str) -> Client {
        self.client.run(|| Client::at(parsed(from), SocketAddr::new(parsed(to), 6969)))
    }

    /// A client over IPv4, and one over IPv6, connect and announce.
    pub fn udp_answers(&self) {
        for (from, to) in [(CLIENTS[0], SERVER[0]), (CLIENTS[1], SERVER[1])] {
            let (mut client, id) = self.udp_client(from, to).connected();
            client.announce(announce(id));
        }
    }
}

/// A program at an interface that passes everything, until it is dropped.
pub fn program_that_passes_all(interface: &str) -> Attached {
    let settings = Settings {
        interface: interface.into(),
        datagrams: Datagrams::From(Vec::new()),
        connects: false,
        most_queues: 1,
        modes: vec![XdpMode::Native],
    };
    Attached::new(&settings).expect("a need of this test").0
}

/// Runs `ip` with these arguments.
pub fn ip(arguments: &str) {
    let program = find("ip").expect("a need of this test");
    let output = Command::new(program).args(arguments.split_whitespace()).output().expect("it runs");
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

/// The network of a tracker and its clients.
#[derive(Debug)]
pub struct Net {
    /// With XDP at the server's end, or the loopback.
    wire: Option<(Wire, Xdp)>,
    /// The server's address over IPv4, over IPv6, and another over IPv4.
    pub server: [IpAddr; 3],
    /// Addresses of clients: over IPv4, over IPv6, and two more over IPv4.
    pub clients: [IpAddr; 4],
}

impl Net {
    /// Sockets on the loopback.
    pub fn loopback() -> Self {
        let server = ["127.0.0.1", "::1", "127.0.0.3"].map(parsed);
        Self { wire: None, server, clients: ["127.0.0.1", "::1", "127.0.0.2", "127.0.0.3"].map(parsed) }
    }

    /// XDP in a mode, on a wire.
    pub fn xdp(mode: XdpMode) -> Self {
        let wire = Some((Wire::new(1), with(Xdp::at("s"), |xdp| xdp.mode = mode)));
        Self { wire, server: SERVER.map(parsed), clients: CLIENTS.map(parsed) }
    }

    /// Runs `run` at the server's end.
    pub fn at_server<T: Send>(&self, run: impl FnOnce() -> T + Send) -> T {
        match &self.wire {
            Some((wire, _)) => wire.server.run(run),
            None => run(),
        }
    }

    /// Opens the sockets of a tracker, and XDP where there is a wire.
    pub fn bind(&self, config: &Config, repository: Repository) -> Result<Server, swarmkeep_tracker::Error> {
        match &self.wire {
            Some((wire, xdp)) => {
                let config = with(config.clone(), |config| config.xdp = Some(xdp.clone()));
                wire.server.run(|| Server::bind(&config, repository))
            }
            None => Server::bind(config, repository),
        }
    }

    /// Runs a tracker, and with XDP waits until datagrams come past the sockets.
    pub fn run(&self, server: Server) -> Tracker {
        let tracker = self.at_server(|| Tracker::of(server));
        let is_on_its_way = || tracker.control.metrics.xdp().is_none_or(|xdp| xdp.addresses > 0);
        until("the program has addresses", is_on_its_way);
        tracker
    }

    /// A client at the first address of the family.
    pub fn client(&self, tracker: SocketAddr) -> Client {
        self.client_at(self.clients[usize::from(tracker.is_ipv6())], tracker)
    }

    /// A client at one of its addresses.
    pub fn client_at(&self, address: IpAddr, tracker: SocketAddr) -> Client {
        match &self.wire {
            Some((wire, _)) => wire.client.run(|| Client::at(address, tracker)),
            None => Client::at(address, tracker),
        }
    }
}

fn parsed(address: &str) -> IpAddr {
    address.parse().expect("a constant")
}
