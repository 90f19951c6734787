//! A torrent of a session: the state that its connections share.

mod peers;
pub(crate) mod pieces;
pub(crate) mod seats;
pub(crate) mod status;

use std::{
    collections::{BTreeMap, VecDeque},
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use swarmkeep_bittorrent::{InfoHash, PeerId};
use swarmkeep_content::{Content, PieceBits};
use swarmkeep_metainfo::Info;
use swarmkeep_peer_wire::{Block, PexFlags};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use self::seats::SeatEntry;
use crate::{
    Error,
    blame::{Ban, Blame, Offences},
    candidates::{self, Candidates, Outcome},
    choker::Choker,
    learning::Learning,
    picker::{EmptySearch, PeerKey, Picker},
    rate::Meter,
    ready::Ready,
    resources::Resources,
    trackers::{self, TrackersHandle},
};

#[derive(Debug)]
pub(crate) struct Torrent {
    /// The info hash by which it was added. A hybrid that was added by v2 only is in the store under its v1
    /// info hash.
    pub(crate) info_hash: InfoHash,
    /// The other info hash of a hybrid, once it is known. Peers and trackers use both: v1 and v2 are two
    /// swarms.
    other_hash: OnceLock<InfoHash>,
    pub(crate) session: Arc<Resources>,
    /// For a magnet link, until the torrent is added to the session.
    pub(crate) learning: Mutex<Option<Learning>>,
    /// Once the info dictionary is known.
    ready: OnceLock<Ready>,
    state: Mutex<TorrentState>,
    pub(crate) up: Meter,
    pub(crate) down: Meter,
    /// Bytes of received blocks that were of no use.
    wasted: AtomicU64,
    /// Notified when there is an address to connect to, or room for another connection.
    pub(crate) calling: Notify,
    /// While it is announced: one list per info hash.
    pub(crate) trackers: Mutex<Vec<TrackersHandle>>,
    progress: watch::Sender<Progress>,
    pub(crate) stop: CancellationToken,
}

/// How far a torrent is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Progress {
    /// Pieces of the torrent; 0 while they are not known.
    pub pieces: u32,
    /// Pieces that are in the store.
    pub complete: u32,
    /// Whether all of them were in the store at some time since the torrent was added. It stays `true` if a
    /// piece cannot be read later.
    pub was_complete: bool,
    /// The error of the store when it refused a piece. From then on the torrent only seeds.
    pub failed: Option<String>,
}

impl Progress {
    /// Whether every piece is in the store.
    pub const fn is_complete(&self) -> bool {
        self.pieces > 0 && self.complete == self.pieces
    }
}

#[derive(Debug)]
struct TorrentState {
    /// All connections that have begun.
    seats: BTreeMap<PeerKey, SeatEntry>,
    /// The connections after the handshake.
    peers: BTreeMap<PeerKey, PeerEntry>,
    picker: Option<Picker>,
    /// Pieces that are in the store, and are offered to peers.
    have: PieceBits,
    /// Whether `have` was complete at some time.
    was_complete: bool,
    /// How many pieces the store has lost.
    lost: u32,
    /// How many of these are right again, by writes of other programs.
    back: u32,
    /// Pieces that came since the torrent was added, in order. Each connection sends `have` for the pieces
    /// that it has not sent yet.
    came: Vec<u32>,
    choker: Choker,
    blame: Blame,
    offences: Offences,
    /// Peers that have left: their blocks may be in pieces that turn out wrong.
    gone: VecDeque<(PeerKey, SocketAddr)>,
    candidates: Candidates,
}

const UNKNOWN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// A peer, as its torrent sees it.
#[derive(Debug)]
struct PeerEntry {
    peer: Arc<Peer>,
    id: PeerId,
    /// Whether this session opened the connection.
    outgoing: bool,
    /// Where it listens, if that is known, and whether it was reached there.
    listens: Option<(SocketAddr, PexFlags)>,
    has: PeerPieces,
    /// Pieces that it has and that are not in the store.
    wanted: u32,
    interested: bool,
    searched: EmptySearch,
}

