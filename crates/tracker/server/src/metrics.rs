//! The counters of a tracker. Each thread has its own counters, which other threads only read; a reader adds
//! them up.

use std::{
    array, fmt,
    net::UdpSocket,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicI64, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use swarmkeep::{Changes, Family, PeerId, Swept, bittorrent::in_words};
use swarmkeep_state::{State, StateStatus};
use tracing::warn;

use swarmkeep_tracker_protocol::{
    Field, Fields, Software,
    udp::{ConnectRequest, ConnectResponse},
};

use crate::{Tls, clock::awake_secs, drops::Drops};

named! {
    /// The kind of a request.
    pub enum Kind {
        /// A connection id, over UDP.
        Connect = "connect",
        /// Peers.
        Announce = "announce",
        /// Counts.
        Scrape = "scrape",
    }
}

named! {
    /// Why a request was refused or ignored.
    pub enum Reason {
        /// It is not a request, or a field has an invalid value.
        Malformed = "malformed",
        /// The path does not exist.
        NotFound = "not_found",
        /// Its connection id is stale or forged.
        NotConnected = "not_connected",
        /// Its torrent is not served.
        NotAllowed = "not_allowed",
        /// The tracker is private, and the request has no known passkey, or one that has expired.
        NoPasskey = "no_passkey",
        /// Its address is on the list of refused networks.
        RefusedAddress = "refused_address",
        /// Its address sends too many requests.
        TooOften = "too_often",
        /// The address of its peer cannot be reached by other peers.
        Address = "address",
        /// A proxy does not name the client.
        NoClient = "no_client",
        /// Too many requests waited for the store.
        Overloaded = "overloaded",
        /// The store could not be reached.
        Unavailable = "unavailable",
    }
}

/// All counters since the start of the tracker.
#[derive(Debug, Default)]
pub struct Metrics {
    udp: Mutex<Vec<Arc<Counters>>>,
    http: Mutex<Vec<Arc<Counters>>>,
    sweeps: Sweeps,
    drops: Drops,
    tls: OnceLock<Tls>,
    state: OnceLock<Arc<State>>,
    shared_store: OnceLock<StatusSource<SharedStore>>,
    xdp: OnceLock<StatusSource<XdpStatus>>,
    clock_ahead: AtomicI64,
}

/// Returns the state of another part of the tracker.
struct StatusSource<T>(Box<dyn Fn() -> T + Send + Sync>);

impl<T: fmt::Debug> fmt::Debug for StatusSource<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("StatusSource").field(&self.0()).finish()
    }
}

/// The state of a store that several trackers share, as this tracker sees it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SharedStore {
    /// A name that all its trackers give it, and none gives another store.
    pub id: String,
    /// The name of the program in its servers that keeps it.
    pub engine: &'static str,
    /// Why this tracker cannot use the store as it is laid out now, if it cannot.
    pub refused: Option<String>,
    /// How often this tracker has followed another layout, after the store was emptied.
    pub layout_changes: u64,
    /// By how many seconds this tracker's clock is ahead of the store's, if they were compared.
    pub seconds_ahead: Option<i64>,
    /// The number of parts of the store that its servers have evicted, if they say so.
    pub evicted: Option<u64>,
}

/// The state of the way past the system's sockets ([`Config::xdp`](crate::Config::xdp)).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct XdpStatus {
    /// `zero-copy`, `native` or `generic`; `None` if all datagrams come through sockets.
    pub mode: Option<&'static str>,
    /// The number of addresses, each with a port, with datagrams that bypass the sockets.
    pub addresses: usize,
    /// The number of connects that the program at the interface has answered, over IPv4 and over IPv6. The
    /// counts of all requests contain them.
    pub connects: [u64; 2],
    /// The number of datagrams that were lost because the queue's ring of received frames was full.
    pub ring_full: u64,
    /// The number of datagrams that were lost because no place for a frame was free.
    pub no_place: u64,
}

impl Metrics {
    /// Adds the counters of a handler over UDP.
    pub(crate) fn udp(&self, counters: &Arc<Counters>) {
        add(&self.udp, counters);
    }

