//! Counts and latencies of requests and answers: each thread has its own, which are added up at the end.

use std::{collections::BTreeMap, sync::mpsc};

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::{
    check::{Checker, Fault, Judgement},
    clock::SECOND,
};

/// The kinds of requests in reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Connect,
    Announce,
    Stopped,
    Scrape,
}

impl Kind {
    pub(crate) const ALL: [Self; 4] = [Self::Connect, Self::Announce, Self::Stopped, Self::Scrape];

    pub(crate) const fn name(self) -> &'static str {
        ["connect", "announce", "stopped", "scrape"][self as usize]
    }
}

/// The kind, the purpose and the times of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sending {
    pub(crate) kind: Kind,
    /// Its time in the schedule, in nanoseconds of the clock; in a closed loop, the time of sending.
    pub(crate) intended: u64,
    pub(crate) sent: u64,
    pub(crate) purpose: Purpose,
}

/// The part of a run that a request belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// The first announce of the worker's peer with this number, before the warm-up.
    Fill(u64),
    /// The first connects, and the warm-up.
    WarmUp,
    Measured,
}

/// Latencies up to two hours: no measurement waits longer.
const LONGEST: u64 = 7_200 * SECOND;

fn latencies() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LONGEST, 3).expect("bounds that a histogram takes")
}

/// The results of one thread. No other thread writes to it.
#[derive(Debug)]
pub(crate) struct Recorder {
    pub(crate) totals: Totals,
    /// The begin of the measurement, once it is known.
    begin: Option<u64>,
    second: Second,
    publish: mpsc::Sender<Second>,
}

/// The results of several threads.
#[derive(Debug)]
pub(crate) struct Totals {
    pub(crate) kinds: [OfKind; 4],
    pub(crate) failures: Reasons,
    /// Wrong answers by reason.
    pub(crate) wrong: Reasons,
    /// Right answers that are unusual, by reason.
    pub(crate) notes: Reasons,
    /// Wrong answers that belong to no request.
    pub(crate) strays: u64,
    /// Answers that came after their requests had failed.
    pub(crate) late: u64,
    /// Peers in all right answers to announces.
    pub(crate) peers: u64,
    /// The delays of requests that had room in the window: the generator's own lateness.
    pub(crate) lag: Histogram<u64>,
    /// The end of the measurement.
    pub(crate) end: u64,
    /// The time of the last answer that counts.
    pub(crate) last_answer: u64,
    pub(crate) fill: Filled,
}

/// The results of the first announces before a measurement.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Filled {
    /// Peers with an answer to their first announce.
    pub announced: u64,
    /// Peers without an answer to their first announce, although it was sent several times.
    pub lost: u64,
}

/// The requests of one kind.
#[derive(Debug)]
pub(crate) struct OfKind {
    pub(crate) requests: u64,
    pub(crate) succeeded: u64,
    pub(crate) failed: u64,
    pub(crate) wrong: u64,
    pub(crate) bytes_sent: u64,
    pub(crate) bytes_received: u64,
    /// Nanoseconds from the intended time of a request to its right answer.
    pub(crate) latency: Histogram<u64>,
}

/// Counts by reason, with the first example of each. Bounded, since a tracker may make up reasons.
#[derive(Debug, Default)]
pub(crate) struct Reasons(pub(crate) BTreeMap<String, (u64, String)>);

impl Reasons {
    const MOST: usize = 20;

    pub(crate) fn add(&mut self, reason: &str, count: u64, example: impl FnOnce() -> String) {
        if let Some((counted, _)) = self.0.get_mut(reason) {
            *counted += count;
            return;
        }
        let reason = if self.0.len() < Self::MOST { reason } else { "other" };
        let (counted, _) = self.0.entry(reason.to_owned()).or_insert_with(|| (0, example()));
        *counted += count;
    }

    #[cfg(test)]
    pub(crate) fn sum(&self) -> u64 {
        self.0.values().map(|(count, _)| count).sum()
    }
}

/// The results of one thread in one second of the measurement.
#[derive(Debug)]
pub(crate) struct Second {
    /// From 0; the last second also has the answers after the end.
    pub(crate) index: u64,
    pub(crate) succeeded: u64,
    pub(crate) failed: u64,
    pub(crate) wrong: u64,
    pub(crate) latency: Histogram<u32>,
}

impl Second {
    pub(crate) fn new(index: u64) -> Self {
        let latency = Histogram::new_with_bounds(1, LONGEST, 2).expect("bounds that a histogram takes");
        Self { index, succeeded: 0, failed: 0, wrong: 0, latency }
    }
}

