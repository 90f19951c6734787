//! All torrents of a program: the addresses where it listens, the store, and the tasks.

use std::{
    collections::HashMap,
    io,
    net::{IpAddr, SocketAddr},
    slice,
    sync::{Arc, OnceLock, Weak, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};

use parking_lot::{Mutex, RwLock};
use swarmkeep_bittorrent::{InfoHash, in_words};
use swarmkeep_content::{
    ContentRepository, Error as StoreError, NewTorrent, PieceBits, Verified,
    stripe_cache::{StripeCache, StripeCacheOptions},
};
use swarmkeep_metainfo::{Info, Magnet, Metainfo};
use swarmkeep_peer_wire::{Limits, ReceiveBuffer};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Semaphore, mpsc, watch},
    task::{JoinSet, spawn_blocking},
    time::{MissedTickBehavior, timeout},
};

use crate::{
    Error, Progress, Status,
    candidates::{self, Outcome},
    config::SessionConfig,
    connection::{EndReason, handshake},
    learning::Learning,
    lobby::{Lobby, LobbyPlace},
    network::{SIZES, are_neighbours},
    permits::Permits,
    resources::Resources,
    source::Source,
    torrent::{
        Torrent,
        seats::{NoSeat, Seat},
    },
    trackers::{Found, Identity, TrackerClient, TrackerStatus, Trackers, TrackersHandle, UrlError},
};

/// Seeds and fetches torrents, until it is [stopped](Self::stop).
#[derive(Debug)]
pub struct Session {
    state: Arc<SessionState>,
    addresses: Vec<SocketAddr>,
}

#[derive(Debug)]
struct SessionState {
    resources: Arc<Resources>,
    torrents: RwLock<HashMap<InfoHash, Arc<Torrent>>>,
    permits: Permits,
    /// The addresses of the incoming connections that have named a torrent.
    callers: Mutex<Vec<IpAddr>>,
    /// Incoming connections that have not named a torrent yet.
    lobby: Arc<Lobby>,
    /// Permits to establish an outgoing connection, so that not all known addresses are called at once.
    calling: Arc<Semaphore>,
    announcing: TrackerClient,
    source: Source,
    /// The key by which trackers recognize this program.
    tracker_key: u32,
    /// The hashes that verify the pieces of the store.
    infos: Arc<Infos>,
    /// The first caller that began with something else than the handshake of BitTorrent.
    stranger: OnceLock<IpAddr>,
    /// The error of the last flush that failed: some fetched pieces may be lost.
    unflushable: Mutex<Option<StoreError>>,
}

/// Info dictionaries, which the torrents own.
type Infos = Mutex<HashMap<InfoHash, Weak<Info>>>;

/// A torrent of a session.
#[derive(Debug, Clone)]
pub struct Handle {
    torrent: Arc<Torrent>,
}

/// The longest time between two flushes of whole stripes, if something was written.
const FLUSH: Duration = Duration::from_secs(5);
/// How often changed content is looked at, depending on how long that takes.
const LOOK: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];
/// The most outgoing connections that are being established at a time.
const CALLS: usize = 30;
/// How often rates are measured.
const SECOND: Duration = Duration::from_secs(1);
/// How long it may take to establish a connection.
const CALL: Duration = Duration::from_secs(10);
/// A connection that lasted longer than this counts as useful.
const OF_USE: Duration = Duration::from_secs(60);