    /// Adds the counters of a handler over HTTP.
    pub(crate) fn http(&self, counters: &Arc<Counters>) {
        add(&self.http, counters);
    }

    pub(crate) const fn sweeps(&self) -> &Sweeps {
        &self.sweeps
    }

    /// The counts at this moment.
    pub fn counts(&self) -> Counts {
        let mut udp = sum(&self.udp);
        if let Some(XdpStatus { connects, .. }) = self.xdp() {
            for (family, connects) in connects.into_iter().enumerate() {
                udp.requests[family][Kind::Connect as usize] += connects;
                udp.received_bytes += connects * ConnectRequest::LEN as u64;
                udp.sent_bytes += connects * ConnectResponse::LEN as u64;
            }
        }
        Counts { udp, http: sum(&self.http), sweeps: self.sweeps.counts() }
    }

    /// Counts the datagrams to this socket that the system drops.
    pub(crate) fn watch_drops(&self, socket: &UdpSocket) {
        if let Err(error) = self.drops.watch(socket) {
            warn!(error = %in_words(&error), "drops of a socket will not be counted");
        }
    }

    /// The number of datagrams that the system has dropped because a socket of the tracker was full, or a
    /// queue of its interface. It reads files of `/proc`, so it is too slow for each request.
    pub fn drops(&self) -> u64 {
        let XdpStatus { ring_full, no_place, .. } = self.xdp().unwrap_or_default();
        self.drops.count() + ring_full + no_place
    }

    /// Sets the function that returns the state of XDP. Only the first call has an effect.
    pub(crate) fn watch_xdp(&self, ask: impl Fn() -> XdpStatus + Send + Sync + 'static) {
        let _ = self.xdp.set(StatusSource(Box::new(ask)));
    }

    /// The state of the way past the system's sockets; `None` if it is not used.
    pub fn xdp(&self) -> Option<XdpStatus> {
        self.xdp.get().map(|ask| ask.0())
    }

    /// Sets the certificate with the counted handshakes. Only the first call has an effect.
    pub(crate) fn watch_tls(&self, tls: Tls) {
        let _ = self.tls.set(tls);
    }

    /// The certificate, with the counted handshakes; `None` without one.
    pub fn tls(&self) -> Option<&Tls> {
        self.tls.get()
    }

    /// Sets the state that the store keeps over restarts. Only the first call has an effect.
    pub fn watch_state(&self, state: Arc<State>) {
        let _ = self.state.set(state);
    }

    /// The state of the snapshots and stored counts; `None` if the store is not kept over restarts.
    pub fn state(&self) -> Option<StateStatus> {
        self.state.get().map(|state| state.status())
    }

    /// Sets how to ask a store that several trackers share for its state. Only the first call has an effect.
    pub fn watch_shared_store(&self, ask: impl Fn() -> SharedStore + Send + Sync + 'static) {
        let _ = self.shared_store.set(StatusSource(Box::new(ask)));
    }

    /// The state of a store that several trackers share; `None` if the store is this tracker's own.
    pub fn shared_store(&self) -> Option<SharedStore> {
        self.shared_store.get().map(|ask| ask.0())
    }

    pub(crate) fn clock_is_ahead(&self, seconds: i64) {
        self.clock_ahead.store(seconds, Relaxed);
    }

    /// By how many seconds the machine's clock is ahead of [`now`](crate::now): it was set since the start.
    pub fn clock_ahead(&self) -> i64 {
        self.clock_ahead.load(Relaxed)
    }

    /// The state of the threads that answer over UDP.
    pub fn threads(&self) -> Threads {
        let counters = self.udp.lock().unwrap_or_else(PoisonError::into_inner);
        Threads::of(counters.iter().map(|counters| counters.pulse.load(Relaxed)), awake_secs())
    }
}

/// After how many seconds a thread is stuck that has not been seen: it looks up once per second at least.
const LONGEST_SILENCE: u64 = 5;

/// The number of threads in each state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Threads {
    /// Threads that have not shown a sign of life yet.
    pub starting: usize,
    /// Threads that have shown a sign of life in the last 5 seconds.
    pub well: usize,
    /// Threads with their last sign of life more than 5 seconds ago.
    pub stuck: usize,
}

