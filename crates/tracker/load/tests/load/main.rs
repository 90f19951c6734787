//! The load generator against good and wrong trackers.

mod common;
mod http;
mod misleading;
mod wrong_trackers;
