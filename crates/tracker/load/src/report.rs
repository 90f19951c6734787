//! The report of a run, for programs and for people.

use std::{collections::BTreeMap, ops::Deref};

use hdrhistogram::{Counter, Histogram};
use serde::Serialize;

use crate::{
    Config, Server,
    clock::SECOND,
    engine::Times,
    machine::Machine,
    stats::{self, Kind, Totals},
};

/// The report of a run. As JSON it is one object with these keys. Times are in microseconds.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// Version of the generator.
    pub version: &'static str,
    /// The settings of the run.
    pub settings: Settings,
    /// The machine of the generator.
    pub machine: Machine,
    /// The time from the beginning of the measurement to its end, or to the last answer if that came later.
    pub seconds: f64,
    /// Whether the run was stopped before its duration was over.
    pub interrupted: bool,
    /// Requests of the measurement that were sent or were due: the sum of requests that succeeded, failed or
    /// got a wrong answer.
    pub requests: u64,
    /// Requests with a right answer.
    pub succeeded: u64,
    /// Requests that got no answer in time, were refused, or were never sent.
    pub failed: u64,
    /// Wrong answers, including those during the fill and the warm-up and those to no request.
    pub wrong: u64,
    /// Answers that came after their requests had failed.
    pub late: u64,
    /// Right answers, as a share of the requests in percent.
    pub success_percent: f64,
    /// Right answers per second.
    pub requests_per_second: f64,
    /// The number of failed requests by reason.
    pub failures: BTreeMap<String, u64>,
    /// The number of wrong answers by reason, with the first of each.
    pub wrong_answers: BTreeMap<String, WrongAnswers>,
    /// The number of right answers with a peculiarity of some trackers, by peculiarity, with the first of
    /// each.
    pub notes: BTreeMap<String, WrongAnswers>,
    /// By kind: connect, announce, stopped (announces with that event) and scrape.
    pub by_kind: BTreeMap<&'static str, OfKind>,
    /// The latency of right answers. In an open loop it is measured from the time at which a request was due,
    /// in a closed loop from the time at which it was sent.
    pub latency: Latencies,
    /// Peers in the answers to announces.
    pub peers: Peers,
    /// Bytes of requests, without the headers of IP and below.
    pub bytes_sent: u64,
    /// Bytes of right and wrong answers.
    pub bytes_received: u64,
    /// The first announces before the measurement.
    pub fill: stats::Filled,
    /// The tracker's process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<Server>,
    /// The resources of the generator.
    pub generator: Generator,
    /// Each second, by the time of the answers.
    pub series: Vec<Second>,
}

/// The settings of the run.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Settings {
    /// The trackers' addresses.
    pub targets: Vec<String>,
    /// `closed`, or `open`.
    pub r#loop: &'static str,
    /// Threads that ran the workers.
    pub threads: usize,
    /// The most unanswered requests per worker.
    pub window: usize,
    /// The configuration, with times in seconds.
    #[serde(flatten)]
    pub config: Config,
}

impl Deref for Settings {
    type Target = Config;

    fn deref(&self) -> &Config {
        &self.config
    }
}

/// Answers that were wrong, or noted, for one reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct WrongAnswers {
    /// Their number.
    pub count: u64,
    /// The fault or the note of the first one.
    pub example: String,
}

/// Requests of one kind.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct OfKind {
    /// All requests.
    pub requests: u64,
    /// Requests with a right answer.
    pub succeeded: u64,
    /// Requests that got no answer in time or were refused. Requests that were never sent count as announces.
    pub failed: u64,
    /// Requests with a wrong answer.
    pub wrong: u64,
    /// Right answers per second.
    pub per_second: f64,
    /// Bytes of all requests.
    pub bytes_sent: u64,
    /// Bytes of all answers.
    pub bytes_received: u64,
}

/// Latencies by kind.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Latencies {
    /// All kinds together.
    pub all: Latency,
    /// Each kind that occurred.
    #[serde(flatten)]
    pub by_kind: BTreeMap<&'static str, Latency>,
}

