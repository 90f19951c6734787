//! Starts real servers and Clusters on loopback ports, and causes faults in them.
//!
//! For tests and benches, on Linux only. Calls block, need no runtime, and wait for a bounded time. A server
//! ends when its value is dropped, or when this process ends for any reason. If the value is not dropped, its
//! folder in the temporary directory stays.
//!
//! ```no_run
//! use swarmkeep_servers::{Cluster, Server};
//!
//! let server = Server::start_with(&[("maxmemory", "8mb")])?;
//! server.command(&["SET", "key", "value"])?;
//! assert_eq!(server.query::<String>(&["GET", "key"])?, "value");
//!
//! let cluster = Cluster::start(3, 1)?;
//! let slot = cluster.slot_of("key")?;
//! let killed = cluster.kill_master_of(slot)?;
//! let master = cluster.wait_for_failover(slot, killed)?;
//! assert_ne!(master, killed);
//! # Ok::<(), swarmkeep_servers::Error>(())
//! ```

use std::{
    fmt, io,
    time::{Duration, Instant},
};

mod cluster;
mod connection;
mod migration;
mod ports;
mod process;
mod server;
mod view;

pub use cluster::Cluster;
pub use connection::Connection;
pub use migration::Migration;
pub use process::{MODULE_VARIABLE, PROGRAM_VARIABLE};
pub use redis::{FromRedisValue, Value};
pub use server::Server;

/// Why a server did not start, or did not do a request.
///
/// [`Debug`] prints the same as [`Display`](fmt::Display), so that a test that unwraps the error shows its
/// advice.
#[derive(thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages say it")]
pub enum Error {
    /// The program is not installed.
    #[error(
        "{program} is needed, but not installed: `apt-get install {package}` on Debian \
         (the server is taken from PATH, or is what {PROGRAM_VARIABLE} names)"
    )]
    NotInstalled { program: String, package: &'static str },
    /// The server ended during its start.
    #[error("the server ended as it was started, {status}; the end of its log:\n{log}")]
    Exited { status: String, log: String },
    /// No pair of ports is free.
    #[error("no port of {first} to {last} is free together with the one {apart} above it")]
    NoPort { first: u16, last: u16, apart: u16 },
    /// Something did not happen in time.
    #[error("{what} took more than a minute; still missing: {missing}")]
    Late { what: String, missing: String },
    /// A server does not answer.
    #[error("the server on port {port} does not answer: {source}")]
    Unreachable { port: u16, source: io::Error },
    /// A server answered with an error.
    #[error("the server on port {port} refused {command}: {message}")]
    Refused { port: u16, command: String, message: String },
    /// A server sent an unexpected reply.
    #[error("the server on port {port} answered {command} with {reply}")]
    Unexpected { port: u16, command: String, reply: String },
    /// The server was killed and not restarted.
    #[error("the server on port {port} does not run")]
    NotRunning { port: u16 },
    /// No live node serves the slot.
    #[error("no live node is the master of slot {slot}")]
    NoMaster { slot: u16 },
    /// The master of the slot has no live replica.
    #[error("the master of slot {slot} has no live replica")]
    NoReplica { slot: u16 },
    /// The operating system refused something.
    #[error("{doing}: {source}")]
    Io { doing: &'static str, source: io::Error },
}

/// The result of the functions of this module.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    fn io(doing: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { doing, source }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Calls `ask` until it returns `Ok`, for a minute at most, however busy the machine is. Its `Err` names the
/// missing condition.
fn wait_until<T>(what: &str, mut ask: impl FnMut() -> Result<T, String>) -> Result<T> {
    const BETWEEN: Duration = Duration::from_millis(10);
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        match ask() {
            Ok(answer) => return Ok(answer),
            Err(missing) if Instant::now() >= deadline => {
                return Err(Error::Late { what: what.to_owned(), missing });
            }
            Err(_) => std::thread::sleep(BETWEEN),
        }
    }
}
