//! A load generator for BitTorrent trackers, over UDP (BEP 15) and HTTP (BEP 3, 23, 48).
//!
//! [`run()`] runs the load test of a [`Config`] and returns a [`Report`]. Many workers, each a client with
//! its own socket, send the announces of a seeded population to shared swarms, in a closed loop or by a
//! schedule, and check every answer:
//!
//! ```no_run
//! use swarmkeep_load::{Config, run};
//!
//! let mut config = Config::new(["127.0.0.1:6969".parse()?]);
//! config.rate = Some(200.0); // per second and worker
//! let report = run(&config, &mut |_| {})?;
//! println!("{} per second, p99 {} µs", report.requests_per_second, report.latency.all.p99);
//! assert_eq!(report.wrong, 0, "{:?}", report.wrong_answers);
//! # Ok::<(), swarmkeep_load::Error>(())
//! ```
#![cfg_attr(docsrs, feature(doc_cfg))]

mod check;
mod clock;
mod config;
mod engine;
mod frames;
mod http;
mod machine;
mod population;
mod report;
mod run;
mod schedule;
mod server;
mod stats;
mod udp;

use std::io;

pub use check::printable;
pub use config::{Config, Mix, Swarms, Target};
pub use machine::Machine;
pub use report::{Generator, Latencies, Latency, OfKind, Peers, Report, Second, Settings, WrongAnswers};
pub use run::{Progress, run, run_until};
pub use server::Server;
pub use stats::Filled;

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The configuration is invalid.
    #[error("{0}")]
    Config(String),
    /// The target is another machine, and the configuration does not allow that.
    #[error(
        "{0} is not on this machine: a load test takes down targets that are not made for it. Measure over the loopback, or say \
         that the target is yours"
    )]
    NotYours(Target),
    /// A socket could not be opened, or the system refused to wait for it.
    #[error("{what}: {source}")]
    Socket {
        /// The failed action.
        what: String,
        /// The error of the system.
        source: io::Error,
    },
    /// The frames of the interface cannot be used.
    #[error("AF_XDP on {interface}: {reason}")]
    Xdp {
        /// Its name.
        interface: String,
        /// Why.
        reason: String,
    },
    /// The tracker did not answer before the measurement.
    #[error("no answer from {0}: is the tracker running, and does it listen there?")]
    NoAnswer(String),
    /// The run was stopped before its measurement began.
    #[error("interrupted before anything was measured")]
    Interrupted,
    /// There is no such process, or `/proc` has no data about it.
    #[error("process {0} cannot be watched: give the process id of the tracker, on this machine")]
    NoProcess(u32),
}
