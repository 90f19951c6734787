//! The meaning of numbers: grades, and the patterns of latencies.

use std::fmt;

use swarmkeep_load::{Report, Second};

use crate::median;

/// The quality of a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Grade {
    Excellent,
    Good,
    Acceptable,
    /// For latencies.
    Poor,
    /// For success.
    Warning,
    Critical,
}

impl fmt::Display for Grade {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Excellent => "excellent",
            Self::Good => "good",
            Self::Acceptable => "acceptable",
            Self::Poor => "poor",
            Self::Warning => "warning",
            Self::Critical => "critical",
        })
    }
}

/// Of milliseconds, by the four bounds between the five grades.
fn of_latency(microseconds: f64, bounds: [f64; 4]) -> Grade {
    let grades = [Grade::Excellent, Grade::Good, Grade::Acceptable, Grade::Poor];
    let within = grades.into_iter().zip(bounds).find(|(_, bound)| microseconds < bound * 1e3);
    within.map_or(Grade::Critical, |(grade, _)| grade)
}

/// Of a median.
pub(crate) fn of_p50(microseconds: f64) -> Grade {
    of_latency(microseconds, [1.0, 5.0, 10.0, 50.0])
}

/// Of the time that 95 % of the answers do not exceed.
pub(crate) fn of_p95(microseconds: f64) -> Grade {
    of_latency(microseconds, [2.0, 10.0, 50.0, 100.0])
}

/// Of the time that 99 % of the answers do not exceed.
pub(crate) fn of_p99(microseconds: f64) -> Grade {
    of_latency(microseconds, [5.0, 20.0, 100.0, 500.0])
}

/// Of a share of requests that succeeded.
pub(crate) fn of_success(percent: f64) -> Grade {
    match percent {
        99.9.. => Grade::Good,
        99.0.. => Grade::Acceptable,
        95.0.. => Grade::Warning,
        _ => Grade::Critical,
    }
}

/// The expected rate of a tracker with `workers` workers on a common server, in thousands of requests per
/// second.
fn expected(workers: usize) -> (f64, f64) {
    match workers {
        0..=31 => (50.0, 70.0),
        32..=316 => (300.0, 500.0),
        _ => (500.0, 1000.0),
    }
}

/// A rate against the expected one.
pub(crate) fn of_rate(workers: usize, per_second: f64) -> String {
    let (low, high) = expected(workers);
    let thousands = per_second / 1e3;
    let place = match thousands {
        _ if thousands < low => "below",
        _ if thousands > high => "above",
        _ => "within",
    };
    format!("{place} {low}–{high} k")
}

/// The use that a tracker with these numbers is good for.
pub(crate) fn good_for(report: &Report) -> &'static str {
    let errors = 100.0 - report.success_percent;
    let at_least = |rate: f64, milliseconds: f64, percent: f64| {
        report.requests_per_second > rate && report.latency.all.p95 < milliseconds * 1e3 && errors < percent
    };
    match () {
        () if report.wrong > 0 => "nothing: it answers wrongly",
        () if at_least(200e3, 20.0, 0.01) => "a large tracker",
        () if at_least(50e3, 10.0, 0.1) => "a small community",
        () if at_least(10e3, 5.0, 1.0) => "a hobby",
        () => "less than a hobby at this load",
    }
}

/// The pattern of the latencies of one load over time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum OverTime {
    Flat,
    /// A second that stood out, and its factor.
    Spike {
        second: u64,
        times: f64,
    },
    /// The last third against the first.
    Growing {
        times: f64,
    },
    /// Too few seconds to tell.
    Short,
}

impl OverTime {
    /// A spike is five times the median second, growth twice the beginning.
    pub(crate) fn of(seconds: &[Second]) -> Self {
        let answered: Vec<_> = seconds.iter().filter(|second| second.succeeded > 0).collect();
        if answered.len() < 3 {
            return Self::Short;
        }
        let third = answered.len() / 3;
        let p99 = |some: &[&Second]| median(some, |second| second.p99);
        let (first, last) = (p99(&answered[..third.max(1)]), p99(&answered[answered.len() - third..]));
        let usual = p99(&answered);
        let highest =
            seconds.iter().max_by(|one, other| one.p99.total_cmp(&other.p99)).expect("three and more");
        if highest.p99 > 5.0 * usual {
            Self::Spike { second: highest.second, times: highest.p99 / usual }
        } else if last > 2.0 * first {
            Self::Growing { times: last / first }
        } else {
            Self::Flat
        }
    }
}

impl fmt::Display for OverTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flat => f.write_str("flat: each second like the others"),
            Self::Spike { second, times } => {
                write!(f, "spike: p99 in second {second} was {times:.1} times the median second's")
            }
            Self::Growing { times } => {
                write!(f, "growing over time: p99 at the end was {times:.1} times that at the beginning")
            }
            Self::Short => f.write_str("too short to tell"),
        }
    }
}

/// The growth of the latencies with the workers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum OverWorkers {
    Flat,
    Gradual,
    /// From `from` to `to` workers, p95 grew `times` times as much as they did.
    Cliff {
        from: usize,
        to: usize,
        times: f64,
    },
}