impl Recorder {
    pub(crate) fn new(publish: mpsc::Sender<Second>) -> Self {
        Self { totals: Totals::new(), begin: None, second: Second::new(0), publish }
    }

    /// Sets the begin of second 0.
    pub(crate) const fn begin(&mut self, at: u64) {
        self.begin = Some(at);
    }

    /// Hands in the seconds that are over.
    pub(crate) fn tick(&mut self, now: u64) {
        let index = now.saturating_sub(self.begin.unwrap_or_default()) / SECOND;
        while self.second.index < index {
            let next = Second::new(self.second.index + 1);
            // The receiver is gone if the whole run has failed.
            let _ = self.publish.send(std::mem::replace(&mut self.second, next));
        }
    }

    /// Hands in the last second.
    pub(crate) fn finish(mut self) -> Totals {
        let _ = self.publish.send(self.second);
        self.totals
            .kinds
            .iter_mut()
            .for_each(|kind| kind.requests = kind.succeeded + kind.failed + kind.wrong);
        self.totals
    }

    /// Records a request that is sent now. If that is earlier than its time in the schedule, it is that time.
    pub(crate) fn sent(&mut self, sending: &mut Sending, bytes: usize, now: u64) {
        sending.sent = now;
        sending.intended = sending.intended.min(now);
        if sending.purpose == Purpose::Measured {
            self.totals.kinds[sending.kind as usize].bytes_sent += bytes as u64;
        }
    }

    /// Records an answer, with the note of the checker. Returns whether the tracker refused.
    pub(crate) fn judged(
        &mut self,
        sending: &Sending,
        bytes: usize,
        judged: Judgement,
        checker: &mut Checker,
        now: u64,
    ) -> bool {
        let is_refused = matches!(judged, Ok(Err(_)));
        match judged {
            Ok(Ok(peers)) => {
                self.succeeded(sending, bytes, peers, now);
                // An unusual right answer counts at any time.
                if let Some(note) = checker.note.take() {
                    self.totals.notes.add(note.reason(), 1, || note.to_string());
                }
            }
            Ok(Err(reason)) => self.failed(sending, &reason, now),
            Err(wrong) => self.wrong(Some(sending), bytes, &wrong, now),
        }
        is_refused
    }

    /// Records the delay of a request that had room in the window.
    pub(crate) fn lag(&mut self, nanoseconds: u64) {
        self.totals.lag.saturating_record(nanoseconds);
    }

    pub(crate) fn succeeded(&mut self, sending: &Sending, bytes: usize, peers: usize, now: u64) {
        match sending.purpose {
            Purpose::Fill(_) => self.totals.fill.announced += 1,
            Purpose::WarmUp => {}
            Purpose::Measured => {
                self.tick(now);
                let latency = now.saturating_sub(sending.intended);
                let kind = &mut self.totals.kinds[sending.kind as usize];
                kind.succeeded += 1;
                kind.bytes_received += bytes as u64;
                kind.latency.saturating_record(latency);
                self.second.succeeded += 1;
                self.second.latency.saturating_record(latency);
                self.totals.peers += peers as u64;
                self.totals.last_answer = now;
            }
        }
    }

    /// A failed request. A request of the warm-up that fails during the measurement counts: its worker waited
    /// for it until then, and otherwise a tracker that loses the first thousand would look like one without
    /// losses.
    pub(crate) fn failed(&mut self, sending: &Sending, reason: &str, now: u64) {
        let measured = match sending.purpose {
            Purpose::Measured => true,
            Purpose::WarmUp => self.begin.is_some_and(|begin| now >= begin),
            Purpose::Fill(_) => false,
        };
        if measured {
            self.tick(now);
            self.totals.kinds[sending.kind as usize].failed += 1;
            self.second.failed += 1;
            self.totals.failures.add(reason, 1, String::new);
        }
    }

    /// Requests that were intended and never sent.
    pub(crate) fn unsent(&mut self, count: u64) {
        if count > 0 {
            self.totals.kinds[Kind::Announce as usize].failed += count;
            self.second.failed += count;
            self.totals.failures.add("never sent: the window was full until the end", count, String::new);
        }
    }

