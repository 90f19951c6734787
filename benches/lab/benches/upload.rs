//! Blocks over loopback TCP: Gbit per second that a core of the sender moves, by each way of sending them,
//! and by [`SendQueue`].
//!
//! Sender and receiver are pinned to a core each; the result is the sender's CPU time, which neighbours on
//! the machine affect least. The ways take turns, since nothing else makes them comparable on a busy machine;
//! Criterion does not take turns, so this prints its own table: medians, with the quartiles. The receiver
//! reads every message and looks at every block: none is lost, and none is of another place.
//!
//! `cargo bench -p swarmkeep-lab --bench upload`, with `-- --turns 31` for more of them.

use std::{
    error::Error,
    fs::{self, File},
    io::{IoSlice, Read, Write},
    net::{TcpListener, TcpStream},
    os::unix::fs::FileExt,
    thread,
};

use memmap2::Mmap;
use rustix::{
    fs::sendfile,
    net::{SendFlags, send},
    thread::{CpuSet, sched_setaffinity},
    time::{ClockId, clock_gettime},
};
use swarmkeep_lab::Arguments;
use swarmkeep_peer_wire::{Limits, Message, Piece, PieceIndex, ReceiveBuffer, SendQueue};

type Result<T = ()> = std::result::Result<T, Box<dyn Error>>;

const BLOCK: usize = 16 << 10;
const MESSAGE: usize = 13 + BLOCK;

fn main() -> Result {
    let arguments = Arguments::of_bench();
    let turns = arguments.number("--turns", 1, 15);
    let (blocks, sent) = if arguments.test { (256, 256) } else { (16 << 10, 8 << 10) };

    let content = content(blocks);
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("content");
    fs::write(&path, &content)?;
    let file = File::open(&path)?;
    // SAFETY: the file is in a new folder of this process, and nothing changes it.
    #[expect(unsafe_code, reason = "mapping a file can be done in no other way")]
    let map = unsafe { Mmap::map(&file) }?;
    let source = Source { memory: &content, map: &map, file: &file };
    let order: Vec<usize> = (0..blocks).map(|nth| nth * 7919 % blocks).cycle().take(sent).collect();

    let listener = TcpListener::bind("127.0.0.1:0")?;
    let at = listener.local_addr()?;
    thread::scope(|scope| {
        let receiver = scope.spawn(|| receive(&listener, blocks, &content));
        pin(0);
        let mut stream = TcpStream::connect(at)?;
        stream.set_nodelay(true)?;
        println!("{:<28}{:>24}{:>24}{:>24}", "Gbit a sender-core-second", "1 block a call", "8", "32");
        let mut rows: Vec<Vec<Vec<f64>>> = vec![vec![Vec::new(); 3]; METHODS.len()];
        for (nth, batch) in [1, 8, 32].into_iter().enumerate() {
            let mut sender = Sender::new(batch);
            for _ in 0..turns {
                for ((_, way), row) in METHODS.iter().zip(&mut rows) {
                    let begun = cpu_seconds();
                    for blocks in order.chunks(batch) {
                        way(&mut sender, &mut stream, &source, blocks)?;
                    }
                    row[nth].push((sent * MESSAGE * 8) as f64 / 1e9 / (cpu_seconds() - begun));
                }
            }
        }
        for ((name, _), row) in METHODS.iter().zip(rows) {
            let cells = row.into_iter().map(|mut of| {
                of.sort_by(f64::total_cmp);
                let [low, median, high] = [1, 2, 3].map(|quarter| of[(of.len() - 1) * quarter / 4]);
                format!("{median:>10.1} ({low:>4.1}–{high:>4.1})")
            });
            println!("{name:<28}{}", cells.map(|cell| format!("{cell:>24}")).collect::<String>());
        }
        drop(stream);
        let received = receiver.join().expect("the receiver has not panicked");
        assert_eq!(received, sent * turns * 3 * METHODS.len(), "every block arrives");
        Ok(())
    })
}

/// Where the blocks are.
struct Source<'a> {
    memory: &'a [u8],
    map: &'a [u8],
    file: &'a File,
}

