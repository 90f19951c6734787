//! The use of a repository in a tracker: announce from several threads into the bytes about to be sent,
//! scrape, and sweep in small steps at the same time.
//!
//! Run with `cargo run --release -p swarmkeep --example embed`.

use std::{
    error::Error,
    net::{IpAddr, Ipv4Addr},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::{Duration, SystemTime},
};

use swarmkeep::{
    Announce, AnnounceEvent, Budget, Endpoint, HashKey, InfoHash, OsRandom, Packed, PeerBuffer,
    RepositoryConfig, Retention, Timestamp, TorrentRepository,
};

type Result<T = ()> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> Result {
    // A secret key, a lifetime of 45 minutes, and a limit of a million swarms.
    let config = RepositoryConfig::new(HashKey::from_os()?)
        .lifetime(Duration::from_secs(45 * 60))
        .max_swarms(1_000_000);
    let store = Packed::new(&config)?;
    let (store, stopping) = (&store, AtomicBool::new(false));

    thread::scope(|scope| {
        let sweeper = scope.spawn(|| -> Result {
            while !stopping.load(Relaxed) {
                store.sweep(now()?, Retention::KeepDownloaded, Budget::peers(10_000));
                thread::sleep(Duration::from_millis(10));
            }
            Ok(())
        });
        let receivers = [0, 1].map(|number| scope.spawn(move || receive(store, number)));
        let received = receivers.map(|receiver| receiver.join().expect("no announce panics"));
        stopping.store(true, Relaxed);
        received.into_iter().collect::<Result>().and(sweeper.join().expect("no sweep panics"))
    })?;

    let totals = store.totals();
    println!("{} swarms, {} peers, {} bytes", totals.swarms, totals.peers(), store.memory().bytes);
    let stats = store.scrape(&torrent(0));
    println!(
        "torrent 0: {} seeders, {} leechers, {} downloads",
        stats.complete, stats.incomplete, stats.downloaded
    );
    assert_eq!((totals.swarms, totals.peers()), (100, 20_000));
    Ok(())
}

/// The work of a receive loop for each packet. A thread has its own generator, which clients cannot predict.
fn receive(store: &Packed, number: u8) -> Result {
    let mut rng = OsRandom::new()?;
    let mut packet = [0_u8; 20 + 50 * 6];
    for peer in 0..10_000_u16 {
        let ip = IpAddr::V4(Ipv4Addr::new(192, 0, 2, number));
        let Ok(endpoint) = Endpoint::new(ip, peer + 1) else { continue };
        let announce = Announce::new(torrent(peer % 100), endpoint).event(AnnounceEvent::Started).want(50);
        // The selected peers are written into the packet, after the header.
        let mut peers = PeerBuffer::of(endpoint.family(), &mut packet[20..]);
        let answer = store.announce(&announce, now()?, &mut rng, &mut peers);
        let length = 20 + peers.v4.as_bytes().len();
        packet[12..16].copy_from_slice(&answer.stats.incomplete.to_be_bytes());
        packet[16..20].copy_from_slice(&answer.stats.complete.to_be_bytes());
        assert!(length <= packet.len());
    }
    Ok(())
}

fn torrent(number: u16) -> InfoHash {
    let mut bytes = [0; 20];
    bytes[..2].copy_from_slice(&number.to_be_bytes());
    InfoHash::new(bytes)
}

fn now() -> Result<Timestamp> {
    Timestamp::try_from(SystemTime::now())
        .map_err(|_| "the clock of this machine is before 1970: set it".into())
}
