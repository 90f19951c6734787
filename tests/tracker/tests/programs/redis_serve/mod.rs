//! `swarmkeep serve --repository redis`, the program itself, on real servers: trackers that share a store, and what clients are told when it
//! is lost. All names contain `redis`; where there is no `redis-server`, all of them fail.

mod lost;
mod secrets;
mod shared;
mod trackers;
