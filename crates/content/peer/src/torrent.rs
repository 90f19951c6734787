//! A torrent that is shared: what its connections have in common.

use std::{
    collections::{BTreeMap, HashSet, VecDeque},
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use swarmkeep_bittorrent::{Endpoint, InfoHash, PeerId};
use swarmkeep_content::{Content, ContentExt, Error as StoreError, PieceBits};
use swarmkeep_metainfo::Info;
use swarmkeep_peer_wire::{Block, Hashes, PexFlags};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use crate::{
    Error,
    blame::Blame,
    candidates::{Candidates, network},
    choker::{Asking, Choker},
    hashes::HashFault,
    learning::{Heard, Learning},
    metadata::MetadataFault,
    picker::{PeerKey, Picker, Received, Searched, Whole, Wish},
    rate::Meter,
    ready::Ready,
    resources::Resources,
    trackers::{self, TrackersHandle},
};

/// What all tasks of a torrent share.
#[derive(Debug)]
pub(crate) struct Torrent {
    /// By which its peers and trackers know it. A hybrid that was named by v2 only is in the store under that
    /// of v1.
    pub(crate) info_hash: InfoHash,
    pub(crate) session: Arc<Resources>,
    /// Until it was added to the session, of one that came as a magnet link.
    pub(crate) learning: Mutex<Option<Learning>>,
    /// Once the info dictionary is known.
    ready: OnceLock<Ready>,
    state: Mutex<State>,
    pub(crate) up: Meter,
    pub(crate) down: Meter,
    /// Bytes that came and were of no use.
    wasted: AtomicU64,
    /// Told when there is somebody to call, or room for another connection.
    pub(crate) calling: Notify,
    /// While it is announced.
    pub(crate) trackers: Mutex<Option<TrackersHandle>>,
    /// How far it is; also what made it fail.
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
    /// Whether all of them were in the store at some time since the torrent was added. What cannot be read
    /// later does not take that back.
    pub was_complete: bool,
    /// What the store said when it took no more: the torrent only seeds from then on.
    pub failed: Option<String>,
}

impl Progress {
    /// Whether every piece is in the store.
    pub const fn is_complete(&self) -> bool {
        self.pieces > 0 && self.complete == self.pieces
    }
}

#[derive(Debug)]
struct State {
    peers: BTreeMap<PeerKey, Entry>,
    picker: Option<Picker>,
    /// Pieces that are in the store, and can be asked for.
    have: PieceBits,
    /// Whether that was all of them at some time.
    was_complete: bool,
    /// Those that came since the torrent was added, in that order: each connection tells of those that it has
    /// not told of.
    came: Vec<u32>,
    choker: Choker,
    blame: Blame,
    banned: HashSet<IpAddr>,
    /// Who has left: blocks of theirs may be in pieces that turn out wrong.
    gone: VecDeque<(PeerKey, IpAddr)>,
    candidates: Candidates,
}

const UNKNOWN: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

/// How long somebody may be of no use when others want in.
const USELESS: Duration = Duration::from_secs(60);

/// Of who left before so many others, nobody knows the address any more.
const GONE: usize = 256;

/// A peer, as its torrent sees it.
#[derive(Debug)]
struct Entry {
    peer: Arc<Peer>,
    id: PeerId,
    /// Whether it was called, or has called.
    called: bool,
    since: Instant,
    /// Where it listens, if that is known, and whether it was reached there.
    listens: Option<(SocketAddr, PexFlags)>,
    has: Has,
    /// Pieces that it has and that are not in the store.
    wanted: u32,
    interested: bool,
    searched: Searched,
}

/// What a peer has.
#[derive(Debug)]
enum Has {
    All,
    Some(PieceBits),
}

/// A peer, as its connection sees it.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) key: PeerKey,
    pub(crate) address: SocketAddr,
    pub(crate) up: Meter,
    pub(crate) down: Meter,
    /// Something of what follows has changed, or there are pieces to tell of.
    pub(crate) wake: Notify,
    /// Whether its requests are answered.
    pub(crate) unchoked: AtomicBool,
    /// Whether it does not bring what it was asked for.
    pub(crate) snubs: AtomicBool,
    /// Blocks that it need not bring any more: no more than it was asked for.
    pub(crate) cancels: Mutex<Vec<Block>>,
    pub(crate) stop: CancellationToken,
}

