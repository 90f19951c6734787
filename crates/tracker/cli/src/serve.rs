//! `swarmkeep serve`: a tracker over any store of the catalog, or one on Redis that it shares with others.

mod connection_key;
mod log;
mod manager;
mod read;
mod redis;
mod reload;
mod reports;
mod schema;
mod secret;
mod store;
mod user;
mod values;
mod xdp;

use std::{
    error::Error,
    ffi::OsString,
    fs::DirBuilder,
    io::{self, IsTerminal as _, Write as _},
    net::{SocketAddr, TcpListener, UdpSocket},
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf, absolute},
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use nix::ifaddrs::getifaddrs;
use rustix::{
    fs::{Access, access},
    process::{Resource, Rlimit, getrlimit, setrlimit},
};
use swarmkeep::{Restored, bittorrent::in_words};
use swarmkeep_state::{Directory, Pace, State};
use swarmkeep_tracker::{Bound, Config, LocalPeers, ON_A_LAN, Reach, Server};
use tokio::signal::unix::{SignalKind, signal};
use tracing::{error, info, warn};

use self::{
    log::Log,
    read::ReadSettings,
    reload::Reload,
    reports::Reports,
    schema::{Fixed, Judged, LogFormat, RunState, Settings, Unread, is_unreadable},
    store::NotBuilt,
    user::User,
};
use crate::settings::{self, Effective, Setting};

const DETAILS: &str = "\
Examples:
  swarmkeep serve
  swarmkeep serve --https 0.0.0.0:443 --tls-certificate chain.pem --tls-key key.pem --user swarmkeep
  swarmkeep serve --config /etc/swarmkeep/swarmkeep.toml --log debug

Exit codes:
  0  stopped by SIGINT or SIGTERM
  1  not started or ended, such as for an address in use, or the last snapshot failed
  2  wrong settings, or wrong files that settings name
  101  a defect: a part of the tracker panicked, and the tracker stopped";

/// Runs a BitTorrent tracker over UDP (BEP 15) and HTTP (BEP 3), until SIGINT or SIGTERM.
///
/// Each option can also be set in the environment, such as --http-proxy as SWARMKEEP_HTTP_PROXY, and in the
/// file of --config, such as `http-proxy = ["192.0.2.0/24"]`. The command line overrides the environment, and
/// the environment overrides the file. SIGHUP reads them again.
#[derive(clap::Args)]
#[command(after_long_help = DETAILS, after_help = "See --help for all of each option, examples and the exit codes.")]
pub(crate) struct Args {
    /// File of settings in TOML. `swarmkeep config --default` prints a file to begin with.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    #[command(flatten)]
    settings: Settings,
}

/// Prints the settings that `serve` would use, with the source of each, as a file for --config.
///
/// It takes the options of `serve`, and reads the same environment and file. Exit code 2 if a setting is
/// wrong.
#[derive(clap::Args)]
pub(crate) struct ConfigArgs {
    /// Print all settings with their defaults, commented out: a file to begin with.
    #[arg(long)]
    default: bool,

    #[command(flatten)]
    args: Args,
}