#[derive(Debug)]
enum PeerPieces {
    All,
    Some(PieceBits),
}

impl PeerPieces {
    fn contain(&self, piece: u32) -> bool {
        match self {
            Self::All => true,
            Self::Some(bits) => piece < bits.pieces() && bits.contains(piece),
        }
    }

    fn are_all(&self) -> bool {
        match self {
            Self::All => true,
            // A peer that connected before the torrent was known has named no pieces yet that count.
            Self::Some(bits) => bits.pieces() > 0 && bits.count() == bits.pieces(),
        }
    }
}

/// A peer, as its connection sees it.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) key: PeerKey,
    pub(crate) address: SocketAddr,
    pub(crate) up: Meter,
    pub(crate) down: Meter,
    /// Notified when one of the fields below has changed, or a piece has come.
    pub(crate) wake: Notify,
    /// Whether its requests are answered.
    pub(crate) unchoked: AtomicBool,
    /// Whether it has sent requests since the latest decision of the choker, or waits for blocks.
    pub(crate) active: AtomicBool,
    /// Whether it answers no requests now.
    pub(crate) chokes: AtomicBool,
    /// Whether it does not send requested blocks.
    pub(crate) snubs: AtomicBool,
    /// Requested blocks that it need not send any more.
    pub(crate) cancels: Mutex<Vec<Block>>,
}

impl Peer {
    pub(crate) fn new(key: PeerKey, address: SocketAddr) -> Self {
        Self {
            key,
            address,
            up: Meter::default(),
            down: Meter::default(),
            wake: Notify::new(),
            unchoked: AtomicBool::new(false),
            active: AtomicBool::new(false),
            chokes: AtomicBool::new(true),
            snubs: AtomicBool::new(false),
            cancels: Mutex::default(),
        }
    }
}

/// The blocks that a connection can request.
pub(crate) struct BlockDemand<'a> {
    /// The most blocks.
    pub(crate) count: usize,
    /// While the peer chokes: the pieces that it sends all the same.
    pub(crate) allows: Option<&'a [u32]>,
    /// Whether a piece may be requested, if the peer has it.
    pub(crate) may: &'a dyn Fn(u32) -> bool,
    /// Whether `may` has changed, so that a search that found nothing is repeated.
    pub(crate) again: bool,
    pub(crate) now: Instant,
}

impl Torrent {
    pub(crate) fn new(info_hash: InfoHash, session: Arc<Resources>, learning: Option<Learning>) -> Self {
        let slots = session.config.upload_slots;
        let stop = session.stop.child_token();
        Self {
            info_hash,
            other_hash: OnceLock::new(),
            session,
            learning: Mutex::new(learning),
            ready: OnceLock::new(),
            state: Mutex::new(TorrentState {
                seats: BTreeMap::new(),
                peers: BTreeMap::new(),
                picker: None,
                have: PieceBits::none(0),
                was_complete: false,
                lost: 0,
                back: 0,
                came: Vec::new(),
                choker: Choker::new(slots),
                blame: Blame::default(),
                offences: Offences::default(),
                gone: VecDeque::new(),
                candidates: Candidates::default(),
            }),
            up: Meter::default(),
            down: Meter::default(),
            wasted: AtomicU64::new(0),
            calling: Notify::new(),
            trackers: Mutex::default(),
            progress: watch::Sender::new(Progress::default()),
            stop,
        }
    }

    /// Sets the info dictionary, and the content in the store.
    pub(crate) fn make_ready(&self, info: Arc<Info>, content: Arc<dyn Content>) -> Result<(), Error> {
        let ready = Ready::new(info, content)?;
        let have = ready.content.pieces().map_err(Error::Store)?;
        let (memory, late) = (self.session.config.piece_memory, self.session.config.late());
        // Nothing is fetched into content that cannot be written.
        let fetches = !ready.content.is_read_only() || have.count() == have.pieces();
        let picker = fetches
            .then(|| Picker::new(Arc::clone(&ready.info), have.clone(), memory, late, &mut rand::rng()));
        {
            let mut state = self.state.lock();
            (state.picker, state.have) = (picker, have);
            state.note_complete();
            let _ = self.ready.set(ready);
        }
        self.tell_progress();
        self.wake_all();
        Ok(())
    }

