//! Remote peers and trackers that crowd others out.

use std::{collections::VecDeque, env};

use super::*;
use crate::trackers::servers::{Http, Reply, ok};

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

/// The answer of a tracker with these peers, in compact form.
fn answer(peers: &[u8]) -> Vec<u8> {
    ok(&[format!("d8:intervali1800e5:peers{}:", peers.len()).as_bytes(), peers, b"e"].concat())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tracker_that_makes_up_peers_hides_none_of_another() {
    let (seeder, _seeds) = session(141, &store(0..32)).await;
    let [port_high, port_low] = seeder.addresses()[0].port().to_be_bytes();
    let all = answer(&(0..1000).flat_map(made_up).collect::<Vec<_>>());
    let hostile = Http::new(move |_, _| Reply::Keep(all.clone())).await;
    // It answers last.
    let honest = Http::new(move |_, _| Reply::Slowly(answer(&[127, 0, 0, 1, port_high, port_low]))).await;
    let tiers = [vec![hostile.url()], vec![honest.url()]];
    let (fetcher, fetches) = started(config(140), &store([]), &tiers).await;
    whole(&fetches).await;
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
    // A peer that is connected may be silent for minutes.
    let _connected = Stranger::call(&seeder, 149, &[]).await;
    timeout(A_MINUTE, seeder.stop()).await.expect("without waiting for them").unwrap();
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
        let (fetcher, fetches) = fetching(149, &store([]), &seeder).await;
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
