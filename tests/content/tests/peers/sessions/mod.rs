//! Our own sessions on loopback, with each other and with hostile peers.

mod connecting;
mod hostile;
mod magnets;
mod picking;
mod strangers;

use std::{
    collections::BTreeMap,
    future::poll_fn,
    net::SocketAddr,
    ops::Range,
    sync::Arc,
    task::Poll,
    time::{Duration, Instant},
};

use connecting::{assert_closes, caller, hello};
use hostile::{Stranger, block, handshake};
use sha1::{Digest, Sha1};
use swarmkeep::{SwarmStats, TorrentRepository};
use swarmkeep_bittorrent::{InfoHash, PeerId};
use swarmkeep_content::{
    ContentConfig, ContentExt, ContentRepository, Memory, NewTorrent,
    files::{Allocation, FileStore},
};
use swarmkeep_content_tests::torrents::two_mib as content;
use swarmkeep_metainfo::Info;
use swarmkeep_peer::{Handle, Session, SessionConfig, Status};
use swarmkeep_peer_wire::{
    Bitfield, Block, Encode, ExtendedHandshake, ExtendedMessage, ExtensionIds, Handshake, Limits, Message,
    Piece, PieceIndex, ReceiveBuffer, Reserved,
};
use swarmkeep_store_tests::{A_MINUTE, resident_kb, with};
use swarmkeep_tests::{build, listening};
use swarmkeep_tracker::Server;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpSocket, TcpStream},
    time::{sleep, timeout},
};

/// The info dictionary of 2 MiB of random bytes in 32 pieces (see `fixtures/README.md`).
const INFO: &[u8] = include_bytes!("../../../../../fixtures/torrents/splitmix64-2MiB.info");

fn info() -> Arc<Info> {
    Arc::new(Info::parse(INFO).unwrap())
}

/// A store that has some of the pieces.
fn store(pieces: impl IntoIterator<Item = u32>) -> Arc<dyn ContentRepository> {
    let store = Memory::new(&ContentConfig::new(""));
    put(&store, &info(), &content(), pieces);
    Arc::new(store)
}

/// Puts a torrent with some of its pieces into a store.
pub(crate) fn put(
    store: &dyn ContentRepository,
    info: &Info,
    bytes: &[u8],
    pieces: impl IntoIterator<Item = u32>,
) {
    let content = store.create(&NewTorrent::of(info).unwrap()).unwrap();
    for piece in pieces {
        let range = content.geometry().piece(piece).unwrap();
        content.write(range.start, &bytes[range.start as usize..range.end as usize]).unwrap();
        content.mark_complete(piece).unwrap();
    }
}

async fn session(n: u8, store: &Arc<dyn ContentRepository>) -> (Session, Handle) {
    started(config(n), store, &[]).await
}

/// A session with a torrent that a seeder has.
async fn fetching(n: u8, store: &Arc<dyn ContentRepository>, seeder: &Session) -> (Session, Handle) {
    let (fetcher, fetches) = session(n, store).await;
    fetches.found(seeder.addresses().to_vec());
    (fetcher, fetches)
}

pub(crate) fn config(n: u8) -> SessionConfig {
    with(SessionConfig::new(PeerId::new([n; 20])), |config| {
        config.listen = vec![SocketAddr::from(([127, 0, 0, 1], 0))];
        config.trackers.shortest_interval = Duration::from_millis(200);
    })
}

async fn started(
    config: SessionConfig,
    store: &Arc<dyn ContentRepository>,
    tiers: &[Vec<String>],
) -> (Session, Handle) {
    let session = Session::start(config, Arc::clone(store)).await.unwrap();
    let handle = session.add(info(), tiers).await.unwrap();
    (session, handle)
}

/// Starts a tracker that lasts as long as the test. Returns the tiers with it, and its store.
fn tracker() -> ([Vec<String>; 1], Arc<dyn TorrentRepository>) {
    let repository = build("packed", |config| config);
    let store = Arc::clone(repository.as_sync().expect("packed is synchronous"));
    let mut config = listening(&[SocketAddr::from(([127, 0, 0, 1], 0))], &[]);
    config.rules.interval_secs = 1;
    let server = Server::bind(&config, repository).unwrap();
    let address = server.addresses().unwrap()[0][0];
    tokio::spawn(server.run(std::future::pending()));
    ([vec![format!("udp://{address}/announce")]], store)
}

