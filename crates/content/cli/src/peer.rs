//! `seedkeep fetch`, and the parts of it that `seedkeep seed` uses: torrents to and from other peers.

use std::{
    error::Error,
    io::{self, IsTerminal},
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    num::NonZero,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use futures_util::{StreamExt, stream::FuturesUnordered};
use indicatif::{BinaryBytes, MultiProgress, ProgressBar, ProgressStyle};
use serde::Serialize;
use serde_json::{Value, json};
use swarmkeep_bittorrent::{PeerId, in_words, programs::bytes};
use swarmkeep_content::{ContentRepository, Error as StoreError, PieceBits};
use swarmkeep_metainfo::{Magnet, Metainfo};
use swarmkeep_peer::{Error as PeerError, Handle, Session, SessionConfig, Status};
use tokio::{
    runtime::Runtime,
    signal::unix::SignalKind,
    task::{block_in_place, spawn_blocking},
    time::{MissedTickBehavior, interval},
};

use crate::{
    Signals,
    cache::Cache,
    kept::TorrentStore,
    news::{News, short},
    parsed,
    store::{ManyFiles, TorrentFiles, counted, of_pieces, opened::Access, read_torrent, say},
};

/// The exit code of a program that is stopped before everything is fetched.
const INCOMPLETE: u8 = 3;

const FETCH_DETAILS: &str = "\
Examples:
  seedkeep fetch some.torrent                     into the current folder, as ordinary files
  seedkeep fetch some.torrent --store disk.image  into a block store (see `seedkeep store`)
  seedkeep fetch 'magnet:?xt=urn:btih:...'        by magnet link: its trackers and peers, and --peer

Only missing pieces are fetched. Files that exist already in a folder store under the torrent's
name are taken up, and the rest is fetched into them. Each piece is verified. A peer that sends
wrong bytes is asked again only if there is no other. A fetched piece is durable when its stripe
(4 MiB of the torrent) is whole, after a minute at the latest (--write-within), and at the end. A
crash loses the pieces that are not durable yet.

Exit codes:
  0  everything is fetched
  1  the command failed
  2  the command line is wrong
  3  it was stopped before everything was fetched; the next call continues";

/// Fetch torrents from other peers.
#[derive(Debug, clap::Args)]
#[command(after_long_help = FETCH_DETAILS, after_help = "See --help for examples and the exit codes.")]
pub(crate) struct FetchArgs {
    /// Torrent files and magnet links.
    #[arg(value_name = "FILE.torrent|MAGNET", required = true)]
    torrents: Vec<PathBuf>,

    /// Seed after everything is fetched, until interrupted.
    #[arg(long)]
    seed: bool,

    #[command(flatten)]
    sharing: Sharing,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Sharing {
    /// The store: a block device, an image, a folder, or `memory:` for as long as the program runs. By
    /// default the current folder; `seed` uses none for files.
    #[arg(long, value_name = "STORE")]
    pub(crate) store: Option<PathBuf>,

    #[command(flatten)]
    torrent_files: TorrentFiles,

    /// The addresses to listen at, of one or both families. [default: port 6881 of every address, or any port
    /// if that is taken]
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = parsed::<SocketAddr>)]
    listen: Vec<SocketAddr>,

    /// The address of a peer, in addition to those from trackers and other peers.
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = parsed::<SocketAddr>)]
    peer: Vec<SocketAddr>,

    /// The URL of a tracker for every torrent, in addition to its own, but not for a private one that names
    /// its own. Unlike a torrent's own, it may be anywhere in this network, also with a passkey in its query.
    #[arg(long, value_name = "URL")]
    tracker: Vec<String>,

    /// The most bytes sent per second, over all torrents, such as 2MiB.
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    up: Option<NonZero<u64>>,

    /// The most bytes received per second, over all torrents.
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    down: Option<NonZero<u64>>,

    #[command(flatten)]
    cache: Cache,

    /// The most seconds until a fetched piece is durable. A crash can lose these pieces. With more seconds,
    /// more blocks of a store are written whole.
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = parsed::<NonZero<u64>>)]
    write_within: NonZero<u64>,

    /// The most connections in all: at most three quarters incoming, and at most three quarters outgoing.
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = parsed::<usize>)]
    connections: usize,

    /// The number of peers per torrent that receive blocks at a time.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = parsed::<usize>)]
    slots: usize,

    #[command(flatten)]
    pub(crate) many_files: ManyFiles,

    /// Print events as JSON, one per line, instead of bars.
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) fn fetch(args: &FetchArgs) -> Result<ExitCode, Box<dyn Error>> {
    let (mut torrents, mut links) = (Vec::new(), Vec::new());
    for torrent in &args.torrents {
        match torrent.to_str().filter(|text| is_link(text)) {
            Some(link) => {
                let is_selection =
                    |field: &str| field.get(..3).is_some_and(|key| key.eq_ignore_ascii_case("so="));
                if link.split(['?', '&']).any(is_selection) {
                    let words = "`so` of a link selects files (BEP 53), and is ignored: all are fetched";
                    note(args.sharing.json, words)?;
                }
                links.push(link.parse::<Magnet>()?);
            }
            None => torrents.push(read_torrent(torrent)?),
        }
    }
    let refused = args.sharing.many_files.leave_out(&mut torrents);
    if torrents.is_empty() && links.is_empty() {
        return Err(refused.join("\nseedkeep: ").into());
    }
    refused.iter().try_for_each(|refused| note(args.sharing.json, refused))?;
    // Peers have the missing hashes.
    let lacking = torrents.extract_if(.., |(metainfo, _)| !metainfo.info().knows_hashes());
    links.extend(lacking.map(|(metainfo, _)| Magnet::from(&metainfo)));
    let kept = args.sharing.open(args.sharing.store(), Access::Adding)?;
    // The store may know the torrent of a link.
    for link in std::mem::take(&mut links) {
        match kept.torrents.torrent_file(&link.info_hash()) {
            Ok(Some(torrent)) => torrents.push((Metainfo::parse(&torrent)?, torrent)),
            Ok(None) | Err(StoreError::NotFound(_)) => links.push(link),
            Err(error) => return Err(error.into()),
        }
    }
    // Verifying files may take long: here, Ctrl-C still ends the program at once. `share` reports errors.
    for (metainfo, torrent) in &torrents {
        kept.take_up(metainfo, torrent);
        let _ = kept.add(metainfo, torrent);
    }
    let until = if args.seed { Until::Seeded } else { Until::Complete };
    let store = Arc::clone(kept.torrents.store());
    let ended = share(&args.sharing, store, Some(&kept), (torrents, links), until)?;
    Ok(if refused.is_empty() { ended } else { ExitCode::FAILURE })
}

