//! The messages that librqbit's codec and swarmkeep's both know, in the terms of each.

use librqbit_peer_protocol::{self as rqbit, extended::PeerExtendedMessageIds};
use swarmkeep_peer_wire::{Bitfield, Block, Limits, Message, Piece, PieceIndex};

/// A torrent of 4,096 pieces of 16 MiB, so that blocks of 8 MiB are blocks.
pub fn limits() -> Limits {
    let mut limits = Limits::for_torrent(4096 << 24, 1 << 24).expect("a torrent");
    limits.longest_block = 8 << 20;
    limits
}

/// Our message in librqbit's form, if it has one: neither the fast extension nor BEP 52 nor `port`.
pub fn theirs<'a>(message: &Message<'a>) -> Option<rqbit::Message<'a>> {
    let request = |block: Block| rqbit::Request::new(block.piece.0, block.begin, block.length);
    Some(match *message {
        Message::KeepAlive => rqbit::Message::KeepAlive,
        Message::Choke => rqbit::Message::Choke,
        Message::Unchoke => rqbit::Message::Unchoke,
        Message::Interested => rqbit::Message::Interested,
        Message::NotInterested => rqbit::Message::NotInterested,
        Message::Have(PieceIndex(piece)) => rqbit::Message::Have(piece),
        Message::Bitfield(bitfield) => rqbit::Message::Bitfield(bitfield.as_bytes().into()),
        Message::Request(block) => rqbit::Message::Request(request(block)),
        Message::Cancel(block) => rqbit::Message::Cancel(request(block)),
        Message::Piece(Piece { piece, begin, data }) => {
            rqbit::Message::Piece(rqbit::Piece::from_data(piece.0, begin, data))
        }
        _ => return None,
    })
}

/// librqbit's message as ours, if it is no extended one.
pub fn ours<'a>(message: &rqbit::Message<'a>) -> Option<Message<'a>> {
    let block = |request: &rqbit::Request| Block {
        piece: PieceIndex(request.index),
        begin: request.begin,
        length: request.length,
    };
    Some(match message {
        rqbit::Message::KeepAlive => Message::KeepAlive,
        rqbit::Message::Choke => Message::Choke,
        rqbit::Message::Unchoke => Message::Unchoke,
        rqbit::Message::Interested => Message::Interested,
        rqbit::Message::NotInterested => Message::NotInterested,
        rqbit::Message::Have(piece) => Message::Have(PieceIndex(*piece)),
        rqbit::Message::Bitfield(bitfield) => Message::Bitfield(Bitfield::new(bitfield.0)),
        rqbit::Message::Request(request) => Message::Request(block(request)),
        rqbit::Message::Cancel(request) => Message::Cancel(block(request)),
        rqbit::Message::Piece(piece) => {
            let (data, _) = piece.data();
            Message::Piece(Piece { piece: PieceIndex(piece.index), begin: piece.begin, data })
        }
        rqbit::Message::Extended(_) => return None,
    })
}

/// Writes with librqbit. Returns the number of bytes.
pub fn serialize(message: &rqbit::Message<'_>, out: &mut [u8]) -> usize {
    message.serialize(out, &PeerExtendedMessageIds::my).expect("there is room")
}