impl Threads {
    /// Of threads that were last seen at these seconds.
    fn of(pulses: impl Iterator<Item = u64>, now: u64) -> Self {
        let mut threads = Self::default();
        for pulse in pulses {
            match pulse {
                0 => threads.starting += 1,
                pulse if now.saturating_sub(pulse) > LONGEST_SILENCE => threads.stuck += 1,
                _ => threads.well += 1,
            }
        }
        threads
    }
}

fn add(all: &Mutex<Vec<Arc<Counters>>>, counters: &Arc<Counters>) {
    all.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(counters));
}

fn sum(all: &Mutex<Vec<Arc<Counters>>>) -> ProtocolCounts {
    let mut sum = ProtocolCounts::default();
    all.lock().unwrap_or_else(PoisonError::into_inner).iter().for_each(|counters| counters.add_to(&mut sum));
    sum
}

/// Counts by the program of the client, and by one of `N` reasons or fields.
#[derive(Debug, Clone)]
struct ByClient<T, const N: usize>([[T; N]; Software::ALL.len()]);

impl<T: Default, const N: usize> Default for ByClient<T, N> {
    fn default() -> Self {
        Self(array::from_fn(|_| array::from_fn(|_| T::default())))
    }
}

/// The counters of one thread, or of all connections of HTTP.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    requests: [[AtomicU64; Kind::ALL.len()]; 2],
    refused: ByClient<AtomicU64, { Reason::ALL.len() }>,
    lenient: ByClient<AtomicU64, { Field::ALL.len() }>,
    joined: AtomicU64,
    left: AtomicU64,
    completed: AtomicU64,
    received_bytes: AtomicU64,
    sent_bytes: AtomicU64,
    times: Histogram,
    pulse: AtomicU64,
}

impl Counters {
    pub(crate) fn request(&self, kind: Kind, family: Family) {
        self.requests[family as usize][kind as usize].fetch_add(1, Relaxed);
    }

    pub(crate) fn refused(&self, reason: Reason, client: Software) {
        self.refused.0[client as usize][reason as usize].fetch_add(1, Relaxed);
    }

    /// Counts an admitted announce by its fields that cannot be read.
    pub(crate) fn lenient(&self, unread: Fields, peer_id: PeerId) {
        if unread != Fields::NONE {
            let counters = &self.lenient.0[Software::of(peer_id.as_bytes()) as usize];
            unread.iter().for_each(|field| _ = counters[field as usize].fetch_add(1, Relaxed));
        }
    }

    /// Counts the changes by an announce.
    pub(crate) fn changed(&self, changes: Changes) {
        let counted = [
            (Changes::JOINED, &self.joined),
            (Changes::LEFT, &self.left),
            (Changes::COMPLETED, &self.completed),
        ];
        for (change, counter) in counted {
            if changes.contains(change) {
                counter.fetch_add(1, Relaxed);
            }
        }
    }

    pub(crate) fn received(&self, bytes: u64) {
        self.received_bytes.fetch_add(bytes, Relaxed);
    }

    /// Counts answers that were sent together.
    pub(crate) fn answered(&self, answers: u64, bytes: u64, took: Duration) {
        self.sent_bytes.fetch_add(bytes, Relaxed);
        self.times.add(answers, took);
    }

    /// Notes that the thread is alive.
    pub(crate) fn beat(&self, awake_secs: u64) {
        self.pulse.store(awake_secs, Relaxed);
    }

    fn add_to(&self, counts: &mut ProtocolCounts) {
        let add = |to: &mut u64, counter: &AtomicU64| *to += counter.load(Relaxed);
        let to = counts.requests.iter_mut().flatten().chain(counts.refused.0.iter_mut().flatten());
        let from = self.requests.iter().flatten().chain(self.refused.0.iter().flatten());
        let lenient = counts.lenient.0.iter_mut().flatten().zip(self.lenient.0.iter().flatten());
        to.zip(from).chain(lenient).for_each(|(to, from)| add(to, from));
        add(&mut counts.joined, &self.joined);
        add(&mut counts.left, &self.left);
        add(&mut counts.completed, &self.completed);
        add(&mut counts.received_bytes, &self.received_bytes);
        add(&mut counts.sent_bytes, &self.sent_bytes);
        self.times.add_to(&mut counts.times);
    }
}