fn is_link(text: &str) -> bool {
    text.get(..7).is_some_and(|scheme| scheme.eq_ignore_ascii_case("magnet:"))
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Until {
    /// Until everything is fetched.
    Complete,
    /// Until a signal. Exit code 3 if something is missing then.
    Seeded,
    /// Until a signal.
    Interrupted,
}

/// Shares torrents over `store` until a signal, or `until`. New torrents are kept in `kept`.
pub(crate) fn share(
    sharing: &Sharing,
    store: Arc<dyn ContentRepository>,
    kept: Option<&TorrentStore>,
    (torrents, links): (Vec<(Metainfo, Vec<u8>)>, Vec<Magnet>),
    until: Until,
) -> Result<ExitCode, Box<dyn Error>> {
    let runtime = Runtime::new()?;
    let done = runtime.block_on(async {
        let mut signals = Signals::new([SignalKind::interrupt(), SignalKind::terminate()])?;
        let session = sharing.start(store).await?;
        let mut reporter = Reporter::new(sharing.json, until != Until::Complete, &session)?;
        let mut transfers = Transfers {
            session: &session,
            kept,
            sharing,
            unlearnt: links,
            shared: Vec::new(),
            failed: false,
        };
        let ended = transfers.run(torrents, until, &mut signals, &mut reporter).await;
        let (shared, failed) = (transfers.shared, transfers.failed);
        // Also after an error: fetched pieces are made durable, and trackers notified.
        let stopped = session.stop().await;
        if !shared.is_empty() {
            reporter.end(&shared)?;
        }
        let complete = ended?;
        stopped?;
        Ok::<_, Box<dyn Error>>(match complete || until == Until::Interrupted {
            _ if failed => ExitCode::FAILURE,
            true => ExitCode::SUCCESS,
            false => ExitCode::from(INCOMPLETE),
        })
    });
    // Does not wait for the system's resolver, which may take long.
    runtime.shutdown_background();
    done
}

/// The torrents and links of a session.
struct Transfers<'a> {
    session: &'a Session,
    /// Keeps the torrents and their torrent files.
    kept: Option<&'a TorrentStore>,
    sharing: &'a Sharing,
    /// Links whose metainfo has not been fetched yet.
    unlearnt: Vec<Magnet>,
    shared: Vec<SharedTorrent>,
    /// Whether one of the torrents has failed; the others go on.
    failed: bool,
}