/// What a connection asks for.
pub(crate) struct Ask<'a> {
    /// Blocks, at most.
    pub(crate) count: usize,
    /// While the peer chokes: the pieces that it brings all the same.
    pub(crate) allows: Option<&'a [u32]>,
    /// Pieces that it may be asked for, if it has them.
    pub(crate) may: &'a dyn Fn(u32) -> bool,
    /// Whether that has changed, and what was looked for in vain is to be looked for again.
    pub(crate) again: bool,
    pub(crate) now: Instant,
}

/// A peer of a torrent, for whoever looks at it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct PeerStatus {
    /// Where it is.
    pub address: SocketAddr,
    /// What it calls itself.
    pub id: PeerId,
    /// Pieces that it has.
    pub pieces: u32,
    /// Bytes of blocks that came from it and were wanted, and how many a second now.
    pub down: (u64, u64),
    /// Bytes of blocks that went to it, and how many a second now.
    pub up: (u64, u64),
    /// Whether its requests are answered.
    pub unchoked: bool,
}

/// A torrent, for whoever looks at it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Status {
    /// How far it is.
    pub progress: Progress,
    /// Bytes of blocks that came and were wanted, and how many a second now.
    pub down: (u64, u64),
    /// Bytes of blocks that went, and how many a second now.
    pub up: (u64, u64),
    /// Bytes of blocks that came and were of no use: wrong, too late, or not asked for.
    pub wasted: u64,
    /// Bytes of pieces that are not in the store.
    pub left: u64,
    /// Who is connected.
    pub peers: Vec<PeerStatus>,
    /// Addresses that brought wrong bytes, and are not spoken with; of IPv6, networks of 64 bits.
    pub banned: Vec<IpAddr>,
}

impl Torrent {
    pub(crate) fn new(info_hash: InfoHash, session: Arc<Resources>, learning: Option<Learning>) -> Self {
        let slots = session.config.upload_slots;
        let stop = session.stop.child_token();
        Self {
            info_hash,
            session,
            learning: Mutex::new(learning),
            ready: OnceLock::new(),
            state: Mutex::new(State {
                peers: BTreeMap::new(),
                picker: None,
                have: PieceBits::none(0),
                was_complete: false,
                came: Vec::new(),
                choker: Choker::new(slots),
                blame: Blame::default(),
                banned: HashSet::new(),
                gone: VecDeque::new(),
                candidates: Candidates::default(),
            }),
            up: Meter::default(),
            down: Meter::default(),
            wasted: AtomicU64::new(0),
            calling: Notify::new(),
            trackers: Mutex::new(None),
            progress: watch::Sender::new(Progress::default()),
            stop,
        }
    }

    /// The info dictionary has come, and the store has the torrent.
    pub(crate) fn make_ready(&self, info: Arc<Info>, content: Arc<dyn Content>) -> Result<(), Error> {
        let ready = Ready::new(info, content)?;
        let have = ready.content.pieces().map_err(Error::Store)?;
        let (memory, late) = (self.session.config.piece_memory, self.session.config.late());
        let picker = Picker::new(Arc::clone(&ready.info), have.clone(), memory, late, &mut rand::rng());
        {
            let mut state = self.state.lock();
            (state.picker, state.have) = (Some(picker), have);
            state.note_complete();
            let _ = self.ready.set(ready);
        }
        self.tell_progress();
        self.wake_all();
        Ok(())
    }

    pub(crate) fn ready(&self) -> Option<&Ready> {
        self.ready.get()
    }

    pub(crate) fn progress(&self) -> watch::Receiver<Progress> {
        self.progress.subscribe()
    }

