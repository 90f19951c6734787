//! Metrics in the formats of Prometheus: its text format, and OpenMetrics if a scraper accepts that.
//!
//! Each label has few values, from fixed lists. No address, peer id, info hash or passkey is one.

use std::{
    fmt::{Display, Write},
    sync::Arc,
    time::{Duration, SystemTime},
};

use axum::{
    extract::State,
    http::{HeaderMap, header},
    response::{IntoResponse, Response},
};
use swarmkeep::{Family, PeerCounts};
use swarmkeep_state::StateStatus;
use swarmkeep_tracker_protocol::{Field, Software};

use super::{state::AdminState, stats::Sample};
use crate::{Counts, HandshakeCounts, Kind, ProtocolCounts, Reason, SharedStore, Times, XdpStatus};

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The upper bounds of histogram buckets are powers of two of a microsecond, from 16 µs to 16.8 s.
const BOUNDS: std::ops::RangeInclusive<u32> = 4..=24;

pub(super) async fn metrics(State(admin): State<Arc<AdminState>>, headers: HeaderMap) -> Response {
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    let open = accept.contains("application/openmetrics-text");
    let text = exposition(&admin, &admin.latest(), open);
    ([(header::CONTENT_TYPE, if open { OPEN_METRICS } else { TEXT })], text).into_response()
}

fn exposition(admin: &AdminState, sample: &Sample, open: bool) -> String {
    let counts = admin.control.metrics.counts();
    let mut out = Exposition { text: String::with_capacity(32 * 1024), open };
    of_protocols(&mut out, &counts);
    if let Some(tls) = admin.control.metrics.tls() {
        if let Some(expires) = tls.certificate().expires {
            out.gauge(
                "certificate_expiration_timestamp_seconds",
                "The earliest end of the certificate and of the issuers in its file.",
            )
            .sample(&[], expires.as_secs());
        }
        let HandshakeCounts { completed, failed, refused, .. } = tls.handshakes();
        let mut family =
            out.counter("tls_handshakes", "Handshakes of TLS that have ended, or were not begun.");
        for (result, count) in [("completed", completed), ("failed", failed), ("refused", refused)] {
            family.sample(&[("result", result)], count);
        }
    }
    of_store(&mut out, sample);
    if let Some(most) = admin.identity.store_limit {
        out.value("store_limit_bytes", "The most memory that swarms and peers may take.", most);
    }
    if let Some(store) = admin.control.metrics.shared_store() {
        let [name, node] = [&admin.identity.store_name, &admin.identity.node];
        let [name, node] = [name, node].map(|name| name.as_deref().unwrap_or(""));
        out.gauge(
            "store_info",
            "A store that several trackers share, with an id that is the same for all; always 1.",
        )
        .sample(&[("repository", name), ("engine", store.engine), ("node", node), ("id", &store.id)], 1);
        of_shared_store(&mut out, &store);
    }
    of_sweeps(&mut out, &counts);
    if let Some(state) = admin.control.metrics.state() {
        of_state(&mut out, &state);
    }

    out.counter(
        "udp_socket_drops",
        "Datagrams that the system has dropped because a socket's buffer or an interface's queue was full.",
    )
    .sample(&[], sample.drops);
    if let Some(status) = admin.control.metrics.xdp() {
        of_xdp(&mut out, &status);
    }
    let lost = admin.control.rules.now().observer.as_ref().map_or(0, |observer| observer.dropped());
    out.count("dropped_reports", "Announces of members that were not reported.", lost);
    out.gauge(
        "interval_stretch_ratio",
        "The factor by which the interval of clients is longer than set; 1 if it is not.",
    )
    .sample(&[], admin.control.rules.stretch());
    out.gauge(
        "clock_ahead_seconds",
        "By how much the machine's clock is ahead of the time that peers age by: it was set since the start.",
    )
    .sample(&[], admin.control.metrics.clock_ahead());
    out.count("admin_wrong_tokens", "Requests with a wrong token.", admin.tokens.wrong());

    out.value("process_resident_memory_bytes", "Memory of the process.", sample.process.resident_bytes);
    out.count("process_cpu_seconds", "Time of the process on all cores.", sample.process.cpu.as_secs_f64());
    out.value("process_open_fds", "Files and sockets that are open.", sample.process.open_files);
    let started = admin.identity.started.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    out.value("process_start_time_seconds", "When the tracker started, since 1970.", started.as_secs_f64());
    let labels = [
        ("version", env!("CARGO_PKG_VERSION")),
        ("store", admin.identity.store_name.as_deref().unwrap_or("")),
    ];
    out.gauge("build_info", "Which tracker this is; the value is always 1.").sample(&labels, 1);
    out.finish()
}

