//! `swarmkeep serve --repository redis`, the program itself, on real servers: trackers that share a store,
//! and the answers to clients when it is lost.

use swarmkeep_store_tests::programs::Trial;

mod lost;
mod secrets;
mod shared;
mod trackers;

pub(crate) fn tests() -> Vec<Trial> {
    [lost::tests(), secrets::tests(), shared::tests()].into_iter().flatten().collect()
}
