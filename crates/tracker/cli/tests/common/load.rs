//! Load on a tracker.

use std::{
    net::SocketAddr,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::Duration,
};

use swarmkeep_load::{Config, Report, Target, run};

pub(crate) fn load(tracker: SocketAddr, duration: Duration) -> Config {
    let mut config = Config::new([Target::Udp(tracker)]);
    config.strict = true;
    (config.duration, config.warm_up) = (duration, Duration::from_millis(200));
    (config.workers, config.threads, config.timeout) = (8, Some(1), Duration::from_secs(2));
    config
}

/// What a load of some seconds has to say while `meanwhile` happens.
pub(crate) fn under_load(
    tracker: SocketAddr,
    duration: Duration,
    meanwhile: impl FnOnce(&AtomicBool),
) -> Report {
    let enough = AtomicBool::new(false);
    thread::scope(|scope| {
        let loader = scope.spawn(|| {
            let report = run(&load(tracker, duration), &mut |_| {});
            enough.store(true, Relaxed);
            report
        });
        meanwhile(&enough);
        let report = loader.join().expect("the load ends").expect("a report");
        assert!(report.succeeded > 1000, "{report:?}");
        report
    })
}