    /// Counts while nobody else tells: of two pieces that come at the same time, the one that is told of last
    /// has been told of both.
    fn tell_progress(&self) {
        self.progress.send_modify(|progress| {
            let state = self.state.lock();
            (progress.pieces, progress.complete) = (state.have.pieces(), state.have.count());
            progress.was_complete = state.was_complete;
        });
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

    /// What trackers are told.
    pub(crate) fn announced(&self) -> trackers::Progress {
        trackers::Progress { uploaded: self.up.total(), downloaded: self.down.total(), left: self.left() }
    }

    /// Takes in a connection, if it is one that is wanted.
    pub(crate) fn join(
        &self,
        address: SocketAddr,
        id: PeerId,
        called: bool,
    ) -> Result<Arc<Peer>, &'static str> {
        let ip = address.ip().to_canonical();
        let mut state = self.state.lock();
        if id == self.session.config.peer_id {
            state.candidates.forget(address);
            return Err("it is this very session");
        }
        if state.banned.contains(&network(ip)) {
            return Err("it brought wrong bytes");
        }
        let config = &self.session.config;
        // An id is what somebody says of himself.
        let alike = |entry: &Entry| network(entry.peer.address.ip()) == network(ip);
        if let Some(other) = state.peers.values().find(|entry| entry.id == id && alike(entry)) {
            // Both called at the same time: both keep the call of the one with the greater id.
            let ours = config.peer_id.as_bytes() > id.as_bytes();
            if other.called == called || called != ours {
                return Err("it is connected already");
            }
            other.peer.stop.cancel();
        }
        let staying = || state.peers.values().filter(|entry| !entry.peer.stop.is_cancelled());
        if staying().filter(|entry| alike(entry)).count() >= config.connections_per_address {
            return Err("there are as many connections to its address as may be");
        }
        if staying().count() >= config.connections_per_torrent {
            // Who wants nothing and has nothing that is wanted makes room.
            let useless =
                |entry: &&Entry| !entry.interested && entry.wanted == 0 && entry.since.elapsed() > USELESS;
            let known = state.picker.is_some();
            let useless = staying().filter(|_| known).find(useless);
            useless.ok_or("there are as many connections as may be")?.peer.stop.cancel();
        }
        let peer = Arc::new(Peer {
            key: self.session.next_key(),
            address,
            up: Meter::default(),
            down: Meter::default(),
            wake: Notify::new(),
            unchoked: AtomicBool::new(false),
            snubs: AtomicBool::new(false),
            cancels: Mutex::default(),
            stop: self.stop.child_token(),
        });
        let pieces = state.have.pieces();
        let entry = Entry {
            peer: Arc::clone(&peer),
            id,
            called,
            since: Instant::now(),
            listens: called.then_some((address, PexFlags::REACHABLE)),
            has: Has::Some(PieceBits::none(pieces)),
            wanted: 0,
            interested: false,
            searched: Searched::default(),
        };
        state.peers.insert(peer.key, entry);
        Ok(peer)
    }

    /// A connection has ended.
    pub(crate) fn leave(&self, peer: &Peer) {
        let mut state = self.state.lock();
        let State { peers, picker, gone, .. } = &mut *state;
        let Some(entry) = peers.remove(&peer.key) else { return };
        gone.push_back((peer.key, peer.address.ip().to_canonical()));
        if gone.len() > GONE {
            gone.pop_front();
        }
        if let Some(picker) = picker {
            let rng = &mut rand::rng();
            picker.give_all_back(peer.key, rng);
            if let Has::Some(bits) = &entry.has {
                bits.iter().for_each(|piece| picker.lost(piece, rng));
            }
        }
        drop(state);
        if let Some(learning) = &mut *self.learning.lock() {
            learning.gone(peer.key);
        }
        self.calling.notify_one();
        // What it was asked for is to be asked of others.
        self.wake_all();
    }

