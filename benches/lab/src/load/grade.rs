//! The meaning of numbers: grades, and the patterns of latencies.

use swarmkeep_load::{Report, Second};

use crate::median;

/// Milliseconds between the grades of a median.
pub(crate) const P50: [f64; 4] = [1.0, 5.0, 10.0, 50.0];
/// Those of the time that 95 % of the answers do not exceed.
pub(crate) const P95: [f64; 4] = [2.0, 10.0, 50.0, 100.0];
/// Those of the time that 99 % of the answers do not exceed.
pub(crate) const P99: [f64; 4] = [5.0, 20.0, 100.0, 500.0];

/// Of a latency.
pub(crate) fn of_latency(microseconds: f64, bounds: [f64; 4]) -> String {
    let grades = ["excellent", "good", "acceptable", "poor"];
    let within = grades.into_iter().zip(bounds).find(|(_, bound)| microseconds < bound * 1e3);
    within.map_or("critical", |(grade, _)| grade).to_owned()
}

/// Of a share of requests that succeeded.
pub(crate) fn of_success(percent: f64) -> &'static str {
    match percent {
        99.9.. => "good",
        99.0.. => "acceptable",
        95.0.. => "warning",
        _ => "critical",
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

/// The pattern of the latencies of one load over time. A spike is five times the median second, growth of the
/// last third twice the first.
pub(crate) fn over_time(seconds: &[Second]) -> String {
    let answered: Vec<_> = seconds.iter().filter(|second| second.succeeded > 0).collect();
    if answered.len() < 3 {
        return "too short to tell".into();
    }
    let third = answered.len() / 3;
    let p99 = |some: &[&Second]| median(some, |second| second.p99);
    let (first, last) = (p99(&answered[..third.max(1)]), p99(&answered[answered.len() - third..]));
    let usual = p99(&answered);
    let highest = seconds.iter().max_by(|one, other| one.p99.total_cmp(&other.p99)).expect("three and more");
    if highest.p99 > 5.0 * usual {
        let (second, times) = (highest.second, highest.p99 / usual);
        format!("spike: p99 in second {second} was {times:.1} times the median second's")
    } else if last > 2.0 * first {
        let times = last / first;
        format!("growing over time: p99 at the end was {times:.1} times that at the beginning")
    } else {
        "flat: each second like the others".into()
    }
}

/// The growth of the latencies with the workers. Flat is less than doubled from first to last; a cliff is a
/// step by more than twice the growth of the workers.
pub(crate) fn over_workers(loads: &[(usize, f64)]) -> String {
    let steeper = loads.windows(2).find_map(|step| {
        let [(from, before), (to, after)] = [step[0], step[1]];
        let times = (after / before) / (to as f64 / from as f64);
        (times > 2.0).then(|| {
            format!("cliff: from {from} to {to} workers p95 grows {times:.1} times as much as they do")
        })
    });
    let is_flat = loads.first().zip(loads.last()).is_none_or(|(first, last)| last.1 < 2.0 * first.1);
    steeper.unwrap_or_else(|| match is_flat {
        true => "flat: p95 does not depend on the workers".into(),
        false => "gradual: p95 grows with the workers, and no faster".into(),
    })
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
        for (milliseconds, p50, p95, p99) in [
            (0.9, "excellent", "excellent", "excellent"),
            (1.5, "good", "excellent", "excellent"),
            (4.9, "good", "good", "excellent"),
            (9.9, "acceptable", "good", "good"),
            (15.0, "poor", "acceptable", "good"),
            (49.0, "poor", "acceptable", "acceptable"),
            (99.0, "critical", "poor", "acceptable"),
            (101.0, "critical", "critical", "poor"),
            (500.0, "critical", "critical", "critical"),
        ] {
            let grades = [P50, P95, P99].map(|bounds| of_latency(milliseconds * 1e3, bounds));
            assert_eq!(grades, [p50, p95, p99], "{milliseconds} ms");
        }
    }

    #[test]
    fn success_and_rates_have_theirs() {
        let grades = [100.0, 99.9, 99.5, 97.0, 94.9].map(of_success);
        assert_eq!(grades, ["good", "good", "acceptable", "warning", "critical"]);
        assert_eq!(of_rate(10, 40e3), "below 50–70 k");
        assert_eq!(of_rate(100, 300e3), "within 300–500 k");
        assert_eq!(of_rate(1000, 2e6), "above 500–1000 k");
    }

    #[test]
    fn patterns_over_time_have_names() {
        for (p99, pattern) in [
            (&[5.0, 6.0, 5.0, 7.0, 5.0][..], "flat: each second like the others"),
            (&[5.0, 5.0, 50.0, 5.0, 5.0], "spike: p99 in second 2 was 10.0 times the median second's"),
            (
                &[5.0, 5.0, 7.0, 9.0, 14.0, 15.0],
                "growing over time: p99 at the end was 3.0 times that at the beginning",
            ),
            (&[5.0, 500.0], "too short to tell"),
        ] {
            let seconds = (0..).zip(p99).map(|(nth, &p99)| {
                let mut second = Second::default();
                (second.second, second.succeeded) = (nth, 1);
                (second.p50, second.p99, second.max) = (1.0, p99, p99);
                second
            });
            assert_eq!(over_time(&seconds.collect::<Vec<_>>()), pattern);
        }
    }

    #[test]
    fn patterns_over_workers_have_names() {
        for (p95, pattern) in [
            ([1.0, 1.2, 1.9], "flat: p95 does not depend on the workers"),
            ([1.0, 9.0, 85.0], "gradual: p95 grows with the workers, and no faster"),
            ([1.0, 2.0, 50.0], "cliff: from 100 to 1000 workers p95 grows 2.5 times as much as they do"),
        ] {
            assert_eq!(over_workers(&[(10, p95[0]), (100, p95[1]), (1000, p95[2])]), pattern);
        }
    }
}
