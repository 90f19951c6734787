//! A connection to a peer, from the handshake on.

mod downloads;
pub(crate) mod handshake;
mod receiving;
mod sending;
mod uploads;

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    ops::Range,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};

use swarmkeep_bittorrent::in_words;
use swarmkeep_peer_wire::{
    Bitfield, Block, ExtensionIds, Handshake, Message, PieceIndex, ReceiveBuffer, Reserved, SendQueue,
};
use tokio::{
    io::Interest,
    net::TcpStream,
    task::{JoinHandle, yield_now},
    time::{MissedTickBehavior, interval},
};

use crate::{
    blocks::{Batch, Memory, Slice},
    exchange::PeerExchange,
    hashes::HashFault,
    metadata::{MetadataFault, MetadataUploads},
    torrent::{Peer, Torrent, seats::Seat},
};

/// Why a connection has ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EndReason {
    #[error("{}", in_words(.0))]
    Io(#[from] io::Error),
    #[error(transparent)]
    Wire(#[from] swarmkeep_peer_wire::Error),
    #[error("the peer has closed it")]
    Closed,
    #[error(
        "the handshake was not answered: {0}; it may not have the torrent, or require encryption, which is not supported"
    )]
    Unanswered(#[source] Box<Self>),
    #[error("{0}")]
    Refused(&'static str),
    #[error("nothing has come for {0:?}")]
    Silent(Duration),
    #[error("the peer {0}")]
    Misbehaves(&'static str),
    #[error("the peer has sent {0}")]
    Metadata(#[from] MetadataFault),
    #[error("the peer has sent {0}")]
    Hashes(#[from] HashFault),
    #[error("it is not needed any more")]
    Stopped,
}

/// Keep-alives are sent every two minutes (BEP 3). A peer that sends nothing for three minutes is gone.
const KEEP_ALIVE: Duration = Duration::from_secs(110);
const SILENCE: Duration = Duration::from_secs(180);
/// A peer that reads nothing for this time is gone, or wants to occupy the connection.
const STUCK: Duration = Duration::from_secs(120);
/// A connection on which nothing was sent for this time gives back its memory for sending.
const STILL: Duration = Duration::from_millis(1500);
/// The most requests of a peer that wait; further ones are rejected. The extended handshake says so as
/// `reqq`.
const REQUESTS: usize = 512;
/// As many as libtorrent allows by default, for peers that name no number.
const MOST_UNSAID: usize = 250;

/// Writes as much as the socket takes now.
struct Socket<'a>(&'a TcpStream);

impl io::Write for Socket<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.try_write(bytes)
    }

    fn write_vectored(&mut self, slices: &[io::IoSlice<'_>]) -> io::Result<usize> {
        self.0.try_write_vectored(slices)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Runs a connection after the handshakes.
async fn talk(
    stream: TcpStream,
    mut received: ReceiveBuffer,
    seat: &Seat,
    theirs: Handshake,
) -> Result<(), EndReason> {
    let (torrent, address) = (&seat.torrent, stream.peer_addr()?);
    stream.set_nodelay(true)?;
    let peer = torrent.join(seat, address, theirs.peer_id).map_err(EndReason::Refused)?;
    let mut connection = Connection::new(Arc::clone(torrent), Arc::clone(&peer), &theirs);
    tracing::debug!(%address, id = %theirs.peer_id.as_bytes()[..8].escape_ascii(), "connected");
    let _joined = JoinedPeer { torrent, peer: &peer };
    let ended = connection.run(&stream, &mut received).await;
    // The remote peer may notice first that both have all.
    if torrent.both_have_all(&peer) { Err(EndReason::Stopped) } else { ended }
}

/// A peer among the peers of its torrent, until this is dropped, however the connection ends.
struct JoinedPeer<'a> {
    torrent: &'a Torrent,
    peer: &'a Peer,
}

impl Drop for JoinedPeer<'_> {
    fn drop(&mut self) {
        self.torrent.leave(self.peer);
    }
}

/// A batch that is being read for the peer, and whether all of it was read.
type BatchRead = JoinHandle<(Batch, bool)>;

/// Requested hashes that are being computed from content.
struct HashJob {
    root: [u8; 32],
    /// Base layer, index, length and proof layers.
    numbers: [u32; 4],
    hashes: JoinHandle<Option<Vec<[u8; 32]>>>,
}

struct Connection {
    torrent: Arc<Torrent>,
    peer: Arc<Peer>,
    queue: SendQueue<Slice>,
    /// The extensions that both sides have.
    fast: bool,
    extended: bool,
    theirs: ExtensionIds,
    most_requests: usize,
    /// The pieces that the peer sends while it chokes.
    allowed: Vec<u32>,
    /// The state that was sent last.
    interested: bool,
    unchoked: bool,
    /// The pieces that it named before the torrent was known; `None` afterwards.
    early: Option<EarlyPieces>,
    /// Whether it connected while the torrent was being learnt.
    learns: bool,
    /// Whether a message that is not extended was received: only the first may list pieces.
    begun: bool,
    /// How many pieces of `came` were sent; `None` before the bitfield was.
    sent_pieces: Option<usize>,
    /// The open requests, in order, each with its time.
    requested: VecDeque<(Block, Instant)>,
    /// The latest requested blocks that the peer need not send any more.
    late: VecDeque<Block>,
    last_block: Instant,
    /// For how long requests were open since then.
    fruitless: Duration,
    ticked: Instant,
    /// The earliest time of the next request.
    ask_from: Option<Instant>,
    /// Blocks that it has rejected since it sent one.
    rejects: usize,
    /// Pieces that it has rejected without choking.
    refused: BTreeMap<u32, RejectedPiece>,
    /// Whether some of `refused` may have expired.
    ask_again: bool,
    /// Whether other connections may request blocks that this one gave back.
    gave_back: bool,
    /// Bytes of received blocks that were not requested.
    unasked: u64,
    /// The requests of the peer.
    unanswered: VecDeque<Block>,
    /// How often it requested blocks that do not exist.
    no_such_blocks: u32,
    reading: Option<BatchRead>,
    hashing: Option<HashJob>,
    /// When content was last read for hashes that it requested.
    hashed: Option<Instant>,
    uploads: MetadataUploads,
    exchange: PeerExchange,
    /// Whether its extended handshake has come.
    introduced: bool,
    /// When its latest list of peers was received.
    last_pex: Option<Instant>,
    memory: Memory,
    last_received: Instant,
    last_sent: Instant,
    /// When this side reads and answers again, to stay within the limits of bytes. Only blocks wait for that.
    read_from: Option<Instant>,
    answer_from: Option<Instant>,
    /// Since when the socket has taken no bytes.
    stuck: Option<Instant>,
    scratch: Vec<Block>,
}

/// A piece that the peer rejects: how many times it did, and when the piece may be requested again.
struct RejectedPiece {
    times: u32,
    until: Instant,
}

/// The pieces that a peer named before the torrent was known.
#[derive(Default)]
struct EarlyPieces {
    all: bool,
    bitfield: Vec<u8>,
    pieces: Vec<u32>,
}

impl EarlyPieces {
    fn has_one_of(&self, mut pieces: Range<u32>) -> bool {
        let bitfield = Bitfield::new(&self.bitfield);
        self.all
            || self.pieces.iter().any(|piece| pieces.contains(piece))
            || pieces.any(|piece| bitfield.contains(PieceIndex(piece)))
    }
}

impl Connection {
    fn new(torrent: Arc<Torrent>, peer: Arc<Peer>, theirs: &Handshake) -> Self {
        let now = Instant::now();
        // There is room for other messages besides a bitfield, which may be long.
        let bitfield = torrent.ready().map_or(0, |ready| Bitfield::bytes_for(ready.info.piece_count()));
        Self {
            queue: SendQueue::new(Batch::MOST, 2 * Batch::MOST + bitfield),
            torrent,
            peer,
            fast: theirs.reserved.contains(Reserved::FAST),
            extended: theirs.reserved.contains(Reserved::EXTENSIONS),
            theirs: ExtensionIds::NONE,
            most_requests: MOST_UNSAID,
            allowed: Vec::new(),
            interested: false,
            unchoked: false,
            early: Some(EarlyPieces::default()),
            learns: false,
            begun: false,
            sent_pieces: None,
            requested: VecDeque::new(),
            late: VecDeque::new(),
            last_block: now,
            fruitless: Duration::ZERO,
            ticked: now,
            ask_from: None,
            rejects: 0,
            refused: BTreeMap::new(),
            ask_again: false,
            gave_back: false,
            unasked: 0,
            unanswered: VecDeque::new(),
            no_such_blocks: 0,
            reading: None,
            hashing: None,
            hashed: None,
            uploads: MetadataUploads::default(),
            exchange: PeerExchange::default(),
            introduced: false,
            last_pex: None,
            memory: Memory::default(),
            last_received: now,
            last_sent: now,
            read_from: None,
            answer_from: None,
            stuck: None,
            scratch: Vec::new(),
        }
    }

    async fn run(&mut self, stream: &TcpStream, received: &mut ReceiveBuffer) -> Result<(), EndReason> {
        let peer = Arc::clone(&self.peer);
        let mut second = interval(Duration::from_secs(1));
        second.set_missed_tick_behavior(MissedTickBehavior::Delay);
        if self.extended {
            self.send_extended_handshake()?;
        }
        self.follow(received)?;
        // Messages that came with the handshake.
        self.receive_all(received)?;
        loop {
            self.follow(received)?;
            self.write(stream)?;
            let now = Instant::now();
            let may_read = self.read_from.is_none_or(|from| from <= now);
            let wait =
                [self.read_from, self.answer_from].into_iter().flatten().filter(|from| *from > now).min();
            let interest = match (may_read, !self.queue.is_empty()) {
                (true, true) => Some(Interest::READABLE | Interest::WRITABLE),
                (true, false) => Some(Interest::READABLE),
                (false, true) => Some(Interest::WRITABLE),
                (false, false) => None,
            };
            tokio::select! {
                ready = async { stream.ready(interest.expect("checked")).await }, if interest.is_some() => {
                    if ready?.is_readable() && may_read && self.read(stream, received)? {
                        // There is more; other connections have their turn.
                        yield_now().await;
                    }
                }
                () = peer.wake.notified() => {}
                read = async { self.reading.as_mut().expect("checked").await }, if self.reading.is_some() => {
                    self.reading = None;
                    let (batch, is_read) = read.map_err(|_| EndReason::Stopped)?;
                    self.answer(batch, is_read)?;
                }
                hashed = async { (&mut self.hashing.as_mut().expect("checked").hashes).await }, if self.hashing.is_some() => {
                    self.answer_hashes(hashed.ok().flatten())?;
                }
                () = tokio::time::sleep_until(wait.unwrap_or(now).into()), if wait.is_some() => {}
                _ = second.tick() => {
                    self.tick()?;
                    if self.requested.is_empty() {
                        received.shrink();
                    }
                }
            }
        }
    }

    /// Reads from the socket, a limited number of times. Returns whether there may be more.
    fn read(&mut self, stream: &TcpStream, received: &mut ReceiveBuffer) -> Result<bool, EndReason> {
        for _ in 0..8 {
            match stream.try_read(received.space()) {
                Ok(0) => return Err(EndReason::Closed),
                Ok(count) => {
                    received.filled(count);
                    let now = Instant::now();
                    self.last_received = now;
                    self.receive_all(received)?;
                    if let Some(wait) = self.torrent.session.down.pass(count as u64, now) {
                        self.read_from = Some(now + wait);
                        return Ok(false);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }

    fn write(&mut self, stream: &TcpStream) -> Result<(), EndReason> {
        // So that other connections have their turn.
        for _ in 0..8 {
            if self.queue.is_empty() {
                break;
            }
            match self.queue.write_to(&mut Socket(stream)) {
                Ok(_) => {
                    self.last_sent = Instant::now();
                    self.stuck = None;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.stuck.get_or_insert_with(Instant::now);
                    break;
                }
                Err(error) => return Err(error.into()),
            }
            self.read_requested()?;
        }
        Ok(())
    }

    /// Sends the messages that follow from changes, here or among the other connections.
    fn follow(&mut self, received: &mut ReceiveBuffer) -> Result<(), EndReason> {
        if self.early.is_some()
            && let Some(ready) = self.torrent.ready()
        {
            received.set_limits(ready.limits);
            let early = self.early.take().expect("checked");
            self.catch_up(early)?;
            if self.extended && self.learns {
                // The first handshake had no size of the metadata.
                self.send_extended_handshake()?;
            }
        }
        if self.early.is_some() {
            self.request_metadata()?;
        }
        if self.early.is_none() {
            self.send_have()?;
            let interested = self.torrent.is_interested_in(&self.peer);
            if interested != self.interested {
                self.interested = interested;
                self.send(&if interested { Message::Interested } else { Message::NotInterested })?;
            }
        }
        let unchoked = self.peer.unchoked.load(Relaxed);
        // Not before the bitfield, which comes first.
        if unchoked != self.unchoked && self.sent_pieces.is_some() {
            self.unchoked = unchoked;
            self.send(&if unchoked { Message::Unchoke } else { Message::Choke })?;
            if !unchoked {
                for block in std::mem::take(&mut self.unanswered) {
                    self.reject(block)?;
                }
            }
        }
        let cancels = std::mem::take(&mut *self.peer.cancels.lock());
        for block in cancels {
            if self.take_request(block) {
                self.send(&Message::Cancel(block))?;
                // The block may be on its way.
                self.add_late(block);
            }
        }
        if std::mem::take(&mut self.gave_back) {
            self.torrent.wake_all();
        }
        self.request_blocks()?;
        self.read_requested()
    }

    /// Called every second.
    fn tick(&mut self) -> Result<(), EndReason> {
        let now = Instant::now();
        // Most connections are still for most of the time.
        if now - self.last_sent > STILL && self.unanswered.is_empty() && self.queue.is_empty() {
            self.memory = Memory::default();
            self.queue.shrink();
        }
        if !self.unanswered.is_empty() || !self.queue.is_empty() {
            self.peer.active.store(true, Relaxed);
        }
        if self.read_from.is_some_and(|from| from > now) {
            // This side does not read: the peer is not silent.
            (self.last_received, self.last_block) = (now, now);
        }
        if now - self.last_received > SILENCE {
            return Err(EndReason::Silent(SILENCE));
        }
        if self.stuck.is_some_and(|since| now - since > STUCK) {
            return Err(EndReason::Misbehaves("reads nothing"));
        }
        if now - self.last_sent > KEEP_ALIVE {
            self.send(&Message::KeepAlive)?;
        }
        self.check_requests(now)?;
        self.ask_again = !self.refused.is_empty();
        self.send_peers(now)?;
        if self.torrent.both_have_all(&self.peer) {
            return Err(EndReason::Stopped);
        }
        Ok(())
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if let Some(reading) = &self.reading {
            reading.abort();
        }
    }
}
