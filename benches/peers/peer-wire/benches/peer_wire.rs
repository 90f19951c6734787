//! librqbit's codec, swarmkeep's, and one with its own buffer for each message, on the same messages in the
//! same run.
//!
//! `decode` is with full checks of ours: lengths, pieces, blocks, spare bits. Results are compared before
//! anything is timed.

use std::{hint::black_box, io::IoSlice};

use criterion::{
    BatchSize, BenchmarkGroup, Criterion, Throughput, criterion_group, criterion_main, measurement::WallTime,
};
use librqbit_peer_protocol as rqbit;
use swarmkeep_peer_wire::{Bitfield, Block, Encode, Limits, Message, Piece, PieceIndex};
use swarmkeep_peers_wire::{limits, ours, serialize, theirs};

const SIZES: [(&str, usize); 4] =
    [("16KiB", 16 << 10), ("1MiB", 1 << 20), ("4MiB", 4 << 20), ("8MiB", 8 << 20)];

fn small(bits: &[u8]) -> Vec<(&'static str, Message<'_>)> {
    let block = Block { piece: PieceIndex(4000), begin: 1 << 20, length: 1 << 14 };
    vec![
        ("keep-alive", Message::KeepAlive),
        ("choke", Message::Choke),
        ("interested", Message::Interested),
        ("have", Message::Have(PieceIndex(4000))),
        ("request", Message::Request(block)),
        ("cancel", Message::Cancel(block)),
        ("bitfield-4096", Message::Bitfield(Bitfield::new(bits))),
    ]
}

/// Bytes that differ, and are no zero page.
fn filled(len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

fn encode(criterion: &mut Criterion) {
    let bits = filled(512);
    for (name, message) in small(&bits) {
        let mut group = criterion.benchmark_group(format!("peer-wire/encode/{name}"));
        encoders(&mut group, message);
    }
    for (size, len) in SIZES {
        let data = filled(len);
        let message = Message::Piece(Piece { piece: PieceIndex(7), begin: 0, data: &data });
        let mut group = criterion.benchmark_group(format!("peer-wire/encode/piece-{size}"));
        group.throughput(Throughput::Bytes(len as u64));
        encoders(&mut group, message);
        let mut copy = vec![0; len];
        group.bench_function("memcpy", |bencher| {
            bencher.iter(|| black_box(&mut copy[..]).copy_from_slice(black_box(&data)));
        });
        assert_eq!(copy, data);
        group.bench_function("swarmkeep-vectored", |bencher| {
            bencher.iter(|| {
                let Message::Piece(piece) = black_box(&message) else { unreachable!() };
                let head = black_box(piece.head());
                black_box([IoSlice::new(&head), IoSlice::new(piece.data)]);
            });
        });
    }
}

fn encoders(group: &mut BenchmarkGroup<'_, WallTime>, message: Message<'_>) {
    let len = message.encoded_len();
    let other = theirs(&message).expect("both know it");
    let (mut ours, mut their) = (Vec::with_capacity(len), vec![0; len]);
    message.encode(&mut ours);
    assert_eq!((serialize(&other, &mut their), &their), (len, &ours));
    group.bench_function("swarmkeep", |bencher| {
        bencher.iter(|| {
            let out = black_box(&mut ours);
            out.clear();
            black_box(&message).encode(out);
        });
    });
    assert_eq!(ours, their);
    group.bench_function("librqbit", |bencher| {
        bencher.iter(|| serialize(black_box(&other), black_box(&mut their)));
    });
    // Each message into its own buffer, which is then copied into the connection's buffer.
    group.bench_function("intermediate-buffer", |bencher| {
        bencher.iter(|| {
            let mut own = Vec::new();
            black_box(&message).encode(&mut own);
            let out = black_box(&mut ours);
            out.clear();
            out.extend_from_slice(black_box(&own));
        });
    });
    assert_eq!(ours, their);
}

fn decode(criterion: &mut Criterion) {
    let (bits, data) = (filled(512), filled(8 << 20));
    let mut messages = small(&bits);
    for (size, len) in SIZES {
        let name = format!("piece-{size}").leak();
        messages.push((name, Message::Piece(Piece { piece: PieceIndex(7), begin: 0, data: &data[..len] })));
    }
    for (name, message) in messages {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        let limits: Limits = limits();
        assert_eq!(limits.decode(&mut &bytes[..]), Ok(Some(message)));
        let (read, _) = rqbit::Message::deserialize(&bytes, &[]).expect("both know it");
        assert_eq!(ours(&read), Some(message));
        let mut group = criterion.benchmark_group(format!("peer-wire/decode/{name}"));
        group.bench_function("swarmkeep", |bencher| {
            bencher.iter(|| {
                let mut rest = black_box(&bytes[..]);
                let message = black_box(&limits).decode(&mut rest);
                (black_box(message).is_ok(), rest.len())
            });
        });
        group.bench_function("librqbit", |bencher| {
            bencher
                .iter(|| black_box(rqbit::Message::deserialize(black_box(&bytes), black_box(&[]))).is_ok());
        });
    }
    stream(criterion);
}

/// A thousand small messages one behind the other, as they come from a socket, in an unpredictable order.
fn stream(criterion: &mut Criterion) {
    let mut bytes = Vec::new();
    let mut state = 1_u64;
    for _ in 0..1000 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let piece = PieceIndex((state >> 40) as u32 % 4096);
        let block = Block { piece, begin: 0, length: 1 << 14 };
        let message = match state >> 62 {
            0 => Message::Have(piece),
            1 => Message::Request(block),
            2 => Message::Cancel(block),
            _ => Message::Unchoke,
        };
        message.encode(&mut bytes);
    }
    let limits = limits();
    let mut group = criterion.benchmark_group("peer-wire/decode/stream-of-1000");
    group.throughput(Throughput::Elements(1000));
    group.bench_function("swarmkeep", |bencher| {
        bencher.iter_batched(
            || (),
            |()| {
                let (mut rest, mut count) = (black_box(&bytes[..]), 0);
                while let Ok(Some(message)) = limits.decode(&mut rest) {
                    black_box(&message);
                    count += 1;
                }
                assert_eq!(count, 1000);
            },
            BatchSize::SmallInput,
        );
    });
    group.bench_function("librqbit", |bencher| {
        bencher.iter_batched(
            || (),
            |()| {
                let (mut rest, mut count) = (black_box(&bytes[..]), 0);
                while let Ok((message, used)) = rqbit::Message::deserialize(rest, &[]) {
                    black_box(&message);
                    rest = &rest[used..];
                    count += 1;
                }
                assert_eq!(count, 1000);
            },
            BatchSize::SmallInput,
        );
    });
}

criterion_group!(benches, encode, decode);
criterion_main!(benches);
