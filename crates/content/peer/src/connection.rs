//! A connection to a peer, from the handshake on.

use std::{
    collections::{BTreeMap, VecDeque},
    io::{self, IoSliceMut},
    net::SocketAddr,
    ops::Range,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};

use swarmkeep_bittorrent::{Endpoint, InfoHash, PeerId};
use swarmkeep_content::{ContentExt, Error as StoreError};
use swarmkeep_peer_wire::{
    Bitfield, Block, ExtendedHandshake, ExtendedMessage, Extension, ExtensionIds, Handshake, HashRange,
    Hashes, Limits, Message, MetadataMessage, PieceIndex, ReceiveBuffer, Reserved, SendQueue,
};
use tokio::{
    io::Interest,
    net::TcpStream,
    task::{JoinHandle, yield_now},
    time::{MissedTickBehavior, interval},
};

use crate::{
    blocks::{Batch, Memory, Slice},
    config::CLIENT,
    exchange::PeerExchange,
    hashes::{self, HashFault, Reading as HashReading},
    learning::Question,
    metadata::{MetadataFault, MetadataUploads},
    torrent::{Ask, Peer, Torrent, is_near},
};

/// Why a connection has ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Ended {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Wire(#[from] swarmkeep_peer_wire::Error),
    #[error("the peer has closed it")]
    Closed,
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

/// How long a handshake may take.
pub(crate) const HANDSHAKE: Duration = Duration::from_secs(15);
/// Keep-alives are sent every two minutes (BEP 3); who sends nothing for three is gone.
const KEEP_ALIVE: Duration = Duration::from_secs(110);
const SILENCE: Duration = Duration::from_secs(180);
/// Who takes nothing for so long is gone, or means to be waited for.
const STUCK: Duration = Duration::from_secs(120);
/// Who was told nothing for so long takes no memory for what it may be told.
const STILL: Duration = Duration::from_millis(1500);
/// Requests of a peer that wait; further ones are rejected. What is said in the extended handshake as `reqq`.
const REQUESTS: usize = 512;
/// Requests that are outstanding before anything has come.
const FIRST: usize = 4;
/// Requests that are outstanding at least, after that.
const FEWEST: usize = 16;
/// As many as libtorrent allows by default, for peers that do not say what they allow.
const MOST_UNSAID: usize = 250;
/// How often content is read for hashes that one peer asks for: libtorrent does after a piece turned out
/// wrong.
const HASHED: Duration = Duration::from_secs(2);
/// Peers that a peer may tell of, and how often: BEP 11 has 50 of each family a minute, and clients' clocks
/// differ.
const MOST_PEX: usize = 100;
const PEX: Duration = Duration::from_secs(45);
/// Blocks that were given back, and are still taken if they come.
const LATE: usize = 4 * REQUESTS;
/// Who has chosen not to bring what it was asked for is not asked for that long.
const PAUSE: Duration = Duration::from_secs(1);
/// How many times a piece may be rejected by somebody who does not choke: then it is none that it has.
const REFUSALS: u32 = 3;
/// Pieces of which that is counted at a time.
const REFUSED: usize = 1024;
/// Bytes that nobody asked for may be so many more than those that somebody did.
const UNASKED: u64 = 4 << 20;
/// Pieces that a peer may allow while it chokes (BEP 6 gives ten).
const ALLOWED: usize = 64;

/// Shakes hands as the one who calls.
pub(crate) async fn call(stream: TcpStream, torrent: Arc<Torrent>) -> Result<(), Ended> {
    let mut received = ReceiveBuffer::new(Limits::new());
    let shaken = async {
        send_handshake(&stream, &torrent, torrent.info_hash).await?;
        receive_handshake(&stream, &mut received).await
    };
    let theirs = tokio::time::timeout(HANDSHAKE, shaken).await.map_err(|_| Ended::Silent(HANDSHAKE))??;
    if theirs.info_hash != torrent.info_hash {
        return Err(Ended::Misbehaves("answers for another torrent"));
    }
    talk(stream, received, torrent, theirs, true).await
}

/// Shakes hands as the one who is called.
pub(crate) async fn answer(
    stream: TcpStream,
    find: impl Fn(&InfoHash) -> Option<Arc<Torrent>>,
) -> Result<(), Ended> {
    let mut received = ReceiveBuffer::new(Limits::new());
    let shaken = async {
        let theirs = receive_handshake(&stream, &mut received).await?;
        let torrent = find(&theirs.info_hash).ok_or(Ended::Misbehaves("wants a torrent that is not here"))?;
        send_handshake(&stream, &torrent, theirs.info_hash).await?;
        Ok::<_, Ended>((theirs, torrent))
    };
    let (theirs, torrent) =
        tokio::time::timeout(HANDSHAKE, shaken).await.map_err(|_| Ended::Silent(HANDSHAKE))??;
    talk(stream, received, torrent, theirs, false).await
}

