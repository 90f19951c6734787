//! A thousand torrents and two hundred connections at once, within the memory that the documentation of
//! `SessionConfig` states.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use sha1::{Digest, Sha1};
use swarmkeep_bittorrent::PeerId;
use swarmkeep_content::{ContentConfig, ContentExt, ContentRepository, Memory, NewTorrent};
use swarmkeep_kit::allocations::{self, Counting};
use swarmkeep_metainfo::Info;
use swarmkeep_peer::{Session, SessionConfig};
use swarmkeep_peer_wire::{Block, Encode, Handshake, Limits, Message, PieceIndex, ReceiveBuffer, Reserved};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const TORRENTS: usize = 1000;
const CONNECTIONS: usize = 200;
const PIECE: u32 = 16 << 10;
const PIECES: u32 = 4;
/// Requests of each leecher, for the same blocks over and over: more than is sent to one that reads nothing.
const ASKED: u32 = 128;

/// The documented bytes of a torrent, of each of its pieces, of a connection that waits and of one that is
/// answered.
const A_TORRENT: usize = 16 << 10;
const A_PIECE: usize = 40;
const A_CONNECTION: usize = 16 << 10;
const AN_ANSWERED: usize = (3 * 256 + 64) << 10;

/// Only the first pieces have hashes that are right: no other is read.
fn info(n: usize, pieces: u32) -> Arc<Info> {
    let name = format!("{n:06}");
    let length = u64::from(pieces) * u64::from(PIECE);
    let mut bytes =
        format!("d6:lengthi{length}e4:name6:{name}12:piece lengthi{PIECE}e6:pieces{}:", pieces * 20)
            .into_bytes();
    (0..PIECES).for_each(|at| bytes.extend(Sha1::digest(piece(n, at))));
    bytes.resize(bytes.len() + (pieces - PIECES) as usize * 20, b'-');
    bytes.push(b'e');
    Arc::new(Info::parse(&bytes).unwrap())
}

fn piece(n: usize, piece: u32) -> Vec<u8> {
    (0..PIECE / 8)
        .flat_map(|at| ((n as u64) << 40 | u64::from(piece) << 20 | u64::from(at)).to_le_bytes())
        .collect()
}

/// Waits until as much is allocated as before, for some time.
fn live() -> usize {
    let mut before = allocations::live();
    let mut since = Instant::now();
    while since.elapsed() < Duration::from_millis(300) {
        thread::sleep(Duration::from_millis(10));
        let now = allocations::live();
        if now.abs_diff(before) > 64 << 10 {
            (before, since) = (now, Instant::now());
        }
    }
    before as usize
}

/// Waits until connections have released their buffers, for a minute at most. Returns the bytes of each.
fn at_rest(before: usize) -> usize {
    let each = || live().saturating_sub(before) / CONNECTIONS;
    (0..200).map(|_| each()).find(|&each| each <= A_CONNECTION).unwrap_or_else(each)
}

struct Asker {
    stream: TcpStream,
    received: ReceiveBuffer,
    torrent: usize,
}

impl Asker {
    fn new(torrent: usize, address: SocketAddr) -> Self {
        let limits = Limits::for_torrent(u64::from(PIECES * PIECE), PIECE).unwrap();
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        // So that bytes that are sent to it wait on the other side.
        socket.set_recv_buffer_size(4096).unwrap();
        socket.connect(&address.into()).unwrap();
        let stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        Self { stream, received: ReceiveBuffer::new(limits), torrent }
    }

    fn say(&mut self, message: &impl Encode) {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        self.stream.write_all(&bytes).unwrap();
    }

    /// Waits for more.
    fn read(&mut self) {
        let count = self.stream.read(self.received.space()).expect("something in time");
        assert!(count > 0, "the connection was ended");
        self.received.filled(count);
    }

    fn shake_hands(&mut self, n: usize, info: &Info) {
        let mut id = [b'-'; 20];
        id[..8].copy_from_slice(&n.to_le_bytes());
        let reserved = Reserved::FAST;
        self.say(&Handshake { reserved, info_hash: info.info_hash(), peer_id: PeerId::new(id) });
        while self.received.next_handshake().unwrap().is_none() {
            self.read();
        }
        self.say(&Message::HaveNone);
    }

    /// Waits until it may, and requests all blocks.
    fn ask(&mut self) {
        loop {
            match self.received.next_message().unwrap() {
                Some(Message::Unchoke) => break,
                Some(_) => {}
                None => self.read(),
            }
        }
        let mut bytes = Vec::new();
        for n in 0..ASKED {
            let block = Block { piece: PieceIndex(n % PIECES), begin: 0, length: PIECE };
            Message::Request(block).encode(&mut bytes);
        }
        self.stream.write_all(&bytes).unwrap();
    }