    /// A peer said where it listens.
    pub(crate) fn listens(&self, peer: &Peer, address: SocketAddr) {
        let mut state = self.state.lock();
        if let Some(entry) = state.peers.get_mut(&peer.key) {
            entry.listens.get_or_insert((address, PexFlags::empty()));
        }
        state.candidates.add(address, Instant::now());
    }

    /// The others, where they can be called; those of this network are nobody's business outside.
    pub(crate) fn others(&self, peer: &Peer) -> BTreeMap<Endpoint, PexFlags> {
        let state = self.state.lock();
        let others = state.peers.values().filter(|entry| entry.peer.key != peer.key);
        let listening = others.filter_map(|entry| {
            let (address, flags) = entry.listens?;
            if is_near(address) && !is_near(peer.address) {
                return None;
            }
            let seeds = match &entry.has {
                Has::All => true,
                Has::Some(bits) => bits.pieces() > 0 && bits.count() == bits.pieces(),
            };
            let seeds = if seeds { PexFlags::SEEDER } else { PexFlags::empty() };
            Some((Endpoint::try_from(address).ok()?, flags | seeds))
        });
        listening.collect()
    }

    /// A peer has sent a part of the info dictionary.
    pub(crate) fn metadata(
        self: &Arc<Self>,
        peer: &Peer,
        piece: u32,
        total_size: u32,
        data: &[u8],
    ) -> Result<(), MetadataFault> {
        let mut learning = self.learning.lock();
        let Some(heard) =
            learning.as_mut().map(|learning| learning.metadata(peer.key, piece, total_size, data))
        else {
            return Ok(());
        };
        drop(learning);
        match heard {
            Ok(Heard::Part) => {}
            Ok(Heard::Again) => self.wake_all(),
            Ok(Heard::Whole { info, liars }) => {
                self.ban(&liars);
                let torrent = Arc::clone(self);
                self.session.spawn_blocking(move || {
                    let info = Info::parse(&info).map_err(|error| Error::Torrent(error.to_string()));
                    if let Some(learning) = &mut *torrent.learning.lock() {
                        learning.read(info);
                    }
                    torrent.wake_all();
                });
            }
            Err(fault) => {
                if fault == MetadataFault::Wrong {
                    self.ban(&[peer.key]);
                }
                return Err(fault);
            }
        }
        Ok(())
    }

    /// A peer has sent hashes of pieces.
    pub(crate) fn hashes(&self, peer: &Peer, hashes: &Hashes<'_>) -> Result<(), HashFault> {
        let taken = match &mut *self.learning.lock() {
            Some(learning) => learning.hashes(peer.key, hashes),
            None => Ok(()),
        };
        if taken == Err(HashFault::Wrong) {
            self.ban(&[peer.key]);
        }
        taken
    }

    fn ban(&self, peers: &[PeerKey]) {
        let mut state = self.state.lock();
        for peer in peers {
            let ip = ip_of(&state.peers, &state.gone, *peer);
            state.ban(ip);
        }
    }

    /// How many pieces are in the store, and their bits as they are sent; and how many have come so far.
    pub(crate) fn have(&self) -> (PieceBits, usize) {
        let state = self.state.lock();
        (state.have.clone(), state.came.len())
    }

    pub(crate) fn has(&self, piece: u32) -> bool {
        self.state.lock().have.contains(piece)
    }

    /// Pieces that have come since so many had.
    pub(crate) fn came_since(&self, told: usize, pieces: &mut Vec<u32>) {
        pieces.extend_from_slice(&self.state.lock().came[told..]);
    }

    /// A peer says which pieces it has, as the first thing.
    pub(crate) fn peer_has(&self, peer: &Peer, pieces: impl IntoIterator<Item = u32>) {
        let mut state = self.state.lock();
        let State { peers, picker: Some(picker), have, .. } = &mut *state else { return };
        let Some(entry) = peers.get_mut(&peer.key) else { return };
        entry.searched = Searched::default();
        let mut bits = PieceBits::none(have.pieces());
        pieces.into_iter().filter(|piece| *piece < have.pieces()).for_each(|piece| _ = bits.insert(piece));
        if bits.count() == have.pieces() {
            entry.has = Has::All;
            entry.wanted = have.pieces() - have.count();
            return;
        }
        let rng = &mut rand::rng();
        for piece in bits.iter() {
            picker.gained(piece, rng);
            entry.wanted += u32::from(!have.contains(piece));
        }
        entry.has = Has::Some(bits);
    }