/// Waits until something holds, a minute at most.
async fn until(what: &str, holds: impl Fn() -> bool) {
    let held = async {
        while !holds() {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(A_MINUTE, held).await.unwrap_or_else(|_| panic!("not within a minute: {what}"));
}

async fn stop<const N: usize>(sessions: [Session; N]) {
    for session in sessions {
        session.stop().await.unwrap();
    }
}

async fn whole(handle: &Handle) {
    timeout(A_MINUTE, handle.complete()).await.expect("in time").unwrap();
    assert_eq!(handle.status().left, 0);
}

fn assert_has_all(store: &Arc<dyn ContentRepository>) {
    let content = store.open(&info().info_hash()).unwrap();
    let mut bytes = vec![0; info().length() as usize];
    content.read(0, &mut bytes).unwrap();
    assert!(bytes == self::content(), "other bytes than the seeder's");
}

/// Asserts that session `n` fetches everything from a seeder.
async fn assert_serves(seeder: &Session, n: u8) {
    let empty = store([]);
    let (fetcher, fetches) = fetching(n, &empty, seeder).await;
    whole(&fetches).await;
    fetcher.stop().await.unwrap();
    assert_has_all(&empty);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_session_fetches_the_missing_pieces_of_another() {
    for had in [0, 16] {
        let (full, part) = (store(0..32), store(0..had));
        let (seeder, seeds) = session(2, &full).await;
        let (fetcher, fetches) = fetching(3, &part, &seeder).await;
        whole(&fetches).await;
        let missing = info().length() / 32 * u64::from(32 - had);
        assert_eq!(seeds.status().up.0, missing);
        assert_eq!((fetches.status().down.0, fetches.status().wasted), (missing, 0));
        stop([fetcher, seeder]).await;
        assert_has_all(&part);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn peers_that_have_a_part_each_complete_each_other() {
    let stores = [0, 1, 2, 3].map(|n| store((0..32).filter(move |piece| piece % 4 == n)));
    let mut all = Vec::new();
    for (n, store) in (10..).zip(&stores) {
        all.push(session(n, store).await);
    }
    // Each knows the one before it.
    for pair in all.windows(2) {
        pair[1].1.found(pair[0].0.addresses().to_vec());
    }
    for (_, handle) in &all {
        whole(handle).await;
    }
    for (session, _) in all {
        session.stop().await.unwrap();
    }
    stores.iter().for_each(assert_has_all);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_is_found_through_its_tracker_and_leaves_it() {
    let (tiers, swarms) = tracker();
    let stores = [store(0..32), store([]), store([])];
    let (seeder, _seeds) = started(config(30), &stores[0], &tiers).await;
    let (one, fetches) = started(config(31), &stores[1], &tiers).await;
    let (two, too) = started(config(32), &stores[2], &tiers).await;
    whole(&fetches).await;
    whole(&too).await;
    let stats = || swarms.scrape(&info().info_hash());
    let expected = SwarmStats { complete: 3, incomplete: 0, downloaded: 2 };
    until("the tracker counts three seeders", || stats() == expected).await;
    stop([seeder, one, two]).await;
    assert_eq!(stats(), SwarmStats { complete: 0, incomplete: 0, downloaded: 2 });
    stores.iter().for_each(assert_has_all);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_download_counts_also_if_it_is_stopped_as_soon_as_it_is_complete() {
    let (tiers, swarms) = tracker();
    let (seeder, _seeds) = started(config(33), &store(0..32), &tiers).await;
    let (fetcher, fetches) = started(config(34), &store([]), &tiers).await;
    whole(&fetches).await;
    fetcher.stop().await.unwrap();
    assert_eq!(swarms.scrape(&info().info_hash()).downloaded, 1);
    seeder.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_add_that_was_dropped_can_be_repeated() {
    let session = Session::start(config(57), store([])).await.unwrap();
    let mut dropped = 0;
    for n in 1..10 {
        let mut adding = Box::pin(session.add(another(n), &[]));
        let added = poll_fn(|context| Poll::Ready(adding.as_mut().poll(context).is_ready())).await;
        drop(adding);
        if !added {
            dropped += 1;
            assert!(session.torrent(&another(n).info_hash()).is_none());
            session.add(another(n), &[]).await.unwrap();
        }
    }
    assert!(dropped > 0, "adding takes a moment");
    session.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fetched_pieces_are_written_in_time_although_their_stripe_is_not_whole() {
    let (some, empty) = (store(0..5), store([]));
    let (seeder, _seeds) = session(60, &some).await;
    let config = with(config(61), |config| config.write_within = Duration::from_secs(2));
    let (fetcher, fetches) = started(config, &empty, &[]).await;
    fetches.found(seeder.addresses().to_vec());
    let written = || empty.open(&info().info_hash()).unwrap().pieces().unwrap().count();
    until("nothing else comes, and it is written all the same", || written() >= 5).await;
    stop([fetcher, seeder]).await;
}

/// The `n`th of many torrents of the same bytes.
fn another(n: u8) -> Arc<Info> {
    let at = INFO.windows(10).position(|name| name == b"splitmix64").unwrap();
    let mut info = INFO.to_vec();
    info[at + 9] = b'a' + n;
    Arc::new(Info::parse(&info).unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn torrents_without_peers_to_call_leave_connections_to_the_others() {
    let config = with(config(50), |config| config.connections = 4);
    let seeder = Session::start(config, store(0..32)).await.unwrap();
    for n in 0..10 {
        seeder.add(another(n), &[]).await.unwrap();
    }
    seeder.add(info(), &[]).await.unwrap();
    // The first caller, which says nothing.
    let silent = tokio::net::TcpStream::connect(seeder.addresses()[0]).await.unwrap();
    assert_serves(&seeder, 51).await;
    drop(silent);
    seeder.stop().await.unwrap();
}

pub(crate) fn zeroes(name: &str, pieces: usize, piece_length: usize) -> Arc<Info> {
    let (length, named, hashes) = (pieces * piece_length, name.len(), 20 * pieces);
    let head =
        format!("d6:lengthi{length}e4:name{named}:{name}12:piece lengthi{piece_length}e6:pieces{hashes}:");
    let hash = Sha1::digest(vec![0; piece_length]);
    Arc::new(Info::parse(&[head.as_bytes(), &hash.repeat(pieces), b"e"].concat()).unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn progress_never_goes_back_while_pieces_come_at_the_same_time() {
    // In pieces of one block.
    let info = zeroes("x", 4096, 16 << 10);
    let full = Memory::new(&ContentConfig::new(""));
    put(&full, &info, &vec![0; 64 << 20], 0..4096);
    let seeder = Session::start(config(55), Arc::new(full)).await.unwrap();
    seeder.add(Arc::clone(&info), &[]).await.unwrap();
    let fetcher = Session::start(config(56), store([])).await.unwrap();
    let fetches = fetcher.add(info, &[]).await.unwrap();
    let progress = fetches.progress();
    let watched = std::thread::spawn(move || {
        let mut before = 0;
        while before < 4096 && progress.has_changed().is_ok() {
            let now = progress.borrow().complete;
            assert!(now >= before, "of {before} complete pieces {now} were left");
            before = now;
        }
    });
    fetches.found(seeder.addresses().to_vec());
    whole(&fetches).await;
    watched.join().unwrap();
    stop([fetcher, seeder]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unreadable_pieces_are_no_longer_offered_and_the_others_are() {
    let folder = tempfile::tempdir().unwrap();
    let files = FileStore::open(&ContentConfig::new(folder.path()), Allocation::Sparse).unwrap();
    let store: Arc<dyn ContentRepository> = Arc::new(files);
    put(&*store, &info(), &content(), 0..32);
    store.flush().unwrap();
    let (seeder, seeds) = session(53, &store).await;
    // Its end is lost: within the last piece but one.
    let file = std::fs::File::options().write(true).open(folder.path().join(info().name())).unwrap();
    file.set_len(info().length() - (64 << 10) - 100).unwrap();
    let (fetcher, fetches) = fetching(54, &self::store([]), &seeder).await;
    let complete = || [&fetches, &seeds].map(|handle| handle.status().progress.complete);
    until("both have all that can be read", || complete() == [30, 30]).await;
    assert!(fetches.status().banned.is_empty());
    assert_eq!(seeds.status().progress.failed, None, "a complete torrent keeps the rest");
    timeout(A_MINUTE, seeds.complete()).await.expect("it was").unwrap();
    stop([fetcher, seeder]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_pieces_are_not_sent_and_are_fetched_again() {
    let (rotten, empty, full) = (store(0..32), store([]), store(0..32));
    let content = rotten.open(&info().info_hash()).unwrap();
    let range = content.geometry().piece(5).unwrap();
    content.mark_incomplete(5).unwrap();
    content.write(range.start, &vec![0; (range.end - range.start) as usize]).unwrap();
    content.mark_complete(5).unwrap();
    let (seeder, seeds) = session(55, &rotten).await;
    let (fetcher, fetches) = fetching(56, &empty, &seeder).await;
    let complete = || [&fetches, &seeds].map(|handle| handle.status().progress.complete);
    until("both have all that is right", || complete() == [31, 31]).await;
    assert!(fetches.status().banned.is_empty(), "nothing wrong was sent");
    assert_eq!((seeds.status().lost, seeds.status().progress.failed), (1, None));
    assert!(!content.pieces().unwrap().contains(5), "the next process knows, too");
    // A peer comes that has it.
    let (other, _) = session(57, &full).await;
    seeds.found(other.addresses().to_vec());
    whole(&fetches).await;
    until("it comes again", || seeds.progress().borrow().is_complete()).await;
    stop([fetcher, seeder, other]).await;
    assert_has_all(&rotten);
    assert_has_all(&empty);
}