/// `info_hash` is one of the torrent's.
async fn send_handshake(stream: &TcpStream, torrent: &Torrent, info_hash: InfoHash) -> Result<(), Ended> {
    let handshake = Handshake {
        reserved: Reserved::EXTENSIONS | Reserved::FAST,
        info_hash,
        peer_id: torrent.session.config.peer_id,
    };
    let mut queue = SendQueue::<Slice>::new(0, Handshake::LEN);
    queue.push(&handshake).map_err(|_| Ended::Stopped)?;
    while !queue.is_empty() {
        stream.writable().await?;
        match queue.write_to(&mut Socket(stream)) {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error.into()),
            _ => {}
        }
    }
    Ok(())
}

async fn receive_handshake(stream: &TcpStream, received: &mut ReceiveBuffer) -> Result<Handshake, Ended> {
    loop {
        if let Some(handshake) = received.next_handshake()? {
            return Ok(handshake);
        }
        stream.readable().await?;
        match stream.try_read(received.space()) {
            Ok(0) => return Err(Ended::Closed),
            Ok(count) => received.filled(count),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Writes what the socket takes now.
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

/// All that is said after the handshakes.
async fn talk(
    stream: TcpStream,
    mut received: ReceiveBuffer,
    torrent: Arc<Torrent>,
    theirs: Handshake,
    called: bool,
) -> Result<(), Ended> {
    let address = stream.peer_addr()?;
    stream.set_nodelay(true)?;
    let peer = torrent.join(address, theirs.peer_id, called).map_err(Ended::Refused)?;
    let mut connection = Connection::new(Arc::clone(&torrent), Arc::clone(&peer), &theirs);
    tracing::debug!(%address, id = %DisplayId(theirs.peer_id), "connected");
    let _joined = Joined { torrent: &torrent, peer: &peer };
    connection.run(&stream, &mut received).await
}

/// A peer that is one of its torrent's, until this is dropped, however the connection ends.
struct Joined<'a> {
    torrent: &'a Torrent,
    peer: &'a Peer,
}

impl Drop for Joined<'_> {
    fn drop(&mut self) {
        self.torrent.leave(self.peer);
    }
}

struct DisplayId(PeerId);

impl std::fmt::Display for DisplayId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0.as_bytes()[..8].escape_ascii())
    }
}

/// What is being read for it; if that fails, which pieces cannot be read.
type Reading = JoinHandle<(Batch, Result<(), Vec<(u32, StoreError)>>)>;

/// Hashes that it asks for and that are computed from content.
struct Hashing {
    root: [u8; 32],
    /// Base layer, index, length and proof layers.
    numbers: [u32; 4],
    hashes: JoinHandle<Option<Vec<[u8; 32]>>>,
}

struct Connection {
    torrent: Arc<Torrent>,
    peer: Arc<Peer>,
    queue: SendQueue<Slice>,
    /// What both can do.
    fast: bool,
    extended: bool,
    theirs: ExtensionIds,
    /// Requests that it lets wait.
    most_requests: usize,
    /// Whether we were told that our requests are answered, and of which pieces they are anyway.
    choked: bool,
    allowed: Vec<u32>,
    /// What it was told last.
    interested: bool,
    unchoked: bool,
    /// What it said before the torrent was known, or nothing after it was.
    early: Option<Early>,
    /// Whether it came while the torrent was being learnt.
    learns: bool,
    /// Whether something other than extended messages has come: what it has comes first.
    begun: bool,
    /// How many of the pieces that have come it was told of; `None` before it was told what is here.
    told: Option<usize>,
    /// What it was asked for, in that order, and when.
    asked: VecDeque<(Block, Instant)>,
    /// What it was asked for and need not bring any more, the last of it.
    late: VecDeque<Block>,
    /// When a block came last.
    brought: Instant,
    /// For how long it was asked for something since then.
    fruitless: Duration,
    ticked: Instant,
    /// Not before then is it asked for more.
    ask_from: Option<Instant>,
    /// Blocks that it has rejected since it brought one.
    rejects: usize,
    /// Pieces that it has rejected without choking.
    refused: BTreeMap<u32, Refused>,
    /// Whether it may have got too old what it has refused.
    ask_again: bool,
    /// Whether others are to ask for what it was asked for.
    gave_back: bool,
    /// Bytes that came and nobody asked for.
    unasked: u64,
    /// What it asks for.
    asks: VecDeque<Block>,
    reading: Option<Reading>,
    hashing: Option<Hashing>,
    /// When it last was served hashes of what had to be read.
    hashed: Option<Instant>,
    uploads: MetadataUploads,
    exchange: PeerExchange,
    /// Whether its extended handshake has come.
    introduced: bool,
    /// When it told of others.
    told_of: Option<Instant>,
    memory: Memory,
    heard: Instant,
    said: Instant,
    /// Not before then, so that not more comes or goes than may. What is no block goes at once.
    read_from: Option<Instant>,
    answer_from: Option<Instant>,
    /// Since when it takes nothing of what there is to say.
    stuck: Option<Instant>,
    scratch: Vec<Block>,
}

