//! How a session is made.

use std::{
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};

use swarmkeep_bittorrent::PeerId;

use crate::trackers::{ClientOptions, TrackersOptions};

/// What this program calls itself (BEP 10).
pub(crate) const CLIENT: &str = concat!("swarmkeep ", env!("CARGO_PKG_VERSION"));

/// How a [`Session`] is made.
///
/// Memory is bounded by what stands here. A connection takes at most 16 KiB while nothing is said, 832 KiB
/// while its requests are answered (three batches of 256 KiB), and what one message takes while it brings
/// pieces; a torrent 16 KiB and 40 bytes for each of its pieces, with what the stripe cache in front of the
/// store knows of it, and without its info dictionary and what the store itself keeps. Besides, there are the
/// three memories: pieces that are begun, of each torrent, and the two of the stripe cache.
/// `docs/use/peer.md` has what was measured.
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
    pub(crate) up: Option<u64>,
    pub(crate) down: Option<u64>,
    pub(crate) trackers: TrackersOptions,
    pub(crate) tracker_client: ClientOptions,
}

impl SessionConfig {
    /// A peer of that name, whom others call at any free port.
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
            up: None,
            down: None,
            trackers: TrackersOptions::new(),
            tracker_client: ClientOptions::new().user_agent(CLIENT),
        }
    }

    /// Where others may call; of several ports, the first is what trackers are told. Peers and trackers are
    /// called from the same addresses, and those of a family that is not among them are not called.
    #[must_use]
    pub fn listen(mut self, addresses: impl IntoIterator<Item = SocketAddr>) -> Self {
        self.listen = addresses.into_iter().collect();
        self
    }

    /// Connections in all, those that shake hands included. 200 unless something else is said.
    #[must_use]
    pub fn connections(mut self, most: usize) -> Self {
        self.connections = most;
        self
    }

    /// Connections of one torrent. 60 unless something else is said.
    #[must_use]
    pub fn connections_per_torrent(mut self, most: usize) -> Self {
        self.connections_per_torrent = most;
        self
    }

    /// Connections of one torrent to one address; of IPv6, to one network of 64 bits. 8 unless something else
    /// is said. Of all connections, one address makes no more than a quarter, or as many as this.
    #[must_use]
    pub fn connections_per_address(mut self, most: usize) -> Self {
        self.connections_per_address = most;
        self
    }

    /// Peers of one torrent whose requests are answered at a time, at least 2. 8 unless something else is
    /// said.
    #[must_use]
    pub fn upload_slots(mut self, slots: usize) -> Self {
        self.upload_slots = slots;
        self
    }

    /// Bytes of the pieces of one torrent that are begun, or being verified; a piece more, if it has begun.
    /// 64 MiB unless something else is said.
    #[must_use]
    pub fn piece_memory(mut self, bytes: u64) -> Self {
        self.piece_memory = bytes;
        self
    }

    /// How long a peer may take to bring a block that it was asked for. Then all that it was asked for is
    /// asked of others; a second time in a row, its connection ends. A sixth of that time is what others wait
    /// who have nothing else to ask for. 60 seconds unless something else is said.
    #[must_use]
    pub fn request_timeout(mut self, time: Duration) -> Self {
        self.request_timeout = time;
        self
    }

    /// From when on a block is asked of whoever has nothing else to bring.
    pub(crate) fn late(&self) -> Duration {
        self.request_timeout / 6
    }

    /// Bytes of the [stripe cache](swarmkeep_content::stripe_cache::StripeCache) in front of the store, for what is to be written and for what
    /// was read ahead. 64 MiB each unless something else is said.
    #[must_use]
    pub fn cache(mut self, write: u64, read: u64) -> Self {
        (self.write_memory, self.read_memory) = (write, read);
        self
    }

    /// Bytes a second that may go and come, over all torrents. Any number unless something is said.
    #[must_use]
    pub fn limits(mut self, up: Option<u64>, down: Option<u64>) -> Self {
        (self.up, self.down) = (up, down);
        self
    }

    /// How torrents announce, and by what.
    #[must_use]
    pub fn trackers(mut self, options: TrackersOptions, client: ClientOptions) -> Self {
        (self.trackers, self.tracker_client) = (options, client);
        self
    }
}