impl OverWorkers {
    /// Flat is less than doubled from first to last; a cliff is a step by more than twice the growth of the
    /// workers.
    pub(crate) fn of(loads: &[(usize, f64)]) -> Self {
        let (Some(first), Some(last)) = (loads.first(), loads.last()) else { return Self::Flat };
        let steeper = loads.windows(2).find_map(|step| {
            let [(from, before), (to, after)] = [step[0], step[1]];
            let times = (after / before) / (to as f64 / from as f64);
            (times > 2.0).then_some(Self::Cliff { from, to, times })
        });
        match steeper {
            Some(cliff) => cliff,
            None if last.1 < 2.0 * first.1 => Self::Flat,
            None => Self::Gradual,
        }
    }
}

impl fmt::Display for OverWorkers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flat => f.write_str("flat: p95 does not depend on the workers"),
            Self::Gradual => f.write_str("gradual: p95 grows with the workers, and no faster"),
            Self::Cliff { from, to, times } => {
                write!(f, "cliff: from {from} to {to} workers p95 grows {times:.1} times as much as they do")
            }
        }
    }
}

/// The sign of a closed loop, which any saturated tracker shows: the same rate for any number of workers,
/// because they wait for one another (Little's law). `None` if the loads do not look like it.
pub(crate) fn closed_loop_signature(loads: &[&Report]) -> Option<String> {
    let closed = loads.iter().all(|report| report.settings.rate.is_none());
    let rates: Vec<_> = loads.iter().map(|report| report.requests_per_second).collect();
    let (least, most) =
        (rates.iter().copied().fold(f64::MAX, f64::min), rates.iter().copied().fold(0.0, f64::max));
    let (first, last) = (loads.first()?, loads.last()?);
    let grown = last.latency.all.mean / first.latency.all.mean;
    let settings = &last.settings;
    let little = settings.workers as f64 * settings.window as f64 / last.requests_per_second * 1e6;
    (closed && loads.len() > 1 && most < 1.5 * least && grown > 3.0).then(|| {
        let mut text = "The rate is the same at every load while latency grows with the workers: a closed loop at its limit, where \
             latency is workers ÷ rate (Little's law). It says how fast the tracker is, and nothing of locks or of what users \
             would wait: measure that with `--rate`."
            .to_owned();
        if last.latency.all.mean < 0.7 * little {
            text += &format!(
                " With {} workers the mean is but {:.2} ms of {:.2} ms: the other workers waited for answers that never came.",
                settings.workers,
                last.latency.all.mean / 1e3,
                little / 1e3,
            );
        }
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_have_five_grades() {
        use Grade::{Acceptable, Critical, Excellent, Good, Poor};
        for (milliseconds, p50, p95, p99) in [
            (0.9, Excellent, Excellent, Excellent),
            (1.5, Good, Excellent, Excellent),
            (4.9, Good, Good, Excellent),
            (9.9, Acceptable, Good, Good),
            (15.0, Poor, Acceptable, Good),
            (49.0, Poor, Acceptable, Acceptable),
            (99.0, Critical, Poor, Acceptable),
            (101.0, Critical, Critical, Poor),
            (500.0, Critical, Critical, Critical),
        ] {
            let us = milliseconds * 1e3;
            assert_eq!((of_p50(us), of_p95(us), of_p99(us)), (p50, p95, p99), "{milliseconds} ms");
        }
    }

    #[test]
    fn success_and_rates_have_theirs() {
        let grades = [100.0, 99.9, 99.5, 97.0, 94.9].map(of_success);
        assert_eq!(grades, [Grade::Good, Grade::Good, Grade::Acceptable, Grade::Warning, Grade::Critical]);
        assert_eq!(of_rate(10, 40e3), "below 50–70 k");
        assert_eq!(of_rate(100, 300e3), "within 300–500 k");
        assert_eq!(of_rate(1000, 2e6), "above 500–1000 k");
    }

    fn over_time(p99: &[f64]) -> OverTime {
        let seconds = p99.iter().enumerate().map(|(nth, &p99)| {
            let mut second = Second::default();
            (second.second, second.succeeded) = (nth as u64, 1);
            (second.p50, second.p99, second.max) = (1.0, p99, p99);
            second
        });
        OverTime::of(&seconds.collect::<Vec<_>>())
    }

    #[test]
    fn patterns_over_time_have_names() {
        assert_eq!(over_time(&[5.0, 6.0, 5.0, 7.0, 5.0]), OverTime::Flat);
        assert_eq!(over_time(&[5.0, 5.0, 50.0, 5.0, 5.0]), OverTime::Spike { second: 2, times: 10.0 });
        assert_eq!(over_time(&[5.0, 5.0, 7.0, 9.0, 14.0, 15.0]), OverTime::Growing { times: 3.0 });
        assert_eq!(over_time(&[5.0, 500.0]), OverTime::Short);
    }

    #[test]
    fn patterns_over_workers_have_names() {
        let of = |p95: [f64; 3]| OverWorkers::of(&[(10, p95[0]), (100, p95[1]), (1000, p95[2])]);
        assert_eq!(of([1.0, 1.2, 1.9]), OverWorkers::Flat);
        assert_eq!(of([1.0, 9.0, 85.0]), OverWorkers::Gradual);
        assert_eq!(of([1.0, 2.0, 50.0]), OverWorkers::Cliff { from: 100, to: 1000, times: 2.5 });
    }
}