    /// A wrong answer. It counts at any time: a tracker that is wrong while it is filled is wrong.
    pub(crate) fn wrong(&mut self, sending: Option<&Sending>, bytes: usize, wrong: &Fault, now: u64) {
        self.totals.wrong.add(wrong.reason(), 1, || wrong.to_string());
        match sending {
            Some(Sending { kind, purpose: Purpose::Measured, .. }) => {
                self.tick(now);
                let kind = &mut self.totals.kinds[*kind as usize];
                kind.wrong += 1;
                kind.bytes_received += bytes as u64;
                self.second.wrong += 1;
                self.totals.last_answer = now;
            }
            _ => self.totals.strays += 1,
        }
    }

    pub(crate) const fn late(&mut self) {
        self.totals.late += 1;
    }
}

impl Totals {
    pub(crate) fn new() -> Self {
        let kind = || OfKind {
            requests: 0,
            succeeded: 0,
            failed: 0,
            wrong: 0,
            bytes_sent: 0,
            bytes_received: 0,
            latency: latencies(),
        };
        Self {
            kinds: std::array::from_fn(|_| kind()),
            failures: Reasons::default(),
            wrong: Reasons::default(),
            notes: Reasons::default(),
            strays: 0,
            late: 0,
            peers: 0,
            lag: latencies(),
            end: 0,
            last_answer: 0,
            fill: Filled::default(),
        }
    }

    /// Adds the results of another thread.
    pub(crate) fn add(&mut self, other: &Self) {
        for (sum, kind) in self.kinds.iter_mut().zip(&other.kinds) {
            sum.requests += kind.requests;
            sum.succeeded += kind.succeeded;
            sum.failed += kind.failed;
            sum.wrong += kind.wrong;
            sum.bytes_sent += kind.bytes_sent;
            sum.bytes_received += kind.bytes_received;
            sum.latency.add(&kind.latency).expect("the same bounds");
        }
        for (sum, reasons) in [
            (&mut self.failures, &other.failures),
            (&mut self.wrong, &other.wrong),
            (&mut self.notes, &other.notes),
        ] {
            for (reason, (count, example)) in &reasons.0 {
                sum.add(reason, *count, || example.clone());
            }
        }
        self.strays += other.strays;
        self.late += other.late;
        self.peers += other.peers;
        self.lag.add(&other.lag).expect("the same bounds");
        self.end = self.end.max(other.end);
        self.last_answer = self.last_answer.max(other.last_answer);
        self.fill.announced += other.fill.announced;
        self.fill.lost += other.fill.lost;
    }

    /// Latencies of all kinds.
    pub(crate) fn latency(&self) -> Histogram<u64> {
        let mut all = latencies();
        self.kinds.iter().for_each(|kind| all.add(&kind.latency).expect("the same bounds"));
        all
    }

    /// All answers to measured requests.
    pub(crate) fn answers(&self) -> u64 {
        self.kinds.iter().map(|kind| kind.succeeded + kind.wrong).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sending(intended: u64) -> Sending {
        Sending { kind: Kind::Announce, intended, sent: intended, purpose: Purpose::Measured }
    }

    #[test]
    fn a_million_samples_take_no_more_memory_than_one() {
        let (publish, _keep) = mpsc::channel();
        let mut recorder = Recorder::new(publish);
        recorder.succeeded(&sending(0), 100, 5, 1_000);
        let (one, second) =
            (recorder.totals.kinds[1].latency.distinct_values(), recorder.second.latency.distinct_values());
        for n in 0..1_000_000 {
            recorder.succeeded(&sending(0), 100, 5, 1_000 + n * 700);
        }
        assert_eq!(recorder.totals.kinds[1].latency.distinct_values(), one);
        assert_eq!(recorder.second.latency.distinct_values(), second);
        assert!(one < 50_000);
    }

    #[test]
    fn reasons_of_a_tracker_are_bounded() {
        let mut reasons = Reasons::default();
        (0..1000).for_each(|n| reasons.add(&format!("error: {n}"), 1, String::new));
        assert!(reasons.0.len() <= Reasons::MOST + 1);
        assert_eq!(reasons.sum(), 1000);
    }

    #[test]
    fn seconds_are_handed_in_as_they_end() {
        let (publish, seconds) = mpsc::channel();
        let mut recorder = Recorder::new(publish);
        recorder.begin(5 * SECOND);
        recorder.succeeded(&sending(5 * SECOND), 1, 0, 5 * SECOND + 1);
        recorder.succeeded(&sending(5 * SECOND), 1, 0, 8 * SECOND);
        recorder.finish();
        let found: Vec<_> = seconds.into_iter().map(|second| (second.index, second.succeeded)).collect();
        assert_eq!(found, [(0, 1), (1, 0), (2, 0), (3, 1)]);
    }
}