/// The times until answers, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, serde::Deserialize)]
#[non_exhaustive]
pub struct Latency {
    /// The shortest.
    pub min: f64,
    /// The mean.
    pub mean: f64,
    /// The median.
    pub p50: f64,
    /// 90 % were not longer.
    pub p90: f64,
    /// 95 % were not longer.
    pub p95: f64,
    /// 99 % were not longer.
    pub p99: f64,
    /// 99.9 % were not longer.
    pub p999: f64,
    /// The longest.
    pub max: f64,
}

/// Peers in the answers to announces.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Peers {
    /// In all right answers.
    pub total: u64,
    /// Per answer, on average.
    pub per_answer: f64,
}

/// The resources of the generator.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Generator {
    /// User and system time of this process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_seconds: Option<f64>,
    /// The 99th percentile of the delay of the generator behind its schedule, in microseconds. It is part of
    /// the latency. Only in an open loop.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lag_p99: Option<f64>,
    /// The mode of AF_XDP: `zero-copy`, `native` or `generic`. Only with an interface.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub xdp_mode: Option<&'static str>,
}

/// One second of the measurement.
#[derive(Debug, Default, Clone, Copy, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Second {
    /// Its number, from 0. Numbers after the duration are for late answers.
    pub second: u64,
    /// Right answers.
    pub succeeded: u64,
    /// Requests that failed in this second.
    pub failed: u64,
    /// Wrong answers.
    pub wrong: u64,
    /// Median latency, in microseconds.
    pub p50: f64,
    /// 99 % were not longer.
    pub p99: f64,
    /// The longest.
    pub max: f64,
}

impl Report {
    /// Without the tracker's process, and with nothing of the generator but its delay.
    pub(crate) fn new(config: &Config, totals: Totals, times: Times, series: Vec<Second>) -> Self {
        let seconds = (totals.last_answer.max(totals.end) - times.begin) as f64 / SECOND as f64;
        let sum = |of: fn(&stats::OfKind) -> u64| totals.kinds.iter().map(of).sum::<u64>();
        let (requests, succeeded, failed) = (sum(|k| k.requests), sum(|k| k.succeeded), sum(|k| k.failed));
        let kinds = || Kind::ALL.iter().zip(&totals.kinds).filter(|(_, kind)| kind.requests > 0);
        let announces: u64 =
            [Kind::Announce, Kind::Stopped].iter().map(|&kind| totals.kinds[kind as usize].succeeded).sum();
        Self {
            version: env!("CARGO_PKG_VERSION"),
            settings: Settings::of(config),
            machine: Machine::this(),
            seconds,
            interrupted: totals.end < times.end,
            requests,
            succeeded,
            failed,
            wrong: sum(|kind| kind.wrong) + totals.strays,
            late: totals.late,
            success_percent: if requests == 0 { 0.0 } else { succeeded as f64 * 100.0 / requests as f64 },
            requests_per_second: succeeded as f64 / seconds,
            failures: totals.failures.0.iter().map(|(reason, (count, _))| (reason.clone(), *count)).collect(),
            wrong_answers: WrongAnswers::of(&totals.wrong),
            notes: WrongAnswers::of(&totals.notes),
            by_kind: kinds().map(|(kind, of)| (kind.name(), OfKind::of(of, seconds))).collect(),
            latency: Latencies {
                all: Latency::of(&totals.latency()),
                by_kind: kinds().map(|(kind, of)| (kind.name(), Latency::of(&of.latency))).collect(),
            },
            peers: Peers { total: totals.peers, per_answer: totals.peers as f64 / announces.max(1) as f64 },
            bytes_sent: sum(|kind| kind.bytes_sent),
            bytes_received: sum(|kind| kind.bytes_received),
            fill: totals.fill,
            server: None,
            generator: Generator {
                cpu_seconds: None,
                lag_p99: config.is_open().then(|| microseconds(totals.lag.value_at_quantile(0.99))),
                xdp_mode: None,
            },
            series,
        }
    }