    /// A peer has another piece.
    pub(crate) fn peer_gained(&self, peer: &Peer, piece: u32) {
        let mut state = self.state.lock();
        let State { peers, picker: Some(picker), have, .. } = &mut *state else { return };
        let Some(Entry { has: Has::Some(bits), wanted, searched, .. }) = peers.get_mut(&peer.key) else {
            return;
        };
        if piece < bits.pieces() && bits.insert(piece) {
            picker.gained(piece, &mut rand::rng());
            if !have.contains(piece) {
                *wanted += 1;
                *searched = Searched::default();
            }
        }
    }

    /// A peer has a piece no more (BEP 54).
    pub(crate) fn peer_lost(&self, peer: &Peer, piece: u32) {
        let mut state = self.state.lock();
        let State { peers, picker: Some(picker), have, .. } = &mut *state else { return };
        let Some(entry) = peers.get_mut(&peer.key) else { return };
        let rng = &mut rand::rng();
        if piece >= have.pieces() {
            return;
        }
        if matches!(entry.has, Has::All) {
            let mut bits = PieceBits::none(have.pieces());
            for piece in 0..have.pieces() {
                bits.insert(piece);
                picker.gained(piece, rng);
            }
            entry.has = Has::Some(bits);
        }
        if let Has::Some(bits) = &mut entry.has
            && bits.remove(piece)
        {
            picker.lost(piece, rng);
            entry.wanted -= u32::from(!have.contains(piece));
        }
    }

    /// Whether a peer has something that is wanted.
    pub(crate) fn is_interested_in(&self, peer: &Peer) -> bool {
        self.state.lock().peers.get(&peer.key).is_some_and(|entry| entry.wanted > 0)
    }

    /// Whether both have everything, and nothing to say.
    pub(crate) fn both_have_all(&self, peer: &Peer) -> bool {
        let state = self.state.lock();
        let all = |entry: &Entry| match &entry.has {
            Has::All => true,
            // One that was connected before the torrent was known has said nothing yet that counts.
            Has::Some(bits) => bits.pieces() > 0 && bits.count() == bits.pieces(),
        };
        state.have.pieces() > 0
            && state.have.count() == state.have.pieces()
            && state.peers.get(&peer.key).is_some_and(all)
    }

    /// A peer says whether it wants something. One that does is answered at once while there are slots.
    pub(crate) fn peer_wants(&self, peer: &Peer, interested: bool) {
        let mut state = self.state.lock();
        let slots = self.session.config.upload_slots;
        let unchoked = state.peers.values().filter(|entry| entry.peer.unchoked.load(Relaxed)).count();
        let Some(entry) = state.peers.get_mut(&peer.key) else { return };
        entry.interested = interested;
        if interested && unchoked < slots {
            peer.unchoked.store(true, Relaxed);
        }
    }