impl Transfers<'_> {
    /// Shares until a signal, or until all torrents are complete or have failed. Returns whether they are.
    /// The torrent of a link begins as soon as its metainfo is known.
    async fn run(
        &mut self,
        torrents: Vec<(Metainfo, Vec<u8>)>,
        until: Until,
        signals: &mut Signals,
        reporter: &mut Reporter,
    ) -> Result<bool, Box<dyn Error>> {
        for link in &mut self.unlearnt {
            *link = self.sharing.peer.iter().fold(link.clone(), |link, peer| link.with_peer(*peer));
        }
        let session = self.session;
        let links = self.unlearnt.clone();
        let (kept, sharing) = (self.kept, self.sharing);
        let learn = |link| async move {
            let learnt = session.learn(link).await.map_err(Box::<dyn Error>::from).and_then(|metainfo| {
                let checked = sharing.many_files.check(metainfo.info());
                checked.inspect_err(|_| session.forget(&link.info_hash()))?;
                Ok(metainfo)
            });
            if let (Ok(metainfo), Some(kept)) = (&learnt, kept) {
                let (kept, metainfo) = (kept.clone(), metainfo.clone());
                let torrent = metainfo.encode().expect("its hashes were learnt too");
                let taken_up = spawn_blocking(move || kept.take_up(&metainfo, &torrent));
                taken_up.await.expect("it does not panic");
            }
            (link, learnt)
        };
        let mut learning: FuturesUnordered<_> = links.iter().map(learn).collect();
        let mut completing = FuturesUnordered::new();
        for (metainfo, torrent) in torrents {
            let added = self.add(metainfo, &torrent).await;
            completing.extend(self.noted(added, reporter));
        }
        let mut second = interval(Duration::from_secs(1));
        second.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut ended = false;
        loop {
            tokio::select! {
                Some((link, learnt)) = learning.next() => {
                    self.unlearnt.retain(|unlearnt| unlearnt != link);
                    let added = match learnt {
                        Ok(metainfo) => {
                            let torrent = metainfo.encode().expect("its hashes were learnt too");
                            self.add(metainfo, &torrent).await
                        }
                        Err(error) => Err(error),
                    };
                    completing.extend(self.noted(added, reporter));
                }
                Some(done) = completing.next() => {
                    self.noted(done.map_err(Into::into), reporter);
                }
                _ = second.tick() => reporter.tell(self)?,
                () = signals.any() => return Ok(ended),
            }
            if !ended && learning.is_empty() && completing.is_empty() {
                ended = true;
                reporter.tell(self)?;
                if until == Until::Complete || self.shared.is_empty() {
                    return Ok(true);
                }
            }
        }
    }

    /// The result for one torrent. An error is reported at once, since the others may go on for long.
    fn noted<T>(&mut self, result: Result<T, Box<dyn Error>>, reporter: &Reporter) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                reporter.error(&*error);
                self.failed = true;
                None
            }
        }
    }

    /// Begins to share a torrent. The future in the answer ends when the torrent is complete.
    async fn add(
        &mut self,
        metainfo: Metainfo,
        torrent: &[u8],
    ) -> Result<impl Future<Output = Result<(), PeerError>> + use<>, Box<dyn Error>> {
        if let Some(kept) = self.kept {
            block_in_place(|| kept.add(&metainfo, torrent))?;
        }
        let tiers = metainfo.tiers().to_vec();
        let info = metainfo.into_info();
        let (name, bytes) = (info.name().to_owned(), info.length());
        let handle = self.session.add(info, &tiers).await?;
        handle.found(self.sharing.peer.iter().copied());
        self.shared.push(SharedTorrent { name, bytes, handle: handle.clone() });
        Ok(async move { handle.complete().await })
    }
}

