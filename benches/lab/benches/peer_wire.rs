//! The peer wire: every message written and read; blocks contiguous, vectored and through a buffer of their
//! own.
//!
//! Somebody else's codec beside ours is in `benches/peers/peer-wire`.

use std::{hint::black_box, io::IoSlice};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use swarmkeep_benches::shrunk;
use swarmkeep_peer_wire::{
    Bitfield, Block, Encode, Extended, ExtendedHandshake, ExtendedMessage, Extension, ExtensionIds,
    HashRange, Hashes, Holepunch, Limits, Message, MetadataMessage, Pex, Piece, PieceIndex, SendQueue,
};

const ROOT: [u8; 32] = [0xab; 32];
const PIECES: u32 = 4096;

/// Bytes that are no zero page, and not the same everywhere.
fn filled(len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

fn limits() -> Limits {
    Limits::for_torrent(u64::from(PIECES) << 24, 1 << 24).expect("a torrent").longest_block(8 << 20)
}

fn messages<'a>(bits: &'a [u8], data: &'a [u8], hashes: &'a [[u8; 32]]) -> Vec<(&'static str, Message<'a>)> {
    let piece = PieceIndex(4000);
    let block = Block { piece, begin: 1 << 20, length: 1 << 14 };
    let range = HashRange::new(&ROOT, 0, 512, 512, 8).expect("as BEP 52 has it");
    vec![
        ("keep-alive", Message::KeepAlive),
        ("choke", Message::Choke),
        ("unchoke", Message::Unchoke),
        ("interested", Message::Interested),
        ("not-interested", Message::NotInterested),
        ("have", Message::Have(piece)),
        ("bitfield-4096", Message::Bitfield(Bitfield::new(bits))),
        ("request", Message::Request(block)),
        ("piece-16KiB", Message::Piece(Piece { piece, begin: 0, data })),
        ("cancel", Message::Cancel(block)),
        ("port", Message::Port(6881)),
        ("suggest", Message::Suggest(piece)),
        ("have-all", Message::HaveAll),
        ("have-none", Message::HaveNone),
        ("reject", Message::Reject(block)),
        ("allowed-fast", Message::AllowedFast(piece)),
        ("extended-100", Message::Extended(Extended { id: 3, payload: &data[..100] })),
        ("hash-request", Message::HashRequest(range)),
        ("hashes-512", Message::Hashes(Hashes::new(range, hashes).expect("520 of them"))),
        ("hash-reject", Message::HashReject(range)),
    ]
}

fn extended<'a>(data: &'a [u8], peers: &'a [[u8; 6]]) -> Vec<(&'static str, ExtendedMessage<'a>)> {
    let mut handshake = ExtendedHandshake::new(ExtensionIds::ALL);
    (handshake.port, handshake.metadata_size) = (Some(6881), Some(31_235));
    handshake.client = Some(b"swarmkeep 0.1");
    let mut pex = Pex::default();
    (pex.added, pex.added_flags) = (peers, &data[..peers.len()]);
    let endpoint = "192.0.2.1:6881".parse().expect("an endpoint");
    vec![
        ("handshake", ExtendedMessage::Handshake(handshake)),
        (
            "ut_metadata-16KiB",
            ExtendedMessage::Metadata(MetadataMessage::Data { piece: 0, total_size: 1 << 14, data }),
        ),
        ("ut_pex-50", ExtendedMessage::Pex(pex)),
        (Extension::DontHave.name(), ExtendedMessage::DontHave(PieceIndex(7))),
        (Extension::UploadOnly.name(), ExtendedMessage::UploadOnly(true)),
        (Extension::Holepunch.name(), ExtendedMessage::Holepunch(Holepunch::Connect(endpoint))),
    ]
}

