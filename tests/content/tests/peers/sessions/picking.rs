//! Peers that do not send the requested blocks: other peers send them, and no peer gets endless requests.

use super::*;

/// The time that a peer may take in these tests.
const PATIENCE: Duration = Duration::from_secs(4);

async fn fetcher(n: u8) -> (Session, Handle) {
    started(with(config(n), |config| config.request_timeout = PATIENCE), &store([]), &[]).await
}

fn request(message: &Message<'_>) -> Option<Block> {
    match message {
        Message::Request(block) => Some(*block),
        _ => None,
    }
}

/// The values of `says` for the messages that come within a time.
async fn meanwhile<T>(
    stranger: &mut Stranger,
    time: Duration,
    says: impl Fn(&Message<'_>) -> Option<T>,
) -> Vec<T> {
    let mut said = Vec::new();
    let all = async {
        loop {
            while let Some(message) = stranger.received.next_message().unwrap() {
                said.extend(says(&message));
            }
            if !stranger.fill().await {
                break;
            }
        }
    };
    let _ = timeout(time, all).await;
    said
}

/// Small torrents are all endgame. libtorrent's `request_a_block` asks for a busy block only where nothing
/// else is outstanding.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_endgame_of_several_seeders_fetches_little_twice() {
    let mut all = vec![session(69, &store([])).await];
    for n in 0..3 {
        // Two or three seconds for all of it.
        let slow = with(config(130 + n), |config| config.up = Some(256 << 10));
        all.push(started(slow, &store(0..32), &[]).await);
    }
    let fetches = all[0].1.clone();
    fetches.found(all[1..].iter().map(|(seeder, _)| seeder.addresses()[0]));
    whole(&fetches).await;
    let wasted = fetches.status().wasted;
    assert!(wasted < info().length() / 8, "{wasted} bytes came twice");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_is_silent_twice_is_left() {
    let (fetcher, fetches) = fetcher(62).await;
    let begin = Instant::now();
    let mut stranger = Stranger::call(&fetcher, 24, &[Message::HaveAll, Message::Unchoke]).await;
    stranger.wait_for(request).await;
    stranger.ends().await;
    assert!(begin.elapsed() >= 2 * PATIENCE, "{:?}", begin.elapsed());
    assert!(fetches.status().peers.is_empty());
    fetcher.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_peer_loses_its_requests_and_its_late_blocks_are_accepted() {
    let (fetcher, fetches) = fetcher(63).await;
    let mut stranger = Stranger::call(&fetcher, 25, &[Message::HaveAll, Message::Unchoke]).await;
    let content = crate::sessions::content();
    let mut first = vec![stranger.wait_for(request).await];
    first.extend(meanwhile(&mut stranger, Duration::from_millis(100), request).await);
    stranger.bring(&content, first[0]).await;
    let mut asked = first[1..].to_vec();
    asked.extend(meanwhile(&mut stranger, Duration::from_millis(300), request).await);
    while asked.len() < 8 {
        asked.push(stranger.wait_for(request).await);
    }
    let came = (asked.len() as u64 + 1) * (16 << 10);
    let cancels = |message: &Message<'_>| match message {
        Message::Cancel(block) => Some(*block),
        _ => None,
    };
    // The last requested blocks come, each in time after the one before.
    let mut cancelled = vec![];
    while cancelled.is_empty() {
        let last = asked.pop().expect("no request is cancelled while other blocks come");
        stranger.bring(&content, last).await;
        cancelled = meanwhile(&mut stranger, PATIENCE / 2, cancels).await;
    }
    while !asked.iter().all(|block| cancelled.contains(block)) {
        cancelled.push(stranger.wait_for(cancels).await);
    }
    // They were on their way.
    for block in asked {
        stranger.bring(&content, block).await;
    }
    until("all of it is accepted", || fetches.status().down.0 >= came).await;
    assert_eq!(fetches.status().wasted, 0);
    fetcher.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_rejects_everything_gets_few_requests() {
    let (fetcher, fetches) = fetcher(64).await;
    let mut stranger = Stranger::call(&fetcher, 26, &[Message::HaveAll, Message::Unchoke]).await;
    let (mut asked, begin) = (BTreeMap::<_, u32>::new(), Instant::now());
    while begin.elapsed() < 2 * PATIENCE {
        let new = meanwhile(&mut stranger, Duration::from_millis(1), request).await;
        for block in new {
            *asked.entry((block.piece.0, block.begin)).or_default() += 1;
            stranger.say(&[Message::Reject(block)]).await;
        }
        let soon = begin.elapsed() < Duration::from_millis(700);
        assert!(!soon || asked.len() < 40, "{} requests at once", asked.len());
    }
    let all: u32 = asked.values().sum();
    assert!((1..1000).contains(&all), "{all} requests: {asked:?}");
    assert!(asked.values().all(|times| *times <= 10), "{asked:?}");
    let (seeder, _seeds) = session(65, &store(0..32)).await;
    fetches.found(seeder.addresses().to_vec());
    whole(&fetches).await;
    stop([fetcher, seeder]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_piece_that_a_peer_rejects_again_and_again_is_no_longer_requested_from_it() {
    let (fetcher, fetches) = fetcher(66).await;
    let piece = Message::Bitfield(Bitfield::new(&[0x80, 0, 0, 0]));
    let mut stranger = Stranger::call(&fetcher, 27, &[piece, Message::Unchoke]).await;
    let mut asked = 0;
    loop {
        let said = stranger
            .wait_for(|message| match message {
                Message::Request(block) => Some(Some(*block)),
                Message::NotInterested => Some(None),
                _ => None,
            })
            .await;
        let Some(block) = said else { break };
        asked += 1;
        assert!(asked < 100, "it gets requests without end");
        stranger.say(&[Message::Reject(block)]).await;
    }
    assert!((4..=16).contains(&asked), "{asked} requests");
    assert_eq!(fetches.status().peers[0].pieces, 0);
    // It may get the piece later.
    stranger.say(&[Message::Have(PieceIndex(0))]).await;
    stranger.wait_for(request).await;
    fetcher.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_chokes_and_unchokes_all_the_time_gets_few_requests() {
    let (fetcher, _fetches) = fetcher(67).await;
    let stream = TcpStream::connect(fetcher.addresses()[0]).await.unwrap();
    let mut stranger = Stranger::shaken(stream, 28, info().info_hash(), Reserved::default()).await;
    stranger.say(&[Message::Bitfield(Bitfield::new(&[0xff; 4])), Message::Unchoke]).await;
    let (mut asked, begin) = (0, Instant::now());
    while begin.elapsed() < PATIENCE {
        let new = meanwhile(&mut stranger, Duration::from_millis(1), request).await;
        asked += new.len();
        stranger.say(&[Message::Choke, Message::Unchoke]).await;
    }
    assert!((1..500).contains(&asked), "{asked} requests");
    fetcher.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unrequested_blocks_count_as_waste_and_end_the_connection() {
    let (fetcher, fetches) = fetcher(68).await;
    let mut stranger = Stranger::call(&fetcher, 29, &[Message::HaveNone]).await;
    let data = [7; 16 << 10];
    let garbage = |n| {
        let Block { piece, begin, .. } = block(n);
        Message::Piece(Piece { piece, begin, data: &data })
    };
    let some: Vec<_> = (0..32).map(garbage).collect();
    stranger.say(&some).await;
    until("it came", || fetches.status().wasted >= 32 * (16 << 10)).await;
    let status = fetches.status();
    assert_eq!((status.down.0, status.peers[0].down.0), (0, 0));
    let more: Vec<_> = (0..128).map(garbage).collect();
    let flood = async {
        loop {
            stranger.say(&more).await;
            if fetches.status().peers.is_empty() {
                break;
            }
        }
    };
    timeout(A_MINUTE, flood).await.expect("it is cut off");
    assert!(fetches.status().wasted < 16 << 20, "{}", fetches.status().wasted);
    fetcher.stop().await.unwrap();
}