/// Prints the effective settings.
pub(crate) fn print_config(ConfigArgs { default, .. }: ConfigArgs) -> Result<ExitCode, Box<dyn Error>> {
    let Effective { settings, unknown_variables, .. } = if default {
        let arguments = ["swarmkeep", "serve"].map(OsString::from);
        settings::read(&crate::command(), &Settings::schema(), &arguments, [])?
    } else {
        let ReadSettings { effective, settings } = ReadSettings::at_start();
        Log::start(settings.live.log, settings.fixed.log_format);
        let schema = Settings::schema();
        let written = [&settings.fixed.state, &settings.fixed.report_to];
        let is_read = |file: &&Path| !written.iter().any(|path| path.as_deref() == Some(*file));
        let read = settings::files(&schema, &effective.settings).filter(is_read);
        let unreadable = read.filter(|file| is_unreadable(file));
        let unreadable =
            unreadable.map(|file| format!("cannot read {}: only the start judges it", file.display()));
        let judged = settings.judge(&mut RunState::new(Unread::All)?, None);
        let judged = judged.unwrap_or_else(|error| crate::refuse(error.to_string()));
        for problem in unreadable.chain(unavailable(&judged.server, &settings.fixed)) {
            eprintln!("swarmkeep: on this machine, now: {problem}");
        }
        effective
    };
    for (variable, nearest) in unknown_variables {
        eprintln!("swarmkeep: {}", unknown(&variable, nearest));
    }
    io::stdout().write_all(settings::to_toml(&settings, default).as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// What the start would refuse on this machine now. A port in use is probably the running tracker's.
fn unavailable(config: &Config, fixed: &Fixed) -> Vec<String> {
    let bind_udp = |address: &SocketAddr| ("udp", *address, UdpSocket::bind(address).err());
    let bind_tcp =
        |protocol| move |address: &SocketAddr| (protocol, *address, TcpListener::bind(address).err());
    let udp = config.udp.iter().map(bind_udp);
    let tcp = config.http.iter().map(bind_tcp("http")).chain(config.https.iter().map(bind_tcp("https")));
    let bound = udp.chain(tcp).chain(config.admin.iter().map(bind_tcp("admin")));
    let refused = bound.filter_map(|(protocol, address, error)| {
        let is_certain = |error: &io::Error| match error.kind() {
            io::ErrorKind::AddrInUse => false,
            io::ErrorKind::PermissionDenied => true,
            // A machine without IPv6 leaves `[::]` out.
            _ => !address.ip().is_unspecified(),
        };
        let source = error.filter(is_certain)?;
        Some(swarmkeep_tracker::Error::Bind { protocol, address, source }.to_string())
    });
    let interface = config.xdp.as_ref().map(|xdp| &xdp.interface);
    let missing = interface.filter(|name| !Path::new("/sys/class/net").join(name).exists());
    let missing = missing.map(|name| swarmkeep_tracker::Error::NoInterface(name.clone()).to_string());
    // All folders above the state are made, and none above a report.
    let reports = fixed.report_to.iter().filter(|to| !to.to_string_lossy().starts_with(settings::UNIX));
    let written = fixed.state.iter().zip([usize::MAX]).chain(reports.zip([2]));
    let closed = written.filter_map(|(path, most)| {
        let whole = absolute(path).ok()?;
        let there = whole.ancestors().take(most).find(|path| path.exists());
        let is_fit =
            |there: &&Path| if most == 2 && **there == whole { there.is_file() } else { there.is_dir() };
        let is_open = there.filter(is_fit).is_some_and(|there| access(there, Access::WRITE_OK).is_ok());
        (!is_open).then(|| format!("cannot write to {}", path.display()))
    });
    let user = fixed.user.filter(|_| !User::is_root()).map(|_| user::Error::NotRoot.to_string());
    refused.chain(missing).chain(closed).chain(user).collect()
}

fn unknown(variable: &str, nearest: Option<String>) -> String {
    let meant = nearest.map(|nearest| format!("; {nearest} is meant, perhaps")).unwrap_or_default();
    format!("{variable} in the environment is not a setting, and is ignored{meant}")
}

/// Serves until SIGINT or SIGTERM.
pub(crate) fn run() -> Result<(), Box<dyn Error>> {
    let ReadSettings { settings, effective: Effective { settings: running, unknown_variables, .. } } =
        ReadSettings::at_start();
    let Fixed { repository: chosen, log_format, .. } = settings.fixed;
    let log = Log::start(settings.live.log, log_format);
    for (variable, nearest) in unknown_variables {
        warn!("{}", unknown(&variable, nearest));
    }
    secret::keep_out_of_dumps();
    for file in running.iter().filter_map(Setting::password_file) {
        secret::warn_of_others(file, "the passwords");
    }
    let (mut kept, sockets) = (RunState::new(Unread::None)?, manager::sockets()?);
    kept.handed_over = [sockets.udp.len(), sockets.http.len(), sockets.https.len()] != [0; 3];
    let judged = settings.judge(&mut kept, None);
    let Judged { server: mut config, store, sizes, connection_key, mut drawn_secret } =
        judged.unwrap_or_else(|error| crate::refuse(error.to_string()));
    kept.tls.clone_from(&config.tls);
    kept.unread = Unread::Fixed;
    config.node = store.node().map(str::to_owned);
    let most = sizes.limits().bytes;
    config.store_limit = most.map(|most| most as u64);

    allow_all_files_that_may_be();
    let bound = Bound::open(&config, sockets)?;
    // Frees the lists of the settings.
    drop(config);
    // Before threads start, and before bytes of remote peers are read.
    if let Some(user) = settings.fixed.user {
        user.become_for_good()?;
        // The system resets this when a process changes its user.
        secret::keep_out_of_dumps();
    }
    settings
        .fixed
        .xdp
        .give_up_privileges()
        .map_err(|error| format!("cannot give up the capabilities that --xdp takes: {error}"))?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    // Within the runtime, in which connections to servers live.
    let built = match runtime.block_on(store.build(&sizes)) {
        Ok(built) => built,
        Err(NotBuilt::Settings(wrong)) => crate::refuse(wrong),
        Err(unreachable) => return Err(unreachable.into()),
    };
    let unkept = || built.repository.clone();
    let mut pace = Pace::default();
    // Some clients announce a little early.
    pace.again_after = Duration::from_secs(u64::from(settings.live.interval) * 3 / 4);
    let state = settings.fixed.state.as_ref().map(|_| Arc::new(State::new(unkept(), pace)));
    let server = bound.over(state.as_ref().map_or_else(unkept, |state| state.repository()))?;
    if settings.live.local_peers == LocalPeers::Near
        && server.addresses()?.iter().flatten().any(|address| address.ip().is_unspecified())
        && has_private_addresses_alone()
    {
        warn!("this machine has private addresses alone, and refuses peers at such: {ON_A_LAN}");
    }
    let connection_key = connection_key.or_else(|| built.connection_key());
    let server = connection_key.into_iter().fold(server, Server::connection_key);
    if let (Some(state), Some(path)) = (&state, &settings.fixed.state) {
        let _runtime = runtime.enter();
        let every = Duration::from_secs(settings.fixed.snapshot_every.into());
        open(state, path, every)?;
        server.control().metrics.watch_state(Arc::clone(state));
    }
    built.watch(&server.control().metrics);
    let closing = CloseOnDrop(state);
    let report_to = settings.fixed.report_to.as_deref();
    let _reports = report_to.map(|to| Reports::start(to, &server.control())).transpose()?;
    let served = runtime.block_on(async {
        // Before the line about listening, after which a signal may come.
        let (mut interrupt, mut terminate) =
            (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        let hangup = signal(SignalKind::hangup())?;
        let say = |line: String| match log_format {
            LogFormat::Text => eprintln!("{line}"),
            LogFormat::Json => info!("{line}"),
        };
        let limit = most.map(|most| format!(", at most {} MiB", most >> 20)).unwrap_or_default();
        say(format!("listening on {}; repository {}{limit}", server.listening()?, chosen.name()));
        kept.tls.iter().for_each(Log::certificate);
        if let Some(shared) = server.control().metrics.shared_store() {
            let (node, engine) = (store.node(), shared.engine);
            info!(node, engine, "the store is shared with all trackers that have its prefix");
        }
        if let Some(address) = server.admin_address()? {
            let scheme = if settings.fixed.admin_tls { "https" } else { "http" };
            let dashboard = format!("dashboard at {scheme}://{address}/");
            match drawn_secret.take() {
                None => say(dashboard),
                Some(secret) if io::stderr().is_terminal() => eprintln!("{dashboard}#token={secret}"),
                // Logs are kept, and other users may read them: they get no token.
                Some(_) => say(format!("{dashboard} (`swarmkeep token >> FILE` and --admin-tokens FILE let you in)")),
            }
            if !settings.fixed.admin_tls && !address.ip().is_loopback() {
                warn!(
                    "the admin address is not a loopback one, and tokens come to it in the clear: --admin-tls"
                );
            }
        }
        if most.is_none() && store.node().is_none() && settings.fixed.max_bytes.is_none() {
            warn!(
                "this store cannot limit its memory, and clients can make up torrents until it is full: take the repository packed, or limit the memory of this process"
            );
        }
        if User::is_root() {
            warn!("running as root: set --user, or start as another user");
        }
        let report = manager::report(server.control());
        let control = server.control();
        let reload = Reload { fixed: settings.fixed, running, kept, log, control: control.clone() };
        let mut reason = "";
        server
            .run(async {
                tokio::select! {
                    _ = interrupt.recv() => reason = "SIGINT",
                    _ = terminate.recv() => reason = "SIGTERM",
                    never = reload.on(hangup) => match never {},
                    never = report => match never {},
                }
                manager::stopping();
            })
            .await;
        let counts = control.metrics.counts();
        let requests = counts.udp.all_requests() + counts.http.all_requests();
        // The totals of a shared store are of all its trackers, and may come late or never.
        let totals = if store.node().is_none() { control.repository.totals().await.ok() } else { None };
        let (torrents, peers) = totals.map(|totals| (totals.swarms, totals.peers())).unzip();
        info!(reason, requests, torrents, peers, "stopped");
        Ok(())
    });
    // Closing needs the runtime.
    let closed = closing.0.as_ref().map_or(Ok(()), |state| state.close());
    // Does not wait until lists are read.
    runtime.shutdown_background();
    served.and(closed.map_err(Into::into))
}

/// Takes the last snapshot also where a part of the tracker has panicked.
struct CloseOnDrop(Option<Arc<State>>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        if let Some(Err(reason)) = self.0.as_deref().map(State::close) {
            error!(%reason, "the last snapshot was refused, or the last download counts");
        }
    }
}

/// Loads the state in the folder, and logs the result.
fn open(state: &State, path: &Path, every: Duration) -> Result<(), Box<dyn Error>> {
    // Only this user may read the folder.
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(|error| {
        let (path, error) = (path.display(), in_words(&error));
        format!("cannot make the folder {path}: {error}; make one that this process may write to")
    })?;
    let folder = Arc::new(Directory::open(path)?);
    if let Some(owners) = folder.others_may_write()? {
        let path = path.display();
        warn!("others may write to the folder of --state {path}: {owners}; take that right from them");
    }
    let loaded = state.open(folder, Some(every), Arc::new(swarmkeep_tracker::now))?;
    for (file, reason) in &loaded.refused {
        error!(%file, reason = %in_words(reason), "a snapshot was refused, and nothing of it was loaded");
    }
    match &loaded.snapshot {
        Some((file, summary)) => {
            let Restored { added, expired, refused, .. } = loaded.restored;
            info!(%file, parts = summary.records, peers = added, expired, refused, took = ?loaded.took, "snapshot loaded");
            if let Some(kept) = &loaded.kept {
                warn!(
                    taken = summary.taken.as_secs(),
                    now = swarmkeep_tracker::now().as_secs(),
                    "more than half of the peers had expired: is the clock right? The next snapshot leaves this one as {kept}. To load it, stop the tracker, set the clock, rename {kept} to swarms.snapshot and start again"
                );
            }
        }
        None => {
            info!(folder = %path.display(), "there is no snapshot: beginning with nothing but download counts")
        }
    }
    if state.status().counts.is_none() {
        warn!("this store keeps download counts in snapshots only");
    }
    Ok(())
}

/// Whether the machine has addresses besides its own loopback ones, and all are private.
fn has_private_addresses_alone() -> bool {
    let interfaces = getifaddrs().into_iter().flatten();
    let ips = interfaces.filter_map(|interface| {
        let address = interface.address?;
        let v4 = address.as_sockaddr_in().map(|address| address.ip().into());
        v4.or_else(|| address.as_sockaddr_in6().map(|address| address.ip().into()))
    });
    let reached: Vec<_> = ips.filter_map(Reach::of_peer).filter(|reach| *reach != Reach::Loopback).collect();
    !reached.is_empty() && reached.iter().all(|reach| *reach == Reach::Private)
}

/// Raises the limit of open files, by default 1,024 on most systems: each HTTP connection is one.
fn allow_all_files_that_may_be() {
    let limit = getrlimit(Resource::Nofile);
    // If this fails, the tracker has fewer connections.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}
