//! swarmkeep's codec, librqbit's, and an encoder with its own buffer for each message, in turns: CPU
//! nanoseconds, allocations and bytes allocated per operation. Neighbours on the machine affect CPU time and
//! turns least.
//!
//! `cargo run --release -p swarmkeep-peers-wire --bin turns [NAME]`, with a name only those messages.

use std::{cell::RefCell, env, hint::black_box, io::IoSlice};

use librqbit_peer_protocol as rqbit;
use rustix::time::{ClockId, clock_gettime};
use swarmkeep_kit::allocations::{Counting, of_thread};
use swarmkeep_peer_wire::{Bitfield, Block, Encode, Limits, Message, Piece, PieceIndex, SendQueue};
use swarmkeep_peers_wire::{limits, serialize, theirs};

const TURNS: usize = 15;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn main() {
    let only = env::args().nth(1);
    let bits = vec![0xa5; 512];
    let data: Vec<u8> =
        (0..8_u64 << 20).map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect();
    let block = Block { piece: PieceIndex(4000), begin: 1 << 20, length: 1 << 14 };
    let piece = |len: usize| Message::Piece(Piece { piece: PieceIndex(7), begin: 0, data: &data[..len] });
    println!("{:<14} median CPU ns an operation (allocations, bytes allocated)", "");
    for (name, message) in [
        ("keep-alive", Message::KeepAlive),
        ("choke", Message::Choke),
        ("interested", Message::Interested),
        ("have", Message::Have(PieceIndex(4000))),
        ("request", Message::Request(block)),
        ("cancel", Message::Cancel(block)),
        ("bitfield-4096", Message::Bitfield(Bitfield::new(&bits))),
        ("piece-16KiB", piece(16 << 10)),
        ("piece-1MiB", piece(1 << 20)),
        ("piece-4MiB", piece(4 << 20)),
        ("piece-8MiB", piece(8 << 20)),
    ] {
        if only.as_ref().is_none_or(|only| name.starts_with(only)) {
            one(name, &message);
        }
    }
    if only.is_none_or(|only| only == "stream") {
        println!("\n{:<14} median CPU ns for a thousand messages", "");
        stream("haves", |_, piece, _| Message::Have(piece));
        stream("requests", |_, _, block| Message::Request(block));
        stream("cancels", |_, _, block| Message::Cancel(block));
        // The order is unpredictable.
        stream("mixed", |nth, piece, block| match nth {
            0 => Message::Have(piece),
            1 => Message::Request(block),
            2 => Message::Cancel(block),
            _ => Message::Unchoke,
        });
    }
}

fn one(name: &str, message: &Message<'_>) {
    let (limits, other) = (limits(), theirs(message).expect("both know it"));
    let len = message.encoded_len();
    let mut bytes = Vec::new();
    message.encode(&mut bytes);
    let mut source = vec![0; len];
    source.copy_from_slice(&bytes);
    let times = (200_000_000 / (len + 400)).clamp(30, 300_032);
    let mut queue: SendQueue<&[u8]> = SendQueue::new(0, usize::MAX);

    let decode = compare(
        times,
        &mut [
            ("swarmkeep", &mut |times| {
                for _ in 0..times {
                    let mut rest: &[u8] = black_box(&bytes);
                    let message = black_box(&limits).decode(&mut rest);
                    black_box((&message, rest.len()));
                }
            }),
            ("librqbit", &mut |times| {
                for _ in 0..times {
                    let message = rqbit::Message::deserialize(black_box(&bytes), black_box(&[]));
                    black_box(&message);
                }
            }),
        ],
    );
    println!("{name:<14} decode  {decode}");
    // All write to the same places, many but for large ones: the distance from a place to the copied bytes,
    // modulo 4 KiB, makes a copy of 512 bytes take 4.5 ns or 10.
    let count = ((128 << 10) / len).clamp(1, 64);
    let place = |nth| {
        let mut place = Vec::with_capacity(len + 16 * nth);
        place.resize(len, 0);
        place
    };
    let places = RefCell::new((0..count).map(place).collect::<Vec<_>>());
    let written = |times: usize, way: &mut dyn FnMut(usize, &mut Vec<u8>)| {
        for out in places.borrow_mut().iter_mut() {
            way(times.div_ceil(count), out);
        }
    };
    let check = |way: &mut dyn FnMut(usize)| {
        places.borrow_mut().iter_mut().for_each(|place| place.fill(0));
        way(1);
        assert!(places.borrow().iter().all(|place| *place == bytes));
    };
    let ways: &mut [(&str, &mut dyn FnMut(usize))] = &mut [
        ("swarmkeep", &mut |times| {
            written(times, &mut |times, out| {
                for _ in 0..times {
                    let out = black_box(&mut *out);
                    out.clear();
                    black_box(message).encode(out);
                }
            });
        }),
        ("librqbit", &mut |times| {
            written(times, &mut |times, out| {
                for _ in 0..times {
                    black_box(serialize(black_box(&other), black_box(out)));
                }
            });
        }),
        ("intermediate", &mut |times| {
            written(times, &mut |times, out| {
                for _ in 0..times {
                    let mut own = Vec::new();
                    black_box(message).encode(&mut own);
                    let out = black_box(&mut *out);
                    out.clear();
                    out.extend_from_slice(black_box(&own));
                }
            });
        }),
        ("memcpy", &mut |times| {
            written(times, &mut |times, out| {
                for _ in 0..times {
                    black_box(&mut out[..]).copy_from_slice(black_box(&source));
                }
            });
        }),
    ];
    ways.iter_mut().for_each(|(_, way)| check(way));
    let encode = compare(times, ways);
    println!("{name:<14} encode  {encode}");
    let Message::Piece(piece) = *message else { return };
    let vectored = compare(
        300_000,
        &mut [
            ("head and slice", &mut |times| {
                for _ in 0..times {
                    let piece = black_box(&piece);
                    let head = black_box(piece.head());
                    black_box([IoSlice::new(&head), IoSlice::new(piece.data)]);
                }
            }),
            ("SendQueue: push, slices, advance", &mut |times| {
                for _ in 0..times {
                    let piece = black_box(&piece);
                    queue.push_piece(piece.piece, piece.begin, piece.data).expect("it is never full");
                    let mut slices = [IoSlice::new(&[]); 2];
                    black_box(queue.slices(&mut slices));
                    queue.advance(black_box(13 + piece.data.len()));
                }
            }),
        ],
    );
    println!("{name:<14} vectored {vectored}");
}

