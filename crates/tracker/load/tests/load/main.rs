//! The load generator against trackers, good ones and such as answer wrongly.

mod common;
mod http;
mod misleading;
mod wrong_trackers;