    /// Blocks to ask a peer for.
    pub(crate) fn pick(&self, peer: &Peer, ask: &Ask<'_>, asked: &mut Vec<Block>) {
        let Some(in_store) = self.ready().map(|ready| ready.info.info_hash()) else { return };
        let mut state = self.state.lock();
        let State { peers, picker: Some(picker), .. } = &mut *state else { return };
        let Some(entry) = peers.get_mut(&peer.key) else { return };
        if ask.again {
            entry.searched = Searched::default();
        }
        let may_begin = ask.allows.is_none() && picker.may_begin(peer.key, ask.count, &entry.searched);
        let mut near = Vec::new();
        if may_begin {
            // It has locks of its own, and others wait for this one.
            drop(state);
            near = self.session.store.affinity(&in_store, 16);
            state = self.state.lock();
        }
        let State { peers, picker: Some(picker), .. } = &mut *state else { return };
        let Some(Entry { has: bits, searched, .. }) = peers.get_mut(&peer.key) else { return };
        let bits = &*bits;
        let has = |piece| {
            (ask.may)(piece)
                && match bits {
                    Has::All => true,
                    Has::Some(bits) => piece < bits.pieces() && bits.contains(piece),
                }
        };
        let preferred: Vec<_> = near.into_iter().map(|affinity| affinity.piece).collect();
        let wish = Wish {
            peer: peer.key,
            from: network(peer.address.ip()),
            count: ask.count,
            has: &has,
            allows: ask.allows,
            preferred: &preferred,
            snubs: peer.snubs.load(Relaxed),
            now: ask.now,
        };
        picker.pick(&wish, searched, &mut rand::rng(), asked);
    }

    /// A peer will not bring blocks that it was asked for. Others are to be [woken](Self::wake_all), if they
    /// are to ask for them.
    pub(crate) fn give_back(&self, peer: &Peer, blocks: impl IntoIterator<Item = Block>) {
        if let Some(picker) = &mut self.state.lock().picker {
            picker.give_back(peer.key, blocks, &mut rand::rng());
        }
    }

    /// Bytes have come that nobody asked for.
    pub(crate) fn unasked(&self, bytes: u64) {
        self.wasted.fetch_add(bytes, Relaxed);
    }

    /// A block has come of a peer that was asked for it. A piece that is whole with it is to be
    /// [stored](Self::store), on a thread that may block.
    pub(crate) fn received(&self, peer: &Peer, piece: u32, begin: u32, data: &[u8]) -> Option<Whole> {
        let bytes = data.len() as u64;
        let mut state = self.state.lock();
        let State { peers, picker: Some(picker), .. } = &mut *state else { return None };
        let (cancel, whole) = match picker.received(peer.key, piece, begin, data, Instant::now()) {
            Received::Unwanted => {
                self.wasted.fetch_add(bytes, Relaxed);
                return None;
            }
            Received::Block { cancel } => (cancel, None),
            Received::Whole { cancel, piece } => (cancel, Some(piece)),
        };
        self.down.add(bytes);
        peer.down.add(bytes);
        for other in cancel.iter().filter_map(|other| peers.get(other)) {
            let block =
                Block { piece: swarmkeep_peer_wire::PieceIndex(piece), begin, length: data.len() as u32 };
            other.peer.cancels.lock().push(block);
            other.peer.wake.notify_one();
        }
        whole
    }

    /// Verifies a piece and puts it into the store.
    pub(crate) fn store(&self, whole: Whole) {
        let Some(Ready { info, content, .. }) = self.ready() else { return };
        let Whole { piece, mut data, from } = whole;
        let right = info.verify(piece, &data);
        let stored = if right {
            (|| {
                let range = content.geometry().piece(piece)?;
                // The padding behind a file of v2 is in no message, and in the store.
                data.resize((range.end - range.start) as usize, 0);
                content.write(range.start, &data)?;
                content.mark_complete(piece)
            })()
        } else {
            Ok(false)
        };
        data.truncate(info.piece_len(piece) as usize);
        match stored {
            Ok(_) if right => self.stored(piece, &data),
            Ok(_) => self.wrong(piece, &data, &from),
            Err(error) => self.fail(piece, &error.to_string()),
        }
    }

    fn stored(&self, piece: u32, data: &[u8]) {
        let mut state = self.state.lock();
        let State { peers, picker: Some(picker), have, came, blame, .. } = &mut *state else { return };
        picker.verified(piece, true, false, &mut rand::rng());
        have.insert(piece);
        came.push(piece);
        for entry in peers.values_mut() {
            entry.wanted -= u32::from(match &entry.has {
                Has::All => true,
                Has::Some(bits) => bits.contains(piece),
            });
        }
        let to_blame = blame.right(piece, data);
        state.note_complete();
        to_blame.into_iter().for_each(|ip| state.ban(ip));
        drop(state);
        self.tell_progress();
        self.session.unflushed.store(true, Relaxed);
        self.wake_all();
    }

