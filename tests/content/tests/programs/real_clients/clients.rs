//! Other clients: the command of each, under which the tracker is its only source of peers.

use std::{
    ffi::OsStr,
    fs,
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use swarmkeep::Family;
use swarmkeep_store_tests::programs::{self, Need, PYTHON};
use swarmkeep_tests::serve::signal;

use crate::real_clients::{Protocol, network::address};

/// A client of another project.
pub(crate) struct Client {
    pub(crate) name: &'static str,
    /// Its number, from which its address and port follow: fixtures do not depend on the other clients.
    n: u8,
    pub(crate) needs: &'static [Need],
    /// Prints its version.
    version: &'static [&'static str],
    /// Whether its IPv6 address can be configured. Otherwise the system chooses the tracker's.
    binds_v6: bool,
    /// How its peer ids begin (BEP 20).
    peer_id: &'static str,
    /// The protocol over which it does not send `stopped`.
    pub(crate) leaves_in_silence: Option<Protocol>,
    /// Completes the command that runs it until SIGINT: it downloads the missing content and shares the rest.
    command: fn(&ClientSetup, &mut Command),
}

/// The addresses and folders of one client.
pub(crate) struct ClientSetup {
    /// The only address where it listens.
    pub(crate) at: SocketAddr,
    /// How its peer ids begin.
    pub(crate) peer_id: &'static str,
    torrent: PathBuf,
    /// Its only source, instead of the torrent file.
    link: Option<String>,
    /// Where the file is or goes.
    pub(crate) download: PathBuf,
    /// Its configuration and other files.
    pub(crate) home: PathBuf,
    /// Name and version: the name of its folder of fixtures.
    pub(crate) label: String,
}

pub(crate) static ARIA2: Client = Client {
    name: "aria2",
    n: 1,
    needs: &[programs::ARIA2],
    version: &["aria2c", "--version"],
    binds_v6: true,
    peer_id: "A2-",
    leaves_in_silence: None,
    command: |place, command| {
        // Without DHT this client has no UDP trackers. It knows no node to ask, and a private torrent is not
        // looked up.
        command.args(["--no-conf", "--enable-dht=true"]);
        let v6 = place.ip().is_ipv6();
        command.arg(format!("--enable-dht6={v6}")).arg(format!("--disable-ipv6={}", !v6));
        command.args(["--bt-enable-lpd=false", "--enable-peer-exchange=false", "--check-integrity=true"]);
        command.args(["--file-allocation=none", "--seed-ratio=0.0", "--bt-stop-timeout=0"]);
        for file in ["dht-file-path", "dht-file-path6"] {
            command.arg(format!("--{file}={}", place.home.join(file).display()));
        }
        command
            .arg(format!("--listen-port={}", place.port()))
            .arg(format!("--dht-listen-port={}", place.port()));
        command.arg(format!("--interface={}", place.ip())).arg(format!("--dir={}", place.download.display()));
        command.arg(place.torrent());
    },
};

pub(crate) static TRANSMISSION: Client = Client {
    name: "transmission",
    n: 2,
    needs: &[programs::TRANSMISSION],
    version: &["transmission-cli", "--version"],
    binds_v6: true,
    peer_id: "-TR",
    // The thread of its HTTP requests accepts no more of them at the end of the program.
    leaves_in_silence: Some(Protocol::Http),
    command: |place, command| {
        let settings = format!(
            r#"{{"bind-address-{}": "{}", "peer-port": {}, "dht-enabled": false, "lpd-enabled": false,
                "pex-enabled": false, "utp-enabled": false, "port-forwarding-enabled": false}}"#,
            if place.ip().is_ipv4() { "ipv4" } else { "ipv6" },
            place.ip(),
            place.port()
        );
        fs::write(place.home.join("settings.json"), settings).expect("a folder of ours");
        // Without `--verify`: it checks files by itself, and with both, it may stop the torrent and never
        // start it again.
        command.args(["--no-portmap", "--no-blocklist"]).arg("--port").arg(place.port().to_string());
        command
            .arg("--config-dir")
            .arg(&place.home)
            .arg("--download-dir")
            .arg(&place.download)
            .arg(place.torrent());
    },
};