/// How sweeps went.
#[derive(Debug, Default)]
pub(crate) struct Sweeps {
    passes: AtomicU64,
    expired: AtomicU64,
    swarms_removed: AtomicU64,
    steps: Histogram,
}

impl Sweeps {
    pub(crate) fn step(&self, swept: &Swept, took: Duration) {
        self.passes.fetch_add(swept.pass_complete.into(), Relaxed);
        self.expired.fetch_add(swept.expired, Relaxed);
        self.swarms_removed.fetch_add(swept.swarms_removed, Relaxed);
        self.steps.add(1, took);
    }

    fn counts(&self) -> SweepCounts {
        let mut steps = Times::default();
        self.steps.add_to(&mut steps);
        SweepCounts {
            passes: self.passes.load(Relaxed),
            expired: self.expired.load(Relaxed),
            swarms_removed: self.swarms_removed.load(Relaxed),
            steps,
        }
    }
}

/// The counts of [`Metrics`] at one moment.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Counts {
    /// Over UDP.
    pub udp: ProtocolCounts,
    /// Over HTTP.
    pub http: ProtocolCounts,
    /// Sweeps.
    pub sweeps: SweepCounts,
}

/// The counts of one protocol.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct ProtocolCounts {
    requests: [[u64; Kind::ALL.len()]; 2],
    refused: ByClient<u64, { Reason::ALL.len() }>,
    lenient: ByClient<u64, { Field::ALL.len() }>,
    /// Peers that joined a swarm.
    pub joined: u64,
    /// Peers that left a swarm, without expired peers.
    pub left: u64,
    /// Finished downloads.
    pub completed: u64,
    /// Bytes of requests; over HTTP, of paths and queries.
    pub received_bytes: u64,
    /// Bytes of answers; over HTTP, of bodies.
    pub sent_bytes: u64,
    /// The times from receiving a request to sending its answer.
    pub times: Times,
}

impl ProtocolCounts {
    /// The number of requests of this kind from addresses of this family, answered or not.
    pub const fn requests(&self, kind: Kind, family: Family) -> u64 {
        self.requests[family as usize][kind as usize]
    }

    /// The number of requests of all kinds and families.
    pub fn all_requests(&self) -> u64 {
        self.requests.iter().flatten().sum()
    }

    /// The number of requests that were refused or ignored for this reason.
    pub fn refused(&self, reason: Reason) -> u64 {
        Software::ALL.map(|client| self.refused_to(client, reason)).iter().sum()
    }

    /// The same of this client program. A store that does not answer refuses requests of
    /// [`Software::Other`].
    pub const fn refused_to(&self, client: Software, reason: Reason) -> u64 {
        self.refused.0[client as usize][reason as usize]
    }

    /// The number of admitted announces of this client program in which this field could not be read, and
    /// counted as not given.
    pub const fn lenient(&self, client: Software, field: Field) -> u64 {
        self.lenient.0[client as usize][field as usize]
    }
}

/// The counts of sweeps.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct SweepCounts {
    /// Sweeps of the whole store.
    pub passes: u64,
    /// Peers that expired.
    pub expired: u64,
    /// Swarms that were removed because they had no peers.
    pub swarms_removed: u64,
    /// The times that steps took.
    pub steps: Times,
}

/// Times, counted in buckets: four to each doubling from 4 µs to 34 s, so that a percentile is at most a
/// quarter above the truth.
#[derive(Debug)]
struct Histogram {
    buckets: [AtomicU64; Times::BUCKETS],
    total_nanos: AtomicU64,
}

impl Histogram {
    fn add(&self, count: u64, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.buckets[Times::bucket(nanos / 1000)].fetch_add(count, Relaxed);
        self.total_nanos.fetch_add(nanos.saturating_mul(count), Relaxed);
    }

    fn add_to(&self, times: &mut Times) {
        for (to, from) in times.buckets.iter_mut().zip(&self.buckets) {
            *to += from.load(Relaxed);
        }
        times.total_nanos += self.total_nanos.load(Relaxed);
    }
}

