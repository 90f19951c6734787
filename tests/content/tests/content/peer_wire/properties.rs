//! The properties of the fuzz targets, of messages and bytes that are drawn.

use proptest::{collection::vec, prelude::*, sample::select};

use crate::peer_wire::{
    check::stream,
    messages::{MessageParts, arrive},
};

fn parts() -> impl Strategy<Value = MessageParts> {
    (
        any::<u8>(),
        any::<[u32; 4]>(),
        any::<[u8; 32]>(),
        vec(any::<u8>(), 1..2000),
        vec(any::<[u8; 32]>(), 0..50),
        any::<[u8; 5]>(),
        vec(any::<[u8; 6]>(), 0..5),
        vec(any::<[u8; 18]>(), 0..5),
        any::<bool>(),
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn messages_arrive_as_they_were_pushed_wherever_writes_and_reads_end(
        messages in vec(parts(), 1..20),
        steps in vec((prop_oneof![4 => 0..300_u16, 1 => Just(u16::MAX)], 0..5_u8, select(vec![0_u16, 1, 2, 4, 12, 16, 99, 999, u16::MAX])), 1..40),
    ) {
        arrive(&messages, &steps);
    }

    #[test]
    fn any_bytes_are_messages_an_error_or_the_beginning_of_one(bytes in vec(any::<u8>(), 0..300)) {
        stream(&bytes);
    }
}
