//! How fast clients without a token are answered.

use std::time::Duration;

use tokio::{
    sync::Mutex,
    time::{Instant, sleep_until},
};

/// Turns for those without a good token, so that however many ask, they take a few hundredths of a core: 200
/// a second, of which 100 may come at once.
#[derive(Debug)]
pub(super) struct Pace {
    /// Locked by the one whose turn is next; the others wait for the lock. A turn that is given up costs nothing.
    next: Mutex<Instant>,
}

const BETWEEN_TURNS: Duration = Duration::from_millis(5);
const SAVED_TURNS: u32 = 100;

impl Pace {
    pub(super) fn new() -> Self {
        Self { next: Mutex::new(Instant::now()) }
    }

    /// Waits for the next one. Nobody waits for long: there are only so many connections.
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
    async fn turns_come_at_a_pace_whoever_asks() {
        let pace = Pace::new();
        sleep(Duration::from_secs(10)).await;
        let began = Instant::now();
        for _ in 0..500 {
            pace.turn().await;
        }
        assert_eq!(
            began.elapsed().as_millis(),
            1995,
            "a hundred at once, and five milliseconds for each other"
        );
    }
}
