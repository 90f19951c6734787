//! A BitTorrent tracker around any [`Repository`](swarmkeep::catalog::Repository).
//!
//! The [`Server`] receives and sends, the [`Handler`] turns a [`Batch`] of requests into answers, and the
//! repository keeps the swarms. None of the three depends on another. [`ConnectionIds`] prove that a client
//! receives at the address that its packets come from.
//!
//! ```no_run
//! use swarmkeep::{HashKey, RepositoryConfig, catalog};
//! use swarmkeep_tracker::{Config, Server};
//!
//! # async fn serve() -> Result<(), Box<dyn std::error::Error>> {
//! let repository = catalog::find("packed").unwrap().build(&RepositoryConfig::new(HashKey::from_os()?))?;
//! let mut config = Config::new();
//! config.udp.push("127.0.0.1:6969".parse()?);
//! let server = Server::bind(&config, repository)?;
//! server.run(std::future::pending()).await;
//! # Ok(())
//! # }
//! ```
#![cfg_attr(docsrs, feature(doc_cfg))]

/// An enum of values with names.
macro_rules! named {
    ($(#[$doc:meta])* pub enum $name:ident { $($(#[$of:meta])* $value:ident = $text:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum $name { $($(#[$of])* $value,)+ }

        impl $name {
            /// Every value.
            pub const ALL: [Self; [$($text),+].len()] = [$(Self::$value),+];

            /// Its name in metrics, files and settings.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$value => $text,)+ }
            }
        }
    };
}

pub mod access;
mod address;
mod admin;
mod block;
mod clock;
mod config;
mod control;
mod drops;
mod families;
mod http;
mod keeper;
mod lists;
mod metrics;
mod observer;
#[cfg(test)]
mod out_of_reach;
mod rate;
mod refusal;
mod rules;
mod seldom;
mod server;
mod store;
mod sweep;
mod tls;
mod tokens;
mod udp;
mod xdp;

use std::{io, net::SocketAddr, path::PathBuf};

use swarmkeep::bittorrent::in_words;

pub use address::{LocalPeers, Reach};
pub use clock::now;
pub use config::Config;
pub use control::Control;
pub use http::{HttpHandler, HttpRequest, ProxyHeader};
pub use ipnet::IpNet;
pub use lists::{AccessList, ListFormat, ListKind, Listed, NetworkList, PasskeyList};
pub use metrics::{
    Counts, Kind, Metrics, ProtocolCounts, Reason, SharedStore, SweepCounts, Threads, Times, XdpStatus,
};
pub use observer::{MemberAnnounce, Observer};
pub use rate::RateLimiter;
pub use rules::{LiveRules, ON_A_LAN, Rules, WhenUnavailable};
pub use server::{Bound, Server, Sockets};
pub use tls::{Certificate, HandshakeCounts, Tls};
pub use tokens::{Scope, Token, TokenError};
pub use udp::{
    AnswerBuffer, Batch, ConnectionIds, ConnectionKey, Handler, IdsAt, LONGEST_ANSWER_V4, LONGEST_ANSWER_V6,
};
pub use xdp::{Xdp, XdpMode};

/// Why a tracker did not start, or did not take a new certificate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A socket could not be opened.
    #[error("cannot listen on {protocol} {address}: {}; {}", in_words(source), remedy(source, address.port()))]
    Bind {
        /// `udp`, `http`, `https` or `admin`.
        protocol: &'static str,
        /// The address to listen on.
        address: SocketAddr,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A socket that was handed over cannot be used.
    #[error(
        "cannot use a socket that was handed over for {protocol}: {}; hand over one that is bound, and listens unless it is for udp",
        in_words(source)
    )]
    HandedOver {
        /// `udp`, `http` or `https`.
        protocol: &'static str,
        /// The problem with it.
        source: io::Error,
    },
    /// HTTPS or [`Config::admin_tls`] without [`Config::tls`].
    #[error("there is no certificate for HTTPS; give one with its key, or listen on HTTP")]
    NoCertificate,
    /// A file does not contain a certificate or a key.
    #[error("cannot take the {what} from {path}: {problem}; give a file in PEM that has one and that this process may read", path = path.display())]
    Pem {
        /// `certificate` or `key`.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The problem with it.
        problem: String,
    },
    /// A certificate and its key cannot be used, or do not match.
    #[error(
        "cannot use the key in {} with the certificate in {}: {problem}; give the certificate first, then its chain, and its own key",
        key.display(),
        certificate.display()
    )]
    Certificate {
        /// The certificate's file.
        certificate: PathBuf,
        /// The key's file.
        key: PathBuf,
        /// The problem with them.
        problem: String,
    },
    /// There is no interface of this name.
    #[error("there is no interface `{0}` for XDP; `ip link` lists those of this machine")]
    NoInterface(String),
    /// The operating system gave no pipe, which tells threads to stop.
    #[error("no pipe from the operating system: {0}; let this process open more files")]
    NoPipe(io::Error),
    /// The operating system gave no randomness.
    #[error(
        "no randomness from the operating system, which connection ids, tokens and the selection of peers need: {0}"
    )]
    NoEntropy(io::Error),
}

fn remedy(source: &io::Error, port: u16) -> &'static str {
    match source.kind() {
        io::ErrorKind::PermissionDenied if port < 1024 => {
            "ports below 1024 are for root: start as root, and let --user name another user, or give the process CAP_NET_BIND_SERVICE"
        }
        _ => "give an address of this machine and a port that is free",
    }
}

impl Error {
    /// Whether another process listens there.
    fn is_in_use(&self) -> bool {
        matches!(self, Self::Bind { source, .. } if source.kind() == io::ErrorKind::AddrInUse)
    }
}
