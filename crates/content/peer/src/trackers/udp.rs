//! Announces over UDP (BEP 15, BEP 41): one socket per family, one connection id per tracker, for all
//! torrents.

use std::{
    collections::HashMap,
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use rand::RngExt;
use socket2::{Domain, Protocol, Socket, Type};
use swarmkeep_bittorrent::{Family, in_words};
use swarmkeep_tracker_protocol::udp::{
    AnnounceRequest, Client, ConnectRequest, ConnectionId, Response, TransactionId,
};
use tokio::{
    net::UdpSocket,
    sync::{Mutex as AsyncMutex, oneshot},
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use tracing::debug;

use super::{
    announce::{Announce, Answer, LatestAnswer, TrackerError, readable, useful},
    options::ClientOptions,
    turns::{Cache, TurnQueue},
};
use crate::source::Source;

/// Asks trackers over UDP.
#[derive(Debug)]
pub(super) struct UdpClient {
    v4: Option<Arc<FamilySocket>>,
    v6: Option<Arc<FamilySocket>>,
    first_wait: Duration,
    _receiving: JoinSet<()>,
}

/// The state that the receiving task shares with the requests that wait.
#[derive(Debug)]
struct FamilySocket {
    socket: UdpSocket,
    /// By address, without scope and flow of IPv6, which are this machine's own notes.
    trackers: Cache<(IpAddr, u16), Tracker>,
}

/// The state of a tracker at one address.
#[derive(Debug)]
struct Tracker {
    queue: TurnQueue,
    client: Mutex<Client>,
    /// Held while a connection id is requested.
    connecting: AsyncMutex<()>,
    /// The requests that wait for an answer, by their transaction.
    pending: Mutex<HashMap<[u8; 4], oneshot::Sender<Vec<u8>>>>,
}

/// The most announces to one tracker at a time: their answers, of a kilobyte or so each, fit into the buffer
/// that a socket has by default.
const AT_ONCE: usize = 32;

/// How often a datagram is sent in all.
const TRIES: u32 = 3;

/// The longest datagram there is.
const LONGEST: usize = 65_535;

impl UdpClient {
    pub(super) fn new(options: &ClientOptions) -> io::Result<Self> {
        let source = Source::of(options.addresses.iter().copied());
        let open = |family| {
            FamilySocket::open(family, source)
                .inspect_err(|error| debug!(error = %in_words(error), "no UDP socket"))
        };
        let (v4, v6) = (open(Family::V4), open(Family::V6).ok());
        let v4 = if v6.is_some() { v4.ok() } else { Some(v4?) };
        let receiving = [&v4, &v6].into_iter().flatten().map(|socket| Arc::clone(socket).receive()).collect();
        Ok(Self { v4, v6, first_wait: options.udp_wait, _receiving: receiving })
    }

    /// Announces to the tracker at `to` with the options of BEP 41 in `options`. `asked` is the time of the
    /// call.
    pub(super) async fn announce(
        &self,
        to: SocketAddr,
        options: &[u8],
        announce: &Announce<'_>,
        asked: Instant,
    ) -> Result<Answer, TrackerError> {
        let (family, socket) = if to.is_ipv4() { (Family::V4, &self.v4) } else { (Family::V6, &self.v6) };
        let FamilySocket { socket, trackers } = socket.as_deref().ok_or(TrackerError::NoFamily(family))?;
        let new = || Tracker {
            queue: TurnQueue::new(AT_ONCE),
            client: Mutex::new(Client::new(family)),
            connecting: AsyncMutex::default(),
            pending: Mutex::default(),
        };
        let tracker = trackers.get((to.ip(), to.port()), new);
        let _turn = tracker.queue.turn(asked).await?;
        let Announce { identity, port, progress, event, want, .. } = *announce;
        let announce = AnnounceRequest {
            downloaded: progress.downloaded,
            left: progress.left,
            uploaded: progress.uploaded,
            event,
            key: identity.key,
            want,
            trailing: options,
            ..AnnounceRequest::new(ConnectionId(0), identity.info_hash, identity.peer_id, port)
        };
        let request = Request { socket, tracker: &tracker, to, announce, first_wait: self.first_wait };
        request.ask(asked).await.inspect_err(|error| tracker.note(error))
    }
}

impl Tracker {
    fn connection_id(&self) -> Option<ConnectionId> {
        self.client.lock().connection_id(Instant::now().into())
    }

    /// Passes the silence of the tracker to all announces that wait.
    fn note(&self, error: &TrackerError) {
        if *error == TrackerError::Silent {
            self.queue.is_silent(error);
        }
    }

    /// A transaction id that cannot be guessed, and its answer.
    fn expect(&self) -> (TransactionId, oneshot::Receiver<Vec<u8>>) {
        let (sender, answer) = oneshot::channel();
        let mut pending = self.pending.lock();
        // Without the requests that were given up.
        pending.retain(|_, answer| !answer.is_closed());
        let mut id: [u8; 4] = rand::rng().random();
        while pending.contains_key(&id) {
            id = rand::rng().random();
        }
        pending.insert(id, sender);
        (TransactionId(u32::from_be_bytes(id)), answer)
    }
}

impl FamilySocket {
    fn open(family: Family, source: Source) -> io::Result<Arc<Self>> {
        let from = source.of_family(family)?;
        let socket = Socket::new(Domain::for_address(from), Type::DGRAM, Some(Protocol::UDP))?;
        if family == Family::V6 {
            socket.set_only_v6(true)?;
        }
        socket.set_nonblocking(true)?;
        socket.bind(&from.into())?;
        let socket = UdpSocket::from_std(socket.into())?;
        Ok(Arc::new(Self { socket, trackers: Cache::default() }))
    }

    /// Hands each answer to the request that waits for it. Other packets, or from other addresses, are
    /// dropped.
    async fn receive(self: Arc<Self>) {
        let mut packet = vec![0; LONGEST];
        loop {
            let (len, from) = match self.socket.recv_from(&mut packet).await {
                Ok(received) => received,
                Err(error) => {
                    // Some other datagram's error, or no memory: neither is a reason to stop, nor to spin.
                    debug!(error = %in_words(&error), "receiving");
                    sleep(Duration::from_millis(100)).await;
                    continue;
                }
            };
            let packet = &packet[..len];
            let Some(id) = packet.get(4..8).and_then(<[u8]>::as_array::<4>) else { continue };
            let Some(tracker) = self.trackers.find(&(from.ip(), from.port())) else { continue };
            if let Some(pending) = tracker.pending.lock().remove(id) {
                // The request may have been given up just now.
                drop(pending.send(packet.to_vec()));
            }
        }
    }
}

/// An announce to one tracker, whose connection id and transaction are not yet known.
struct Request<'a> {
    socket: &'a UdpSocket,
    tracker: &'a Tracker,
    to: SocketAddr,
    announce: AnnounceRequest<'a>,
    first_wait: Duration,
}

impl Request<'_> {
    async fn ask(&self, asked: Instant) -> Result<Answer, TrackerError> {
        // With a known id. Perhaps it is no longer good, because the tracker was started again or this
        // machine has another address now. Then the announce gets a new one.
        if let Some(known) = self.tracker.connection_id() {
            match self.announce(known, 1).await {
                Err(TrackerError::Silent) => self.tracker.client.lock().forget(known),
                Err(_) if self.tracker.connection_id() != Some(known) => {}
                done => return done,
            }
        }
        let id = {
            // Other announces wait for the same id.
            let _connecting = self.tracker.connecting.lock().await;
            self.tracker.queue.check(asked)?;
            if self.tracker.connection_id().is_none() {
                let packet = |transaction_id| ConnectRequest { transaction_id }.to_bytes().to_vec();
                self.exchange(packet, TRIES).await.inspect_err(|error| self.tracker.note(error))?;
            }
            self.tracker.connection_id().ok_or(TrackerError::Other)?
        };
        self.announce(id, TRIES).await
    }

    async fn announce(&self, connection_id: ConnectionId, tries: u32) -> Result<Answer, TrackerError> {
        let packet =
            |transaction_id| AnnounceRequest { connection_id, transaction_id, ..self.announce }.to_vec();
        self.exchange(packet, tries).await
    }

    /// Sends a packet until it is answered. All copies have the same transaction id, so an answer to any of
    /// them counts.
    async fn exchange(
        &self,
        packet: impl FnOnce(TransactionId) -> Vec<u8>,
        tries: u32,
    ) -> Result<Answer, TrackerError> {
        let (id, mut answer) = self.tracker.expect();
        let (packet, mut wait) = (packet(id), self.first_wait);
        for _ in 0..tries {
            self.socket
                .send_to(&packet, self.to)
                .await
                .map_err(|error| TrackerError::Connection { to: self.to, problem: in_words(&error) })?;
            if let Ok(Ok(answer)) = timeout(wait, &mut answer).await {
                let mut client = self.tracker.client.lock();
                return match client.answer(&packet, &answer, Instant::now().into())? {
                    Some(Response::Announce(response)) => {
                        let latest = LatestAnswer {
                            interval: Duration::from_secs(response.header.interval.into()),
                            seeders: response.header.seeders,
                            leechers: response.header.leechers,
                            ..LatestAnswer::default()
                        };
                        let peers = useful(response.peers().filter_map(Result::ok));
                        Ok(Answer { latest, peers, tracker_id: None })
                    }
                    // The client has the connection id.
                    Some(Response::Connect(_)) => Ok(Answer::default()),
                    Some(Response::Error(error)) => {
                        Err(TrackerError::Refused { reason: readable(error.message), retry: None })
                    }
                    _ => Err(TrackerError::Other),
                };
            }
            wait = wait.saturating_mul(2);
        }
        Err(TrackerError::Silent)
    }
}