impl Sharing {
    pub(crate) fn store(&self) -> &Path {
        self.store.as_deref().unwrap_or(Path::new("."))
    }

    /// Opens `store`, which need not be the one of the options.
    pub(crate) fn open(&self, store: &Path, access: Access) -> Result<TorrentStore, Box<dyn Error>> {
        TorrentStore::open(store, &self.torrent_files, access)
    }

    async fn start(&self, store: Arc<dyn ContentRepository>) -> Result<Session, Box<dyn Error>> {
        let half = self.cache.bytes() / 2;
        let config = |listen: Vec<SocketAddr>| {
            let mut config = SessionConfig::new(peer_id());
            (config.listen, config.connections, config.upload_slots) = (listen, self.connections, self.slots);
            (config.write_memory, config.read_memory) = (half, half);
            config.write_within = Duration::from_secs(self.write_within.get());
            config.user_trackers = self.tracker.clone();
            (config.up, config.down) = (self.up.map(NonZero::get), self.down.map(NonZero::get));
            config
        };
        if !self.listen.is_empty() {
            return Ok(Session::start(config(self.listen.clone()), store).await?);
        }
        let mut listen: Vec<SocketAddr> =
            vec![(Ipv4Addr::UNSPECIFIED, 6881).into(), (Ipv6Addr::UNSPECIFIED, 6881).into()];
        let is_taken =
            |at: SocketAddr, error: &io::Error| at.port() > 0 && error.kind() == io::ErrorKind::AddrInUse;
        loop {
            let (failed, source) = match Session::start(config(listen.clone()), Arc::clone(&store)).await {
                Err(PeerError::Listen { address, source })
                    if listen.len() > 1 || is_taken(address, &source) =>
                {
                    (address, source)
                }
                started => return Ok(started?),
            };
            let instead = if is_taken(failed, &source) {
                let taken = listen.iter_mut().filter(|address| **address == failed);
                taken.for_each(|address| address.set_port(0));
                "any free port is used"
            } else {
                listen.retain(|address| *address != failed);
                "this family is not used"
            };
            note(self.json, &format!("cannot listen at {failed}: {}; {instead}", in_words(&source)))?;
        }
    }
}

/// In the style of Azureus: two letters that no other program has, the version, and twelve random letters.
fn peer_id() -> PeerId {
    let mut id = *b"-KP0100-............";
    let random = rand::random::<[u8; 12]>();
    for (letter, random) in id[8..].iter_mut().zip(random) {
        *letter = b"abcdefghijklmnopqrstuvwxyz012345"[usize::from(random % 32)];
    }
    PeerId::new(id)
}

struct SharedTorrent {
    name: String,
    bytes: u64,
    handle: Handle,
}

impl SharedTorrent {
    /// Bar and words in one text, so that none is newer than the other. At 80 columns there is room for the
    /// beginning of the name.
    fn line(&self) -> String {
        let Status { left, down, up, peers, .. } = self.handle.status();
        let done = self.bytes.saturating_sub(left);
        let [cells, percent] =
            [10, 100].map(|of| (u128::from(done) * of / u128::from(self.bytes.max(1))) as usize);
        let time = match left.checked_div(down.1) {
            Some(seconds) if left > 0 => format!("{} left", short(Duration::from_secs(seconds))),
            _ => String::new(),
        };
        let bar = ["█".repeat(cells), "░".repeat(10 - cells)].concat();
        let (down, up) = (BinaryBytes(down.1).to_string(), BinaryBytes(up.1).to_string());
        let name = self.name.escape_debug();
        format!("{bar} {percent:>3}% {time:>12} ↓ {down}/s ↑ {up}/s {} {name}", counted(peers.len(), "peer"))
    }
}