    /// Takes the info hashes of the torrent; returns the one that is new.
    pub(crate) fn is_also(&self, info_hashes: impl IntoIterator<Item = InfoHash>) -> Option<InfoHash> {
        let other = info_hashes.into_iter().find(|name| *name != self.info_hash)?;
        self.other_hash.set(other).is_ok().then_some(other)
    }

    /// Its info hashes: a hybrid has two.
    pub(crate) fn info_hashes(&self) -> impl Iterator<Item = InfoHash> {
        std::iter::once(self.info_hash).chain(self.other_hash.get().copied())
    }

    pub(crate) fn ready(&self) -> Option<&Ready> {
        self.ready.get()
    }

    pub(crate) fn progress(&self) -> watch::Receiver<Progress> {
        self.progress.subscribe()
    }

    /// Counts inside the update: of two pieces that come at the same time, the later update counts both.
    fn tell_progress(&self) {
        self.progress.send_modify(|progress| {
            let state = self.state.lock();
            (progress.pieces, progress.complete) = (state.have.pieces(), state.have.count());
            progress.was_complete = state.was_complete;
        });
    }

    /// Whether pieces of it are fetched, or will be once it is known.
    pub(crate) fn is_fetched(&self) -> bool {
        let is_read_only = self.ready().is_some_and(|ready| ready.content.is_read_only());
        !is_read_only && !self.is_complete()
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.progress.borrow().is_complete()
    }

    /// Bytes that are not in the store.
    pub(crate) fn left(&self) -> u64 {
        let Some(ready) = self.ready() else { return 1 };
        let state = self.state.lock();
        let missing = (0..ready.info.piece_count()).filter(|&piece| !state.have.contains(piece));
        missing.map(|piece| u64::from(ready.info.piece_len(piece))).sum()
    }

    /// The progress that is announced to trackers.
    pub(crate) fn announced(&self) -> trackers::Progress {
        trackers::Progress { uploaded: self.up.total(), downloaded: self.down.total(), left: self.left() }
    }

    /// The pieces that are in the store, and how many have come so far.
    pub(crate) fn have(&self) -> (PieceBits, usize) {
        let state = self.state.lock();
        (state.have.clone(), state.came.len())
    }

    pub(crate) fn has(&self, piece: u32) -> bool {
        self.state.lock().have.contains(piece)
    }

    pub(crate) fn found(&self, source: candidates::Source, addresses: impl IntoIterator<Item = SocketAddr>) {
        let (mut state, now) = (self.state.lock(), Instant::now());
        addresses.into_iter().for_each(|address| state.candidates.add(address, source, now));
        drop(state);
        self.calling.notify_one();
    }

    /// The address to connect to now, and the info hash to name there.
    pub(crate) fn to_call(&self) -> Option<(SocketAddr, InfoHash)> {
        let mut state = self.state.lock();
        let (config, now) = (&self.session.config, Instant::now());
        // For an address without neighbours: whether there is room at all.
        state.ends_for(UNKNOWN.ip(), true, config, now).ok()?;
        loop {
            let address = state.candidates.take(now)?;
            let has_room = state.ends_for(address.ip(), true, config, now).is_ok() && !state.refuses(address);
            let TorrentState { candidates, peers, .. } = &mut *state;
            let connected = |entry: &PeerEntry| entry.peer.address == address || entry.endpoint() == address;
            if !has_room || peers.values().any(connected) {
                candidates.put_off(address, now);
            } else {
                let names: Vec<_> = self.info_hashes().collect();
                return Some((address, names[candidates.swarm(address) % names.len()]));
            }
        }
    }

    /// Puts off an address that was not connected to after all.
    pub(crate) fn put_off(&self, address: SocketAddr) {
        self.state.lock().candidates.put_off(address, Instant::now());
    }