impl Session {
    /// Listens and shares torrents over `store`, which nothing else may use meanwhile. Its pieces are
    /// [verified](Verified) before they are sent. The tasks of the session run on the current runtime.
    ///
    /// # Errors
    /// [`Error::Listen`], [`Error::Store`].
    pub async fn start(config: SessionConfig, store: Arc<dyn ContentRepository>) -> Result<Self, Error> {
        let mut options = StripeCacheOptions::new();
        (options.write_memory, options.read_memory) = (config.write_memory, config.read_memory);
        let infos = Arc::<Infos>::default();
        let known = Arc::clone(&infos);
        let hashes = move |info_hash: &InfoHash| Ok(known.lock().get(info_hash).and_then(Weak::upgrade));
        let store = Arc::new(Verified::new(store, hashes));
        let store = Arc::new(StripeCache::new(store, options).map_err(Error::Store)?);
        let mut listeners = Vec::new();
        for address in &config.listen {
            let listen = |source| Error::Listen { address: *address, source };
            listeners.push(listen_at(*address).map_err(listen)?);
        }
        let addresses: Vec<_> =
            listeners.iter().map(TcpListener::local_addr).collect::<io::Result<_>>().map_err(Error::Io)?;
        let source = Source::of(addresses.iter().map(SocketAddr::ip));
        let mut client = config.tracker_client.clone();
        client.addresses = addresses.iter().map(SocketAddr::ip).collect();
        client.trusted.extend(config.user_trackers.iter().cloned());
        let announcing = TrackerClient::new(client).map_err(Error::Io)?;
        let state = Arc::new(SessionState {
            source,
            permits: Permits::new(config.connections),
            callers: Mutex::default(),
            lobby: Arc::default(),
            calling: Arc::new(Semaphore::new(CALLS)),
            announcing,
            tracker_key: rand::random(),
            torrents: RwLock::default(),
            infos,
            stranger: OnceLock::new(),
            unflushable: Mutex::new(None),
            resources: Arc::new(Resources::new(config, store, addresses.clone())),
        });
        for listener in listeners {
            state.resources.spawn(Arc::clone(&state).accept(listener));
        }
        state.resources.tasks.spawn(Arc::clone(&state).flush_often());
        state.resources.spawn(Arc::clone(&state).look_often());
        Ok(Self { state, addresses })
    }

    /// The addresses that it listens at.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// The first caller that did not begin with the handshake of BitTorrent. It may require encryption, which
    /// is not supported; one that only prefers it calls again without.
    pub fn stranger(&self) -> Option<IpAddr> {
        self.state.stranger.get().copied()
    }

    /// Shares a torrent: the pieces that the store has are seeded, and the others are fetched. It is
    /// announced to the trackers of `tiers`, which may be empty. A torrent that was [learnt](Self::learn)
    /// keeps the peers and trackers from which it was learnt; an info hash that the link did not have is
    /// announced to those of `tiers`. If the future is dropped before it is ready, the session does not keep
    /// the torrent.
    ///
    /// # Errors
    /// [`Error::Exists`] if the session has one of its info hashes, [`Error::Torrent`] if it cannot be
    /// shared, [`Error::Store`].
    pub async fn add(&self, info: Arc<Info>, tiers: &[Vec<String>]) -> Result<Handle, Error> {
        if !info.knows_hashes() {
            let what = "it has no hashes of some pieces, which can be learnt by its magnet link";
            return Err(Error::Torrent(what.to_owned()));
        }
        let info_hash = info.info_hash();
        let names: Vec<_> = info.info_hashes().collect();
        let mut all_learnt = names.iter().filter_map(|name| self.take_learnt(name));
        let learnt = all_learnt.next();
        all_learnt.for_each(|other| self.state.forget(&other));
        let begins = learnt.is_none();
        let torrent =
            learnt.unwrap_or_else(|| Torrent::new(info_hash, Arc::clone(&self.state.resources), None).into());
        {
            let mut torrents = self.state.torrents.write();
            for &name in &names {
                let there = torrents.entry(name).or_insert_with(|| Arc::clone(&torrent));
                if !Arc::ptr_eq(there, &torrent) {
                    drop(torrents);
                    // A torrent that was learnt by another info hash is of no use any more.
                    self.state.forget(&torrent);
                    return Err(Error::Exists(name));
                }
            }
        }
        self.state.infos.lock().insert(info_hash, Arc::downgrade(&info));
        // Until it is ready: making it may fail, and the caller may drop this future.
        let unmade = ForgetOnDrop(&self.state, &torrent);
        let making = {
            let torrent = Arc::clone(&torrent);
            self.state.resources.spawn_blocking(move || {
                let store = &torrent.session.store;
                let content = match store.open(&info_hash) {
                    Err(StoreError::NotFound(_)) => {
                        match NewTorrent::of(&info).and_then(|new| store.create(&new)) {
                            // An earlier call, which was dropped, has created it.
                            Err(StoreError::Exists(_)) => store.open(&info_hash),
                            created => created,
                        }
                    }
                    found => found,
                };
                torrent.make_ready(info, content.map_err(Error::Store)?)
            })
        };
        making.await.map_err(|error| Error::Io(error.into()))??;
        std::mem::forget(unmade);
        let other = torrent.is_also(names);
        if begins {
            self.begin(&torrent, tiers);
        } else if let Some(other) = other {
            self.announce(&torrent, other, tiers);
        }
        Ok(Handle { torrent })
    }