/// The output: bars for people, lines of JSON for programs.
#[derive(Default)]
struct Reporter {
    json: bool,
    /// Whether torrents are seeded when they are complete.
    seeds: bool,
    /// Whether a caller that is no peer was reported.
    strange: bool,
    /// Whether stderr is a terminal.
    draws: bool,
    all: MultiProgress,
    bars: Vec<ProgressBar>,
    links: Vec<ProgressBar>,
    news: News,
}

/// A magnet link whose metainfo has not been fetched yet.
#[derive(Serialize)]
struct PendingLink<'a> {
    info_hash: String,
    name: Option<&'a str>,
    peers: usize,
}

/// The state of each torrent, as `--json` prints it.
fn states(event: &str, shared: &[SharedTorrent]) -> Value {
    let state = |SharedTorrent { name, bytes, handle }: &SharedTorrent| {
        let Status { left, progress, down, up, wasted, peers, banned, .. } = handle.status();
        let have = levels(&handle.pieces());
        json!({
            "info_hash": handle.info_hash().to_string(), "name": name, "bytes": bytes, "left": left, "have": have,
            "pieces": progress.pieces, "complete": progress.complete, "downloaded": down.0, "uploaded": up.0,
            "wasted": wasted, "down_rate": down.1, "up_rate": up.1, "peers": peers.len(), "banned": banned.len(),
        })
    };
    json!({ "event": event, "torrents": shared.iter().map(state).collect::<Vec<_>>() })
}

/// The complete pieces: a digit for each of 64 parts of a torrent, or for each piece if it has fewer. 0 is
/// none of a part, 9 all, and 1 to 8 are eighths in between.
fn levels(have: &PieceBits) -> String {
    let pieces = u64::from(have.pieces());
    let parts = pieces.min(64);
    let mut counts = vec![0; parts as usize];
    have.iter().for_each(|piece| counts[(u64::from(piece) * parts / pieces) as usize] += 1);
    let level = |(part, count): (u64, u64)| {
        let size = ((part + 1) * pieces).div_ceil(parts) - (part * pieces).div_ceil(parts);
        char::from(b'0' + (count * 8 / size) as u8 + u8::from(count > 0))
    };
    (0..).zip(counts).map(level).collect()
}

impl Reporter {
    fn new(json: bool, seeds: bool, session: &Session) -> Result<Self, Box<dyn Error>> {
        let addresses = session.addresses();
        if json {
            line(&json!({ "event": "listening", "addresses": addresses }))?;
        } else {
            let addresses: Vec<_> = addresses.iter().map(ToString::to_string).collect();
            eprintln!("Peers can call at {}", addresses.join(" and "));
        }
        Ok(Self { json, seeds, draws: !json && io::stderr().is_terminal(), ..Self::default() })
    }

    /// A line for people, above the bars.
    fn say(&self, words: &str) {
        self.all.suspend(|| eprintln!("{words}"));
    }

    fn error(&self, error: &dyn Error) {
        self.say(&format!("seedkeep: {}", in_words(error)));
        if self.json {
            // If the reader has closed the pipe, the next event returns the error.
            let _ = line(&json!({ "event": "error", "error": in_words(error) }));
        }
    }

    fn tell_news(&mut self, handle: &Handle, name: &str, lacks_peers: bool) -> Result<(), Box<dyn Error>> {
        for event in self.news.of(handle, lacks_peers) {
            if let Some(words) = event.words(name) {
                self.say(&words);
            }
            if self.json {
                line(&event)?;
            }
        }
        Ok(())
    }