    fn wrong(&self, piece: u32, data: &[u8], from: &[PeerKey]) {
        self.wasted.fetch_add(data.len() as u64, Relaxed);
        let mut state = self.state.lock();
        let State { peers, picker: Some(picker), blame, gone, .. } = &mut *state else { return };
        let ips: Vec<_> = from.iter().map(|key| ip_of(peers, gone, *key)).collect();
        let to_blame = blame.wrong(piece, data, &ips);
        picker.verified(piece, false, to_blame.is_none(), &mut rand::rng());
        if let Some(ip) = to_blame {
            state.ban(ip);
        }
        drop(state);
        self.wake_all();
    }

    /// Something that was written is not in the store, or may not be: what is complete is what it says now.
    pub(crate) fn recount(&self, error: &str) {
        let Some(ready) = self.ready() else { return };
        // What comes meanwhile was not lost.
        let before = self.have().0;
        let there = ready.content.pieces();
        let mut state = self.state.lock();
        let lost: Vec<_> = match &there {
            Ok(there) => before.iter().filter(|piece| !there.contains(*piece)).collect(),
            // Nothing is promised then.
            Err(_) => before.iter().collect(),
        };
        lost.iter().for_each(|piece| state.lose(*piece));
        drop(state);
        self.tell_progress();
        if let Some(piece) = lost.first() {
            self.fail(*piece, error);
        }
    }

    /// The store takes no more.
    fn fail(&self, piece: u32, error: &str) {
        tracing::error!(info_hash = %self.info_hash, piece, error, "the store does not take a piece");
        self.state.lock().picker = None;
        self.progress.send_modify(|progress| _ = progress.failed.get_or_insert_with(|| error.to_owned()));
        self.wake_all();
    }

    /// A complete piece cannot be read any more: it is offered to nobody until it was repaired, or fetched
    /// again. A torrent that is being fetched would not be complete with it, and ends.
    pub(crate) fn unreadable(&self, piece: u32, error: &StoreError) {
        let mut state = self.state.lock();
        if !state.have.contains(piece) {
            return;
        }
        let was_complete = state.was_complete;
        state.lose(piece);
        drop(state);
        tracing::error!(info_hash = %self.info_hash, piece, %error, "a complete piece cannot be read");
        self.tell_progress();
        if !was_complete {
            self.fail(piece, &error.to_string());
        }
    }

    /// Others have told of peers.
    pub(crate) fn found(&self, addresses: impl IntoIterator<Item = SocketAddr>) {
        let (mut state, now) = (self.state.lock(), Instant::now());
        addresses.into_iter().for_each(|address| state.candidates.add(address, now));
        drop(state);
        self.calling.notify_one();
    }

    /// Who is to be called now.
    pub(crate) fn to_call(&self) -> Option<SocketAddr> {
        let mut state = self.state.lock();
        if state.peers.len() >= self.session.config.connections_per_torrent {
            return None;
        }
        let State { candidates, peers, banned, .. } = &mut *state;
        let now = Instant::now();
        loop {
            let address = candidates.take(now)?;
            let connected = |entry: &Entry| {
                entry.peer.address == address || entry.listens.is_some_and(|(listens, _)| listens == address)
            };
            if banned.contains(&network(address.ip())) {
                candidates.forget(address);
            } else if peers.values().any(connected)
                || peers
                    .values()
                    .filter(|entry| network(entry.peer.address.ip()) == network(address.ip()))
                    .count()
                    >= self.session.config.connections_per_address
            {
                candidates.ended(address, true, now);
            } else {
                return Some(address);
            }
        }
    }

    pub(crate) fn called(&self, address: SocketAddr, of_use: bool) {
        self.state.lock().candidates.ended(address, of_use, Instant::now());
    }

