//! Which peers connect to which, how often, and the limits.

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_that_call_each_other_at_the_same_time_are_connected() {
    let mut pairs = Vec::new();
    for n in 0..10 {
        let (one, seeds) = session(80 + 2 * n, &store(0..32)).await;
        let (other, fetches) = session(81 + 2 * n, &store([])).await;
        seeds.found(other.addresses().to_vec());
        fetches.found(one.addresses().to_vec());
        pairs.push((one, other, seeds, fetches));
    }
    for (.., fetches) in &pairs {
        whole(fetches).await;
    }
    for (one, other, ..) in pairs {
        stop([one, other]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connected_peer_is_not_called_back() {
    let (session, handle) = session(110, &store(0..32)).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut stranger = Stranger::call(&session, 1, &[]).await;
    let listens = SocketAddr::new([127, 0, 1, 1].into(), listener.local_addr().unwrap().port());
    let listener = TcpListener::bind(listens).await.unwrap();
    let mut hello = ExtendedHandshake::new(ExtensionIds::ALL);
    hello.port = Some(listens.port());
    stranger.say_hello(hello).await;
    // Messages are read in their order.
    stranger.say(&[Message::Interested]).await;
    stranger.until(|message| *message == Message::Unchoke).await;
    handle.found([listens]);
    assert!(timeout(Duration::from_secs(1), listener.accept()).await.is_err(), "it was called");
    // After the connection ends, it is.
    drop(stranger);
    timeout(A_MINUTE, listener.accept()).await.expect("it is called").unwrap();
    session.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn uploads_that_must_wait_hold_up_no_requests() {
    let config = with(config(112), |config| config.up = Some(16 << 10));
    let ((slow, handle), began) = (started(config, &store(0..16), &[]).await, Instant::now());
    // Eight that request all of its pieces.
    let mut others = Vec::new();
    for n in 0..7 {
        others.push(fetching(113 + n, &store([]), &slow).await.0);
    }
    let up = || handle.status().up.0;
    until("the bytes of the first second went", || up() > 16 << 10).await;
    let (seeder, _seeds) = session(125, &store(16..32)).await;
    handle.found(seeder.addresses().to_vec());
    whole(&handle).await;
    let (went, seconds) = (up(), began.elapsed().as_secs() + 2);
    assert!(went <= seconds * (16 << 10), "{went} bytes went in {seconds} s of 16 KiB per second");
    for session in others.into_iter().chain([slow, seeder]) {
        session.stop().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_address_takes_more_than_a_quarter_of_all_that_may_call() {
    let config = with(config(126), |config| config.connections = 40);
    let seeder = Session::start(config, store(0..32)).await.unwrap();
    let torrents = [info(), another(0)];
    for torrent in &torrents {
        seeder.add(Arc::clone(torrent), &[]).await.unwrap();
    }
    let call = |host: u8, n: u8| {
        let (to, torrent) = (seeder.addresses()[0], torrents[usize::from(n % 2)].info_hash());
        async move {
            let stream = caller([127, 0, host, 1], to).await;
            let mut stranger = Stranger::shaken(stream, n, torrent, Reserved::FAST).await;
            stranger.until(|message| matches!(message, Message::HaveAll | Message::HaveNone)).await;
            stranger
        }
    };
    let mut strangers = Vec::new();
    for n in 0..10 {
        strangers.push(call(8, n).await);
    }
    let mut refused = caller([127, 0, 8, 1], seeder.addresses()[0]).await;
    refused.write_all(&hello(10)).await.unwrap();
    assert_closes(refused).await;
    call(9, 11).await;
    // Closed connections make room.
    drop(strangers);
    let answered = async {
        loop {
            let mut again = caller([127, 0, 8, 1], seeder.addresses()[0]).await;
            again.write_all(&hello(12)).await.unwrap();
            if again.read_u8().await.is_ok() {
                break;
            }
        }
    };
    timeout(A_MINUTE, answered).await.expect("there is room");
    seeder.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_that_has_named_a_torrent_is_answered_before_it_sends_its_peer_id() {
    let (seeder, _seeds) = session(127, &store(0..32)).await;
    let mut stream = caller([127, 0, 10, 1], seeder.addresses()[0]).await;
    stream.write_all(&hello(1)[..48]).await.unwrap();
    let mut answer = [0; Handshake::LEN];
    timeout(A_MINUTE, stream.read_exact(&mut answer)).await.expect("at once").unwrap();
    assert_eq!(Handshake::peek(&answer).unwrap().unwrap().1, info().info_hash());
    seeder.stop().await.unwrap();
}

/// A connection that has sent nothing.
pub(crate) async fn caller(from: [u8; 4], to: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::from((from, 0))).unwrap();
    socket.connect(to).await.unwrap()
}

/// The handshake of a peer for the torrent of most tests.
pub(crate) fn hello(n: u8) -> Vec<u8> {
    handshake(n, info().info_hash(), Reserved::FAST)
}

/// Without an answer.
pub(crate) async fn assert_closes(mut stream: TcpStream) {
    let end = timeout(A_MINUTE, stream.read(&mut [0; 1])).await.expect("it is cut off at once");
    assert!(end.map_or(true, |read| read == 0));
}