fn of_xdp(out: &mut Exposition, status: &XdpStatus) {
    let &XdpStatus { mode, addresses, connects: [v4, v6], ring_full, no_place } = status;
    out.gauge("xdp_info", "The way that datagrams of the interface come; the value is always 1.")
        .sample(&[("mode", mode.unwrap_or("sockets"))], 1);
    out.value("xdp_addresses", "Addresses with a port whose datagrams bypass the sockets.", addresses);
    let mut family = out.counter(
        "xdp_connects",
        "Connects that the program at the interface has answered; the requests contain them.",
    );
    for (name, count) in [("ipv4", v4), ("ipv6", v6)] {
        family.sample(&[("family", name)], count);
    }
    let mut family = out.counter(
        "xdp_drops",
        "Datagrams of the interface that were lost before the tracker; the drops of sockets contain them.",
    );
    for (reason, count) in [("ring_full", ring_full), ("no_place", no_place)] {
        family.sample(&[("reason", reason)], count);
    }
}

fn of_protocols(out: &mut Exposition, counts: &Counts) {
    let protocols = [("udp", &counts.udp), ("http", &counts.http)];
    let mut family = out.counter("requests", "Requests received, answered or not.");
    for (protocol, counts) in protocols {
        for kind in Kind::ALL.into_iter().filter(|&kind| protocol == "udp" || kind != Kind::Connect) {
            for (name, of) in [("ipv4", Family::V4), ("ipv6", Family::V6)] {
                let labels = [("protocol", protocol), ("kind", kind.name()), ("family", name)];
                family.sample(&labels, counts.requests(kind, of));
            }
        }
    }
    let refused = || protocols.iter().flat_map(|of| Reason::ALL.map(|reason| (of, reason)));
    let labels = |of, reason: Reason| [("protocol", of), ("reason", reason.name())];
    let mut family = out.counter("refused_requests", "Requests that were refused or ignored.");
    for (&(of, counts), reason) in refused() {
        family.sample(&labels(of, reason), counts.refused(reason));
    }
    let mut family =
        out.counter("refused_requests_by_client", "The same by client program, from its first on.");
    for (&(of, counts), reason) in refused() {
        family.by_client(labels(of, reason), |client| counts.refused_to(client, reason));
    }
    let mut family = out.counter(
        "lenient_announces",
        "Announces that were not refused, by each field that could not be read and counted as not given.",
    );
    for (protocol, counts) in protocols {
        for &field in Field::ALL.iter().filter(|&&field| protocol == "http" || field <= Field::Want) {
            let labels = [("protocol", protocol), ("field", field.name())];
            family.by_client(labels, |client| counts.lenient(client, field));
        }
    }
    type Count = fn(&ProtocolCounts) -> u64;
    let counters: [(&str, &str, Count); 5] = [
        ("peers_joined", "Peers that were not in their swarm before.", |counts| counts.joined),
        ("peers_left", "Peers that announced that they leave, without expired peers.", |counts| counts.left),
        ("downloads", "Downloads that were finished.", |counts| counts.completed),
        ("received_bytes", "Bytes of requests; over HTTP those of path and query.", |counts| {
            counts.received_bytes
        }),
        ("sent_bytes", "Bytes of answers; over HTTP those of bodies.", |counts| counts.sent_bytes),
    ];
    for (name, help, count) in counters {
        let mut family = out.counter(name, help);
        for (protocol, counts) in protocols {
            family.sample(&[("protocol", protocol)], count(counts));
        }
    }
    let mut family = out.histogram(
        "answer_duration_seconds",
        "Time from when a request was received to when its answer was sent.",
    );
    for (protocol, counts) in protocols {
        family.times(&[("protocol", protocol)], &counts.times);
    }
}