    /// Once a second: rates.
    pub(crate) fn tick(&self, since: Duration) {
        self.up.tick(since);
        self.down.tick(since);
        for entry in self.state.lock().peers.values() {
            entry.peer.up.tick(since);
            entry.peer.down.tick(since);
        }
    }

    /// Every ten seconds: whose requests are answered.
    pub(crate) fn choke(&self) {
        let mut state = self.state.lock();
        let seeding = state.picker.as_ref().is_none_or(Picker::nothing_is_wanted);
        let asking: Vec<_> = state
            .peers
            .values()
            .map(|Entry { peer, interested, .. }| Asking {
                peer: peer.key,
                interested: *interested,
                snubs: peer.snubs.load(Relaxed),
                brings: peer.down.rate(),
                takes: peer.up.rate(),
            })
            .collect();
        let unchoked = state.choker.decide(&asking, seeding, &mut rand::rng());
        for entry in state.peers.values() {
            let now = unchoked.contains(&entry.peer.key);
            if entry.peer.unchoked.swap(now, Relaxed) != now {
                entry.peer.wake.notify_one();
            }
        }
    }

    pub(crate) fn status(&self) -> Status {
        let (left, progress) = (self.left(), self.progress.borrow().clone());
        let state = self.state.lock();
        let peers = state.peers.values().map(|entry| PeerStatus {
            address: entry.peer.address,
            id: entry.id,
            pieces: match &entry.has {
                Has::All => state.have.pieces(),
                Has::Some(bits) => bits.count(),
            },
            down: (entry.peer.down.total(), entry.peer.down.rate()),
            up: (entry.peer.up.total(), entry.peer.up.rate()),
            unchoked: entry.peer.unchoked.load(Relaxed),
        });
        Status {
            progress,
            down: (self.down.total(), self.down.rate()),
            up: (self.up.total(), self.up.rate()),
            wasted: self.wasted.load(Relaxed),
            left,
            peers: peers.collect(),
            banned: state.banned.iter().copied().collect(),
        }
    }

    /// Tells trackers that it ends.
    pub(crate) fn leave_trackers(&self) -> Option<impl Future<Output = ()> + use<>> {
        let trackers = self.trackers.lock().take()?;
        // Who waits for the last piece may be here before those that tell trackers of it.
        if self.is_complete() {
            trackers.completed();
        }
        Some(trackers.stop())
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

/// Whether an address means something in a local network only.
pub(crate) fn is_near(address: SocketAddr) -> bool {
    match address.ip().to_canonical() {
        IpAddr::V4(ip) => ip.is_loopback() || ip.is_private() || ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_loopback() || ip.is_unique_local() || ip.is_unicast_link_local(),
    }
}

/// Where a peer is, or was.
fn ip_of(peers: &BTreeMap<PeerKey, Entry>, gone: &VecDeque<(PeerKey, IpAddr)>, key: PeerKey) -> IpAddr {
    match peers.get(&key) {
        Some(entry) => entry.peer.address.ip().to_canonical(),
        None => gone.iter().find(|(gone, _)| *gone == key).map_or(UNKNOWN, |(_, ip)| *ip),
    }
}

impl State {
    fn note_complete(&mut self) {
        self.was_complete |= self.have.pieces() > 0 && self.have.count() == self.have.pieces();
    }

    /// A piece is not in the store after all.
    fn lose(&mut self, piece: u32) {
        if !self.have.remove(piece) {
            return;
        }
        for entry in self.peers.values_mut() {
            entry.wanted += u32::from(match &entry.has {
                Has::All => true,
                Has::Some(bits) => bits.contains(piece),
            });
        }
    }

    /// No more is said to or taken from an address.
    fn ban(&mut self, ip: IpAddr) {
        let banned = network(ip);
        if ip == UNKNOWN || !self.banned.insert(banned) {
            return;
        }
        tracing::warn!(%ip, "brought wrong bytes, and is not spoken with any more");
        for entry in self.peers.values() {
            if network(entry.peer.address.ip()) == banned {
                entry.peer.stop.cancel();
            }
        }
    }
}
