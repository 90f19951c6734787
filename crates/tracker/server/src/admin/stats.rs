//! The state of the tracker, gathered once per second. Answers are made from it, so that requests cost the
//! store nothing.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant, SystemTime},
};

use serde::Serialize;
use swarmkeep::{Family, MemoryUse, PeerCounts, Timestamp};
use swarmkeep_state::SnapshotsStatus;
use tokio::time::timeout;
use utoipa::ToSchema;

use super::process::Process;
use crate::{
    Control, Counts, Kind, ProtocolCounts, Reason, Times,
    clock::now,
    store::{NoAnswer, answered},
};

/// The longest wait for the store before it counts as out of reach here; announces wait longer.
const PATIENCE: Duration = Duration::from_secs(1);

/// The names of the tracker and its store, and the time of the start.
#[derive(Debug)]
pub(super) struct Identity {
    pub(super) store_name: Option<String>,
    /// The most bytes that the store may take.
    pub(super) store_limit: Option<u64>,
    /// The name of this tracker among the trackers that share the store, if they do.
    pub(super) node: Option<String>,
    pub(super) started: SystemTime,
}

/// The values that were gathered at one time.
#[derive(Debug)]
pub(super) struct Sample {
    pub(super) taken: Instant,
    pub(super) stats: Stats,
    /// `stats` in JSON, for all listeners.
    pub(super) json: String,
    pub(super) counts: Counts,
    pub(super) process: Process,
    pub(super) totals: Option<swarmkeep::Totals>,
    /// The time of the last answer of the store, if there was one.
    pub(super) answered: Option<Timestamp>,
    pub(super) memory: Option<MemoryUse>,
    pub(super) drops: u64,
}

impl Sample {
    /// The sample before the first one.
    pub(super) fn before_any(control: &Control) -> Self {
        Self {
            taken: Instant::now(),
            stats: Stats::default(),
            json: String::new(),
            counts: control.metrics.counts(),
            process: Process::now(),
            totals: None,
            answered: None,
            memory: None,
            drops: 0,
        }
    }

    /// Gathers. `earlier` is the sample at the beginning of the window; `last_answer` is the time of the
    /// store's last answer before.
    pub(super) async fn take(
        control: &Control,
        identity: &Identity,
        wrong_tokens: u64,
        earlier: &Self,
        last_answer: Option<Timestamp>,
    ) -> Self {
        let Control { repository, metrics, rules, .. } = control;
        let of_store =
            async { Ok((answered(repository.totals()).await?, answered(repository.memory()).await?)) };
        let of_store = timeout(PATIENCE, of_store).await.unwrap_or(Err(NoAnswer));
        let (totals, memory) = of_store.ok().unzip();
        let last_answer = totals.map_or(last_answer, |_| Some(now()));
        let (counts, process, drops, taken) =
            (metrics.counts(), Process::now(), metrics.drops(), Instant::now());
        let window = taken.duration_since(earlier.taken);
        let stats = Stats {
            time: now().as_secs(),
            uptime_seconds: identity.started.elapsed().map_or(0, |uptime| uptime.as_secs()),
            version: env!("CARGO_PKG_VERSION"),
            window_seconds: window.as_secs_f64(),
            store: Store {
                name: identity.store_name.clone(),
                node: identity.node.clone(),
                reachable: totals.is_some(),
                answered: last_answer.map(Timestamp::as_secs),
                bytes: memory.map(|memory| memory.bytes),
                bytes_are_exact: memory.map(|memory| memory.exact),
                most_bytes: identity.store_limit,
            },
            totals: totals.map(Into::into),
            udp: Protocol::of(&counts.udp, &earlier.counts.udp, window),
            http: Protocol::of(&counts.http, &earlier.counts.http, window),
            udp_drops: drops,
            sweeps: Sweeps {
                passes: counts.sweeps.passes,
                expired_peers: counts.sweeps.expired,
                removed_torrents: counts.sweeps.swarms_removed,
            },
            snapshots: metrics.state().map(|state| state.snapshots.into()),
            process: Resources {
                resident_bytes: process.resident_bytes,
                cpu_seconds: process.cpu.as_secs_f64(),
                cpu_share: rate(process.cpu.as_secs_f64() - earlier.process.cpu.as_secs_f64(), window),
                open_files: process.open_files,
            },
            interval_stretch: rules.stretch(),
            wrong_tokens,
        };
        let json = serde_json::to_string(&stats).expect("numbers and names");
        Self { taken, stats, json, counts, process, totals, answered: last_answer, memory, drops }
    }
}