fn of_store(out: &mut Exposition, sample: &Sample) {
    out.gauge("store_up", "Whether the store has answered; without it, there are no other metrics of it.")
        .sample(&[], u8::from(sample.totals.is_some()));
    if let Some(answered) = sample.answered {
        out.gauge(
            "store_answered_timestamp_seconds",
            "When the store has last answered, since the Unix epoch.",
        )
        .sample(&[], answered.as_secs());
    }
    if let Some(totals) = sample.totals {
        out.gauge("torrents", "Torrents with peers, or kept for the number of their downloads; of a shared store, as some seconds ago.")
            .sample(&[], totals.swarms);
        let mut family = out.gauge("peers", "Peers in all swarms; of a shared store, as some seconds ago.");
        for (name, PeerCounts { seeders, leechers }) in [("ipv4", totals.v4), ("ipv6", totals.v6)] {
            family.sample(&[("family", name), ("role", "seeder")], seeders);
            family.sample(&[("family", name), ("role", "leecher")], leechers);
        }
        out.gauge(
            "torrent_downloads",
            "Finished downloads of these torrents: one that goes takes its own along.",
        )
        .sample(&[], totals.downloaded);
        out.count("evicted_torrents", "Torrents that limits of the store have cost.", totals.evicted.swarms);
        out.count("evicted_peers", "Peers that limits of the store have cost.", totals.evicted.peers);
    }
    if let Some(memory) = sample.memory {
        let counted = if memory.exact { "exact" } else { "estimated" };
        out.gauge("store_bytes", "Memory of swarms and peers, counted from allocations or estimated.")
            .sample(&[("counted", counted)], memory.bytes);
    }
}

fn of_shared_store(out: &mut Exposition, store: &SharedStore) {
    out.gauge(
        "store_layout_refused",
        "Whether the store was emptied and begun anew with other settings, so that this tracker cannot use it.",
    )
    .sample(&[], u8::from(store.refused.is_some()));
    out.counter("store_layout_changes", "How often the store was emptied and begun anew by another tracker.")
        .sample(&[], store.layout_changes);
    if let Some(evicted) = store.evicted {
        out.count("store_evicted_shards", "Shards that servers have evicted, and other keys.", evicted);
    }
    if let Some(ahead) = store.seconds_ahead {
        out.gauge(
            "store_clock_ahead_seconds",
            "By how much this tracker's clock is ahead of the store's; times further off than 60 count as 60.",
        )
        .sample(&[], ahead);
    }
}

fn of_sweeps(out: &mut Exposition, counts: &Counts) {
    let sweeps = &counts.sweeps;
    out.count("sweep_passes", "Passes through the whole store to forget.", sweeps.passes);
    out.count("expired_peers", "Peers that had not announced for longer than a lifetime.", sweeps.expired);
    out.count("emptied_torrents", "Torrents that sweeps removed with the last peer.", sweeps.swarms_removed);
    out.histogram("sweep_step_duration_seconds", "Time that one step of a sweep took.")
        .times(&[], &sweeps.steps);
}

fn of_state(out: &mut Exposition, state: &StateStatus) {
    let snapshots = &state.snapshots;
    out.count("snapshots", "Snapshots that were taken.", snapshots.taken);
    out.count("failed_snapshots", "Snapshots that could not be taken.", snapshots.failed);
    out.value("snapshot_refused", "Whether the latest one failed.", u8::from(snapshots.failed_in_a_row > 0));
    if let Some(every) = snapshots.every {
        out.value("snapshot_interval_seconds", "The time between two snapshots.", every.as_secs_f64());
    }
    if let Some((summary, took)) = snapshots.latest {
        out.gauge("snapshot_timestamp_seconds", "When the latest snapshot was begun, since the Unix epoch.")
            .sample(&[], summary.taken.as_secs());
        out.value("snapshot_duration_seconds", "How long the latest snapshot took.", took.as_secs_f64());
        out.value("snapshot_bytes", "How large the latest snapshot is.", summary.bytes);
    }
    let Some(counts) = state.counts else { return };
    out.value("unsaved_downloads", "Torrents with downloads that are not on the disk yet.", counts.unsaved);
    out.gauge("downloads_refused", "Whether the disk has refused download counts the last time.")
        .sample(&[], u8::from(counts.is_refused));
    out.count("downloads_refusals", "How often the disk has refused download counts.", counts.refusals);
    out.count("downloads_commits", "How often download counts were made durable.", counts.commits);
    out.count("downloads_lookups", "Lookups of the stored download count of a torrent.", counts.looked_up);
    out.gauge("downloads_unreadable", "Whether the stored download counts of some torrents cannot be read.")
        .sample(&[], u8::from(counts.is_unreadable));
    out.gauge("downloads_damaged", "Whether the database of download counts is damaged, and not used.")
        .sample(&[], u8::from(counts.is_damaged));
    out.count("downloads_left_out", "Torrents not kept: the limit is reached.", counts.left_out);
    out.value("downloads_database_entries", "Torrents with a stored download count.", counts.entries);
    out.value("downloads_database_bytes", "How large the database of download counts is.", counts.bytes);
}

