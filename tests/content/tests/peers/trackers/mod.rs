//! Announces to trackers over real sockets: to this project's own tracker, and to hostile ones.

mod http;
mod own;
pub(crate) mod servers;
mod torrent;
mod udp;

use std::{
    net::{IpAddr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use servers::{GOOD, Http, Reply, Udp, UdpRequest, ok};
use swarmkeep_peer::trackers::{ClientOptions, FamilyStatus, Trackers};
use swarmkeep_tracker_protocol::{bittorrent::Endpoint, http::AnnounceRequest};
use tokio::{
    net::UdpSocket,
    sync::mpsc,
    time::{sleep, timeout},
};
use torrent::{Announcer, client, endpoints, hosting, identity, of, often, patient, quick, seldom, waiting};
