//! Random programs of three trackers on one store: their calls have an order in which all answers are right,
//! also while connections break and trackers start anew.

use std::{
    array,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread,
    time::Duration,
};

use swarmkeep::AsyncTorrentRepository;
use swarmkeep_conformance::{
    common::SetOnDrop,
    histories::{self, Effects},
};
use swarmkeep_redis::{RedisConfig, RedisRepository};
use swarmkeep_servers::{Cluster, Server};
use swarmkeep_store_tests::programs::{REDIS, Trial, trial};

use crate::redis::stores::{RUNTIME, connect, impatient, server_with_module, settings, started};

const TRACKERS: usize = 3;

type Tracker = Mutex<Arc<RedisRepository>>;

pub(crate) fn tests() -> Vec<Trial> {
    let test = |name: &str, run: fn()| trial(&format!("{}::{name}", module_path!()), &[REDIS], run);
    vec![
        test("calls_to_functions_have_an_order_while_connections_break", || {
            on_one_server(&started(Server::start()));
        }),
        test("calls_to_the_module_have_an_order_while_connections_break", || {
            on_one_server(&server_with_module(&[]));
        }),
        test("calls_to_a_cluster_have_an_order", || {
            let cluster = started(Cluster::start(3, 0));
            have_an_order(&settings(cluster.urls()), Effects::One, rest);
        }),
    ]
}

fn rest(_: &[Tracker; TRACKERS]) {
    thread::sleep(Duration::from_millis(100));
}

fn on_one_server(server: &Server) {
    have_an_order(&settings([server.url()]), Effects::One, rest);
    // So short that some calls get no answer.
    let settings = impatient(settings([server.url()]), 50);
    let mut next = (0..TRACKERS).cycle();
    have_an_order(&settings, Effects::OneOrMore, |trackers| {
        thread::sleep(Duration::from_millis(20));
        server.client_kill_all().expect("it answers");
        thread::sleep(Duration::from_millis(20));
        let started_anew = RUNTIME.block_on(connect(&settings));
        let tracker = &trackers[next.next().expect("a cycle does not end")];
        *tracker.lock().expect("no holder panics") = started_anew;
    });
}

/// Runs programs of three trackers with these settings, and disturbs them meanwhile.
fn have_an_order(
    settings: &RedisConfig,
    effects: Effects,
    mut disturb: impl FnMut(&[Tracker; TRACKERS]) + Send,
) {
    let trackers = array::from_fn(|_| Mutex::new(RUNTIME.block_on(connect(settings))));
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(SeqCst) {
                disturb(&trackers);
            }
        });
        let _set = SetOnDrop(&done);
        let store_of = |thread: usize| -> Arc<dyn AsyncTorrentRepository> {
            trackers[thread % TRACKERS].lock().expect("no holder panics").clone()
        };
        histories::assert_order(&store_of, effects);
    });
}