    /// The report as tables.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let settings = &self.settings;
        let pace = match settings.rate {
            Some(rate) => format!("{rate} requests per second each (open loop)"),
            None => "as fast as answers come (closed loop)".to_owned(),
        };
        let workers = grouped(settings.workers as u64);
        let mut line = |lead: &str, rest: &str| text += &wrapped(lead, rest);
        line(
            "",
            &format!(
                "{}: workers {workers}, {pace}, window {}",
                settings.targets.join(", "),
                settings.window
            ),
        );
        let interrupted = if self.interrupted { "; interrupted" } else { "" };
        line("", &format!("on {}, {:.2} s{interrupted}", self.machine, self.seconds));
        line("", "");
        let mut count = |label: &str, count: u64, rest: &str| {
            let lead = format!("{label:<11}{:>14}", grouped(count));
            if rest.is_empty() { line(&lead, "") } else { line(&(lead + "  "), rest) }
        };
        count("requests", self.requests, "");
        count("succeeded", self.succeeded, &format!("{:.3} %", self.success_percent));
        count("failed", self.failed, "");
        self.failures.iter().for_each(|(reason, failed)| count("", *failed, reason));
        count("wrong", self.wrong, "");
        for (reason, wrong) in &self.wrong_answers {
            count("", wrong.count, &format!("{reason}; the first: {}", wrong.example));
        }
        for (reason, noted) in &self.notes {
            count("noted", noted.count, &format!("{reason}; the first: {}", noted.example));
        }
        count("late", self.late, "");
        count("per second", self.requests_per_second.round() as u64, "");
        line("", "");

        let titles =
            ["µs", "answers", "per second", "min", "mean", "p50", "p90", "p95", "p99", "p99.9", "max"];
        let column = |kind: &str, succeeded: u64, per_second: f64, latency: &Latency| {
            let numbers = [succeeded as f64, per_second].into_iter().chain(latency.numbers());
            [kind.to_owned()].into_iter().chain(numbers.map(significant)).collect()
        };
        let kinds = self.latency.by_kind.iter().map(|(kind, latency)| {
            let of = &self.by_kind[kind];
            column(kind, of.succeeded, of.per_second, latency)
        });
        let mut columns: Vec<Vec<_>> = [titles.map(str::to_owned).into()].into_iter().chain(kinds).collect();
        columns.push(column("all", self.succeeded, self.requests_per_second, &self.latency.all));
        text += &plain(&columns);

        let mut line = |lead: &str, rest: &str| text += &wrapped(lead, rest);
        line("", "");
        line("peers per answer ", &format!("{:.1}", self.peers.per_answer));
        let [sent, received] = [self.bytes_sent, self.bytes_received].map(grouped);
        line("bytes            ", &format!("{sent} sent, {received} received"));
        if settings.fill {
            let [announced, lost] = [self.fill.announced, self.fill.lost].map(grouped);
            line("filled           ", &format!("{announced} peers, {lost} lost"));
        }
        if let Some(server) = &self.server {
            let [before, after] =
                [server.rss_bytes_before, server.rss_bytes_after].map(|bytes| bytes as f64 / 1e6);
            let cpu = (server.cpu_seconds, server.cpu_seconds_per_million);
            let cpu = format!("{:.2} CPU seconds, {:.3} per million answers", cpu.0, cpu.1);
            line("tracker          ", &format!("{cpu}; RSS {before:.1} to {after:.1} MB"));
        }
        if let Some(cpu) = self.generator.cpu_seconds {
            let lag = self
                .generator
                .lag_p99
                .map(|lag| format!("; behind schedule by {} µs at p99", significant(lag)));
            line("generator        ", &format!("{cpu:.2} CPU seconds{}", lag.unwrap_or_default()));
        }
        if let Some((interface, mode)) = settings.xdp.as_ref().zip(self.generator.xdp_mode) {
            line("frames           ", &format!("of {interface} by AF_XDP, {mode}"));
        }
        text
    }
}

impl Settings {
    fn of(config: &Config) -> Self {
        Self {
            targets: config.targets.iter().map(ToString::to_string).collect(),
            r#loop: if config.is_open() { "open" } else { "closed" },
            threads: config.threads(),
            window: config.window(),
            config: config.clone(),
        }
    }
}

impl WrongAnswers {
    fn of(reasons: &stats::Reasons) -> BTreeMap<String, Self> {
        let of = |(count, example): &(u64, String)| Self { count: *count, example: example.clone() };
        reasons.0.iter().map(|(reason, answers)| (reason.clone(), of(answers))).collect()
    }
}

