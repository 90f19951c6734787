//! Who connects to whom, how often, and what limits hold up.

use std::{net::SocketAddr, time::Duration};

use swarmkeep_bittorrent::PeerId;
use swarmkeep_peer::{Session, SessionConfig};
use swarmkeep_peer_wire::{ExtendedHandshake, ExtendedMessage, ExtensionIds, Message, Reserved};
use tokio::{
    io::AsyncReadExt,
    net::{TcpListener, TcpSocket},
    time::{sleep, timeout},
};

use crate::sessions::{hostile::Stranger, info, session, store, whole};

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
        timeout(Duration::from_secs(10), whole(fetches)).await.expect("before anybody calls again");
    }
    for (one, other, ..) in pairs {
        one.stop().await.unwrap();
        other.stop().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_has_called_is_not_called_back() {
    let (session, handle) = session(110, &store(0..32)).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut stranger = Stranger::call(session.addresses()[0], 1).await;
    let listens = SocketAddr::new([127, 0, 1, 1].into(), listener.local_addr().unwrap().port());
    let listener = TcpListener::bind(listens).await.unwrap();
    let mut hello = ExtendedHandshake::new(ExtensionIds::ALL);
    hello.port = Some(listens.port());
    let hello = ExtendedMessage::Handshake(hello).to_peer(&ExtensionIds::NONE).unwrap();
    stranger.say_encoded(&hello).await;
    sleep(Duration::from_millis(300)).await;
    handle.found([listens]);
    assert!(timeout(Duration::from_secs(1), listener.accept()).await.is_err(), "it was called");
    // Once it has gone, it is.
    drop(stranger);
    timeout(Duration::from_secs(30), listener.accept()).await.expect("it is called").unwrap();
    session.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_address_takes_all_the_connections() {
    let (seeder, handle) = session(111, &store(0..32)).await;
    let from = |host: u8, n: u8| {
        let to = seeder.addresses()[0];
        async move {
            let socket = TcpSocket::new_v4().unwrap();
            socket.bind(SocketAddr::from(([127, 0, 5, host], 0))).unwrap();
            let stream = socket.connect(to).await.unwrap();
            Stranger::shaken(stream, n, info().info_hash(), Reserved::FAST).await
        }
    };
    let mut strangers = Vec::new();
    for n in 0..8 {
        let mut stranger = from(1, n).await;
        // Said once it is taken in.
        stranger.until(|message| *message == Message::HaveAll).await;
        strangers.push(stranger);
    }
    from(1, 8).await.ends().await;
    let mut other = from(2, 9).await;
    other.until(|message| *message == Message::HaveAll).await;
    assert_eq!(handle.status().peers.len(), 9);
    seeder.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_may_not_go_out_yet_holds_up_no_requests() {
    let (left, right) = (store(0..16), store(16..32));
    let config = SessionConfig::new(PeerId::new([112; 20]))
        .listen([SocketAddr::from(([127, 0, 0, 1], 0))])
        .limits(Some(64 << 10), None);
    let slow = Session::start(config, left).await.unwrap();
    let handle = slow.add(info(), &[]).await.unwrap();
    // Eight that ask it for all that it has.
    let mut others = Vec::new();
    for n in 0..7 {
        let (other, asks) = session(113 + n, &store([])).await;
        asks.found(slow.addresses().to_vec());
        others.push(other);
    }
    sleep(Duration::from_secs(2)).await;
    let (seeder, _seeds) = session(125, &right).await;
    handle.found(seeder.addresses().to_vec());
    timeout(Duration::from_secs(4), whole(&handle)).await.expect("a megabyte comes at once");
    let up = handle.status().up.0;
    assert!((64 << 10..1 << 20).contains(&up), "{up} bytes went in a few seconds of 64 KiB");
    for session in others.into_iter().chain([slow, seeder]) {
        session.stop().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_address_takes_more_than_a_quarter_of_all_that_may_call() {
    let config = SessionConfig::new(PeerId::new([126; 20]))
        .listen([SocketAddr::from(([127, 0, 0, 1], 0))])
        .connections(40);
    let seeder = Session::start(config, store(0..32)).await.unwrap();
    seeder.add(info(), &[]).await.unwrap();
    let call = |host: u8| {
        let to = seeder.addresses()[0];
        async move {
            let socket = TcpSocket::new_v4().unwrap();
            socket.bind(SocketAddr::from(([127, 0, 8, host], 0))).unwrap();
            socket.connect(to).await.unwrap()
        }
    };
    let mut silent = Vec::new();
    for _ in 0..10 {
        silent.push(call(1).await);
    }
    let mut refused = call(1).await;
    let end =
        timeout(Duration::from_secs(5), refused.read(&mut [0; 1])).await.expect("it is cut off at once");
    assert!(end.map_or(true, |read| read == 0));
    let mut other = Stranger::shaken(call(2).await, 1, info().info_hash(), Reserved::FAST).await;
    other.until(|message| *message == Message::HaveAll).await;
    // Who goes makes room.
    drop(silent);
    sleep(Duration::from_millis(300)).await;
    Stranger::shaken(call(1).await, 2, info().info_hash(), Reserved::FAST).await;
    seeder.stop().await.unwrap();
}