fn every_message(criterion: &mut Criterion) {
    let (bits, data, hashes) = (filled(512), filled(1 << 14), vec![[7; 32]; 520]);
    let limits = limits();
    for (name, message) in messages(&bits, &data, &hashes) {
        let mut out = Vec::new();
        criterion.bench_function(&format!("peer-wire/encode/{name}"), |bencher| {
            bencher.iter(|| {
                let out = black_box(&mut out);
                out.clear();
                black_box(&message).encode(out);
            });
        });
        if out.is_empty() {
            message.encode(&mut out); // the filter has left the bench out
        }
        assert_eq!(limits.decode(&mut &out[..]), Ok(Some(message)));
        criterion.bench_function(&format!("peer-wire/decode/{name}"), |bencher| {
            bencher.iter(|| {
                let mut rest = black_box(&out[..]);
                black_box(black_box(&limits).decode(&mut rest)).is_ok()
            });
        });
    }
    let peers = [[7; 6]; 50];
    for (name, message) in extended(&data, &peers) {
        let to_peer = message.to_peer(&ExtensionIds::ALL).expect("all are known");
        let mut out = Vec::new();
        criterion.bench_function(&format!("peer-wire/encode-extended/{name}"), |bencher| {
            bencher.iter(|| {
                let out = black_box(&mut out);
                out.clear();
                black_box(&to_peer).encode(out);
            });
        });
        if out.is_empty() {
            to_peer.encode(&mut out);
        }
        let Ok(Some(Message::Extended(frame))) = limits.decode(&mut &out[..]) else { panic!("{name}") };
        assert_eq!(frame.read(&ExtensionIds::ALL), Ok(message));
        criterion.bench_function(&format!("peer-wire/read-extended/{name}"), |bencher| {
            bencher.iter(|| black_box(black_box(&frame).read(&ExtensionIds::ALL)).is_ok());
        });
    }
}

fn pieces(criterion: &mut Criterion) {
    for (size, len) in [("16KiB", 1 << 14), ("1MiB", 1 << 20), ("4MiB", 4 << 20), ("8MiB", 8 << 20)] {
        let data = filled(shrunk(len, 1 << 14));
        let piece = Piece { piece: PieceIndex(7), begin: 0, data: &data };
        let mut group = criterion.benchmark_group(format!("peer-wire/piece-{size}"));
        group.throughput(Throughput::Bytes(data.len() as u64));
        let mut out = vec![0; data.len()];
        group.bench_function("memcpy", |bencher| {
            bencher.iter(|| black_box(&mut out[..]).copy_from_slice(black_box(&data)));
        });
        let mut out = Vec::new();
        group.bench_function("contiguous", |bencher| {
            bencher.iter(|| {
                let out = black_box(&mut out);
                out.clear();
                Message::Piece(*black_box(&piece)).encode(out);
            });
        });
        group.bench_function("intermediate-buffer", |bencher| {
            bencher.iter(|| {
                let mut own = Vec::new();
                Message::Piece(*black_box(&piece)).encode(&mut own);
                let out = black_box(&mut out);
                out.clear();
                out.extend_from_slice(black_box(&own));
            });
        });
        assert!(out.is_empty() || out == [&piece.head()[..], &data].concat());
        group.bench_function("vectored", |bencher| {
            bencher.iter(|| {
                let piece = black_box(&piece);
                let head = black_box(piece.head());
                black_box([IoSlice::new(&head), IoSlice::new(piece.data)]);
            });
        });
        let mut queue = SendQueue::new(0, usize::MAX);
        group.bench_function("send-queue", |bencher| {
            bencher.iter(|| {
                let piece = black_box(&piece);
                queue.push_piece(piece.piece, piece.begin, piece.data).expect("it is never full");
                let mut slices = [IoSlice::new(&[]); 2];
                assert_eq!(black_box(queue.slices(&mut slices)), 2);
                queue.advance(black_box(13 + piece.data.len()));
            });
        });
        assert!(queue.is_empty());
    }
}

criterion_group!(benches, every_message, pieces);
criterion_main!(benches);
