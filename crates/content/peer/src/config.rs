//! How a session is made.

use std::{
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};

use swarmkeep_bittorrent::PeerId;

use crate::trackers::{ClientOptions, TrackersOptions};

/// The name of this program in the extended handshake (BEP 10).
pub(crate) const CLIENT: &str = concat!("swarmkeep ", env!("CARGO_PKG_VERSION"));

/// How a [`Session`](crate::Session) is made.
///
/// These options bound the memory. A connection takes at most 16 KiB while it is idle, 832 KiB while its
/// requests are answered (three batches of 256 KiB), and the length of one message while it brings pieces. A
/// torrent takes 16 KiB and 40 bytes per piece. That includes what the stripe cache in front of the store
/// keeps of it, but not its info dictionary nor what the store itself keeps. In addition there are three
/// memories: the pieces of each torrent that are begun, and the two memories of the stripe cache.
/// `docs/use/peer.md` has measurements.
#[derive(Debug, Clone)]
pub struct SessionConfig {
    pub(crate) peer_id: PeerId,
    pub(crate) listen: Vec<SocketAddr>,
    pub(crate) connections: usize,
    pub(crate) connections_per_torrent: usize,
    pub(crate) connections_per_address: usize,
    pub(crate) upload_slots: usize,
    pub(crate) piece_memory: u64,
    pub(crate) request_timeout: Duration,
    pub(crate) write_memory: u64,
    pub(crate) read_memory: u64,
    pub(crate) write_within: Duration,
    pub(crate) up: Option<u64>,
    pub(crate) down: Option<u64>,
    pub(crate) most_files: usize,
    pub(crate) trackers: TrackersOptions,
    pub(crate) tracker_client: ClientOptions,
}

impl SessionConfig {
    /// A peer with the id `peer_id` that listens at any free port.
    pub fn new(peer_id: PeerId) -> Self {
        Self {
            peer_id,
            listen: vec![SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0))],
            connections: 200,
            connections_per_torrent: 60,
            connections_per_address: 8,
            upload_slots: 8,
            piece_memory: 64 << 20,
            request_timeout: Duration::from_secs(60),
            write_memory: 64 << 20,
            read_memory: 64 << 20,
            write_within: Duration::from_secs(60),
            up: None,
            down: None,
            most_files: 100_000,
            trackers: TrackersOptions::new(),
            tracker_client: ClientOptions::new().user_agent(CLIENT),
        }
    }

    /// The addresses to listen at. Trackers are told the first port. Connections to peers and trackers are
    /// made from the same addresses; a peer or tracker of an address family that is not among them is not
    /// contacted.
    #[must_use]
    pub fn listen(mut self, addresses: impl IntoIterator<Item = SocketAddr>) -> Self {
        self.listen = addresses.into_iter().collect();
        self
    }

    /// The most connections in all. Callers, and calls of the session's own, have three quarters of them at most.
    /// Callers count once they have named a torrent; before, they have 5 seconds and a place among 128. The default
    /// is 200.
    #[must_use]
    pub fn connections(mut self, most: usize) -> Self {
        self.connections = most;
        self
    }

    /// The most connections per torrent. Callers, and calls of the session's own, have three quarters of them at
    /// most. If there is no place, a new caller takes that of a caller that is idle or slow, and a new call that of
    /// one over which nothing went for two minutes. The default is 60.
    #[must_use]
    pub fn connections_per_torrent(mut self, most: usize) -> Self {
        self.connections_per_torrent = most;
        self
    }

    /// The most connections of one torrent to one IPv4 address or one IPv6 network of 64 bits; to an IPv6 network
    /// of 56 bits twice as many, to one of 48 bits four times as many. The default is 8. Over all torrents, an
    /// address or network of 64 or 56 bits may make a quarter of all connections, or `most` if that is more, and a
    /// network of 48 bits twice as many.
    #[must_use]
    pub fn connections_per_address(mut self, most: usize) -> Self {
        self.connections_per_address = most;
        self
    }

    /// The number of peers per torrent whose requests are answered at a time, at least 2. The fastest keep their
    /// slots; peers of less than 16 KiB per second take turns in the others, and in one at least. A peer that asks
    /// for nothing loses its slot if others wait, and the second time its connection. The default is 8.
    #[must_use]
    pub fn upload_slots(mut self, slots: usize) -> Self {
        self.upload_slots = slots;
        self
    }

    /// The most bytes per torrent of pieces that are begun or being verified. A piece that has begun may
    /// exceed it. The default is 64 MiB.
    #[must_use]
    pub fn piece_memory(mut self, bytes: u64) -> Self {
        self.piece_memory = bytes;
        self
    }

    /// How long a peer may take to send a requested block. After that, all blocks that it was asked for are
    /// requested from other peers; if it happens twice in a row, its connection ends. A peer that has nothing
    /// else to send is asked for the same blocks after a sixth of this time. The default is 60 seconds.
    #[must_use]
    pub fn request_timeout(mut self, time: Duration) -> Self {
        self.request_timeout = time;
        self
    }

    /// The age from which a requested block is also requested from a peer that has nothing else to send.
    pub(crate) fn late(&self) -> Duration {
        self.request_timeout / 6
    }

    /// Bytes of the [stripe cache](swarmkeep_content::stripe_cache::StripeCache) in front of the store:
    /// `write` for bytes that wait to be written, `read` for bytes that were read ahead. The default is 64
    /// MiB each.
    #[must_use]
    pub fn cache(mut self, write: u64, read: u64) -> Self {
        (self.write_memory, self.read_memory) = (write, read);
        self
    }

    /// How long a piece that was fetched may take to become durable: a crash loses at most the pieces of this
    /// time. The longer it is, the more blocks of the store are written whole, with one call. What is whole is
    /// made durable within a twelfth of it, at most 5 seconds. The default is 60 seconds.
    #[must_use]
    pub fn write_within(mut self, time: Duration) -> Self {
        self.write_within = time;
        self
    }

    /// Limits of sending and receiving, in bytes per second over all torrents. By default there are none.
    #[must_use]
    pub fn limits(mut self, up: Option<u64>, down: Option<u64>) -> Self {
        (self.up, self.down) = (up, down);
        self
    }

    /// The most files of a torrent: each costs time and a place in the store, and a small torrent file can list
    /// millions. The default is 100,000.
    #[must_use]
    pub fn most_files(mut self, most: usize) -> Self {
        self.most_files = most;
        self
    }

    /// How torrents announce, and the client that they use.
    #[must_use]
    pub fn trackers(mut self, options: TrackersOptions, client: ClientOptions) -> Self {
        (self.trackers, self.tracker_client) = (options, client);
        self
    }
}
