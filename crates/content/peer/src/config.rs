//! The options of a session.

use std::{
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};

use swarmkeep_bittorrent::PeerId;

use crate::trackers::{ClientOptions, TrackersOptions};

/// The name of this program in the extended handshake (BEP 10).
pub(crate) const CLIENT: &str = concat!("swarmkeep ", env!("CARGO_PKG_VERSION"));

/// The options of a [`Session`](crate::Session).
///
/// These options bound the memory. A connection takes at most 16 KiB while it is idle, 832 KiB while its
/// requests are answered (three batches of 256 KiB), and the length of one message while it receives pieces.
/// A torrent takes 16 KiB and 40 bytes per piece, which includes its share of the stripe cache in front of
/// the store, but not its info dictionary nor the memory of the store itself. In addition there are three
/// memories: the pieces of each torrent that are begun, and the two memories of the stripe cache.
/// `docs/use/peer.md` of the repository has measurements.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct SessionConfig {
    /// The id of this peer.
    pub peer_id: PeerId,
    /// The addresses to listen at. The first port of each family is announced over it. Connections to peers
    /// and trackers are made from the same addresses; a peer or tracker of an address family that is not
    /// among them is not contacted.
    pub listen: Vec<SocketAddr>,
    /// The most connections in all; at most three quarters of them are incoming, at most three quarters
    /// outgoing. An incoming one counts once it has named a torrent; before, it has 5 seconds and a place
    /// among 128.
    pub connections: usize,
    /// The most connections per torrent; at most three quarters of them are incoming, at most three quarters
    /// outgoing. If there is no place, a new incoming connection replaces an incoming one that is idle or
    /// slow, and a new outgoing one replaces an outgoing one that was idle for two minutes.
    pub connections_per_torrent: usize,
    /// The most connections of one torrent to one IPv4 address or one IPv6 network of 64 bits; to an IPv6
    /// network of 56 bits twice as many, to one of 48 bits four times as many. Over all torrents, an address
    /// or network of 64 or 56 bits may make a quarter of all connections, or this number if that is more, and
    /// a network of 48 bits twice as many.
    pub connections_per_address: usize,
    /// The number of unchoked peers per torrent, at least 2. The fastest keep their slots; peers below 16 KiB
    /// per second take turns in the others, and in one at least. A peer that requests nothing loses its slot
    /// if others wait, and the second time its connection.
    pub upload_slots: usize,
    /// The most bytes per torrent of pieces that are begun or being verified. A piece that has begun may
    /// exceed it.
    pub piece_memory: u64,
    /// How long a peer may take to send a requested block. After that, all of its requests go to other peers;
    /// if it happens twice in a row, its connection ends. After a sixth of this time, the same blocks are
    /// also requested from a peer that has nothing else to send.
    pub request_timeout: Duration,
    /// The most bytes that wait to be written, in the [stripe
    /// cache](swarmkeep_content::stripe_cache::StripeCache) in front of the store.
    pub write_memory: u64,
    /// The most bytes that were read ahead, in the same cache.
    pub read_memory: u64,
    /// How long a fetched piece may take to become durable: a crash loses at most the pieces of this time.
    /// The longer it is, the more blocks of the store are written whole, with one call. Whole blocks are made
    /// durable within a twelfth of it, at most 5 seconds.
    pub write_within: Duration,
    /// The limit of sending, in bytes per second over all torrents.
    pub up: Option<u64>,
    /// The limit of receiving, in bytes per second over all torrents.
    pub down: Option<u64>,
    /// URLs of trackers of the user: each torrent is announced to each of them, too, but not a private one
    /// that names its own. They may be anywhere in this network.
    pub user_trackers: Vec<String>,
    /// How torrents announce.
    pub trackers: TrackersOptions,
    /// The client with which they announce. It has the addresses of `listen` in place of its own, and trusts
    /// the trackers of the user.
    pub tracker_client: ClientOptions,
}

impl SessionConfig {
    /// A peer with the id `peer_id` that listens at any free IPv4 port. At most 200 connections, 60 per
    /// torrent and 8 per address; 8 upload slots; 64 MiB for the pieces of a torrent, 64 MiB each to write
    /// and to read; 60 seconds for a requested block, and until a piece is durable; no limits of bytes per
    /// second.
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
            user_trackers: Vec::new(),
            trackers: TrackersOptions::new(),
            tracker_client: ClientOptions { user_agent: CLIENT.into(), ..ClientOptions::new() },
        }
    }

    /// The age from which a block is also requested from a peer that has nothing else to send.
    pub(crate) fn late(&self) -> Duration {
        self.request_timeout / 6
    }
}