    fn take_all(&mut self) {
        let pieces: Vec<_> = (0..PIECES).map(|n| piece(self.torrent, n)).collect();
        for n in 0..ASKED {
            loop {
                match self.received.next_message().unwrap() {
                    Some(Message::Piece(came)) => {
                        assert_eq!((came.piece, came.begin), (PieceIndex(n % PIECES), 0));
                        assert!(came.data == pieces[(n % PIECES) as usize], "other bytes than the store has");
                        break;
                    }
                    Some(_) => {}
                    None => self.read(),
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_torrents_and_two_hundred_connections_take_the_documented_memory() {
    // From here on it counts.
    allocations::live();
    let infos: Vec<_> = (0..TORRENTS).map(|n| info(n, PIECES)).collect();
    let store = Memory::new(&ContentConfig::new(""));
    for (n, info) in infos.iter().enumerate() {
        let content = store.create(&NewTorrent::of(info).unwrap()).unwrap();
        for number in 0..PIECES {
            content.write(u64::from(number * PIECE), &piece(n, number)).unwrap();
            content.mark_complete(number).unwrap();
        }
    }
    let many_pieces = info(TORRENTS, 1 << 16);
    store.create(&NewTorrent::of(&many_pieces).unwrap()).unwrap();
    let mut config = SessionConfig::new(PeerId::new([9; 20]));
    config.listen = vec![SocketAddr::from(([127, 0, 0, 1], 0))];
    // Incoming connections have three quarters.
    (config.connections, config.connections_per_address) = (CONNECTIONS * 4 / 3 + 1, CONNECTIONS);
    // It has a bound of its own.
    (config.write_memory, config.read_memory) = (4 << 20, 64 << 10);

    let session = Session::start(config, Arc::new(store)).await.unwrap();
    let empty = live();
    let mut handles = Vec::with_capacity(TORRENTS + 1);
    for info in &infos {
        handles.push(session.add(Arc::clone(info), &[]).await.unwrap());
    }
    let with_torrents = live();
    let a_torrent = (with_torrents - empty) / TORRENTS;

    handles.push(session.add(Arc::clone(&many_pieces), &[]).await.unwrap());
    let with_pieces = live();
    let a_piece = (with_pieces - with_torrents) / (1 << 16);

    let asker = |n| {
        let mut asker = Asker::new(n * TORRENTS / CONNECTIONS, session.addresses()[0]);
        asker.shake_hands(n, &infos[asker.torrent]);
        asker
    };
    let mut askers: Vec<_> = (0..CONNECTIONS).map(asker).collect();
    // The memory of the leechers counts as well, and may grow as they read.
    let with_askers =
        |askers: &[Asker]| with_pieces + askers.iter().map(|asker| asker.received.capacity()).sum::<usize>();
    let before = with_askers(&askers);
    let a_connection = at_rest(before);
    assert!(a_connection > 0, "the memory of the leechers is counted twice");
    assert!(a_connection <= A_CONNECTION, "{a_connection} bytes per connection that waits");

    // All at once: a connection that takes no response for two minutes is ended.
    askers.iter_mut().for_each(|asker| asker.say(&Message::Interested));
    askers.iter_mut().for_each(Asker::ask);
    // Until no more responses wait than before, in less than these two minutes.
    let mut an_answered = 0;
    for _ in 0..250 {
        thread::sleep(Duration::from_millis(100));
        let now = (live() - before) / CONNECTIONS;
        let grows = now > an_answered;
        an_answered = an_answered.max(now);
        if !grows && an_answered > 4 * a_connection {
            break;
        }
    }
    askers.iter_mut().for_each(Asker::take_all);
    let sent: u64 = handles.iter().map(|handle| handle.status().up.0).sum();
    assert_eq!(sent, CONNECTIONS as u64 * u64::from(ASKED * PIECE));

    let an_idle = at_rest(with_askers(&askers));

    println!(
        "{a_torrent} bytes per torrent, {a_piece} per piece, {a_connection} per connection, {an_answered} if it is answered, {an_idle} if it was"
    );
    assert!(a_torrent <= A_TORRENT, "{a_torrent} bytes per torrent");
    assert!(a_piece <= A_PIECE, "{a_piece} bytes per piece");
    assert!(an_answered <= AN_ANSWERED, "{an_answered} bytes per connection that is answered");
    assert!(an_answered > 4 * a_connection, "{an_answered} bytes: the responses did not wait");
    assert!(an_idle <= A_CONNECTION, "{an_idle} bytes per connection that was answered");
    session.stop().await.unwrap();
}
