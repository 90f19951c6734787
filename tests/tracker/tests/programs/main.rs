//! The tracker and the shared store with other programs: Redis, a browser, Prometheus, clients over HTTPS.

mod connections;
mod dashboard;
mod https;
mod members;
mod prometheus;
mod redis;
mod redis_serve;
mod udp;
mod xdp;
mod xdp_serve;

use std::process::ExitCode;

use swarmkeep_store_tests::programs;

/// At once: most of them wait for a server.
const THREADS: usize = 6;

fn main() -> ExitCode {
    programs::run(
        THREADS,
        [
            connections::tests(),
            dashboard::tests(),
            https::tests(),
            members::tests(),
            prometheus::tests(),
            redis::tests(),
            redis_serve::tests(),
            udp::tests(),
            xdp::tests(),
            xdp_serve::tests(),
        ],
    )
}
