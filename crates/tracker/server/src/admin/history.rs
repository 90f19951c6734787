//! The history of the tracker: one point per ten seconds, for six hours.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
};

use serde::Serialize;
use utoipa::ToSchema;

use super::stats::{Protocol, Sample};
use crate::clock::now;

/// Seconds between two points.
pub(super) const STEP: u64 = 10;

/// For how many seconds points are kept. All of them take 300 KiB.
pub(super) const LONGEST: u64 = 6 * 60 * 60;

/// The points so far.
#[derive(Debug, Default)]
pub(super) struct History(Mutex<Points>);

#[derive(Debug, Default)]
struct Points {
    points: VecDeque<Point>,
    /// The sample of the latest point.
    latest: Option<Arc<Sample>>,
}

/// One point: rates over the ten seconds before it, and states at its time.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
pub(super) struct Point {
    /// In seconds since the Unix epoch.
    time: u64,
    /// Requests per second over UDP.
    udp_requests: f64,
    /// Requests per second over HTTP.
    http_requests: f64,
    /// Requests per second that were refused or ignored.
    refused: f64,
    /// The 99th percentile of latency over UDP, in seconds; null if nothing was answered.
    udp_p99: Option<f64>,
    /// The 99th percentile of latency over HTTP, in seconds; null if nothing was answered.
    http_p99: Option<f64>,
    /// Null while the store could not be reached.
    torrents: Option<u64>,
    /// Null while the store could not be reached.
    seeders: Option<u64>,
    /// Null while the store could not be reached.
    leechers: Option<u64>,
    /// Null while the store could not be reached.
    store_bytes: Option<u64>,
    resident_bytes: u64,
}

impl History {
    /// Adds a point if it is time.
    pub(super) fn add(&self, sample: &Arc<Sample>) {
        let mut history = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(earlier) = history.latest.clone() else {
            history.latest = Some(Arc::clone(sample));
            return;
        };
        let window = sample.taken.duration_since(earlier.taken);
        // The first soon, so that there is something to draw. A sample may come a little early.
        let wanted = if history.points.is_empty() { 1.0 } else { STEP as f64 } - 0.5;
        if window.as_secs_f64() < wanted {
            return;
        }
        let udp = Protocol::of(&sample.counts.udp, &earlier.counts.udp, window);
        let http = Protocol::of(&sample.counts.http, &earlier.counts.http, window);
        let point = Point {
            time: now().as_secs(),
            udp_requests: udp.rates.requests(),
            http_requests: http.rates.requests(),
            refused: udp.rates.refused + http.rates.refused,
            udp_p99: udp.latency.map(|latency| latency.p99),
            http_p99: http.latency.map(|latency| latency.p99),
            torrents: sample.totals.map(|totals| totals.swarms),
            seeders: sample.totals.map(|totals| totals.v4.seeders + totals.v6.seeders),
            leechers: sample.totals.map(|totals| totals.v4.leechers + totals.v6.leechers),
            store_bytes: sample.memory.map(|memory| memory.bytes),
            resident_bytes: sample.process.resident_bytes,
        };
        history.latest = Some(Arc::clone(sample));
        if history.points.len() as u64 == LONGEST / STEP {
            history.points.pop_front();
        }
        history.points.push_back(point);
    }

    /// The points of the last `seconds`, oldest first.
    pub(super) fn last(&self, seconds: u64) -> Vec<Point> {
        let since = now().as_secs().saturating_sub(seconds);
        let history = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let first = history.points.partition_point(|point| point.time < since);
        history.points.range(first..).copied().collect()
    }
}