/// The text so far.
struct Exposition {
    text: String,
    open: bool,
}

/// The samples of one name.
struct Samples<'a> {
    text: &'a mut String,
    /// The name without the prefix of all names.
    name: &'static str,
    suffix: &'static str,
}

impl Exposition {
    fn counter(&mut self, name: &'static str, help: &str) -> Samples<'_> {
        // Only OpenMetrics knows a counter by its name without this.
        let named = if self.open { "" } else { "_total" };
        self.head(name, named, "counter", help);
        Samples { text: &mut self.text, name, suffix: "_total" }
    }

    fn gauge(&mut self, name: &'static str, help: &str) -> Samples<'_> {
        self.head(name, "", "gauge", help);
        Samples { text: &mut self.text, name, suffix: "" }
    }

    fn count(&mut self, name: &'static str, help: &str, count: impl Display) {
        self.counter(name, help).sample(&[], count);
    }

    fn value(&mut self, name: &'static str, help: &str, value: impl Display) {
        self.gauge(name, help).sample(&[], value);
    }

    fn histogram(&mut self, name: &'static str, help: &str) -> Samples<'_> {
        self.head(name, "", "histogram", help);
        Samples { text: &mut self.text, name, suffix: "" }
    }

    fn head(&mut self, name: &str, suffix: &str, kind: &str, help: &str) {
        let _ = writeln!(self.text, "# HELP swarmkeep_{name}{suffix} {help}");
        let _ = writeln!(self.text, "# TYPE swarmkeep_{name}{suffix} {kind}");
        let unit = ["seconds", "bytes", "ratio"].into_iter().find(|unit| name.ends_with(unit));
        if let Some(unit) = unit.filter(|_| self.open) {
            let _ = writeln!(self.text, "# UNIT swarmkeep_{name}{suffix} {unit}");
        }
    }

    fn finish(mut self) -> String {
        if self.open {
            self.text.push_str("# EOF\n");
        }
        self.text
    }
}

impl Samples<'_> {
    fn sample(&mut self, labels: &[(&str, &str)], value: impl Display) {
        self.line(self.suffix, labels, None, value);
    }

    /// Programs that were never counted have no series: `rate` misses their first count.
    fn by_client(&mut self, [one, other]: [(&str, &str); 2], count: impl Fn(Software) -> u64) {
        for client in Software::ALL.into_iter().filter(|&of| of == Software::Other || count(of) > 0) {
            self.sample(&[one, other, ("client", client.name())], count(client));
        }
    }

    fn times(&mut self, labels: &[(&str, &str)], times: &Times) {
        for log in BOUNDS {
            let bound = Duration::from_micros(1 << log).as_secs_f64().to_string();
            self.line("_bucket", labels, Some(&bound), times.below(log));
        }
        self.line("_bucket", labels, Some("+Inf"), times.count());
        self.line("_sum", labels, None, times.total().as_secs_f64());
        self.line("_count", labels, None, times.count());
    }

    fn line(&mut self, suffix: &str, labels: &[(&str, &str)], bound: Option<&str>, value: impl Display) {
        let _ = write!(self.text, "swarmkeep_{}{suffix}", self.name);
        let labels = labels.iter().copied().chain(bound.map(|bound| ("le", bound)));
        for (n, (label, value)) in labels.clone().enumerate() {
            let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let _ = write!(self.text, "{}{label}=\"{value}\"", if n == 0 { '{' } else { ',' });
        }
        let end = if labels.count() > 0 { "}" } else { "" };
        let _ = writeln!(self.text, "{end} {value}");
    }
}