type SendMethod = fn(&mut Sender, &mut TcpStream, &Source<'_>, &[usize]) -> Result;

const METHODS: [(&str, SendMethod); 9] = [
    ("copy, write", |sender, stream, source, blocks| sender.copy(stream, source.memory, blocks)),
    ("copy of mapped, write", |sender, stream, source, blocks| sender.copy(stream, source.map, blocks)),
    ("vectored, memory", |sender, stream, source, blocks| sender.vectored(stream, source.memory, blocks)),
    ("vectored, mapped", |sender, stream, source, blocks| sender.vectored(stream, source.map, blocks)),
    ("vectored, pread", Sender::pread),
    ("send(MORE), sendfile", |_, stream, source, blocks| send_file(stream, source.file, blocks)),
    ("SendQueue, memory", |_, stream, source, blocks| queued(stream, source.memory, blocks)),
    ("SendQueue, mapped", |_, stream, source, blocks| queued(stream, source.map, blocks)),
    ("SendQueue, pread", Sender::queued_pread),
];

/// Buffers that exist before the clock starts.
struct Sender {
    out: Vec<u8>,
    heads: Vec<[u8; 13]>,
    blocks: Vec<Vec<u8>>,
}

impl Sender {
    fn new(batch: usize) -> Self {
        Self {
            out: Vec::with_capacity(batch * MESSAGE),
            heads: Vec::new(),
            blocks: vec![vec![0; BLOCK]; batch],
        }
    }

    fn copy(&mut self, stream: &mut TcpStream, source: &[u8], blocks: &[usize]) -> Result {
        self.out.clear();
        for &block in blocks {
            let piece = piece(block, at(source, block));
            self.out.extend_from_slice(&piece.head());
            self.out.extend_from_slice(piece.data);
        }
        Ok(stream.write_all(&self.out)?)
    }

    fn vectored(&mut self, stream: &mut TcpStream, source: &[u8], blocks: &[usize]) -> Result {
        self.heads.clear();
        self.heads.extend(blocks.iter().map(|&block| piece(block, at(source, block)).head()));
        let payloads = blocks.iter().map(|&block| at(source, block));
        write_all(stream, &self.heads, payloads)
    }

    fn pread(&mut self, stream: &mut TcpStream, source: &Source<'_>, blocks: &[usize]) -> Result {
        self.heads.clear();
        for (&block, data) in blocks.iter().zip(&mut self.blocks) {
            source.file.read_exact_at(data, (block * BLOCK) as u64)?;
            self.heads.push(piece(block, data).head());
        }
        write_all(stream, &self.heads, self.blocks.iter().map(Vec::as_slice))
    }

    fn queued_pread(&mut self, stream: &mut TcpStream, source: &Source<'_>, blocks: &[usize]) -> Result {
        for (&block, data) in blocks.iter().zip(&mut self.blocks) {
            source.file.read_exact_at(data, (block * BLOCK) as u64)?;
        }
        send_queued(stream, blocks.iter().zip(&self.blocks).map(|(&block, data)| (block, &data[..])))
    }
}

fn write_all<'a>(
    stream: &mut TcpStream,
    heads: &'a [[u8; 13]],
    payloads: impl Iterator<Item = &'a [u8]>,
) -> Result {
    let mut slices = [IoSlice::new(&[]); 64];
    let pairs = heads.iter().zip(payloads).flat_map(|(head, data)| [&head[..], data]);
    let used = slices.iter_mut().zip(pairs).map(|(place, part)| *place = IoSlice::new(part)).count();
    let mut left = &mut slices[..used];
    while !left.is_empty() {
        let count = stream.write_vectored(left)?;
        IoSlice::advance_slices(&mut left, count);
    }
    Ok(())
}

fn send_file(stream: &TcpStream, file: &File, blocks: &[usize]) -> Result {
    for &block in blocks {
        let head = piece(block, &[0; BLOCK]).head();
        let mut before = &head[..];
        while !before.is_empty() {
            before = &before[send(stream, before, SendFlags::MORE)?..];
        }
        let mut offset = (block * BLOCK) as u64;
        let end = offset + BLOCK as u64;
        while offset < end {
            let left = (end - offset) as usize;
            sendfile(stream, file, Some(&mut offset), left)?;
        }
    }
    Ok(())
}

fn queued(stream: &mut TcpStream, source: &[u8], blocks: &[usize]) -> Result {
    send_queued(stream, blocks.iter().map(|&block| (block, at(source, block))))
}

/// With a queue for each call, since it borrows from this call: two allocations that a connection's own does
/// not have.
fn send_queued<'a>(stream: &mut TcpStream, blocks: impl Iterator<Item = (usize, &'a [u8])>) -> Result {
    let mut queue = SendQueue::new(16 * BLOCK, 64 * BLOCK);
    for (block, data) in blocks {
        let Piece { piece, begin, .. } = piece(block, data);
        assert!(queue.push_piece(piece, begin, data).is_ok(), "32 blocks are below its mark");
    }
    while !queue.is_empty() {
        queue.write_to(stream)?;
    }
    Ok(())
}

fn receive(listener: &TcpListener, blocks: usize, content: &[u8]) -> usize {
    pin(1);
    let (mut stream, _) = listener.accept().expect("the sender connects");
    let limits = Limits::for_torrent((blocks * BLOCK) as u64, 1 << 20).expect("a torrent");
    let mut received = ReceiveBuffer::new(limits);
    let mut count = 0;
    loop {
        match stream.read(received.space()).expect("loopback") {
            0 => return count,
            read => received.filled(read),
        }
        while let Some(message) = received.next_message().expect("it is one of ours") {
            let Message::Piece(piece) = message else { panic!("{message:?}") };
            let begin = ((piece.piece.0 as usize) << 20) + piece.begin as usize;
            // No two blocks begin or end with the same bytes.
            let expected = &content[begin..begin + BLOCK];
            assert!(
                piece.data.len() == BLOCK
                    && piece.data[..8] == expected[..8]
                    && piece.data[BLOCK - 8..] == expected[BLOCK - 8..]
            );
            count += 1;
        }
    }
}

fn piece(block: usize, data: &[u8]) -> Piece<'_> {
    let begin = block * BLOCK;
    Piece { piece: PieceIndex((begin >> 20) as u32), begin: (begin % (1 << 20)) as u32, data }
}

fn at(source: &[u8], block: usize) -> &[u8] {
    &source[block * BLOCK..][..BLOCK]
}

fn content(blocks: usize) -> Vec<u8> {
    let numbers = (0..(blocks * BLOCK / 8) as u64).map(|at| at.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    numbers.flat_map(u64::to_le_bytes).collect()
}

/// Pins nothing if there is only one core, or if the process may not.
fn pin(core: usize) {
    let mut set = CpuSet::new();
    set.set(core);
    let _ = sched_setaffinity(None, &set);
}

fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