    /// Fetches the metadata of a magnet link from the peers that the link and its trackers list: the info
    /// dictionary (BEP 9) and, for v2, the hashes of the pieces (BEP 52). It waits until such a peer is
    /// found, however long that takes. If it fails, or the future is dropped, the session keeps nothing of
    /// the torrent. Afterwards the torrent and its peers wait to be [added](Self::add), or
    /// [forgotten](Self::forget).
    ///
    /// # Errors
    /// [`Error::Exists`] if the session has one of its info hashes, [`Error::Torrent`] if it cannot be shared
    /// or is not of a version that the link names, [`Error::Stopped`].
    pub async fn learn(&self, magnet: &Magnet) -> Result<Metainfo, Error> {
        let (learning, learnt) = Learning::new(magnet);
        let info_hash = magnet.info_hash();
        let torrent = Arc::new(Torrent::new(info_hash, Arc::clone(&self.state.resources), Some(learning)));
        torrent.is_also(magnet.info_hashes());
        {
            let mut torrents = self.state.torrents.write();
            if let Some(name) = torrent.info_hashes().find(|name| torrents.contains_key(name)) {
                return Err(Error::Exists(name));
            }
            torrents.extend(torrent.info_hashes().map(|name| (name, Arc::clone(&torrent))));
        }
        let unlearnt = ForgetOnDrop(&self.state, &torrent);
        // A link has no tiers: the torrent announces to all of its trackers.
        let tiers: Vec<_> = magnet.trackers().iter().map(|url| vec![url.clone()]).collect();
        self.begin(&torrent, &tiers);
        let (peers, finds) = (magnet.peers().to_vec(), Arc::clone(&torrent));
        torrent.spawn(async move {
            for peer in peers {
                match tokio::net::lookup_host(&peer).await {
                    Ok(found) => finds.found(candidates::Source::Link, found),
                    Err(error) => tracing::warn!(peer, %error, "a peer of a magnet link"),
                }
            }
        });
        let info = tokio::select! {
            learnt = learnt => learnt.map_err(|_| Error::Stopped)??,
            () = torrent.stop.cancelled() => return Err(Error::Stopped),
        };
        if !magnet.names(&info) {
            return Err(Error::Torrent(
                "the link has an info hash of a version that the torrent is not of".to_owned(),
            ));
        }
        std::mem::forget(unlearnt);
        Ok(Metainfo::new(info, &tiers))
    }

    /// A torrent of this session, including one that is being [learnt](Self::learn).
    pub fn torrent(&self, info_hash: &InfoHash) -> Option<Handle> {
        self.state.torrent(info_hash).map(|torrent| Handle { torrent })
    }

    /// Ends a torrent that was [learnt](Self::learn) and will not be [added](Self::add).
    pub fn forget(&self, info_hash: &InfoHash) {
        if let Some(torrent) = self.take_learnt(info_hash) {
            self.state.forget(&torrent);
        }
    }

    /// Returns a torrent that was learnt to one call of `add` only.
    fn take_learnt(&self, info_hash: &InfoHash) -> Option<Arc<Torrent>> {
        let torrent = self.state.torrent(info_hash)?;
        let taken = torrent.learning.lock().take_if(|learning| learning.is_done()).is_some();
        taken.then_some(torrent)
    }