    pub(crate) fn call_ended(&self, address: SocketAddr, outcome: Outcome, why: Option<String>) {
        let swarms = self.info_hashes().count();
        self.state.lock().candidates.ended(address, outcome, swarms, why, Instant::now());
    }

    /// Once a second: rates.
    pub(crate) fn tick(&self, since: Duration) {
        self.up.tick(since);
        self.down.tick(since);
        let (mut state, now) = (self.state.lock(), Instant::now());
        let TorrentState { peers, seats, .. } = &mut *state;
        for (key, PeerEntry { peer, .. }) in peers {
            peer.up.tick(since);
            peer.down.tick(since);
            if peer.up.rate() + peer.down.rate() > 0
                && let Some(seat) = seats.get_mut(key)
            {
                seat.moved = now;
            }
        }
    }

    /// Ends the announces, with `stopped`.
    pub(crate) fn leave_trackers(&self) -> impl Iterator<Item = impl Future<Output = ()> + use<>> {
        let trackers = std::mem::take(&mut *self.trackers.lock());
        // The last piece may have come before the task that sends `completed` has run.
        let is_complete = self.is_complete();
        trackers.into_iter().map(move |trackers| {
            if is_complete {
                trackers.completed();
            }
            trackers.stop()
        })
    }

    /// Runs a task until the torrent is forgotten, or the session is stopped.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let stop = self.stop.clone();
        self.session.tasks.spawn(async move { stop.run_until_cancelled(task).await });
    }

    pub(crate) fn wake_all(&self) {
        for entry in self.state.lock().peers.values() {
            entry.peer.wake.notify_one();
        }
    }
}

impl PeerEntry {
    /// Where it listens, or else the address of its connection.
    fn endpoint(&self) -> SocketAddr {
        self.listens.map_or(self.peer.address, |(address, _)| address)
    }
}

impl TorrentState {
    /// The endpoint of a peer, which may have left.
    fn endpoint_of(&self, key: PeerKey) -> SocketAddr {
        let gone = || self.gone.iter().find(|(gone, _)| *gone == key).map(|(_, endpoint)| *endpoint);
        self.peers.get(&key).map(PeerEntry::endpoint).or_else(gone).unwrap_or(UNKNOWN)
    }

    /// Whether `endpoint` is banned, and there is another source or it is banned for good. Port 0 is an
    /// unknown port.
    fn refuses(&self, endpoint: SocketAddr) -> bool {
        // While a link is learnt, each peer may have its metadata.
        let is_learnt = self.have.pieces() == 0;
        let sends = |peer: &Peer| !peer.chokes.load(Relaxed) && !peer.snubs.load(Relaxed);
        let is_source = |entry: &PeerEntry| {
            (is_learnt || entry.wanted > 0 && sends(&entry.peer))
                && self.offences.ban(entry.endpoint()).is_none()
        };
        let ban = self.offences.ban(endpoint);
        ban.is_some_and(|ban| ban == Ban::ForGood || self.peers.values().any(is_source))
    }

    fn note_complete(&mut self) {
        self.was_complete |= self.have.pieces() > 0 && self.have.count() == self.have.pieces();
    }

    /// A piece is in the store now.
    fn gain(&mut self, piece: u32) {
        self.have.insert(piece);
        self.came.push(piece);
        for entry in self.peers.values_mut() {
            entry.wanted -= u32::from(entry.has.contain(piece));
        }
        self.note_complete();
    }

    /// A piece is not in the store after all.
    fn lose(&mut self, piece: u32) {
        if !self.have.remove(piece) {
            return;
        }
        self.lost += 1;
        for entry in self.peers.values_mut() {
            entry.wanted += u32::from(entry.has.contain(piece));
        }
    }

    /// A peer sent wrong bytes: of a piece, if they are not metadata.
    fn blame(&mut self, endpoint: SocketAddr, piece: Option<u32>) {
        if endpoint != UNKNOWN {
            self.offences.record(endpoint, piece);
            let refused = self.peers.iter().filter(|(_, entry)| self.refuses(entry.endpoint()));
            refused.filter_map(|(key, _)| self.seats.get(key)).for_each(|seat| seat.stop.cancel());
        }
    }
}
