//! Remote peers and trackers that crowd others out.

use std::{
    collections::VecDeque,
    env,
    net::SocketAddr,
    time::{Duration, Instant},
};

use swarmkeep_peer_wire::{Encode, Message};
use swarmkeep_store_tests::{A_MINUTE, resident_kb};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    time::{sleep, timeout},
};

use crate::sessions::{
    announced, assert_serves,
    connecting::{caller, hello},
    session, stop, store, whole,
};

/// A peer that asks for nothing.
fn interested(n: u8) -> Vec<u8> {
    let mut bytes = hello(n);
    [Message::HaveNone, Message::Interested].iter().for_each(|message| message.encode(&mut bytes));
    bytes
}

/// The compact form of an address at which nothing listens.
fn made_up(n: u16) -> [u8; 6] {
    let [high, low] = n.to_be_bytes();
    [127, 77, high, low, 0, 9]
}

/// Starts a tracker that answers each announce with `peers`, in compact form, after `delay`. Returns its URL.
async fn tracker_of(peers: Vec<u8>, delay: Duration) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let dictionary = format!("d8:intervali1800e5:peers{}:", peers.len());
    let body = [dictionary.as_bytes(), &peers, b"e"].concat();
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let _ = stream.read(&mut [0; 2048]).await;
            sleep(delay).await;
            let _ = stream.write_all(&[head.as_bytes(), &body].concat()).await;
        }
    });
    format!("http://{address}/announce")
}

/// A tracker that knows one peer, and answers last.
async fn honest_tracker(seeder: SocketAddr) -> String {
    let SocketAddr::V4(seeder) = seeder else { unreachable!() };
    let compact = [&seeder.ip().octets()[..], &seeder.port().to_be_bytes()].concat();
    tracker_of(compact, Duration::from_secs(1)).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tracker_that_makes_up_peers_hides_none_of_another() {
    let (seeder, _seeds) = session(141, &store(0..32)).await;
    let hostile = tracker_of((0..1000).flat_map(made_up).collect(), Duration::ZERO).await;
    let tiers = [vec![hostile], vec![honest_tracker(seeder.addresses()[0]).await]];
    let (fetcher, fetches) = announced(140, &store([]), &tiers).await;
    timeout(A_MINUTE, whole(&fetches)).await.expect("the seeder is called");
    stop([fetcher, seeder]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_that_say_nothing_make_no_other_wait() {
    let (seeder, _seeds) = session(144, &store(0..32)).await;
    let mut silent = Vec::new();
    for n in 0..600_u16 {
        silent.push(caller([127, 0, 40 + (n % 60) as u8, 1], seeder.addresses()[0]).await);
    }
    assert_serves(&seeder, 145).await;
    seeder.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn peers_that_say_that_they_are_interested_and_ask_for_nothing_close_no_torrent() {
    let (seeder, _seeds) = session(146, &store(0..32)).await;
    let mut silent = Vec::new();
    for n in 0..64_u8 {
        let mut stream = caller([127, 0, 100 + n % 8, 1], seeder.addresses()[0]).await;
        stream.write_all(&interested(n)).await.unwrap();
        silent.push(stream);
    }
    sleep(Duration::from_secs(6)).await;
    assert_serves(&seeder, 147).await;
    seeder.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes minutes, and prints figures of docs/operate/security.md: `.ci/long soak`"]
async fn under_all_floods_memory_has_its_bound_and_others_fetch() {
    let secs = env::var("SWARMKEEP_FLOOD_SECS").map_or(60, |secs| secs.parse().expect("a number of seconds"));
    let (seeder, _seeds) = session(148, &store(0..32)).await;
    let address = seeder.addresses()[0];
    let silent = tokio::spawn(async move {
        let (mut open, mut made) = (VecDeque::new(), 0_u64);
        loop {
            open.push_back(caller([127, 0, 40 + (made % 60) as u8, 1], address).await);
            made += 1;
            if open.len() > 600 {
                open.pop_front();
            }
            sleep(Duration::from_millis(5)).await;
        }
    });
    let interested = (0..64_u8).map(|n| {
        tokio::spawn(async move {
            loop {
                let mut stream = caller([127, 0, 100 + n % 8, 1], address).await;
                let _ = stream.write_all(&interested(n)).await;
                while stream.read(&mut [0; 2048]).await.is_ok_and(|read| read > 0) {}
                sleep(Duration::from_millis(100)).await;
            }
        })
    });
    let floods: Vec<_> = interested.chain([silent]).collect();
    let (mut took, mut resident, began) = (Vec::new(), Vec::new(), Instant::now());
    while began.elapsed() < Duration::from_secs(secs) {
        let asked = Instant::now();
        let (fetcher, fetches) = session(149, &store([])).await;
        fetches.found(vec![address]);
        whole(&fetches).await;
        took.push(asked.elapsed());
        fetcher.stop().await.unwrap();
        resident.push(resident_kb());
        sleep(Duration::from_secs(1)).await;
    }
    floods.iter().for_each(|flood| flood.abort());
    took.sort_unstable();
    let [half, most] = [50, 100].map(|percent| took[(took.len() - 1) * percent / 100]);
    let settled = &resident[resident.len() / 5..];
    let (least, largest) = (settled.iter().min().unwrap(), settled.iter().max().unwrap());
    println!(
        "{} fetches of 2 MiB: p50 {half:.1?}, the longest {most:.1?}; resident {least} to {largest} KiB",
        took.len()
    );
    assert!(largest - least < 16 << 10, "{resident:?}");
    seeder.stop().await.unwrap();
}
