//! Waits for events, not for times.

use std::{
    thread,
    time::{Duration, Instant},
};

/// The time after which an event is not going to happen, however busy the machine is.
pub const A_MINUTE: Duration = Duration::from_secs(60);

/// Waits for something, a minute at most.
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    found(what, || holds().then_some(()));
}

/// Waits until something is found, a minute at most.
pub fn found<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(began.elapsed() < A_MINUTE, "not within a minute: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}