    /// Starts the tasks of a torrent: they call its peers, measure its rates, and announce it.
    fn begin(&self, torrent: &Arc<Torrent>, tiers: &[Vec<String>]) {
        torrent.spawn(call_others(Arc::clone(&self.state), Arc::clone(torrent)));
        torrent.spawn(keep_time(Arc::clone(torrent)));
        torrent.info_hashes().for_each(|name| self.announce(torrent, name, tiers));
    }

    fn announce(&self, torrent: &Arc<Torrent>, info_hash: InfoHash, tiers: &[Vec<String>]) {
        let state = &self.state;
        let config = &state.resources.config;
        let identity = Identity {
            info_hash,
            peer_id: config.peer_id,
            ports: [true, false].map(|v4| state.resources.port(v4).unwrap_or(0)),
            key: state.tracker_key,
        };
        // As in qBittorrent: a private torrent is announced to its own trackers alone.
        let is_private = torrent.ready().is_some_and(|ready| ready.info.is_private());
        let keeps_its_own = is_private && tiers.iter().any(|tier| !tier.is_empty());
        let users = if keeps_its_own { &[][..] } else { &config.user_trackers[..] };
        let tiers = users.iter().map(slice::from_ref).chain(tiers.iter().map(Vec::as_slice));
        let trackers = Trackers::new(tiers, identity, state.announcing.clone(), &config.trackers);
        let (found, mut peers) = mpsc::channel(4);
        let progress = {
            let torrent = Arc::downgrade(torrent);
            move || torrent.upgrade().map(|torrent| torrent.announced()).unwrap_or_default()
        };
        let mut changes = torrent.progress();
        let mut complete = changes.borrow_and_update().was_complete;
        torrent.trackers.lock().push(trackers.spawn(progress, found));
        let source = if info_hash == torrent.info_hash {
            candidates::Source::Tracker
        } else {
            candidates::Source::OtherSwarm
        };
        let followed = Arc::clone(torrent);
        torrent.spawn(async move {
            let torrent = followed;
            loop {
                tokio::select! {
                    Some(Found { tracker, peers }) = peers.recv() => {
                        let addresses = peers.into_iter().map(|peer| SocketAddr::new(peer.ip(), peer.port()));
                        torrent.found(source(tracker), addresses);
                    }
                    Ok(()) = changes.changed(), if !complete => {
                        complete = changes.borrow_and_update().was_complete;
                        if complete {
                            torrent.trackers.lock().iter().for_each(TrackersHandle::completed);
                        }
                    }
                    else => return,
                }
            }
        });
    }

    /// Ends every connection, notifies the trackers, and makes fetched pieces durable.
    ///
    /// # Errors
    /// [`Error::Store`]: some fetched pieces may not be durable.
    pub async fn stop(self) -> Result<(), Error> {
        self.state.resources.stop.cancel();
        self.state.resources.tasks.close();
        let torrents = std::mem::take(&mut *self.state.torrents.write());
        let mut stops: JoinSet<_> = torrents.values().flat_map(|torrent| torrent.leave_trackers()).collect();
        while stops.join_next().await.is_some() {}
        self.state.resources.tasks.wait().await;
        let store = Arc::clone(&self.state.resources.store);
        spawn_blocking(move || store.flush())
            .await
            .map_err(|error| Error::Io(error.into()))?
            .map_err(Error::Store)?;
        self.state.unflushable.lock().take().map_or(Ok(()), |error| Err(Error::Store(error)))
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.state.resources.stop.cancel();
        // Tasks that wait for trackers own the torrents, and these own the session.
        for torrent in std::mem::take(&mut *self.state.torrents.write()).into_values() {
            torrent.trackers.lock().clear();
        }
    }
}

impl Handle {
    /// The info hash of the torrent.
    pub fn info_hash(&self) -> InfoHash {
        self.torrent.info_hash
    }