/// The state of the tracker. Counters begin at its start; rates and latencies are of the last few seconds.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
pub(super) struct Stats {
    /// When this was gathered, in seconds since the Unix epoch.
    time: u64,
    /// How long the tracker has run.
    uptime_seconds: u64,
    /// The tracker's version.
    version: &'static str,
    /// The time over which rates and latencies are taken.
    window_seconds: f64,
    store: Store,
    /// Absent while the store cannot be reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    totals: Option<Totals>,
    pub(super) udp: Protocol,
    pub(super) http: Protocol,
    /// Datagrams that the system has dropped because sockets were full.
    udp_drops: u64,
    sweeps: Sweeps,
    /// Absent if nothing is kept over restarts.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(super) snapshots: Option<Snapshots>,
    process: Resources,
    /// The factor by which the interval is longer than set; 1 if it is not.
    interval_stretch: f64,
    /// Number of requests with a wrong token.
    wrong_tokens: u64,
}

/// The store.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
struct Store {
    /// Its name in the catalog, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    name: Option<String>,
    /// The name of this tracker among the trackers that share the store, if it is shared.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    node: Option<String>,
    /// Whether it has answered.
    reachable: bool,
    /// When it has last answered, in seconds since the Unix epoch, if it ever has.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    answered: Option<u64>,
    /// Memory of torrents and peers; absent while the store cannot be reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    bytes: Option<u64>,
    /// Whether bytes are counted from allocations, or estimated.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    bytes_are_exact: Option<bool>,
    /// The most bytes that torrents and peers may take; absent if there is no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    most_bytes: Option<u64>,
}

/// Counts over all torrents.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
pub(super) struct Totals {
    /// Torrents with peers, or kept for the number of their downloads.
    torrents: u64,
    ipv4: Peers,
    ipv6: Peers,
    /// Finished downloads of these torrents.
    downloads: u64,
    /// Torrents that were evicted because of limits.
    evicted_torrents: u64,
    /// Peers that were evicted because of limits.
    evicted_peers: u64,
}

/// Peers of one family.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
struct Peers {
    /// Peers that have the whole torrent.
    seeders: u64,
    /// Peers that do not.
    leechers: u64,
}

impl From<PeerCounts> for Peers {
    fn from(PeerCounts { seeders, leechers }: PeerCounts) -> Self {
        Self { seeders, leechers }
    }
}

impl From<swarmkeep::Totals> for Totals {
    fn from(totals: swarmkeep::Totals) -> Self {
        Self {
            torrents: totals.swarms,
            ipv4: totals.v4.into(),
            ipv6: totals.v6.into(),
            downloads: totals.downloaded,
            evicted_torrents: totals.evicted.swarms,
            evicted_peers: totals.evicted.peers,
        }
    }
}

/// The counts of one protocol.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
pub(super) struct Protocol {
    requests: Requests,
    /// Requests that were refused or ignored, by reason.
    refused: BTreeMap<&'static str, u64>,
    /// Peers that joined a torrent.
    joined: u64,
    /// Peers that left one.
    left: u64,
    /// Finished downloads.
    completed: u64,
    received_bytes: u64,
    sent_bytes: u64,
    pub(super) rates: Rates,
    /// Absent if nothing was answered in the last few seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(super) latency: Option<Latency>,
}

/// Requests by kind.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
struct Requests {
    connect: u64,
    announce: u64,
    scrape: u64,
}

/// Rates per second.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
pub(super) struct Rates {
    connect: f64,
    announce: f64,
    scrape: f64,
    pub(super) refused: f64,
    joined: f64,
    left: f64,
    completed: f64,
    received_bytes: f64,
    sent_bytes: f64,
}

