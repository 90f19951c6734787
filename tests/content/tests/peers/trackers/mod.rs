//! Announces to trackers over real sockets: to this project's own tracker, and to hostile ones.

mod http;
mod own;
pub(crate) mod servers;
mod torrent;
mod udp;
