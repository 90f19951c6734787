//! Any messages, pushed into a send queue, written in any parts and received in any others, come out as they
//! went in.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "peer_messages/check.rs"]
mod check;

fuzz_target!(|input: (Vec<check::MessageParts>, Vec<(u16, u8, u16)>)| check::arrive(&input.0, &input.1));
