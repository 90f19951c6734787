//! Load on a tracker.

use std::{
    net::SocketAddr,
    sync::{
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc,
    },
    thread,
    time::Duration,
};

use swarmkeep_load::{Config, Progress, Report, Target, run_until};

use crate::common::A_MINUTE;

/// Returns the report of a load that goes on during `meanwhile`. That can wait for the next second with
/// answers.
pub(crate) fn under_load(tracker: SocketAddr, meanwhile: impl FnOnce(&dyn Fn())) -> Report {
    let mut config = Config::new([Target::Udp(tracker)]);
    config.strict = true;
    (config.duration, config.warm_up) = (2 * A_MINUTE, Duration::from_millis(200));
    (config.workers, config.threads, config.timeout) = (8, Some(1), A_MINUTE / 6);
    let (stop, (tell, told)) = (AtomicBool::new(false), mpsc::channel());
    thread::scope(|scope| {
        let loader = scope.spawn(|| {
            run_until(&config, &stop, &mut |progress| {
                if matches!(progress, Progress::Second(second) if second.succeeded > 0) {
                    let _ = tell.send(());
                }
            })
        });
        let second = || told.recv_timeout(A_MINUTE).expect("answers within a minute");
        second();
        meanwhile(&second);
        stop.store(true, Relaxed);
        loader.join().expect("the load ends").expect("a report")
    })
}
