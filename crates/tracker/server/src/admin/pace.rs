//! The rate of answers to clients without a token.

use std::time::Duration;

use tokio::{
    sync::Mutex,
    time::{Instant, sleep_until},
};

/// Turns for requests without a good token, so that any number of them takes a few hundredths of a core: 200
/// per second, of which 100 may come at once.
#[derive(Debug)]
pub(super) struct Pace {
    /// Locked by the next request; the others wait for the lock. A cancelled request costs no turn.
    next: Mutex<Instant>,
}

const BETWEEN_TURNS: Duration = Duration::from_millis(5);
const SAVED_TURNS: u32 = 100;

impl Pace {
    pub(super) fn new() -> Self {
        Self { next: Mutex::new(Instant::now()) }
    }

    /// Waits for the next turn. The number of connections bounds the wait.
    pub(super) async fn turn(&self) {
        let mut next = self.next.lock().await;
        let now = Instant::now();
        let saved = now.checked_sub(BETWEEN_TURNS * SAVED_TURNS).unwrap_or(now);
        let turn = (*next).max(saved);
        if turn > now {
            sleep_until(turn).await;
        }
        *next = turn + BETWEEN_TURNS;
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn turns_come_at_a_fixed_rate() {
        let pace = Pace::new();
        sleep(Duration::from_secs(10)).await;
        let began = Instant::now();
        for _ in 0..500 {
            pace.turn().await;
        }
        assert_eq!(began.elapsed().as_millis(), 1995, "a hundred at once, and 5 ms for each other");
    }
}
