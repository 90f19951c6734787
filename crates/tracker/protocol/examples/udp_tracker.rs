//! A whole UDP tracker on the packed store: run it, and `swarmkeep load --target 127.0.0.1:6969` beside it.

use std::{error::Error, hash::BuildHasher as _, hash::RandomState, net::SocketAddr, time::SystemTime};

use swarmkeep::{
    Announce, Budget, HashKey, OsRandom, Packed, PeerBuffer, RepositoryConfig, Retention, Timestamp,
    TorrentRepository as _,
};
use swarmkeep_tracker_protocol::udp::*;
use tokio::net::UdpSocket;

/// The longest answer without IP fragments.
const LONGEST: usize = 1452;

struct Tracker {
    store: Packed,
    rng: OsRandom,
    ids: RandomState,
}

/// Answers until the socket fails or the clock is before 1970. It does not check the clock for jumps.
pub(crate) async fn serve(socket: UdpSocket) -> Result<(), Box<dyn Error + Send + Sync>> {
    // Without a limit, strangers fill the memory with made-up torrents.
    let store = Packed::new(&RepositoryConfig::new(HashKey::from_os()?).max_bytes(1 << 30))?;
    let mut tracker = Tracker { store, rng: OsRandom::new()?, ids: RandomState::new() };
    let (mut packet, mut out) = ([0; 2048], [0; LONGEST]);
    loop {
        let (len, client) = socket.recv_from(&mut packet).await?;
        let now = SystemTime::now().try_into()?;
        if let Some(len) = tracker.answer(&packet[..len], client, now, &mut out) {
            // An unreachable client does not end the tracker.
            let _ = socket.send_to(&out[..len], client).await;
        }
        // A little with each request: without requests, the memory is not needed.
        tracker.store.sweep(now, Retention::DropEmpty, Budget::peers(16));
    }
}

impl Tracker {
    fn answer(&mut self, packet: &[u8], client: SocketAddr, now: Timestamp, out: &mut [u8]) -> Option<usize> {
        let Header { connection_id, transaction_id, .. } = Header::parse(packet).ok()?;
        // An id proves that the client is at this address. It is good for two to four minutes.
        let [id, earlier] = [0, 120].map(|ago| {
            ConnectionId(self.ids.hash_one((client.ip(), now.saturating_sub(ago).as_secs() / 120)))
        });
        match Request::parse(packet).ok()? {
            Request::Connect(_) => {
                ConnectResponse { transaction_id, connection_id: id }.write(out.first_chunk_mut()?);
                Some(ConnectResponse::LEN)
            }
            _ if ![id, earlier].contains(&connection_id) => {
                Some(ErrorResponse { transaction_id, message: b"connect first" }.write(out))
            }
            Request::Announce(request) => {
                let announce = Announce::at(request.info_hash, (client.ip(), request.port).into()).ok()?;
                let want = request.want.map_or(50, |want| want as usize);
                let announce = announce.event(request.event).left(request.left).want(want);
                let (header, room) = out.split_first_chunk_mut()?;
                let mut peers = PeerBuffer::of(announce.endpoint.family(), room);
                let stats = self.store.announce(&announce, now, &mut self.rng, &mut peers).stats;
                let (seeders, leechers) = (stats.complete, stats.incomplete);
                AnnounceResponseHeader { transaction_id, interval: 1800, leechers, seeders }.write(header);
                Some(AnnounceResponseHeader::LEN + peers.v4.as_bytes().len() + peers.v6.as_bytes().len())
            }
            Request::Scrape(request) => {
                let mut response = ScrapeResponseWriter::new(transaction_id, out);
                for stats in request.info_hashes().map(|info_hash| self.store.scrape(&info_hash)) {
                    let [seeders, completed, leechers] = [stats.complete, stats.downloaded, stats.incomplete];
                    response.push(ScrapeStats { seeders, completed, leechers });
                }
                Some(response.finish())
            }
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    serve(UdpSocket::bind("127.0.0.1:6969").await?).await
}