    /// The present state of the torrent. O(pieces + peers).
    pub fn status(&self) -> Status {
        self.torrent.status()
    }

    /// The progress of the torrent, as a channel that receives each change.
    pub fn progress(&self) -> watch::Receiver<Progress> {
        self.torrent.progress()
    }

    /// The pieces that are in the store.
    pub fn pieces(&self) -> PieceBits {
        self.torrent.have().0
    }

    /// The state of its trackers; for a hybrid, those of its first announced info hash.
    pub fn trackers(&self) -> Vec<TrackerStatus> {
        self.torrent.trackers.lock().first().map(TrackersHandle::status).unwrap_or_default()
    }

    /// The URLs that are not among them, and why.
    pub fn refused_trackers(&self) -> Vec<(String, UrlError)> {
        self.torrent.trackers.lock().first().map(|list| list.refused().to_vec()).unwrap_or_default()
    }

    /// Adds addresses of peers to connect to. Up to 500 are tried again and again, whatever else is known;
    /// further ones are ignored.
    pub fn found(&self, addresses: impl IntoIterator<Item = SocketAddr>) {
        self.torrent.found(candidates::Source::User, addresses);
    }

    /// Waits until every piece is, or has been, in the store since the torrent was added.
    ///
    /// # Errors
    /// [`Error::Failed`] if the store refuses further pieces, [`Error::Stopped`].
    pub async fn complete(&self) -> Result<(), Error> {
        let mut progress = self.progress();
        let reached = tokio::select! {
            reached = progress.wait_for(|progress| progress.was_complete || progress.failed.is_some()) => reached,
            () = self.torrent.stop.cancelled() => return Err(Error::Stopped),
        };
        match reached.map_err(|_| Error::Stopped)?.failed.clone() {
            Some(failed) => Err(Error::Failed(failed)),
            None => Ok(()),
        }
    }
}

/// An incoming connection, counted until this is dropped.
struct IncomingConnection {
    session: Arc<SessionState>,
    ip: IpAddr,
}

impl IncomingConnection {
    /// `None` if its networks have as many as they may have: a quarter of all connections per IPv4 address,
    /// or per IPv6 network of 64 or 56 bits, and half of them per IPv6 network of 48 bits.
    fn of(session: &Arc<SessionState>, ip: IpAddr) -> Option<Self> {
        let config = &session.resources.config;
        let most = (config.connections / 4).max(config.connections_per_address);
        let mut callers = session.callers.lock();
        let is_crowded = SIZES.into_iter().zip([most, most, 2 * most]).any(|(bits, most)| {
            callers.iter().filter(|other| are_neighbours(**other, ip, bits)).count() >= most
        });
        (!is_crowded).then(|| {
            callers.push(ip);
            Self { session: Arc::clone(session), ip }
        })
    }
}

impl Drop for IncomingConnection {
    fn drop(&mut self) {
        let mut callers = self.session.callers.lock();
        let nth = callers.iter().position(|ip| *ip == self.ip).expect("it was added");
        callers.swap_remove(nth);
    }
}

/// Removes a torrent from the session when it is dropped. Leak it to keep the torrent.
struct ForgetOnDrop<'a>(&'a SessionState, &'a Arc<Torrent>);

impl Drop for ForgetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.forget(self.1);
    }
}

