//! Any stream from any peer: nothing panics, what is read is written as it was, and it is the same however it
//! comes in parts.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "peer_wire/check.rs"]
mod check;

fuzz_target!(|bytes: &[u8]| {
    check::stream(bytes);
});
