//! Messages as they are on the wire, and wrong ones.

mod allocations;
mod defects;
mod send_queue;
mod vectors;
