//! The properties of any bytes of a peer: for the fuzz target, and for the test that runs its seeds.

use std::collections::BTreeSet;

use swarmkeep_peer_wire::{
    Encode, Error, Extension, ExtensionIds, Handshake, Limits, Message, ReceiveBuffer,
};

/// Reads a stream as it is and in pieces, within the limits of a torrent and without one. Answers the kinds
/// of messages that it was.
pub(crate) fn stream(bytes: &[u8]) -> BTreeSet<&'static str> {
    let torrent = Limits::for_torrent(33_000, 16 << 10).expect("a torrent");
    let mut narrow = Limits::new();
    (narrow.longest_block, narrow.longest_frame) = (5, 20);
    let mut kinds = BTreeSet::new();
    for limits in [torrent, Limits::new(), narrow] {
        messages(bytes, limits, &mut kinds);
    }
    kinds
}

fn messages(mut bytes: &[u8], limits: Limits, kinds: &mut BTreeSet<&'static str>) {
    if let Ok(Some(handshake)) = handshake(&mut bytes) {
        let mut again = Vec::new();
        handshake.encode(&mut again);
        assert_eq!(Handshake::decode(&mut &again[..]), Ok(Some(handshake)));
        kinds.insert("handshake");
    }
    let mut rest = bytes;
    let mut whole = Vec::new();
    let end = loop {
        let before = rest;
        match limits.decode(&mut rest) {
            Ok(Some(message)) => {
                let frame = &before[..before.len() - rest.len()];
                assert!(frame.len() <= limits.longest());
                written_again(message, frame, limits);
                kinds.insert(kind(message));
                whole.push(message);
            }
            end => {
                assert_eq!(rest, before, "invalid bytes stay");
                break end.map(drop);
            }
        }
    };
    assert_eq!(in_parts(bytes, limits, &whole), end);
}

/// A message is written as it was read, and reads as the same: `decode(encode(m)) == m`.
fn written_again(message: Message<'_>, frame: &[u8], limits: Limits) {
    let mut again = Vec::new();
    message.encode(&mut again);
    assert_eq!(again, frame, "{message:?}");
    assert_eq!(message.encoded_len(), frame.len());
    assert_eq!(limits.decode(&mut &again[..]), Ok(Some(message)));

    let Message::Extended(extended) = message else { return };
    let Ok(read) = extended.read(&ExtensionIds::ALL) else { return };
    let mut again = Vec::new();
    read.to_peer(&ExtensionIds::ALL).expect("all have ids").encode(&mut again);
    let Ok(Some(Message::Extended(written))) = Limits::new().decode(&mut &again[..]) else {
        // Bencoded values grow if a key that we always write was missing: not above a frame of 1 MiB here.
        panic!("{read:?} cannot be read again");
    };
    assert_eq!(written.read(&ExtensionIds::ALL), Ok(read));
}

/// The same messages come out of a buffer that is filled by and by, and the same end.
fn in_parts(bytes: &[u8], limits: Limits, whole: &[Message<'_>]) -> Result<(), Error> {
    let most = limits.longest().next_power_of_two().max(ReceiveBuffer::FIRST);
    let mut received = ReceiveBuffer::new(limits);
    let mut expected = whole.iter();
    // Sizes that depend on the bytes and on nothing else.
    let mut state = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let mut left = bytes;
    while !left.is_empty() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let step = 1 + (state >> 33) as usize % [1, 3, 17, 300, 20_000][(state >> 61) as usize % 5];
        let space = received.space();
        let count = space.len().min(left.len()).min(step);
        assert!(count > 0, "there is room while messages are taken");
        space[..count].copy_from_slice(&left[..count]);
        left = &left[count..];
        received.filled(count);
        assert!(received.capacity() <= most);
        while let Some(message) = received.next_message()? {
            assert_eq!(expected.next(), Some(&message));
        }
    }
    assert_eq!(expected.next(), None);
    Ok(())
}

fn handshake(bytes: &mut &[u8]) -> Result<Option<Handshake>, Error> {
    let peeked = Handshake::peek(bytes)?;
    let handshake = Handshake::decode(bytes)?;
    if let Some(handshake) = handshake {
        assert_eq!(peeked, Some((handshake.reserved, handshake.info_hash)));
    }
    Ok(handshake)
}

fn kind(message: Message<'_>) -> &'static str {
    match message {
        Message::KeepAlive => "keep-alive",
        Message::Unknown { .. } => "unknown",
        Message::Extended(extended) => {
            let read = extended.read(&ExtensionIds::ALL);
            read.ok().and_then(|read| read.extension()).map_or("extended", Extension::name)
        }
        message => message.id().and_then(|id| id.name()).expect("known"),
    }
}