/// A thousand messages one behind the other, as they lie in a buffer that was read into: each is where the
/// one before it ended.
fn stream(name: &str, message: impl Fn(u64, PieceIndex, Block) -> Message<'static>) {
    let mut bytes = Vec::new();
    let mut state = 1_u64;
    for _ in 0..1000 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let piece = PieceIndex((state >> 40) as u32 % 4096);
        let block = Block { piece, begin: ((state >> 20) as u32 % 1024) << 14, length: 1 << 14 };
        message(state >> 62, piece, block).encode(&mut bytes);
    }
    let limits: Limits = limits();
    let streams = compare(
        1000,
        &mut [
            ("swarmkeep", &mut |times| {
                for _ in 0..times {
                    let mut rest: &[u8] = black_box(&bytes);
                    let mut sum = 0_u32;
                    while let Ok(Some(message)) = &limits.decode(&mut rest) {
                        sum = sum.wrapping_add(fields(message));
                    }
                    assert!(black_box(sum) > 0 && rest.is_empty());
                }
            }),
            ("librqbit", &mut |times| {
                for _ in 0..times {
                    let mut rest: &[u8] = black_box(&bytes);
                    let mut sum = 0_u32;
                    while let Ok((message, used)) = &rqbit::Message::deserialize(rest, &[]) {
                        sum = sum.wrapping_add(their_fields(message));
                        rest = &rest[*used..];
                    }
                    assert!(black_box(sum) > 0 && rest.is_empty());
                }
            }),
            ("swarmkeep, moved", &mut |times| {
                for _ in 0..times {
                    let mut rest: &[u8] = black_box(&bytes);
                    let mut sum = 0_u32;
                    while let Ok(Some(message)) = limits.decode(&mut rest) {
                        sum = sum.wrapping_add(fields(&message));
                    }
                    assert!(black_box(sum) > 0 && rest.is_empty());
                }
            }),
            ("librqbit, moved", &mut |times| {
                for _ in 0..times {
                    let mut rest: &[u8] = black_box(&bytes);
                    let mut sum = 0_u32;
                    while let Ok((message, used)) = rqbit::Message::deserialize(rest, &[]) {
                        sum = sum.wrapping_add(their_fields(&message));
                        rest = &rest[used..];
                    }
                    assert!(black_box(sum) > 0 && rest.is_empty());
                }
            }),
        ],
    );
    println!("{name:<14} decode  {streams}");
}

/// Reads next to nothing of each message of a stream.
#[inline(always)]
fn fields(message: &Message<'_>) -> u32 {
    match message {
        Message::Have(PieceIndex(piece)) => *piece,
        Message::Request(block) | Message::Cancel(block) => block.piece.0 ^ block.begin ^ block.length,
        _ => 1,
    }
}

#[inline(always)]
fn their_fields(message: &rqbit::Message<'_>) -> u32 {
    match message {
        rqbit::Message::Have(piece) => *piece,
        rqbit::Message::Request(block) | rqbit::Message::Cancel(block) => {
            block.index ^ block.begin ^ block.length
        }
        _ => 1,
    }
}

/// Runs each `times` times, and all of them again, in turns.
fn compare(times: usize, ways: &mut [(&str, &mut dyn FnMut(usize))]) -> String {
    let mut results = vec![(Vec::new(), (0, 0)); ways.len()];
    for turn in 0..=TURNS {
        // Each is the first as often as any other: after one that reads the same bytes, the next one finds
        // them in the cache.
        for nth in (turn..).take(ways.len()) {
            let nth = nth % ways.len();
            let ((_, way), (turns, allocated)) = (&mut ways[nth], &mut results[nth]);
            let begun = cpu_nanos();
            let ((), counts) = of_thread(|| way(times));
            let nanos = cpu_nanos() - begun;
            // The first warms up.
            if turn > 0 {
                turns.push(nanos / times as f64);
                *allocated = (counts.calls / times as u64, counts.bytes / times as u64);
            }
        }
    }
    let cells = ways.iter().zip(results).map(|((name, _), (mut turns, (calls, bytes)))| {
        turns.sort_by(f64::total_cmp);
        format!("{name} {:.2} ({calls}, {bytes})", turns[TURNS / 2])
    });
    cells.collect::<Vec<_>>().join("   ")
}

fn cpu_nanos() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}