impl Default for Histogram {
    fn default() -> Self {
        Self { buckets: array::from_fn(|_| AtomicU64::new(0)), total_nanos: AtomicU64::new(0) }
    }
}

/// A histogram of times.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Times {
    buckets: [u64; Self::BUCKETS],
    total_nanos: u64,
}

impl Times {
    const BUCKETS: usize = 96;

    /// The sum of all times.
    pub const fn total(&self) -> Duration {
        Duration::from_nanos(self.total_nanos)
    }

    /// The number of times.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// The number of times below 2^`log` µs, for `log` from 2 to 25.
    pub fn below(&self, log: u32) -> u64 {
        self.buckets[..4 * (log as usize - 1)].iter().sum()
    }

    /// A time that this share of the times, from 0 to 1, did not exceed. It is at most a quarter above the
    /// exact value. `None` if there are no times.
    pub fn quantile(&self, share: f64) -> Option<Duration> {
        let count = self.count();
        let rank = ((count as f64 * share).ceil() as u64).clamp(1, count.max(1));
        let mut seen = 0;
        let bucket = self.buckets.iter().position(|&bucket| {
            seen += bucket;
            seen >= rank
        })?;
        Some(Duration::from_micros(Self::bound(bucket)))
    }

    /// The times that were added since `earlier` was taken.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let buckets = array::from_fn(|n| self.buckets[n].saturating_sub(earlier.buckets[n]));
        Self { buckets, total_nanos: self.total_nanos.saturating_sub(earlier.total_nanos) }
    }

    fn bucket(micros: u64) -> usize {
        let Some(log) = micros.checked_ilog2().filter(|&log| log >= 2) else { return micros as usize };
        ((log as usize - 1) << 2 | (micros >> (log - 2)) as usize & 3).min(Self::BUCKETS - 1)
    }

    /// Above all times of a bucket, in µs.
    const fn bound(bucket: usize) -> u64 {
        match bucket >> 2 {
            0 => bucket as u64 + 1,
            octave => (5 + (bucket & 3) as u64) << (octave - 1),
        }
    }
}

impl Default for Times {
    fn default() -> Self {
        Self { buckets: [0; Self::BUCKETS], total_nanos: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_was_not_seen_for_more_than_five_seconds_is_stuck() {
        let threads = Threads::of([0, 994, 995, 999, 1000, 1001].into_iter(), 1000);
        assert_eq!(threads, Threads { starting: 1, well: 4, stuck: 1 });
    }

    #[test]
    fn every_time_is_below_the_bound_of_its_bucket_and_by_a_quarter_at_most() {
        for micros in (0..4096).chain((12..24).flat_map(|log| [(1 << log) - 1, 1 << log, (1 << log) + 1])) {
            let bound = Times::bound(Times::bucket(micros));
            assert!(micros < bound && bound <= micros + micros / 4 + 1, "{micros} {bound}");
        }
        assert_eq!(Times::bucket(u64::MAX), Times::BUCKETS - 1);
        assert_eq!(Times::bound(Times::BUCKETS - 1), 1 << 25);
    }

    #[test]
    fn quantiles_and_powers_of_two_come_from_the_buckets() {
        let histogram = Histogram::default();
        let times = || {
            let mut times = Times::default();
            histogram.add_to(&mut times);
            times
        };
        assert_eq!(times().quantile(0.5), None);
        histogram.add(90, Duration::from_micros(10));
        histogram.add(9, Duration::from_micros(1000));
        let earlier = times();
        histogram.add(1, Duration::from_secs(3));
        let times = times();
        assert_eq!((times.count(), times.total()), (100, Duration::from_micros(3_009_900)));
        assert_eq!([2, 3, 4, 9, 10, 24].map(|log| times.below(log)), [0, 0, 90, 90, 99, 100]);
        let quantiles = [0.0, 0.5, 0.9, 0.99, 1.0].map(|share| times.quantile(share).unwrap().as_micros());
        assert_eq!(quantiles, [12, 12, 12, 1024, 3_145_728]);
        assert_eq!(times.since(&earlier).count(), 1);
    }
}
