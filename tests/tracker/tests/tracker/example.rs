//! The tracker that is an example of `swarmkeep-tracker-protocol`, under load.

use std::{thread, time::Duration};

use swarmkeep_load::{Config, Mix, Swarms, Target, run};
use swarmkeep_store_tests::until;
use tokio::net::UdpSocket;

#[allow(dead_code, reason = "its `main` is not called")]
#[path = "../../../../crates/tracker/protocol/examples/udp_tracker.rs"]
mod udp_tracker;

#[test]
fn the_load_generator_finds_no_fault_with_the_tracker_in_80_lines() {
    for address in ["127.0.0.1:0", "[::1]:0"] {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let socket = runtime.block_on(UdpSocket::bind(address)).expect("loopback");
        let target = Target::Udp(socket.local_addr().expect("bound"));
        runtime.spawn(udp_tracker::serve(socket));
        let mut config = Config::new([target]);
        config.strict = true;
        (config.workers, config.threads, config.window) = (8, Some(1), Some(4));
        (config.duration, config.warm_up) = (Duration::from_secs(2), Duration::from_millis(100));
        config.mix = Mix { connect: 5, announce: 90, scrape: 5 };
        (config.swarms, config.peers) = (Swarms::Zipf(1000), 20_000);
        let load = || run(&config, &mut |_| {}).expect("a report");
        let mut succeeded = 0;
        until("a thousand requests are answered", || {
            let report = thread::scope(|scope| scope.spawn(load).join()).expect("it ends");
            let faults = (report.failures, report.wrong_answers);
            assert_eq!((report.failed, report.wrong), (0, 0), "{faults:?}");
            succeeded += report.succeeded;
            succeeded > 1000
        });
        runtime.shutdown_background();
    }
}
