//! Torrents of which only the hash is known: their info dictionaries come from peers, and some peers lie.
//! Also peers that peers name.

use std::time::SystemTime;

use sha2::Sha256;
use swarmkeep::{Announce, SplitMix64, Timestamp, TorrentRepositoryExt as _};
use swarmkeep_metainfo::{Creation, Format, Magnet, Metainfo};
use swarmkeep_peer::Error;
use swarmkeep_peer_wire::{Hashes, MetadataMessage};
use tokio::sync::Notify;

use super::*;

/// A torrent of three files: the first has 700 pieces, more than one message has hashes of; the last is
/// smaller than a block.
fn torrent(format: Format, private: bool) -> (Metainfo, Arc<Info>, Vec<u8>) {
    let mut builder = Creation::builder("three", format);
    builder.piece_length(16 << 10).private(private);
    builder.file(["a"], 700 * (16 << 10) - 5, false).file(["b"], 100_000, false).file(["c"], 7, false);
    let mut creation = builder.build().unwrap();
    let files = creation.files();
    let mut bytes = vec![0; files.length() as usize];
    for file in files.iter().filter(|file| !file.is_padding()) {
        let range = file.offset() as usize..(file.offset() + file.length()) as usize;
        bytes[range].iter_mut().enumerate().for_each(|(n, byte)| *byte = (n * n / 251) as u8);
    }
    for nth in 0..creation.piece_count() {
        let mut hasher = creation.hasher(nth).unwrap();
        for segment in creation.segments(nth) {
            let from = creation.files().get(segment.file).unwrap().offset() + segment.offset;
            hasher.update(&bytes[from as usize..][..segment.length as usize]);
        }
        creation.set(hasher.finish().unwrap());
    }
    let metainfo = Metainfo::parse(&creation.finish().unwrap()).unwrap();
    let info = Arc::clone(metainfo.info());
    (metainfo, info, bytes)
}

fn full(info: &Info, bytes: &[u8]) -> Arc<dyn ContentRepository> {
    let store = Memory::new(&ContentConfig::new(""));
    put(&store, info, bytes, 0..info.piece_count());
    Arc::new(store)
}

async fn seeder(n: u8, info: &Arc<Info>, bytes: &[u8], tiers: &[Vec<String>]) -> Session {
    let session = start(n, full(info, bytes)).await;
    session.add(Arc::clone(info), tiers).await.unwrap();
    session
}

async fn start(n: u8, store: Arc<dyn ContentRepository>) -> Session {
    Session::start(config(n), store).await.unwrap()
}

fn empty() -> Arc<dyn ContentRepository> {
    Arc::new(Memory::new(&ContentConfig::new("")))
}

async fn learn(session: &Session, link: &Magnet) -> Metainfo {
    timeout(A_MINUTE, session.learn(link)).await.expect("in time").unwrap()
}

/// Fetches the content of a torrent that was learnt.
async fn fetch(session: &Session, learnt: Metainfo, tiers: &[Vec<String>]) -> Handle {
    let handle = session.add(learnt.into_info(), tiers).await.unwrap();
    whole(&handle).await;
    handle
}

/// The link of a torrent, of v1, of v2, or of both, and a peer that has it.
fn link(metainfo: &Metainfo, v1: bool, v2: bool, peer: SocketAddr) -> Magnet {
    part_of(&Magnet::from(metainfo).with_peer(peer), v1, v2)
}

