//! The admin server over real sockets: who is let in, what is answered, and what it costs when nobody reads.

mod api;
mod faults;
mod metrics;
mod openapi;
mod out_of_reach;
