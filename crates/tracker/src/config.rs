//! How a tracker is set up.

use std::{net::SocketAddr, num::NonZero, time::Duration};

use swarmkeep::Retention;

/// What a [`Server`](crate::Server) is started with. Start with [`new`](Self::new) and chain what should differ.
#[derive(Debug, Clone)]
pub struct Config {
    pub(crate) udp: Vec<SocketAddr>,
    pub(crate) udp_workers: Option<NonZero<usize>>,
    pub(crate) interval_secs: u32,
    pub(crate) default_want: usize,
    pub(crate) most_want: usize,
    pub(crate) sweep_period: Duration,
    pub(crate) retention: Retention,
}

impl Config {
    /// The port that trackers are usually found at.
    pub const PORT: u16 = 6969;

    /// Every interface at port 6969, an announce every 30 minutes, 50 peers an answer unless a client asks for another
    /// number up to 200, and a sweep through the store every 5 minutes.
    pub const fn new() -> Self {
        Self {
            udp: Vec::new(),
            udp_workers: None,
            interval_secs: 30 * 60,
            default_want: 50,
            most_want: 200,
            sweep_period: Duration::from_secs(5 * 60),
            retention: Retention::DropEmpty,
        }
    }

    /// Adds an address to listen on over UDP. With none, the tracker listens at port 6969 on every interface, over IPv4
    /// alone where the machine has no IPv6.
    #[must_use]
    pub fn udp(mut self, address: SocketAddr) -> Self {
        self.udp.push(address);
        self
    }

    /// Sets how many threads answer over UDP, each with sockets of its own; as many as the machine has cores without this.
    #[must_use]
    pub const fn udp_workers(mut self, threads: NonZero<usize>) -> Self {
        self.udp_workers = Some(threads);
        self
    }

    /// Sets how many seconds clients are told to wait between announces. The store's lifetime should be longer by half.
    #[must_use]
    pub const fn interval_secs(mut self, seconds: u32) -> Self {
        self.interval_secs = seconds;
        self
    }

    /// Sets how many peers a client gets that leaves it to the tracker.
    #[must_use]
    pub const fn default_want(mut self, peers: usize) -> Self {
        self.default_want = peers;
        self
    }

    /// Sets the most peers a client gets, whatever it asks for; the length of an answer bounds it too.
    #[must_use]
    pub const fn most_want(mut self, peers: usize) -> Self {
        self.most_want = peers;
        self
    }

    /// Sets how often the store is swept from end to end: by so much may a peer outlive its lifetime.
    #[must_use]
    pub const fn sweep_period(mut self, period: Duration) -> Self {
        self.sweep_period = period;
        self
    }

    /// Sets what becomes of swarms without peers.
    #[must_use]
    pub const fn retention(mut self, retention: Retention) -> Self {
        self.retention = retention;
        self
    }
}

impl Default for Config {
    fn default() -> Self {
        Self::new()
    }
}