fn part_of(link: &Magnet, v1: bool, v2: bool) -> Magnet {
    let whole = link.to_string();
    let parts: Vec<_> = whole.split(['?', '&']).collect();
    let kept = parts[1..]
        .iter()
        .filter(|part| (v1 || !part.starts_with("xt=urn:btih")) && (v2 || !part.starts_with("xt=urn:btmh")));
    let kept: Vec<_> = kept.copied().collect();
    format!("magnet:?{}", kept.join("&")).parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_of_v1_of_v2_or_of_both_is_enough_to_fetch_a_torrent() {
    let kinds = [
        (Format::V1, true, false),
        (Format::V2, false, true),
        (Format::Hybrid, true, true),
        (Format::Hybrid, true, false),
        (Format::Hybrid, false, true),
    ];
    for (format, v1, v2) in kinds {
        let what = format!("{format:?} {v1} {v2}");
        let (metainfo, info, bytes) = torrent(format, false);
        let seeder = seeder(60, &info, &bytes, &[]).await;
        let store = empty();
        let fetcher = start(61, Arc::clone(&store)).await;
        let link = link(&metainfo, v1, v2, seeder.addresses()[0]);
        let learnt = learn(&fetcher, &link).await;
        assert_eq!(learnt.info().encoded(), info.encoded(), "{what}");
        // Peers of v1 know no hashes of v2.
        let with_layers = format != Format::Hybrid || !v1;
        assert_eq!(**learnt.info() == *info, with_layers, "{what}");
        let read = Metainfo::parse(&learnt.encode().unwrap()).unwrap();
        assert_eq!(read, learnt, "{what}");

        fetch(&fetcher, learnt, &[]).await;
        assert!(fetcher.add(Arc::clone(&info), &[]).await.is_err(), "{what}: it is there");
        assert!(fetcher.learn(&link).await.is_err(), "{what}: it is known");
        let content = store.open(&info.info_hash()).unwrap();
        fetcher.stop().await.unwrap();
        let mut fetched = vec![0; bytes.len()];
        content.read(0, &mut fetched).unwrap();
        assert!(fetched == bytes, "{what}: other bytes");
        seeder.stop().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_torrent_without_hashes_of_some_pieces_is_refused() {
    let session = Session::start(config(77), empty()).await.unwrap();
    let (metainfo, _, _) = torrent(Format::V2, false);
    let lacking = Arc::new(Info::parse(metainfo.info().encoded()).unwrap());
    let refused = session.add(lacking, &[]).await.unwrap_err().to_string();
    assert_eq!(refused, "it has no hashes of some pieces, which can be learnt by its magnet link");
    session.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_tracker_of_a_link_names_a_peer_and_peers_that_have_learnt_teach_others() {
    let (tiers, _swarms) = tracker();
    let (_, info, bytes) = torrent(Format::V2, false);
    let seeder = seeder(62, &info, &bytes, &tiers).await;
    let link = Magnet::from(&Metainfo::new((*info).clone(), &tiers));
    let one = start(63, empty()).await;
    let learnt = learn(&one, &link).await;
    assert_eq!(learnt.tiers(), tiers);
    fetch(&one, learnt, &[]).await;
    seeder.stop().await.unwrap();
    let two = start(64, empty()).await;
    let learnt = learn(&two, &link).await;
    assert_eq!(**learnt.info(), *info);
    stop([one, two]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hybrid_is_learnt_by_its_v2_hash_from_peers_without_v2_hashes() {
    let (metainfo, _, bytes) = torrent(Format::Hybrid, false);
    let alone = Arc::new(Info::parse(metainfo.info().encoded()).unwrap());
    let seeder = seeder(73, &alone, &bytes, &[]).await;
    let fetcher = start(74, empty()).await;
    let learnt = learn(&fetcher, &link(&metainfo, false, true, seeder.addresses()[0])).await;
    fetch(&fetcher, learnt, &[]).await;
    stop([fetcher, seeder]).await;
}

/// The abilities of the remote peer, and the info hash that it names.
async fn named(stream: &mut TcpStream) -> (Reserved, InfoHash) {
    let mut bytes = [0; 48];
    timeout(A_MINUTE, stream.read_exact(&mut bytes)).await.expect("in time").unwrap();
    Handshake::peek(&bytes).unwrap().expect("48 bytes are enough")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hybrid_is_announced_and_shared_by_both_of_its_info_hashes() {
    let (tiers, swarms) = tracker();
    let (_, info, bytes) = torrent(Format::Hybrid, false);
    let [v1, v2] = info.info_hashes().collect::<Vec<_>>().try_into().expect("two of a hybrid");
    // A peer that knows no v1.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let its = listener.local_addr().unwrap().try_into().unwrap();
    let now = Timestamp::try_from(SystemTime::now()).unwrap();
    swarms.announce_vec(&Announce::new(v2, its).left(1), now, &mut SplitMix64::new(1));
    let seeder = seeder(78, &info, &bytes, &tiers).await;
    let (mut called, _) = timeout(A_MINUTE, listener.accept()).await.expect("in time").unwrap();
    assert_eq!(named(&mut called).await, (Reserved::EXTENSIONS | Reserved::FAST | Reserved::V2, v2));

    for (can, asked, answered) in
        [(Reserved::empty(), v1, v1), (Reserved::empty(), v2, v2), (Reserved::V2, v1, v2)]
    {
        let mut stream = TcpStream::connect(seeder.addresses()[0]).await.unwrap();
        stream.write_all(&handshake(1, asked, can)).await.unwrap();
        assert_eq!(named(&mut stream).await.1, answered, "{can:?}");
    }

    let whole_link = Magnet::from(&Metainfo::new((*info).clone(), &tiers));
    for (n, by_v1) in [(79, true), (80, false)] {
        let fetcher = start(n, empty()).await;
        let learnt = learn(&fetcher, &part_of(&whole_link, by_v1, !by_v1)).await;
        fetch(&fetcher, learnt, &tiers).await;
        let seeders = || [v1, v2].map(|name| swarms.scrape(&name).complete);
        until(&format!("two seeders of each, by v1: {by_v1}"), || seeders() == [2, 2]).await;
        fetcher.stop().await.unwrap();
        assert_eq!(seeders(), [1, 1]);
    }
    seeder.stop().await.unwrap();
    assert_eq!([v1, v2].map(|name| swarms.scrape(&name).peers()), [0, 1]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_hangs_up_on_one_info_hash_of_a_hybrid_is_called_by_the_other() {
    let (_, info, _) = torrent(Format::Hybrid, false);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let session = start(81, empty()).await;
    let handle = session.add(Arc::clone(&info), &[]).await.unwrap();
    handle.found([listener.local_addr().unwrap()]);
    for name in info.info_hashes() {
        let (mut called, _) = timeout(A_MINUTE, listener.accept()).await.expect("in time").unwrap();
        assert_eq!(named(&mut called).await.1, name);
        drop(called);
        until("it is not reached", || !handle.status().unreached.is_empty()).await;
        let error = &handle.status().unreached[0].error;
        assert!(error.starts_with("the handshake was not answered: "), "{error}");
    }
    session.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_torrent_that_is_there_by_one_of_its_info_hashes_is_refused_by_the_other() {
    let (metainfo, info, _) = torrent(Format::Hybrid, false);
    let [v1, v2] = info.info_hashes().collect::<Vec<_>>().try_into().expect("two of a hybrid");
    let [by_v1, by_v2] = [true, false].map(|v1| part_of(&Magnet::from(&metainfo), v1, !v1));
    let session = start(82, empty()).await;
    {
        let learning = session.learn(&by_v2);
        tokio::pin!(learning);
        assert!(timeout(Duration::from_millis(10), &mut learning).await.is_err(), "no peer has it");
        let refused = session.add(Arc::clone(&info), &[]).await.err();
        assert!(matches!(refused, Some(Error::Exists(name)) if name == v2), "{refused:?}");
        assert!(session.torrent(&v1).is_none());
    }
    session.add(info, &[]).await.unwrap();
    for (link, name) in [(by_v1, v1), (by_v2, v2)] {
        let refused = session.learn(&link).await.err();
        assert!(matches!(refused, Some(Error::Exists(there)) if there == name), "{refused:?}");
    }
    session.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_that_names_a_torrent_of_v1_by_v2_as_well_is_refused() {
    let (metainfo, info, bytes) = torrent(Format::V1, false);
    let seeder = seeder(83, &info, &bytes, &[]).await;
    let link = link(&metainfo, true, false, seeder.addresses()[0]);
    let sha256: String = Sha256::digest(info.encoded()).iter().map(|byte| format!("{byte:02x}")).collect();
    let link: Magnet = format!("{link}&xt=urn:btmh:1220{sha256}").parse().unwrap();
    let fetcher = start(84, empty()).await;
    let learnt = timeout(A_MINUTE, fetcher.learn(&link)).await.expect("in time");
    let error = learnt.unwrap_err().to_string();
    assert_eq!(error, "the link has an info hash of a version that the torrent is not of");
    assert!(link.info_hash_v1().is_some_and(|name| fetcher.torrent(&name).is_none()));
    stop([fetcher, seeder]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_learn_leaves_nothing_behind() {
    let (metainfo, _, _) = torrent(Format::V1, false);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let session = start(65, empty()).await;
    let (tiers, swarms) = tracker();
    let link = link(&metainfo, true, false, listener.local_addr().unwrap());
    let link: Magnet = format!("{link}&tr={}", tiers[0][0]).parse().unwrap();
    let name = link.info_hash();
    let enough = Notify::new();
    let learning = async {
        tokio::select! {
            learnt = session.learn(&link) => Some(learnt),
            () = enough.notified() => None,
        }
    };
    let (dropped, called) = tokio::join!(learning, async {
        let (stream, _) = listener.accept().await.unwrap();
        let called = Stranger::shaken(stream, 1, name, Reserved::EXTENSIONS).await;
        assert!(session.torrent(&name).is_some());
        until("it is announced", || swarms.scrape(&name).incomplete > 0).await;
        enough.notify_one();
        called
    });
    assert!(dropped.is_none(), "no peer has it");
    called.ends().await;
    assert!(session.torrent(&name).is_none());
    until("the tracker gets `stopped`", || swarms.scrape(&name).incomplete == 0).await;
    timeout(A_MINUTE, session.stop()).await.expect("in time").unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connected_peers_are_notified_when_a_torrent_was_learnt() {
    let (metainfo, info, bytes) = torrent(Format::V1, false);
    let (name, size) = (info.info_hash(), info.encoded().len() as u32);
    let seeder = seeder(75, &info, &bytes, &[]).await;
    let session = start(76, empty()).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let link = link(&metainfo, true, false, listener.local_addr().unwrap());
    let says = |message: &Message<'_>, size| match message {
        Message::Extended(extended) => matches!(
            extended.read(&ExtensionIds::ALL),
            Ok(ExtendedMessage::Handshake(hello)) if hello.metadata_size == size
        ),
        _ => false,
    };
    let (learnt, mut stranger) = tokio::join!(learn(&session, &link), async {
        let (stream, _) = listener.accept().await.unwrap();
        let mut stranger = Stranger::shaken(stream, 1, name, Reserved::EXTENSIONS | Reserved::FAST).await;
        stranger.until(|message| says(message, None)).await;
        session.torrent(&name).unwrap().found(seeder.addresses().to_vec());
        stranger
    });
    session.add(learnt.into_info(), &[]).await.unwrap();
    stranger.until(|message| says(message, Some(size))).await;
    stop([session, seeder]).await;
}

/// Offers an info dictionary of `size` bytes, answers requests for it with the size and the bytes of
/// `answer`, and requests for hashes with wrong ones.
async fn offers(listener: TcpListener, n: u8, name: InfoHash, size: u32, answer: Option<(u32, Vec<u8>)>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else { return };
        let mut stranger = Stranger::shaken(stream, n, name, Reserved::EXTENSIONS | Reserved::FAST).await;
        stranger.say(&[Message::HaveAll]).await;
        let mut hello = ExtendedHandshake::new(ExtensionIds::ALL);
        hello.metadata_size = Some(size);
        stranger.say_hello(hello).await;
        loop {
            let (mut asked, mut hashes) = (Vec::new(), Vec::new());
            while let Ok(Some(message)) = stranger.received.next_message() {
                if let Message::HashRequest(range) = message {
                    let wrong = vec![[7; 32]; (range.length() + range.uncles()) as usize];
                    Message::Hashes(Hashes::new(range, &wrong).unwrap()).encode(&mut hashes);
                }
                if let Message::Extended(extended) = message
                    && let Ok(ExtendedMessage::Metadata(MetadataMessage::Request { piece })) =
                        extended.read(&ExtensionIds::ALL)
                {
                    asked.push(piece);
                }
            }
            stranger.say_bytes(&hashes).await;
            for piece in asked {
                if let Some((total_size, data)) = &answer {
                    let data = MetadataMessage::Data { piece, total_size: *total_size, data };
                    let data = ExtendedMessage::Metadata(data).to_peer(&ExtensionIds::ALL).unwrap();
                    stranger.say_encoded(&data).await;
                }
            }
            if !stranger.fill().await {
                break;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn peers_that_send_another_info_dictionary_are_found_and_the_right_one_is_learnt() {
    let (metainfo, info, bytes) = torrent(Format::V1, false);
    let (name, size) = (info.info_hash(), info.encoded().len() as u32);
    let mut strangers = Vec::new();
    let mut at = Vec::new();
    let offered = [
        // Garbage of the right size.
        (size, Some((size, vec![7; size.min(16 << 10) as usize]))),
        // More than a session accepts, and more than there is of it.
        (u32::MAX, None),
        (32 << 20, Some((32 << 20, vec![0; 16 << 10]))),
        // Another size than it has said.
        (size, Some((size + 1, vec![7; 16 << 10]))),
    ];
    for (n, (size, answer)) in (1..).zip(offered) {
        let listener = TcpListener::bind(SocketAddr::from(([127, 0, 3, n], 0))).await.unwrap();
        at.push(listener.local_addr().unwrap());
        strangers.push(tokio::spawn(offers(listener, n, name, size, answer)));
    }
    let seeder = seeder(66, &info, &bytes, &[]).await;
    at.push(seeder.addresses()[0]);
    let fetcher = start(67, empty()).await;
    let mut link = link(&metainfo, true, false, at[0]);
    for at in &at[1..] {
        link = link.with_peer(*at);
    }
    let learnt = learn(&fetcher, &link).await;
    assert_eq!(learnt.info().encoded(), info.encoded());
    let banned = fetch(&fetcher, learnt, &[]).await.status().banned;
    assert!(!banned.iter().any(|(peer, _)| *peer == seeder.addresses()[0]), "{banned:?}");
    stop([fetcher, seeder]).await;
    strangers.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_single_peer_that_sends_another_info_dictionary_or_wrong_hashes_of_pieces_is_banned() {
    for format in [Format::V1, Format::V2] {
        let (metainfo, info, _) = torrent(format, false);
        let (name, mut sent) = (info.info_hash(), info.encoded().to_vec());
        if info.has_v1() {
            // That of v2 is right, and the hashes are not.
            sent.fill(7);
        }
        let listener = TcpListener::bind(SocketAddr::from(([127, 0, 4, 1], 0))).await.unwrap();
        let fetcher = start(68, empty()).await;
        let at = listener.local_addr().unwrap();
        let link = link(&metainfo, info.has_v1(), !info.has_v1(), at);
        let size = sent.len() as u32;
        let lies = tokio::spawn(offers(listener, 1, name, size, Some((size, sent))));
        let banned = async {
            loop {
                sleep(Duration::from_millis(50)).await;
                let banned = fetcher.torrent(&name).map_or_else(Vec::new, |torrent| torrent.status().banned);
                if !banned.is_empty() {
                    return banned;
                }
            }
        };
        let banned = tokio::select! {
            learnt = fetcher.learn(&link) => panic!("{learnt:?}"),
            banned = timeout(A_MINUTE, banned) => banned.expect("in time"),
        };
        assert!(banned.len() == 1 && banned[0].0 == at, "{banned:?}");
        lies.abort();
        fetcher.stop().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn peers_tell_peers_of_others_but_not_those_of_a_private_torrent() {
    for private in [false, true] {
        let (_, mut info, bytes) = torrent(Format::V1, private);
        if private {
            // Any number but 0 (libtorrent's `parse_info_section_impl`, Transmission's `MetainfoHandler`).
            let mut two = info.encoded().to_vec();
            let at = two.windows(11).position(|field| field == b"7:privatei1").unwrap();
            two[at + 10] = b'2';
            info = Arc::new(Info::parse(&two).unwrap());
        }
        // Slow enough that they have much to say to each other.
        let slow = with(config(70), |config| config.up = Some(100_000));
        let middle = Session::start(slow, full(&info, &bytes)).await.unwrap();
        let knows = middle.add(Arc::clone(&info), &[]).await.unwrap();
        let ends = [start(71, empty()).await, start(72, empty()).await];
        let mut handles = Vec::new();
        for end in &ends {
            let handle = end.add(Arc::clone(&info), &[]).await.unwrap();
            handle.found(middle.addresses().to_vec());
            handles.push(handle);
        }
        until("both have called", || knows.status().peers.len() >= 2).await;
        let met = async {
            while !handles[0].status().peers.iter().any(|peer| peer.id == PeerId::new([72; 20])) {
                sleep(Duration::from_millis(20)).await;
            }
        };
        let met = timeout(if private { Duration::from_secs(3) } else { A_MINUTE }, met).await;
        assert_eq!(met.is_ok(), !private);
        stop(ends).await;
        middle.stop().await.unwrap();
    }
}