pub(crate) static LIBTORRENT: Client = Client {
    name: "libtorrent",
    n: 3,
    needs: &[programs::LIBTORRENT],
    version: &[PYTHON, "-c", "import libtorrent; print(libtorrent.__version__)"],
    binds_v6: true,
    peer_id: "-LT",
    leaves_in_silence: None,
    command: |place, command| {
        command.args(["-c", LIBTORRENT_SCRIPT]).arg(place.torrent()).arg(&place.download);
        command.args([place.ip().to_string(), place.port().to_string()]);
    },
};

/// A client in a few lines of Debian's own Python, which has the binding.
const LIBTORRENT_SCRIPT: &str = r#"
import libtorrent, signal, sys, time
torrent, folder, ip, port = sys.argv[1:]
session = libtorrent.session({
    "listen_interfaces": f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}", "outgoing_interfaces": ip, "enable_dht": False,
    "enable_lsd": False, "enable_upnp": False, "enable_natpmp": False,
})
if torrent.startswith("magnet:"):
    what = libtorrent.parse_magnet_uri(torrent)
else:
    what = libtorrent.add_torrent_params()
    what.ti = libtorrent.torrent_info(torrent)
what.save_path = folder
handle = session.add_torrent(what)
going = True
def stop(*_):
    global going
    going = False
signal.signal(signal.SIGINT, stop)
scraped = False
while going:
    time.sleep(0.1)
    if handle.status().is_seeding and not scraped:
        handle.scrape_tracker()
        scraped = True
session.remove_torrent(handle)
time.sleep(1)
"#;

pub(crate) static QBITTORRENT: Client = Client {
    name: "qbittorrent",
    n: 4,
    needs: &[programs::QBITTORRENT],
    version: &["qbittorrent-nox", "--version"],
    binds_v6: true,
    peer_id: "-qB",
    leaves_in_silence: None,
    command: |place, command| {
        let config = format!(
            "[LegalNotice]\nAccepted=true\n[Preferences]\nWebUI\\Enabled=false\n[Network]\nPortForwardingEnabled=false\n\
             [BitTorrent]\nSession\\DHTEnabled=false\nSession\\LSDEnabled=false\nSession\\PeXEnabled=false\n\
             Session\\Port={}\nSession\\Interface=lo\nSession\\InterfaceName=lo\nSession\\InterfaceAddress={}\n",
            place.port(),
            place.ip()
        );
        let folder = place.home.join("qBittorrent/config");
        fs::create_dir_all(&folder).expect("a folder of ours");
        fs::write(folder.join("qBittorrent.conf"), config).expect("a folder of ours");
        command.arg(format!("--profile={}", place.home.display())).arg("--skip-dialog=true");
        command.arg(format!("--save-path={}", place.download.display())).arg(place.torrent());
        command.env("HOME", &place.home).env("XDG_CONFIG_HOME", &place.home);
    },
};

pub(crate) static RTORRENT: Client = Client {
    name: "rtorrent",
    n: 5,
    needs: &[programs::RTORRENT],
    version: &["rtorrent", "-h"],
    binds_v6: false,
    peer_id: "-lt",
    leaves_in_silence: None,
    command: |place, command| {
        command.args(["-n", "-o", "system.daemon.set=true", "-o", "dht.mode.set=disable"]);
        // With its check of the whole file at the end, it has not announced `completed` after 90 seconds.
        command.args(["-o", "protocol.pex.set=no", "-o", "pieces.hash.on_completion.set=no"]);
        command.args(["-p", &format!("{0}-{0}", place.port())]);
        // Otherwise: "Tried to set a bind address that is not an af_inet address".
        if place.ip().is_ipv4() {
            command.args(["-b", &place.ip().to_string()]);
        }
        command.arg("-d").arg(&place.download).arg("-s").arg(&place.home).arg(place.torrent());
    },
};

/// A program that Debian has not packaged.
pub(crate) const RQBIT_PROGRAM: Need =
    Need::other("rqbit", "cargo install rqbit", |name| programs::find(name).is_some());