/// Of a piece that is not brought: how many times it was asked for, and until when it is not again.
struct Refused {
    times: u32,
    until: Instant,
}

/// What a peer has said of its pieces before they could be counted.
#[derive(Default)]
struct Early {
    all: bool,
    bitfield: Vec<u8>,
    pieces: Vec<u32>,
}

impl Early {
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
        // A bitfield, which may be long, is not all that has to be said.
        let bitfield = torrent.ready().map_or(0, |ready| Bitfield::bytes_for(ready.info.piece_count()));
        Self {
            queue: SendQueue::new(Batch::MOST, 2 * Batch::MOST + bitfield),
            torrent,
            peer,
            fast: theirs.reserved.contains(Reserved::FAST),
            extended: theirs.reserved.contains(Reserved::EXTENSIONS),
            theirs: ExtensionIds::NONE,
            most_requests: MOST_UNSAID,
            choked: true,
            allowed: Vec::new(),
            interested: false,
            unchoked: false,
            early: Some(Early::default()),
            learns: false,
            begun: false,
            told: None,
            asked: VecDeque::new(),
            late: VecDeque::new(),
            brought: now,
            fruitless: Duration::ZERO,
            ticked: now,
            ask_from: None,
            rejects: 0,
            refused: BTreeMap::new(),
            ask_again: false,
            gave_back: false,
            unasked: 0,
            asks: VecDeque::new(),
            reading: None,
            hashing: None,
            hashed: None,
            uploads: MetadataUploads::default(),
            exchange: PeerExchange::default(),
            introduced: false,
            told_of: None,
            memory: Memory::default(),
            heard: now,
            said: now,
            read_from: None,
            answer_from: None,
            stuck: None,
            scratch: Vec::new(),
        }
    }

    async fn run(&mut self, stream: &TcpStream, received: &mut ReceiveBuffer) -> Result<(), Ended> {
        let (torrent, peer) = (Arc::clone(&self.torrent), Arc::clone(&self.peer));
        let mut second = interval(Duration::from_secs(1));
        second.set_missed_tick_behavior(MissedTickBehavior::Delay);
        if self.extended {
            self.say_hello()?;
        }
        self.follow(received)?;
        // What came with the handshake.
        self.hear_all(received)?;
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
                    let (batch, done) = read.map_err(|_| Ended::Stopped)?;
                    self.answer(batch, done)?;
                }
                hashed = async { (&mut self.hashing.as_mut().expect("checked").hashes).await }, if self.hashing.is_some() => {
                    self.answer_hashes(hashed.ok().flatten())?;
                }
                () = tokio::time::sleep_until(wait.unwrap_or(now).into()), if wait.is_some() => {}
                _ = second.tick() => {
                    self.tick()?;
                    if self.asked.is_empty() {
                        received.shrink();
                    }
                }
                () = peer.stop.cancelled() => return Err(Ended::Stopped),
                () = torrent.stop.cancelled() => return Err(Ended::Stopped),
            }
        }
    }

    /// Reads what is there, or the first of it: whether there may be more.
    fn read(&mut self, stream: &TcpStream, received: &mut ReceiveBuffer) -> Result<bool, Ended> {
        for _ in 0..8 {
            match stream.try_read(received.space()) {
                Ok(0) => return Err(Ended::Closed),
                Ok(count) => {
                    received.filled(count);
                    let now = Instant::now();
                    self.heard = now;
                    self.hear_all(received)?;
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

    fn write(&mut self, stream: &TcpStream) -> Result<(), Ended> {
        // So that other connections have their turn.
        for _ in 0..8 {
            if self.queue.is_empty() {
                break;
            }
            match self.queue.write_to(&mut Socket(stream)) {
                Ok(_) => {
                    self.said = Instant::now();
                    self.stuck = None;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.stuck.get_or_insert_with(Instant::now);
                    break;
                }
                Err(error) => return Err(error.into()),
            }
            self.read_asked()?;
        }
        Ok(())
    }

    /// Says what has to be said after what has changed, here or among the others.
    fn follow(&mut self, received: &mut ReceiveBuffer) -> Result<(), Ended> {
        if self.early.is_some()
            && let Some(ready) = self.torrent.ready()
        {
            received.set_limits(ready.limits);
            let early = self.early.take().expect("checked");
            self.catch_up(early)?;
            if self.extended && self.learns {
                // It was not told yet that the info dictionary is here.
                self.say_hello()?;
            }
        }
        if self.early.is_some() {
            self.learn()?;
        }
        if self.early.is_none() {
            self.tell_pieces()?;
            let interested = self.torrent.is_interested_in(&self.peer);
            if interested != self.interested {
                self.interested = interested;
                self.say(&if interested { Message::Interested } else { Message::NotInterested })?;
            }
        }
        let unchoked = self.peer.unchoked.load(Relaxed);
        // Not before it was told what is here, which comes first.
        if unchoked != self.unchoked && self.told.is_some() {
            self.unchoked = unchoked;
            self.say(&if unchoked { Message::Unchoke } else { Message::Choke })?;
            if !unchoked {
                for block in std::mem::take(&mut self.asks) {
                    self.reject(block)?;
                }
            }
        }
        let cancels = std::mem::take(&mut *self.peer.cancels.lock());
        for block in cancels {
            if self.was_asked(block) {
                self.say(&Message::Cancel(block))?;
                // It may be on its way.
                self.is_late(block);
            }
        }
        if std::mem::take(&mut self.gave_back) {
            self.torrent.wake_all();
        }
        self.ask()?;
        self.read_asked()
    }

    /// Tells of what is here: all of it at first, then what has come.
    fn tell_pieces(&mut self) -> Result<(), Ended> {
        if let Some(told) = self.told {
            let mut came = Vec::new();
            self.torrent.came_since(told, &mut came);
            self.told = Some(told + came.len());
            return came.into_iter().try_for_each(|piece| self.say(&Message::Have(PieceIndex(piece))));
        }
        let (have, came) = self.torrent.have();
        self.told = Some(came);
        match have.count() {
            0 if self.fast => self.say(&Message::HaveNone),
            0 => Ok(()),
            all if all == have.pieces() && self.fast => self.say(&Message::HaveAll),
            _ => self.say(&Message::Bitfield(Bitfield::new(have.as_bytes()))),
        }
    }

    /// Asks for what the torrent lacks that came as a magnet link.
    fn learn(&mut self) -> Result<(), Ended> {
        let (torrent, now) = (Arc::clone(&self.torrent), Instant::now());
        let mut learning = torrent.learning.lock();
        let Some(learning) = &mut *learning else { return Ok(()) };
        self.learns = true;
        loop {
            let has = |pieces| self.early.as_ref().is_some_and(|early| early.has_one_of(pieces));
            match learning.ask(self.peer.key, now, has) {
                Some(Question::Metadata { piece }) => {
                    self.say_metadata(MetadataMessage::Request { piece });
                }
                Some(Question::Hashes(range)) => self.say(&Message::HashRequest(range))?,
                None => return Ok(()),
            }
        }
    }

    /// What it said of its pieces while the torrent was not known.
    fn catch_up(&mut self, early: Early) -> Result<(), Ended> {
        let pieces = self.torrent.ready().expect("it is ready").info.piece_count();
        if early.all {
            self.torrent.peer_has(&self.peer, 0..pieces);
        } else if early.bitfield.is_empty() {
            self.torrent.peer_has(&self.peer, []);
        } else {
            let bitfield = Bitfield::new(&early.bitfield);
            bitfield.check(pieces)?;
            self.torrent.peer_has(&self.peer, bitfield.iter().map(|piece| piece.0));
        }
        early.pieces.into_iter().for_each(|piece| self.torrent.peer_gained(&self.peer, piece));
        Ok(())
    }

    fn hear_all(&mut self, received: &mut ReceiveBuffer) -> Result<(), Ended> {
        while let Some(message) = received.next_message()? {
            self.hear(message)?;
        }
        Ok(())
    }

    fn hear(&mut self, message: Message<'_>) -> Result<(), Ended> {
        let first = !self.begun;
        self.begun |= !matches!(message, Message::Extended(_) | Message::KeepAlive | Message::Port(_));
        match message {
            Message::Bitfield(_) | Message::HaveAll | Message::HaveNone if !first => {
                return Err(Ended::Misbehaves("says what it has after other messages"));
            }
            Message::HaveAll
            | Message::HaveNone
            | Message::Suggest(_)
            | Message::AllowedFast(_)
            | Message::Reject(_)
                if !self.fast =>
            {
                return Err(Ended::Misbehaves("uses the fast extension and has not said so"));
            }
            Message::Bitfield(bitfield) => match &mut self.early {
                Some(early) => early.bitfield = bitfield.as_bytes().to_vec(),
                None => self.torrent.peer_has(&self.peer, bitfield.iter().map(|piece| piece.0)),
            },
            Message::HaveAll => match (&mut self.early, self.torrent.ready()) {
                (None, Some(ready)) => self.torrent.peer_has(&self.peer, 0..ready.info.piece_count()),
                (early, _) => early.get_or_insert_default().all = true,
            },
            Message::Have(piece) => match &mut self.early {
                Some(early) if early.pieces.len() < 1 << 16 => early.pieces.push(piece.0),
                Some(_) => return Err(Ended::Misbehaves("tells of more pieces than can be remembered")),
                None => self.torrent.peer_gained(&self.peer, piece.0),
            },
            Message::Choke => {
                self.choked = true;
                // Of the fast ones, each request is rejected or answered.
                if !self.fast && !self.asked.is_empty() {
                    self.give_all_back();
                    self.pause(PAUSE);
                }
            }
            Message::Unchoke => self.choked = false,
            Message::Interested => self.torrent.peer_wants(&self.peer, true),
            Message::NotInterested => self.torrent.peer_wants(&self.peer, false),
            Message::Request(block) => self.asked_for(block)?,
            Message::Cancel(block) => {
                if let Some(at) = self.asks.iter().position(|asks| *asks == block) {
                    self.asks.remove(at);
                    self.reject(block)?;
                }
            }
            Message::Piece(piece) => self.brought(piece)?,
            Message::Reject(block) => self.rejected(block),
            Message::AllowedFast(piece) if self.allowed.len() < ALLOWED => self.allowed.push(piece.0),
            Message::Extended(extended) => {
                // Its frame was in order: what cannot be read costs this message only.
                match extended.read(&ExtensionIds::ALL) {
                    Ok(message) => self.hear_extended(message)?,
                    Err(error) => {
                        tracing::debug!(address = %self.peer.address, %error, "an extended message")
                    }
                }
            }
            Message::HashRequest(range) => self.asked_for_hashes(range)?,
            Message::Hashes(hashes) => self.torrent.hashes(&self.peer, &hashes)?,
            Message::HashReject(range) => {
                if let Some(learning) = &mut *self.torrent.learning.lock() {
                    learning.hashes_rejected(self.peer.key, &range)?;
                }
            }
            Message::KeepAlive
            | Message::HaveNone
            | Message::Port(_)
            | Message::Suggest(_)
            | Message::AllowedFast(_)
            | Message::Unknown { .. } => {}
        }
        Ok(())
    }

    fn hear_extended(&mut self, message: ExtendedMessage<'_>) -> Result<(), Ended> {
        match message {
            ExtendedMessage::Handshake(handshake) => {
                self.theirs = handshake.ids;
                if let Some(most) = handshake.request_queue {
                    self.most_requests = (most as usize).clamp(1, 4 * REQUESTS);
                }
                if let Some(port) = handshake.port.filter(|port| *port != 0 && !self.introduced) {
                    self.torrent.listens(&self.peer, SocketAddr::new(self.peer.address.ip(), port));
                }
                self.introduced = true;
                let serves = self.theirs.id(Extension::Metadata).is_some();
                if let Some(size) = handshake.metadata_size.filter(|_| serves)
                    && let Some(learning) = &mut *self.torrent.learning.lock()
                    && let Err(fault) = learning.offered(self.peer.key, size)
                {
                    // It may be good for something else.
                    tracing::debug!(address = %self.peer.address, %fault, "no info dictionary");
                }
            }
            ExtendedMessage::DontHave(piece) => self.torrent.peer_lost(&self.peer, piece.0),
            ExtendedMessage::Metadata(MetadataMessage::Request { piece }) => self.send_metadata(piece),
            ExtendedMessage::Metadata(MetadataMessage::Data { piece, total_size, data }) => {
                self.torrent.metadata(&self.peer, piece, total_size, data)?;
            }
            ExtendedMessage::Metadata(MetadataMessage::Reject { piece }) => {
                if let Some(learning) = &mut *self.torrent.learning.lock() {
                    learning.metadata_rejected(self.peer.key, piece)?;
                }
            }
            ExtendedMessage::Pex(pex) => {
                let private = self.torrent.ready().is_none_or(|ready| ready.info.is_private());
                let now = Instant::now();
                let often = self.told_of.is_some_and(|before| now - before < PEX);
                if !private && !often {
                    self.told_of = Some(now);
                    let added = pex.added().take(MOST_PEX).map(|added| added.endpoint);
                    let added = added.map(|peer: Endpoint| SocketAddr::new(peer.ip(), peer.port()));
                    // Somebody far away has nothing to say of this network.
                    let near = is_near(self.peer.address);
                    self.torrent.found(added.filter(|peer| near || !is_near(*peer)));
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn send_metadata(&mut self, piece: u32) {
        let torrent = Arc::clone(&self.torrent);
        let answer = match torrent.ready() {
            Some(ready) => self.uploads.answer(ready.info.encoded(), piece),
            None => MetadataMessage::Reject { piece },
        };
        self.say_metadata(answer);
    }

    fn say_metadata(&mut self, message: MetadataMessage<'_>) {
        // Who does not say under which id gets no answer, nor does who asks faster than it reads.
        if let Some(message) = ExtendedMessage::Metadata(message).to_peer(&self.theirs) {
            let _ = self.queue.push(&message);
        }
    }

    /// A request for hashes, which is answered from what is known, or from content that has to be read.
    fn asked_for_hashes(&mut self, range: HashRange<'_>) -> Result<(), Ended> {
        let torrent = Arc::clone(&self.torrent);
        let answer = torrent.ready().ok_or(hashes::Refusal::Unknown);
        match answer.and_then(|ready| hashes::answer(&ready.info, &range)) {
            Ok(hashes::Answer::Hashes(hashes)) => self.send_hashes(range, Some(&hashes)),
            Ok(hashes::Answer::Read(reading)) => match self.hash(reading) {
                Some(hashes) => {
                    let numbers = [range.base_layer(), range.index(), range.length(), range.proof_layers()];
                    self.hashing = Some(Hashing { root: *range.root(), numbers, hashes });
                    Ok(())
                }
                None => self.send_hashes(range, None),
            },
            Err(refusal) => {
                tracing::debug!(address = %self.peer.address, %refusal, "a request for hashes");
                self.send_hashes(range, None)
            }
        }
    }

    /// Hashes content, on a thread that may block. `None` if it is not there, or others are served: it may
    /// ask again, or somebody else.
    fn hash(&mut self, mut reading: Box<HashReading>) -> Option<JoinHandle<Option<Vec<[u8; 32]>>>> {
        let now = Instant::now();
        if self.hashing.is_some()
            || self.hashed.is_some_and(|before| now - before < HASHED)
            || self.torrent.session.up.wait(now).is_some()
            || !reading.pieces().clone().all(|piece| self.torrent.has(piece))
        {
            return None;
        }
        let permit = Arc::clone(&self.torrent.session.hashing).try_acquire_owned().ok()?;
        // BEP 52 has the same limits for these as for blocks.
        self.torrent.session.up.pass(reading.bytes().end - reading.bytes().start, now);
        self.hashed = Some(now);
        let torrent = Arc::clone(&self.torrent);
        Some(self.torrent.session.spawn_blocking(move || {
            let _permit = permit;
            let content = &torrent.ready()?.content;
            let Range { mut start, end } = reading.bytes().clone();
            let mut bytes = vec![0; (end - start).min(Batch::MOST as u64) as usize];
            while start < end {
                let bytes = &mut bytes[..(end - start).min(Batch::MOST as u64) as usize];
                content.read(start, bytes).ok()?;
                reading.update(bytes);
                start += bytes.len() as u64;
            }
            reading.finish().ok()
        }))
    }

    /// Sends what was computed.
    fn answer_hashes(&mut self, hashes: Option<Vec<[u8; 32]>>) -> Result<(), Ended> {
        let Some(Hashing { root, numbers: [base, index, length, proof], .. }) = self.hashing.take() else {
            return Ok(());
        };
        let range = HashRange::new(&root, base, index, length, proof)?;
        self.send_hashes(range, hashes.as_deref())
    }

    /// Or says that there are none.
    fn send_hashes(&mut self, range: HashRange<'_>, hashes: Option<&[[u8; 32]]>) -> Result<(), Ended> {
        if let Some(hashes) = hashes
            && let Ok(hashes) = Hashes::new(range, hashes)
            && self.queue.push(&Message::Hashes(hashes)).is_ok()
        {
            return Ok(());
        }
        self.say(&Message::HashReject(range))
    }

    /// Tells who else is there.
    fn tell_peers(&mut self, now: Instant) -> Result<(), Ended> {
        let public = self.torrent.ready().is_some_and(|ready| !ready.info.is_private());
        if !public || self.theirs.id(Extension::Pex).is_none() || !self.exchange.is_due(now) {
            return Ok(());
        }
        if let Some(news) = self.exchange.news(&self.torrent.others(&self.peer), now) {
            let message = ExtendedMessage::Pex(news.message()).to_peer(&self.theirs);
            let message = message.expect("it has an id, which was checked");
            self.queue.push(&message).map_err(|_| Ended::Misbehaves("does not read"))?;
        }
        Ok(())
    }

    fn say_hello(&mut self) -> Result<(), Ended> {
        let private = self.torrent.ready().is_some_and(|ready| ready.info.is_private());
        // Holes are punched for uTP only.
        let ids = ExtensionIds::ALL.with(Extension::Holepunch, 0);
        let ids = if private { ids.with(Extension::Pex, 0) } else { ids };
        let mut hello = ExtendedHandshake::new(ids);
        self.learns |= self.torrent.ready().is_none();
        hello.client = Some(CLIENT.as_bytes());
        hello.port = self.torrent.session.port();
        hello.your_ip = Some(self.peer.address.ip().to_canonical());
        hello.request_queue = Some(REQUESTS as u32);
        hello.metadata_size = self.torrent.ready().map(|ready| ready.info.encoded().len() as u32);
        hello.upload_only = self.torrent.is_complete().then_some(true);
        let message = ExtendedMessage::Handshake(hello).to_peer(&ExtensionIds::NONE);
        let message = message.expect("the handshake has always an id");
        self.queue.push(&message).map_err(|_| Ended::Misbehaves("does not read"))
    }

    fn say(&mut self, message: &Message<'_>) -> Result<(), Ended> {
        self.queue.push(message).map_err(|_| Ended::Misbehaves("does not read what it is told"))
    }

    fn reject(&mut self, block: Block) -> Result<(), Ended> {
        if self.fast { self.say(&Message::Reject(block)) } else { Ok(()) }
    }

    /// A request of the peer's.
    fn asked_for(&mut self, block: Block) -> Result<(), Ended> {
        let here = self.early.is_none() && self.torrent.has(block.piece.0);
        if !self.unchoked || !here || self.asks.len() >= REQUESTS {
            return self.reject(block);
        }
        self.asks.push_back(block);
        Ok(())
    }

    /// Reads what it asks for, while there is room to send it and as much may go.
    fn read_asked(&mut self) -> Result<(), Ended> {
        while !self.asks.is_empty() && self.reading.is_none() && self.queue.len() <= Batch::MOST / 2 {
            let torrent = Arc::clone(&self.torrent);
            let (up, now) = (&torrent.session.up, Instant::now());
            self.answer_from = up.wait(now).map(|wait| now + wait);
            if self.answer_from.is_some() {
                break;
            }
            let most = up.at_once().map_or(Batch::MOST, |most| most as usize);
            let Some(mut batch) = Batch::take(&mut self.asks, &mut self.memory, most) else { break };
            up.pass(batch.bytes() as u64, now);
            let ready = torrent.ready().expect("who asks was told what is here");
            // Most of it, as a read brings what follows it: a copy takes less than to have another thread
            // make it.
            let in_memory = |from, into: &mut [u8]| {
                torrent
                    .session
                    .store
                    .read_in_memory(&ready.info.info_hash(), from, into)
                    .then_some(())
                    .ok_or(())
            };
            if batch.read(ready, in_memory).is_ok() {
                self.answer(batch, Ok(()))?;
                continue;
            }
            let torrent = Arc::clone(&torrent);
            self.reading = Some(self.torrent.session.spawn_blocking(move || {
                let ready = torrent.ready().expect("who asks was told what is here");
                let read = |from, into: &mut [u8]| ready.content.read_at(from, &mut [IoSliceMut::new(into)]);
                let done = batch.read(ready, read).map_err(|_| batch.unreadable(ready));
                (batch, done)
            }));
        }
        Ok(())
    }

    /// Sends what was read.
    fn answer(&mut self, batch: Batch, done: Result<(), Vec<(u32, StoreError)>>) -> Result<(), Ended> {
        if let Err(unreadable) = done {
            unreadable.iter().for_each(|(piece, error)| self.torrent.unreadable(*piece, error));
            for block in batch.into_blocks().into_iter().rev() {
                if self.torrent.has(block.piece.0) {
                    self.asks.push_front(block);
                    continue;
                }
                self.reject(block)?;
                // Who cannot be told waits for it for ever.
                if !self.fast {
                    return Err(Ended::Stopped);
                }
            }
            return Ok(());
        }
        let mut bytes = 0;
        for (block, slice) in batch.into_slices(&mut self.memory) {
            bytes += u64::from(block.length);
            // There was room when this was read, for all but one who is told a lot and reads nothing.
            let pushed = self.queue.push_piece(block.piece, block.begin, slice);
            pushed.map_err(|_| Ended::Misbehaves("does not read"))?;
        }
        self.torrent.up.add(bytes);
        self.peer.up.add(bytes);
        Ok(())
    }

    /// A block came.
    fn brought(&mut self, piece: swarmkeep_peer_wire::Piece<'_>) -> Result<(), Ended> {
        let block = piece.block();
        if !self.was_asked(block) && !self.was_late(block) {
            let bytes = u64::from(block.length);
            self.unasked += bytes;
            self.torrent.unasked(bytes);
            if self.unasked > self.peer.down.total() + UNASKED {
                return Err(Ended::Misbehaves("brings what nobody asked it for"));
            }
            return Ok(());
        }
        self.brought = Instant::now();
        self.fruitless = Duration::ZERO;
        self.rejects = 0;
        self.peer.snubs.store(false, Relaxed);
        if let Some(whole) = self.torrent.received(&self.peer, piece.piece.0, piece.begin, piece.data) {
            let torrent = Arc::clone(&self.torrent);
            self.torrent.session.spawn_blocking(move || torrent.store(whole));
        }
        Ok(())
    }

    /// A block will not come.
    fn rejected(&mut self, block: Block) {
        // What was cancelled is rejected too.
        if self.was_late(block) || !self.was_asked(block) {
            return;
        }
        let (piece, now) = (block.piece.0, Instant::now());
        self.torrent.give_back(&self.peer, [block]);
        self.gave_back = true;
        self.allowed.retain(|allowed| *allowed != piece);
        self.rejects += 1;
        if self.rejects.is_multiple_of(FEWEST) {
            self.pause(PAUSE);
        }
        if self.choked {
            return;
        }
        if self.refused.len() == REFUSED {
            self.refused.clear();
        }
        let refused = self.refused.entry(piece).or_insert(Refused { times: 0, until: now });
        // All that it was asked for at a time is one refusal.
        if refused.until <= now {
            refused.times += 1;
            refused.until = now + self.torrent.session.config.late();
        }
        if refused.times == REFUSALS {
            self.refused.remove(&piece);
            self.torrent.peer_lost(&self.peer, piece);
        }
    }

    /// Asks for as much as comes in a second, so that there is always something on its way; of a slow one,
    /// for what it brings in time.
    fn ask(&mut self) -> Result<(), Ended> {
        let now = Instant::now();
        let allows = self.choked.then_some(&self.allowed[..]);
        if !self.interested
            || allows.is_some_and(<[u32]>::is_empty)
            || self.ask_from.is_some_and(|from| now < from)
        {
            return Ok(());
        }
        let rate = self.peer.down.rate();
        let most = if self.peer.snubs.load(Relaxed) {
            1
        } else if self.peer.down.total() == 0 {
            // Nothing is known of it yet: it may bring nothing at all.
            FIRST.min(self.most_requests)
        } else {
            let in_a_second = (rate / 16_384) as usize;
            let in_time = rate * self.torrent.session.config.request_timeout.as_secs() / 3 / 16_384;
            let in_time = if rate == 0 { usize::MAX } else { in_time as usize };
            (FEWEST + in_a_second.max(2 * FEWEST).min(in_time)).min(self.most_requests)
        };
        // In batches, so that each costs one lock.
        if self.asked.len() > most - most / 4 || self.asked.len() >= most {
            return Ok(());
        }
        let mut blocks = std::mem::take(&mut self.scratch);
        let ask = Ask {
            count: most - self.asked.len(),
            allows,
            may: &|piece| self.refused.get(&piece).is_none_or(|refused| refused.until <= now),
            again: std::mem::take(&mut self.ask_again),
            now,
        };
        self.torrent.pick(&self.peer, &ask, &mut blocks);
        for block in blocks.drain(..) {
            self.asked.push_back((block, now));
            self.say(&Message::Request(block))?;
        }
        self.scratch = blocks;
        Ok(())
    }

    /// Asks for nothing in that time.
    fn pause(&mut self, time: Duration) {
        self.ask_from = self.ask_from.max(Some(Instant::now() + time));
    }

    /// Whether a block was one that it was asked for; now it is none.
    fn was_asked(&mut self, block: Block) -> bool {
        let at = self.asked.iter().position(|(asked, _)| *asked == block);
        at.and_then(|at| self.asked.remove(at)).is_some()
    }

    /// Whether it was asked for a block once, and need not have brought it.
    fn was_late(&mut self, block: Block) -> bool {
        let at = self.late.iter().position(|late| *late == block);
        at.and_then(|at| self.late.remove(at)).is_some()
    }

    fn is_late(&mut self, block: Block) {
        if self.late.len() == LATE {
            self.late.pop_front();
        }
        self.late.push_back(block);
    }

    fn give_all_back(&mut self) {
        self.gave_back = true;
        self.torrent.give_back(&self.peer, self.asked.iter().map(|(block, _)| *block));
        for (block, _) in std::mem::take(&mut self.asked) {
            self.is_late(block);
        }
    }

    /// Leaves to others what it does not bring in time, and itself if that is the second time in a row.
    fn check_asked(&mut self, now: Instant) -> Result<(), Ended> {
        let config = &self.torrent.session.config;
        let (timeout, late) = (config.request_timeout, config.late());
        let since = now.saturating_duration_since(std::mem::replace(&mut self.ticked, now));
        let Some(&(_, oldest)) = self.asked.front() else { return Ok(()) };
        // What we ourselves do not read, to stay within a limit, is not its fault.
        let may_bring = self.read_from.is_none_or(|from| from + late <= now);
        let oldest = if may_bring { oldest } else { oldest.max(self.brought) };
        // Others may have brought what it was asked for, again and again.
        self.fruitless += if may_bring { since } else { Duration::ZERO };
        if now.saturating_duration_since(oldest).max(self.fruitless) <= timeout {
            return Ok(());
        }
        self.fruitless = Duration::ZERO;
        if self.peer.snubs.swap(true, Relaxed) {
            return Err(Ended::Misbehaves("does not bring what it is asked for"));
        }
        for (block, _) in self.asked.clone() {
            self.say(&Message::Cancel(block))?;
        }
        self.give_all_back();
        // The others come first.
        self.pause(late);
        Ok(())
    }

    /// Every second.
    fn tick(&mut self) -> Result<(), Ended> {
        let now = Instant::now();
        // Most connections are still for most of the time.
        if now - self.said > STILL && self.asks.is_empty() && self.queue.is_empty() {
            self.memory = Memory::default();
            self.queue.shrink();
        }
        if self.read_from.is_some_and(|from| from > now) {
            // It is not the one who is silent.
            (self.heard, self.brought) = (now, now);
        }
        if now - self.heard > SILENCE {
            return Err(Ended::Silent(SILENCE));
        }
        if self.stuck.is_some_and(|since| now - since > STUCK) {
            return Err(Ended::Misbehaves("takes nothing of what it is told"));
        }
        if now - self.said > KEEP_ALIVE {
            self.say(&Message::KeepAlive)?;
        }
        self.check_asked(now)?;
        self.ask_again = !self.refused.is_empty();
        self.tell_peers(now)?;
        if self.torrent.both_have_all(&self.peer) {
            return Err(Ended::Stopped);
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
