//! The times of requests in an open loop, which do not depend on earlier requests.

use crate::clock::SECOND;

/// The schedule of one thread's workers, which take turns: each has the same rate, and their requests are
/// spread evenly.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Schedule {
    /// The time of the first request.
    first: u64,
    /// Nanoseconds from one worker's request to the next worker's.
    gap: f64,
    workers: u64,
    /// Requests that have come due.
    due: u64,
}

impl Schedule {
    /// For the `workers` of one thread, each with `rate` requests per second from `begin` on; `turn` is the
    /// number of the thread among the `threads`.
    pub(crate) fn new(begin: u64, rate: f64, workers: usize, turn: usize, threads: usize) -> Self {
        let gap = SECOND as f64 / rate / workers as f64;
        let first = begin + (gap * turn as f64 / threads as f64) as u64;
        Self { first, gap, workers: workers as u64, due: 0 }
    }

    /// The time of the next request.
    pub(crate) fn next(&self) -> u64 {
        self.at(self.due)
    }

    /// The worker of the next request and its time, if it is due.
    pub(crate) fn take(&mut self, now: u64) -> Option<(usize, u64)> {
        let at = self.next();
        if at > now {
            return None;
        }
        let worker = self.due % self.workers;
        self.due += 1;
        Some((worker as usize, at))
    }

    /// The time of a worker's `n`-th request.
    pub(crate) fn intended(&self, worker: usize, n: u64) -> u64 {
        self.at(n * self.workers + worker as u64)
    }

    fn at(&self, n: u64) -> u64 {
        self.first + (n as f64 * self.gap) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_worker_has_its_rate_and_their_requests_are_spread_evenly() {
        let mut schedule = Schedule::new(7 * SECOND, 100.0, 4, 0, 1);
        let (mut of_each, mut times) = ([0; 4], Vec::new());
        while let Some((worker, at)) = schedule.take(8 * SECOND - 1) {
            assert_eq!(schedule.intended(worker, of_each[worker]), at);
            of_each[worker] += 1;
            times.push(at);
        }
        assert_eq!(of_each, [100; 4]);
        assert_eq!(times[0], 7 * SECOND);
        assert!(times.windows(2).all(|pair| (pair[1] - pair[0]).abs_diff(SECOND / 400) <= 1));
    }

    #[test]
    fn missed_requests_are_due_at_their_own_times() {
        let mut schedule = Schedule::new(0, 1.0, 1, 0, 1);
        let all: Vec<_> = std::iter::from_fn(|| schedule.take(3 * SECOND)).collect();
        assert_eq!(all, [(0, 0), (0, SECOND), (0, 2 * SECOND), (0, 3 * SECOND)]);
    }

    #[test]
    fn threads_do_not_send_at_the_same_time() {
        let first = |turn| Schedule::new(0, 1.0, 10, turn, 2).next();
        assert_eq!((first(0), first(1)), (0, SECOND / 20));
    }
}
