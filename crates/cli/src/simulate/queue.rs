//! How long announces wait for a server that others keep busy.

/// A server of some cores with one queue before them, as a formula: M/M/c (Erlang C), arrivals at random and service times that vary as
/// much as exponential ones do. Both are the cautious side: announces of the same cost vary less.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Queue {
    /// Arrivals a second.
    pub(crate) rate: f64,
    /// Seconds of one core for each.
    pub(crate) service: f64,
    pub(crate) cores: u32,
}

impl Queue {
    /// Share of the time that a core is busy; 1 and more is a queue without end.
    pub(crate) fn busy(&self) -> f64 {
        self.rate * self.service / f64::from(self.cores)
    }

    /// Mean seconds from arrival to answer, and those that 99 % stay below; `None` where the queue has no end.
    pub(crate) fn seconds(&self) -> Option<[f64; 2]> {
        let busy = self.busy();
        if busy >= 1.0 {
            return None;
        }
        let waits = self.share_that_waits();
        // Whoever waits, waits for an exponential time.
        let mean_wait = self.service / (f64::from(self.cores) * (1.0 - busy));
        let tail = if waits > 0.01 { mean_wait * (waits / 0.01).ln() } else { 0.0 };
        Some([self.service + waits * mean_wait, self.service + tail])
    }

    /// Erlang's C formula, from his B formula, whose recursion does not overflow.
    fn share_that_waits(&self) -> f64 {
        let offered = self.rate * self.service;
        let blocked =
            (1..=self.cores).fold(1.0, |blocked, n| offered * blocked / (f64::from(n) + offered * blocked));
        let busy = self.busy();
        blocked / (1.0 - busy * (1.0 - blocked))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_core_is_m_m_1() {
        let queue = Queue { rate: 50_000.0, service: 10e-6, cores: 1 };
        let [mean, p99] = queue.seconds().unwrap();
        assert!((mean - 20e-6).abs() < 1e-9, "service ÷ (1 − busy)");
        // The wait is exponential with this mean for the half that waits.
        assert!((p99 - 10e-6 - 20e-6 * 50_f64.ln()).abs() < 1e-9);
    }

    #[test]
    fn erlang_c_has_its_textbook_values() {
        // Two Erlangs on three agents: 44.4 % wait.
        let share = Queue { rate: 2.0, service: 1.0, cores: 3 }.share_that_waits();
        assert!((share - 4.0 / 9.0).abs() < 1e-9, "{share}");
        assert!(Queue { rate: 3.0, service: 1.0, cores: 3 }.seconds().is_none(), "a queue without end");
    }
}
