//! Any stream of a peer: nothing panics, messages are written as they were read, and they are the same
//! however the stream is split.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "peer_wire/check.rs"]
mod check;

fuzz_target!(|bytes: &[u8]| {
    check::stream(bytes);
});
