//! Messages as they are on the wire, and what is wrong with them.

mod defects;
mod properties;
mod send_queue;
mod vectors;