impl SessionState {
    /// Removes a torrent and ends its tasks.
    fn forget(&self, torrent: &Arc<Torrent>) {
        self.torrents.write().retain(|_, other| !Arc::ptr_eq(other, torrent));
        torrent.stop.cancel();
        let stops = torrent.leave_trackers();
        // Without a runtime, no tracker can be notified.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            stops.for_each(|stop| drop(self.resources.tasks.spawn_on(stop, &runtime)));
        }
    }

    fn torrent(&self, info_hash: &InfoHash) -> Option<Arc<Torrent>> {
        self.torrents.read().get(info_hash).cloned()
    }

    async fn accept(self: Arc<Self>, listener: TcpListener) {
        loop {
            match listener.accept().await {
                Ok((stream, address)) => {
                    let (state, place) = (Arc::clone(&self), self.lobby.enter(address.ip()));
                    self.resources.spawn(async move {
                        let leaves = place.leaves.clone();
                        // Boxed, since each future around this one would contain a copy of it.
                        let answer = Box::pin(state.answer(stream, place));
                        let answered = leaves.run_until_cancelled(answer).await;
                        log(address, answered.unwrap_or(Err(EndReason::Refused("too many others connect"))));
                    });
                }
                // Perhaps no descriptor is free: another one may be soon.
                Err(error) => {
                    tracing::warn!(error = %in_words(&error), "accepting a connection");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }

    /// Answers an incoming connection, once it has named a torrent.
    async fn answer(self: Arc<Self>, stream: TcpStream, place: LobbyPlace) -> Result<(), EndReason> {
        let (ip, mut received) = (stream.peer_addr()?.ip(), ReceiveBuffer::new(Limits::new()));
        let peeked = handshake::peek(&stream, &mut received).await;
        if let Err(EndReason::Wire(_)) = peeked {
            let _ = self.stranger.set(ip.to_canonical());
        }
        let peeked = peeked?;
        let torrent = self.torrent(&peeked.1).ok_or(EndReason::Misbehaves("wants an unknown torrent"))?;
        let crowded = EndReason::Refused("too many connections to its network");
        let _caller = IncomingConnection::of(&self, ip).ok_or(crowded)?;
        let seat = self.seat(&torrent, ip, false)?;
        drop((place, torrent));
        let stop = seat.stop.clone();
        let answered = stop.run_until_cancelled(handshake::answer(stream, received, peeked, seat)).await;
        answered.unwrap_or(Err(EndReason::Stopped))
    }

    /// Takes a place for a connection. If the session has none, the most dispensable connection in the same
    /// direction ends.
    fn seat(&self, torrent: &Arc<Torrent>, ip: IpAddr, outgoing: bool) -> Result<Seat, EndReason> {
        let now = Instant::now();
        let seated = match torrent.seat(ip, outgoing, self.permits.take(outgoing), now) {
            Err(NoSeat::NoPermit) => {
                let torrents: Vec<_> = self.torrents.read().values().cloned().collect();
                let ranked = torrents
                    .iter()
                    .filter_map(|torrent| Some((torrent.most_dispensable(ip, outgoing, now)?, torrent)));
                let most = ranked.max_by(|(one, _), (other, _)| one.cmp(other));
                torrent.seat(ip, outgoing, most.and_then(|((_, key), torrent)| torrent.end(key)), now)
            }
            seated => seated,
        };
        seated.map_err(|why| match why {
            NoSeat::Refused(why) => EndReason::Refused(why),
            NoSeat::NoPermit => EndReason::Refused("the session has too many connections"),
        })
    }

    async fn flush_often(self: Arc<Self>) {
        let within = self.resources.config.write_within;
        let period = (within / 12).clamp(Duration::from_millis(10), FLUSH);
        let age = within.saturating_sub(period);
        let mut often = tokio::time::interval(period);
        // A flush that has begun is not cancelled: it may be the only one that returns an error.
        while self.resources.stop.run_until_cancelled(often.tick()).await.is_some() {
            if self.resources.unflushed.swap(false, Relaxed) {
                let store = Arc::clone(&self.resources.store);
                let flushed = spawn_blocking(move || store.flush_older(age)).await;
                if !matches!(flushed, Ok(Ok(false))) {
                    self.resources.unflushed.store(true, Relaxed);
                }
                if let Ok(Err(error)) = flushed {
                    tracing::error!(%error, "flushing the store");
                    // The store returns the error once, and has taken back pieces that it reported complete.
                    let (state, text) = (Arc::clone(&self), error.to_string());
                    let recounted = spawn_blocking(move || {
                        let torrents: Vec<_> = state.torrents.read().values().cloned().collect();
                        torrents.iter().for_each(|torrent| torrent.recount(&text));
                    });
                    let _ = recounted.await;
                    *self.unflushable.lock() = Some(error);
                }
            }
        }
    }

    /// Verifies content again that other programs have changed.
    async fn look_often(self: Arc<Self>) {
        let mut pause = LOOK[0];
        loop {
            tokio::time::sleep(pause).await;
            let (state, began) = (Arc::clone(&self), Instant::now());
            // The session does not wait for it when it is stopped.
            let looked = spawn_blocking(move || {
                let stop = &state.resources.stop;
                let torrents: Vec<_> = state.torrents.read().values().cloned().collect();
                let verify = |torrent: &&Arc<Torrent>| {
                    torrent.ready().is_some_and(|ready| ready.content.verify_changes(&|| stop.is_cancelled()))
                };
                torrents.iter().filter(verify).for_each(|torrent| torrent.follow(None));
            });
            let _ = looked.await;
            pause = (10 * began.elapsed()).clamp(LOOK[0], LOOK[1]);
        }
    }
}

/// Connects to known addresses while there is room for connections.
async fn call_others(state: Arc<SessionState>, torrent: Arc<Torrent>) {
    loop {
        let mut call = None;
        if let Some((address, info_hash)) = torrent.to_call() {
            // Not before there is an address: a torrent without one takes no permit from the others.
            let Ok(calling) = Arc::clone(&state.calling).acquire_owned().await else { return };
            match state.seat(&torrent, address.ip(), true) {
                Ok(seat) => call = Some((address, info_hash, calling, seat)),
                Err(_) => torrent.put_off(address),
            }
        }
        let Some((address, info_hash, calling, seat)) = call else {
            tokio::select! {
                () = torrent.calling.notified() => {}
                () = tokio::time::sleep(Duration::from_secs(5)) => {}
            }
            continue;
        };
        let (torrent, source) = (Arc::clone(&torrent), state.source);
        state.resources.spawn(async move {
            let (begin, stop) = (Instant::now(), seat.stop.clone());
            let call = async {
                let stream = timeout(CALL, source.connect(address)).await;
                let stream = stream.map_err(|_| EndReason::Silent(CALL))??;
                drop(calling);
                handshake::call(stream, info_hash, seat).await
            };
            let ended = stop.run_until_cancelled(Box::pin(call)).await.unwrap_or(Err(EndReason::Stopped));
            // An end from this side is no fault of the peer's.
            let is_ours = stop.is_cancelled() || matches!(ended, Err(EndReason::Refused(_)));
            let outcome = match &ended {
                _ if is_ours || begin.elapsed() > OF_USE => Outcome::OfUse,
                Err(EndReason::Unanswered(_)) => Outcome::Unanswered,
                _ => Outcome::OfNoUse,
            };
            let why = ended.as_ref().err().filter(|why| !matches!(why, EndReason::Stopped));
            let why = why.map(ToString::to_string);
            log(address, ended);
            torrent.call_ended(address, outcome, why);
        });
    }
}

fn log(address: SocketAddr, ended: Result<(), EndReason>) {
    if let Err(ended) = ended {
        tracing::debug!(%address, %ended, "a connection has ended");
    }
}

/// Measures rates, and decides which peers are unchoked.
async fn keep_time(torrent: Arc<Torrent>) {
    let mut before = Instant::now();
    // The first tick comes after a second: bytes over no time would give an absurd rate.
    let mut second = tokio::time::interval_at((before + SECOND).into(), SECOND);
    second.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for n in 0_u64.. {
        second.tick().await;
        let now = Instant::now();
        torrent.tick(now - before);
        before = now;
        if n.is_multiple_of(10) {
            torrent.choke();
        }
    }
}

/// Listens with one socket per address; an IPv6 socket takes no IPv4 connections.
fn listen_at(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = socket2::Socket::new(
        socket2::Domain::for_address(address),
        socket2::Type::STREAM,
        Some(socket2::Protocol::TCP),
    )?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(128)?;
    TcpListener::from_std(socket.into())
}
