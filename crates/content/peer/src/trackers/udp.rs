//! Announces over UDP (BEP 15, BEP 41): one socket per family, one connection id per tracker, for all
//! torrents.

use std::{collections::HashMap, io, net::SocketAddr, sync::Arc, time::Duration};

use parking_lot::Mutex;
use rand::RngExt;
use socket2::{Domain, Protocol, Socket, Type};
use swarmkeep_bittorrent::{Family, in_words};
use swarmkeep_tracker_protocol::udp::{
    AnnounceRequest, ConnectRequest, ConnectionId, Response, TransactionId,
};
use tokio::{
    net::UdpSocket,
    sync::{Mutex as AsyncMutex, oneshot},
    task::AbortHandle,
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
    v4: Option<FamilyClient>,
    v6: Option<FamilyClient>,
    first_wait: Duration,
}

#[derive(Debug)]
struct FamilyClient {
    socket: Arc<FamilySocket>,
    trackers: Cache<SocketAddr, Tracker>,
    receiving: AbortHandle,
}

/// The state that the receiving task shares with the requests that wait.
#[derive(Debug)]
struct FamilySocket {
    family: Family,
    socket: UdpSocket,
    pending: Mutex<HashMap<u32, PendingRequest>>,
}

/// A request that waits for an answer, and the address from which that must come.
#[derive(Debug)]
struct PendingRequest {
    from: SocketAddr,
    answer: oneshot::Sender<Vec<u8>>,
}

/// The state of a tracker at one address.
#[derive(Debug)]
struct Tracker {
    queue: TurnQueue,
    connection: AsyncMutex<Option<(ConnectionId, Instant)>>,
}

/// For how long a connection id is used (BEP 15). An announce that begins with it then goes on for less than
/// a minute, and trackers accept it for two.
const CONNECTION: Duration = Duration::from_secs(60);

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
        let (v4, v6) = (FamilyClient::new(Family::V4, source), FamilyClient::new(Family::V6, source));
        if let (Err(_), Err(_)) = (&v4, &v6) {
            return Err(v4.expect_err("it was one just now"));
        }
        let or_none =
            |client: io::Result<_>| client.inspect_err(|error| debug!(%error, "no UDP socket")).ok();
        Ok(Self { v4: or_none(v4), v6: or_none(v6), first_wait: options.udp_wait })
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
        let (family, client) = if to.is_ipv4() { (Family::V4, &self.v4) } else { (Family::V6, &self.v6) };
        let client = client.as_ref().ok_or(TrackerError::NoFamily(family))?;
        let new = || Tracker { queue: TurnQueue::new(AT_ONCE), connection: AsyncMutex::default() };
        let tracker = client.trackers.get(to, new);
        let _turn = tracker.queue.turn(asked).await?;
        let request = Request { socket: &client.socket, to, first_wait: self.first_wait };
        let answer = self.ask(&tracker, &request, options, announce, asked).await;
        if let Err(error @ TrackerError::Silent) = &answer {
            tracker.queue.is_silent(error);
        }
        answer
    }

    async fn ask(
        &self,
        tracker: &Tracker,
        request: &Request<'_>,
        options: &[u8],
        announce: &Announce<'_>,
        asked: Instant,
    ) -> Result<Answer, TrackerError> {
        // With a known id. Perhaps it is no longer good, because the tracker was started again or this
        // machine has another address now. Then the announce gets a new one.
        let known = *tracker.connection.lock().await;
        if let Some((id, got)) = known
            && got.elapsed() < CONNECTION
        {
            match request.announce(id, options, announce, 1).await {
                Err(error) if is_about_the_connection(&error) => {
                    let mut connection = tracker.connection.lock().await;
                    if *connection == known {
                        *connection = None;
                    }
                }
                done => return done,
            }
        }
        let id = {
            // Other announces wait for the same id.
            let mut connection = tracker.connection.lock().await;
            tracker.queue.check(asked)?;
            match *connection {
                Some((id, got)) if got.elapsed() < CONNECTION => id,
                _ => {
                    let id = request.connect(TRIES).await.inspect_err(|error| {
                        if *error == TrackerError::Silent {
                            tracker.queue.is_silent(error);
                        }
                    })?;
                    *connection = Some((id, Instant::now()));
                    id
                }
            }
        };
        request.announce(id, options, announce, TRIES).await
    }
}

impl FamilyClient {
    fn new(family: Family, source: Source) -> io::Result<Self> {
        let from = source.of_family(family)?;
        let socket = Socket::new(Domain::for_address(from), Type::DGRAM, Some(Protocol::UDP))?;
        if family == Family::V6 {
            socket.set_only_v6(true)?;
        }
        socket.set_nonblocking(true)?;
        socket.bind(&from.into())?;
        let socket = UdpSocket::from_std(socket.into())?;
        let socket = Arc::new(FamilySocket { family, socket, pending: Mutex::default() });
        let receiving = tokio::spawn(Arc::clone(&socket).receive()).abort_handle();
        Ok(Self { socket, trackers: Cache::default(), receiving })
    }
}

impl Drop for FamilyClient {
    fn drop(&mut self) {
        self.receiving.abort();
    }
}