pub(crate) static RQBIT: Client = Client {
    name: "rqbit",
    n: 7,
    needs: &[RQBIT_PROGRAM],
    version: &["rqbit", "--version"],
    binds_v6: false,
    peer_id: "-rQ",
    leaves_in_silence: Some(Protocol::Http),
    command: |place, command| {
        command.args(["--disable-dht", "--disable-lsd", "--disable-upnp-port-forward"]);
        command.arg("--listen-port").arg(place.port().to_string()).args(["download", "--disable-http-api"]);
        command.args(["--overwrite", "--output-folder"]).arg(&place.download).arg(place.torrent());
        command.env("HOME", &place.home);
    },
};

/// The only one of ours.
pub(crate) static OURS: Client = Client {
    name: "swarmkeep",
    n: 6,
    needs: &[],
    version: &["echo", concat!("swarmkeep ", env!("CARGO_PKG_VERSION"))],
    binds_v6: true,
    peer_id: "-KP",
    leaves_in_silence: None,
    command: crate::real_clients::ours::command,
};

impl Client {
    /// The version alone, without the text around it.
    fn version(&self) -> String {
        let mut command = Command::new(self.version[0]);
        let output =
            command.args(&self.version[1..]).stdin(Stdio::null()).output().expect("a need of this test");
        // One of them prints its version on standard error.
        let printed = [output.stdout, output.stderr].concat();
        let printed = String::from_utf8_lossy(&printed);
        let mut words = printed.split_whitespace().map(|word| word.trim_matches(['v', '.']));
        words.find(|word| word.starts_with(|c: char| c.is_ascii_digit())).expect("a version").to_owned()
    }
}

impl ClientSetup {
    pub(crate) fn new(
        work: &Path,
        client: &Client,
        family: Family,
        torrent: &[u8],
        link: Option<String>,
    ) -> Self {
        let folder = work.join(client.name);
        let n = if family == Family::V6 && !client.binds_v6 { 1 } else { 1 + client.n };
        let place = Self {
            at: SocketAddr::new(address(family, n), 6880 + u16::from(client.n)),
            peer_id: client.peer_id,
            torrent: folder.join("shared.torrent"),
            link,
            download: folder.join("download"),
            home: folder.join("home"),
            label: format!("{}-{}", client.name, client.version()),
        };
        fs::create_dir_all(&place.download).expect("a folder of ours");
        fs::create_dir_all(&place.home).expect("a folder of ours");
        fs::write(&place.torrent, torrent).expect("a folder of ours");
        place
    }

    /// A magnet link, or the path of a torrent file.
    pub(crate) fn torrent(&self) -> &OsStr {
        self.link.as_ref().map_or(self.torrent.as_os_str(), OsStr::new)
    }

    fn ip(&self) -> IpAddr {
        self.at.ip()
    }

    fn port(&self) -> u16 {
        self.at.port()
    }
}

/// A client at work, until this is dropped.
pub(crate) struct Running {
    process: Child,
    command: Command,
    began: Instant,
    may_end: bool,
}

impl Running {
    pub(crate) fn start(client: &Client, place: &ClientSetup) -> Self {
        Self::start_with(client, place, &[])
    }

    /// Starts it with more options, after its own.
    pub(crate) fn start_with(client: &Client, place: &ClientSetup, options: &[&str]) -> Self {
        let log = fs::File::create(place.home.join("log")).expect("a folder of ours");
        let mut command = Command::new(client.version[0]);
        (client.command)(place, &mut command);
        command.args(options).stdin(Stdio::null()).stdout(log.try_clone().expect("a file")).stderr(log);
        let process = command.spawn().expect("a need of this test");
        let may_end = client.name == TRANSMISSION.name && place.link.is_some();
        Self { process, command, began: Instant::now(), may_end }
    }

    /// transmission-cli ends when it finds its torrent stopped (`cli/cli.c`, five times a second), as it is
    /// for a moment once it has the metadata of a link. On a busy machine the moment is long.
    pub(crate) fn start_if_ended(&mut self) {
        if self.may_end && self.process.try_wait().is_ok_and(|ended| ended.is_some()) {
            self.process = self.command.spawn().expect("it was started before");
        }
    }

    /// qBittorrent 4.5.2 that is asked within its first second ends without a word to its trackers.
    pub(crate) fn ask_to_stop(&self) {
        thread::sleep(Duration::from_secs(3).saturating_sub(self.began.elapsed()));
        // It may have ended by itself.
        let _ = signal(self.process.id(), "INT");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