impl Rates {
    pub(super) const fn requests(&self) -> f64 {
        self.connect + self.announce + self.scrape
    }
}

/// Seconds from receiving a request to sending its answer: this share of the answers took no longer.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
pub(super) struct Latency {
    p50: f64,
    p90: f64,
    pub(super) p99: f64,
    p999: f64,
}

impl Latency {
    pub(super) fn of(times: &Times) -> Option<Self> {
        let at = |share| times.quantile(share).map(|time| time.as_secs_f64());
        Some(Self { p50: at(0.5)?, p90: at(0.9)?, p99: at(0.99)?, p999: at(0.999)? })
    }
}

impl Protocol {
    /// `earlier` are the counts at the beginning of the window.
    pub(super) fn of(counts: &ProtocolCounts, earlier: &ProtocolCounts, window: Duration) -> Self {
        let requests = |counts: &ProtocolCounts, kind| {
            counts.requests(kind, Family::V4) + counts.requests(kind, Family::V6)
        };
        let refused = |counts: &ProtocolCounts| Reason::ALL.map(|reason| counts.refused(reason)).iter().sum();
        let since = |count: &dyn Fn(&ProtocolCounts) -> u64| {
            rate(count(counts).saturating_sub(count(earlier)) as f64, window)
        };
        Self {
            requests: Requests {
                connect: requests(counts, Kind::Connect),
                announce: requests(counts, Kind::Announce),
                scrape: requests(counts, Kind::Scrape),
            },
            refused: Reason::ALL.into_iter().map(|reason| (reason.name(), counts.refused(reason))).collect(),
            joined: counts.joined,
            left: counts.left,
            completed: counts.completed,
            received_bytes: counts.received_bytes,
            sent_bytes: counts.sent_bytes,
            rates: Rates {
                connect: since(&|counts| requests(counts, Kind::Connect)),
                announce: since(&|counts| requests(counts, Kind::Announce)),
                scrape: since(&|counts| requests(counts, Kind::Scrape)),
                refused: since(&refused),
                joined: since(&|counts| counts.joined),
                left: since(&|counts| counts.left),
                completed: since(&|counts| counts.completed),
                received_bytes: since(&|counts| counts.received_bytes),
                sent_bytes: since(&|counts| counts.sent_bytes),
            },
            latency: Latency::of(&counts.times.since(&earlier.times)),
        }
    }
}

/// The counts of sweeps.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
struct Sweeps {
    /// Sweeps of the whole store.
    passes: u64,
    /// Peers that expired.
    expired_peers: u64,
    /// Torrents that were removed because they had no peers.
    removed_torrents: u64,
}

/// The snapshots from which the store is filled at the next start.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(super) struct Snapshots {
    /// Snapshots that were taken.
    taken: u64,
    /// Snapshots that could not be taken.
    failed: u64,
    /// How many of these failed since the latest one was taken.
    pub(super) failed_in_a_row: u64,
    /// Why the latest of these failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(super) failure: Option<String>,
    /// When the latest one was begun, in seconds since the Unix epoch, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    latest: Option<u64>,
}

impl From<SnapshotsStatus> for Snapshots {
    fn from(status: SnapshotsStatus) -> Self {
        Self {
            taken: status.taken,
            failed: status.failed,
            failed_in_a_row: status.failed_in_a_row,
            failure: status.failure,
            latest: status.latest.map(|(summary, _)| summary.taken.as_secs()),
        }
    }
}

/// The resources of the process.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
struct Resources {
    /// Memory, including the store.
    resident_bytes: u64,
    /// Time on all cores since the start of the process.
    cpu_seconds: f64,
    /// Cores in use over the last few seconds: 2 is all the time of two cores.
    cpu_share: f64,
    /// Open files, including sockets.
    open_files: u64,
}

fn rate(amount: f64, window: Duration) -> f64 {
    if window.is_zero() { 0.0 } else { amount.max(0.0) / window.as_secs_f64() }
}