impl OfKind {
    fn of(of: &stats::OfKind, seconds: f64) -> Self {
        let &stats::OfKind { requests, succeeded, failed, wrong, bytes_sent, bytes_received, .. } = of;
        let per_second = succeeded as f64 / seconds;
        Self { requests, succeeded, failed, wrong, per_second, bytes_sent, bytes_received }
    }
}

impl Latency {
    fn of<T: Counter>(latency: &Histogram<T>) -> Self {
        if latency.is_empty() {
            return Self::default();
        }
        let at = |quantile| microseconds(latency.value_at_quantile(quantile));
        Self {
            min: microseconds(latency.min()),
            mean: latency.mean() / 1e3,
            p50: at(0.5),
            p90: at(0.9),
            p95: at(0.95),
            p99: at(0.99),
            p999: at(0.999),
            max: microseconds(latency.max()),
        }
    }

    /// In the order of the table.
    pub fn numbers(&self) -> [f64; 8] {
        let Self { min, mean, p50, p90, p95, p99, p999, max } = *self;
        [min, mean, p50, p90, p95, p99, p999, max]
    }
}

impl Second {
    pub(crate) fn of(second: &stats::Second) -> Self {
        let Latency { p50, p99, max, .. } = Latency::of(&second.latency);
        let &stats::Second { index, succeeded, failed, wrong, .. } = second;
        Self { second: index, succeeded, failed, wrong, p50, p99, max }
    }
}

/// The targets of a run, for a message.
pub(crate) fn targets(config: &Config) -> String {
    let targets: Vec<_> = config.targets.iter().map(ToString::to_string).collect();
    targets.join(", ")
}

fn microseconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e3
}

/// The width of a report.
const COLUMNS: usize = 80;

/// `lead` and `text` in lines of [`COLUMNS`], the text below itself. Words that are too long are cut.
fn wrapped(lead: &str, text: &str) -> String {
    let margin = lead.chars().count();
    let break_line = format!("\n{:margin$}", "");
    let (mut out, mut column) = (lead.to_owned(), margin);
    for word in text.split(' ') {
        if column > margin && column + 1 + word.chars().count() > COLUMNS {
            (out, column) = (out + &break_line, margin);
        } else if column > margin {
            (out, column) = (out + " ", column + 1);
        }
        for c in word.chars() {
            if column == COLUMNS {
                (out, column) = (out + &break_line, margin);
            }
            out.push(c);
            column += 1;
        }
    }
    out + "\n"
}

/// Columns of text, the first to the left, the others to the right.
fn plain(columns: &[Vec<String>]) -> String {
    let width = |column: &Vec<String>| column.iter().map(|cell| cell.chars().count()).max().unwrap_or(0);
    let widths: Vec<_> = columns.iter().map(width).collect();
    let line = |line: usize| {
        let cells = columns.iter().zip(&widths).enumerate();
        let cells = cells.map(|(n, (column, &width))| match n {
            0 => format!("{:<width$}", column[line]),
            _ => format!("  {:>width$}", column[line]),
        });
        cells.collect::<String>() + "\n"
    };
    (0..columns[0].len()).map(line).collect()
}

/// A number with at least three significant digits.
fn significant(number: f64) -> String {
    match number {
        0.0 => "0".to_owned(),
        ..9.995 => format!("{number:.2}"),
        ..99.95 => format!("{number:.1}"),
        _ => grouped(number.round() as u64),
    }
}

/// A number with separators: `1,234,567`.
fn grouped(number: u64) -> String {
    match number {
        ..1000 => number.to_string(),
        _ => format!("{},{:03}", grouped(number / 1000), number % 1000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_wrapped_at_80_columns() {
        assert_eq!(wrapped("late  1", ""), "late  1\n");
        let long = format!("{} {}", "two µs ".repeat(20), "x".repeat(100));
        let lines = wrapped("why  ", &long);
        assert!(lines.lines().all(|line| line.chars().count() <= COLUMNS), "{lines}");
        assert!(lines.lines().skip(1).all(|line| line.starts_with("     ")), "{lines}");
        let words = lines.replace("why", "").split_whitespace().collect::<String>();
        assert_eq!(words, long.replace(' ', ""));
    }
}
