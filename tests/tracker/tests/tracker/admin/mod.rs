//! The admin server over real sockets: access, answers, and the cost of clients that do not read.

mod api;
mod faults;
mod metrics;
mod openapi;
mod out_of_reach;