    /// Prints news and progress.
    fn tell(&mut self, transfers: &Transfers<'_>) -> Result<(), Box<dyn Error>> {
        if let Some(caller) = transfers.session.stranger().filter(|_| !self.strange) {
            self.strange = true;
            let words = format!(
                "{caller} called without the handshake of BitTorrent: a peer that requires encryption cannot connect, \
                 one that only prefers it calls again without"
            );
            self.all.suspend(|| note(self.json, &words))?;
        }
        let alone = transfers.sharing.peer.is_empty();
        for shared in &transfers.shared {
            let name = shared.name.escape_debug().to_string();
            let lacks_peers = alone && (self.seeds || shared.handle.status().left > 0);
            self.tell_news(&shared.handle, &name, lacks_peers)?;
        }
        for link in &transfers.unlearnt {
            if let Some(handle) = transfers.session.torrent(&link.info_hash()) {
                let name = link
                    .name()
                    .map_or_else(|| link.info_hash().to_string(), |name| name.escape_debug().to_string());
                self.tell_news(&handle, &name, link.peers().is_empty())?;
            }
        }
        let learning = transfers.unlearnt.iter().map(|link| {
            let info_hash = link.info_hash();
            let peers = transfers.session.torrent(&info_hash).map_or(0, |found| found.status().peers.len());
            PendingLink { info_hash: info_hash.to_string(), name: link.name(), peers }
        });
        if self.json {
            if !transfers.unlearnt.is_empty() {
                line(&json!({ "event": "learning", "torrents": learning.collect::<Vec<_>>() }))?;
            }
            if !transfers.shared.is_empty() {
                line(&states("progress", &transfers.shared))?;
            }
        } else if self.draws {
            self.draw(learning, &transfers.shared);
        }
        Ok(())
    }

    /// A bar for each torrent, and below them one for each link.
    fn draw<'a>(&mut self, links: impl ExactSizeIterator<Item = PendingLink<'a>>, shared: &[SharedTorrent]) {
        if (self.bars.len(), self.links.len()) != (shared.len(), links.len()) {
            self.clear();
            let style = ProgressStyle::with_template("{wide_msg}").expect("a valid template");
            let bar = |_| self.all.add(ProgressBar::new_spinner().with_style(style.clone()));
            self.bars = shared.iter().map(bar).collect();
            let style = ProgressStyle::with_template("{spinner} {wide_msg}").expect("a valid template");
            let spinner = |_| self.all.add(ProgressBar::new_spinner().with_style(style.clone()));
            self.links = (0..links.len()).map(spinner).collect();
        }
        for (bar, shared) in self.bars.iter().zip(shared) {
            bar.set_message(shared.line());
        }
        for (bar, PendingLink { info_hash, name, peers }) in self.links.iter().zip(links) {
            let name = name.map_or(info_hash, |name| name.escape_debug().to_string());
            bar.set_message(format!("fetching the metainfo from {}: {name}", counted(peers, "peer")));
            bar.tick();
        }
    }

    fn clear(&self) {
        self.bars.iter().chain(&self.links).for_each(ProgressBar::finish_and_clear);
    }

    fn end(&mut self, shared: &[SharedTorrent]) -> Result<(), Box<dyn Error>> {
        self.clear();
        if self.json {
            return line(&states("stopped", shared));
        }
        for shared in shared {
            let status = shared.handle.status();
            let pieces = of_pieces(status.progress.complete, status.progress.pieces);
            let [came, went] = [status.down.0, status.up.0].map(BinaryBytes);
            say!("{}: {pieces}, {came} came and {went} went", shared.name);
        }
        Ok(())
    }
}

/// Prints a line for people, and an event for programs.
fn note(json: bool, words: &str) -> Result<(), Box<dyn Error>> {
    eprintln!("seedkeep: {words}");
    if json { line(&json!({ "event": "note", "note": words })) } else { Ok(()) }
}

pub(crate) fn line(event: &impl Serialize) -> Result<(), Box<dyn Error>> {
    say!("{}", serde_json::to_string(event)?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_tell_none_some_and_all_of_each_part() {
        let of = |pieces, have: &[u32]| {
            let mut bits = PieceBits::none(pieces);
            have.iter().for_each(|&piece| _ = bits.insert(piece));
            levels(&bits)
        };
        assert_eq!((of(0, &[]), of(3, &[1])), (String::new(), "090".to_owned()));
        for pieces in [63, 64, 65, 100, 127, 128, 1000] {
            let (all, parts) = ((0..pieces).collect::<Vec<_>>(), pieces.min(64) as usize);
            assert_eq!((of(pieces, &all), of(pieces, &[])), ("9".repeat(parts), "0".repeat(parts)));
        }
        // Ten pieces per part.
        let some = of(640, &[0, 10, 11, 12, 13, 14, 20, 21, 22, 23, 24, 25, 26, 27, 28]);
        assert_eq!(&some[..5], "15800");
    }
}