impl FamilySocket {
    /// Hands each answer to the request that waits for it. Other packets, or from other addresses, are
    /// dropped.
    async fn receive(self: Arc<Self>) {
        let mut packet = vec![0; LONGEST];
        loop {
            let (len, from) = match self.socket.recv_from(&mut packet).await {
                Ok(received) => received,
                Err(error) => {
                    // Some other datagram's error, or no memory: neither is a reason to stop, nor to spin.
                    debug!(%error, "receiving");
                    sleep(Duration::from_millis(100)).await;
                    continue;
                }
            };
            let packet = &packet[..len];
            let Some(&[a, b, c, d]) = packet.get(4..8).and_then(<[u8]>::as_array) else { continue };
            let id = u32::from_be_bytes([a, b, c, d]);
            let mut pending = self.pending.lock();
            if pending.get(&id).is_some_and(|pending| is_same(pending.from, from))
                && let Some(pending) = pending.remove(&id)
            {
                // The request may have been given up just now.
                drop(pending.answer.send(packet.to_vec()));
            }
        }
    }

    /// A transaction id that cannot be guessed, and the answer with it that comes `from` that address.
    fn expect(&self, from: SocketAddr) -> PendingAnswer<'_> {
        let (sender, answer) = oneshot::channel();
        let mut pending = self.pending.lock();
        let mut rng = rand::rng();
        let mut id: u32 = rng.random();
        while pending.contains_key(&id) {
            id = rng.random();
        }
        pending.insert(id, PendingRequest { from, answer: sender });
        PendingAnswer { socket: self, id: TransactionId(id), answer }
    }
}

/// Whether another connection id could help. BEP 15 has no number for that error, but all trackers use this
/// word.
fn is_about_the_connection(error: &TrackerError) -> bool {
    match error {
        TrackerError::Silent => true,
        TrackerError::Refused { reason, .. } => reason.to_ascii_lowercase().contains("connection"),
        _ => false,
    }
}

/// Scope and flow of IPv6 are this machine's own notes.
fn is_same(one: SocketAddr, other: SocketAddr) -> bool {
    (one.ip(), one.port()) == (other.ip(), other.port())
}

/// An answer that is waited for, until this is dropped.
struct PendingAnswer<'a> {
    socket: &'a FamilySocket,
    id: TransactionId,
    answer: oneshot::Receiver<Vec<u8>>,
}

impl Drop for PendingAnswer<'_> {
    fn drop(&mut self) {
        self.socket.pending.lock().remove(&self.id.0);
    }
}

/// Asks one tracker.
struct Request<'a> {
    socket: &'a FamilySocket,
    to: SocketAddr,
    first_wait: Duration,
}

impl Request<'_> {
    async fn connect(&self, tries: u32) -> Result<ConnectionId, TrackerError> {
        let packet = |transaction_id| ConnectRequest { transaction_id }.to_bytes().to_vec();
        let read = |response: Response<'_>| match response {
            Response::Connect(response) => Some(response.connection_id),
            _ => None,
        };
        self.exchange(packet, tries, read).await
    }

    async fn announce(
        &self,
        connection_id: ConnectionId,
        options: &[u8],
        announce: &Announce<'_>,
        tries: u32,
    ) -> Result<Answer, TrackerError> {
        let Announce { identity, port, progress, event, want, .. } = *announce;
        let packet = |transaction_id| {
            let request = AnnounceRequest {
                transaction_id,
                downloaded: progress.downloaded,
                left: progress.left,
                uploaded: progress.uploaded,
                event,
                key: identity.key,
                want,
                trailing: options,
                ..AnnounceRequest::new(connection_id, identity.info_hash, identity.peer_id, port)
            };
            request.to_vec()
        };
        let read = |response: Response<'_>| match response {
            Response::Announce(response) => {
                let latest = LatestAnswer {
                    interval: Duration::from_secs(response.header.interval.into()),
                    seeders: response.header.seeders,
                    leechers: response.header.leechers,
                    ..LatestAnswer::default()
                };
                let peers = useful(response.peers().filter_map(Result::ok));
                Some(Answer { latest, peers, tracker_id: None })
            }
            _ => None,
        };
        self.exchange(packet, tries, read).await
    }

    /// Sends a packet until it is answered. All copies have the same transaction id, so an answer to any of
    /// them counts.
    async fn exchange<T>(
        &self,
        packet: impl FnOnce(TransactionId) -> Vec<u8>,
        tries: u32,
        read: impl FnOnce(Response<'_>) -> Option<T>,
    ) -> Result<T, TrackerError> {
        let mut pending = self.socket.expect(self.to);
        let packet = packet(pending.id);
        let mut wait = self.first_wait;
        for _ in 0..tries {
            self.socket
                .socket
                .send_to(&packet, self.to)
                .await
                .map_err(|error| TrackerError::Connection { to: self.to, problem: in_words(&error) })?;
            if let Ok(Ok(answer)) = timeout(wait, &mut pending.answer).await {
                return match Response::parse(&answer, self.socket.family)? {
                    Response::Error(error) => {
                        Err(TrackerError::Refused { reason: readable(error.message), retry: None })
                    }
                    response => read(response).ok_or(TrackerError::Other),
                };
            }
            wait = wait.saturating_mul(2);
        }
        Err(TrackerError::Silent)
    }
}
