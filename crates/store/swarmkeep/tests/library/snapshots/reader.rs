//! Snapshots that a reader accepts, and snapshots that it refuses at their first damage.

use std::io::{self, Cursor as Bytes, Read, Seek, SeekFrom};

use swarmkeep::{
    Records,
    snapshot::{Error, Reader, Summary, VERSION},
};

use super::{NOW, some_blocks, written, written_as};

const HEADER: usize = 64;
const BLOCK_HEADER: usize = 40;

/// Returns the position of each block of a snapshot and of its end.
fn starts_of(bytes: &[u8]) -> Vec<usize> {
    let (mut starts, mut at) = (Vec::new(), HEADER);
    while at < bytes.len() {
        starts.push(at);
        let long = u64::from_le_bytes(*bytes[at + 8..].first_chunk().expect("a header"));
        at += BLOCK_HEADER + if bytes[at..].starts_with(b"blok") { long as usize } else { 0 };
    }
    starts
}

fn refused(bytes: &[u8]) -> Error {
    Reader::new(Bytes::new(bytes)).map(|_| ()).expect_err("it is not whole")
}

/// Returns position, block and reason of the damage.
fn damage(bytes: &[u8]) -> (u64, u32, &'static str) {
    match refused(bytes) {
        Error::Damaged { at, block, what } => (at, block, what),
        other => panic!("{other:?}"),
    }
}

const HEADER_CHECKSUM: &str = "the checksum of the header does not fit it";
const BLOCK_CHECKSUM: &str = "the checksum of the block's header does not fit it";
const RECORDS_CHECKSUM: &str = "the checksum of the block does not fit it";
const ANOTHER_BLOCK: &str = "this is another block of the snapshot, which does not belong here";
const OTHER_BLOCKS: &str = "the end tells of other blocks than there are";

#[test]
fn a_snapshot_of_nothing_is_one() {
    let bytes = written(&[Records::new(NOW)]);
    assert_eq!(bytes.len(), HEADER + BLOCK_HEADER);
    let mut reader = Reader::new(Bytes::new(&bytes)).expect("it is whole");
    let Summary { taken, records, peers, bytes: long, .. } = reader.summary();
    assert_eq!((taken, records, peers, long), (NOW, 0, 0, bytes.len() as u64));
    let mut records = some_blocks(1).remove(0);
    for _ in 0..3 {
        assert!(!reader.next(&mut records, NOW).expect("there is nothing"));
        assert!(records.is_empty());
    }
}

#[test]
fn every_flipped_bit_is_noticed_where_it_is() {
    let bytes = written(&some_blocks(3));
    let starts = starts_of(&bytes);
    for at in 0..bytes.len() {
        for bit in 0..8 {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1 << bit;
            let error = refused(&flipped);
            if at < 8 {
                assert!(matches!(error, Error::NotASnapshot), "{at}: {error}");
            } else if at < 12 {
                let version = VERSION ^ 1 << (bit + 8 * (at - 8));
                assert!(matches!(error, Error::Version { found } if found == version), "{at}: {error}");
            } else if at < HEADER {
                assert_eq!(damage(&flipped), (0, 0, HEADER_CHECKSUM), "byte {at}");
            } else {
                let block = starts.partition_point(|start| *start <= at) - 1;
                let within = at - starts[block];
                let what = if within < BLOCK_HEADER { BLOCK_CHECKSUM } else { RECORDS_CHECKSUM };
                assert_eq!(damage(&flipped), (starts[block] as u64, block as u32, what), "byte {at}");
            }
        }
    }
}

#[test]
fn a_snapshot_that_is_cut_off_is_refused_where_it_ends() {
    let bytes = written(&some_blocks(3));
    for len in 0..bytes.len() {
        match refused(&bytes[..len]) {
            Error::NotASnapshot => assert_eq!(len, 0),
            Error::Truncated { at } => assert_eq!(at, len as u64),
            other => panic!("{len}: {other:?}"),
        }
    }
}

#[test]
fn blocks_that_are_moved_left_out_repeated_or_of_another_snapshot_are_noticed() {
    let bytes = written(&some_blocks(4));
    let starts = starts_of(&bytes);
    let range = |n: usize| starts[n]..starts.get(n + 1).copied().unwrap_or(bytes.len());
    let of = |pieces: &[usize]| {
        let pieces: Vec<_> = pieces.iter().map(|&n| &bytes[range(n)]).collect();
        [&bytes[..HEADER], &pieces.concat()].concat()
    };
    let mixed = |n: usize, others: &[u8]| {
        let mut mixed = bytes.clone();
        mixed[range(n)].copy_from_slice(&others[range(n)]);
        mixed
    };
    assert_eq!(of(&[0, 1, 2, 3, 4]), bytes);
    for (a, b) in (0..5).flat_map(|a| (a + 1..5).map(move |b| (a, b))) {
        let mut order = [0, 1, 2, 3, 4];
        order.swap(a, b);
        assert_eq!(damage(&of(&order)), (starts[a] as u64, a as u32, ANOTHER_BLOCK), "{a} and {b}");
    }
    for n in 0..4 {
        let without: Vec<_> = (0..5).filter(|&other| other != n).collect();
        assert_eq!(damage(&of(&without)), (starts[n] as u64, n as u32, ANOTHER_BLOCK), "without {n}");
        let twice: Vec<_> = (0..=n).chain(n..5).collect();
        let behind = starts[n + 1] as u64;
        assert_eq!(damage(&of(&twice)), (behind, n as u32 + 1, ANOTHER_BLOCK), "{n} twice");
    }
    assert!(matches!(refused(&of(&[0, 1, 2, 3])), Error::Truncated { at } if at == starts[4] as u64));

    // The same blocks in a snapshot with another id.
    let others = written_as([9; 16], &some_blocks(4));
    for (n, start) in starts.iter().enumerate() {
        assert_eq!(damage(&mixed(n, &others)), (*start as u64, n as u32, BLOCK_CHECKSUM), "{n} of another");
    }
    // The end of another snapshot with the same id, and a block of it at the same position.
    let mut blocks = some_blocks(4);
    blocks.swap(0, 1);
    let others = written(&blocks);
    assert_eq!(starts_of(&others), starts);
    for n in [0, 1, 4] {
        assert_eq!(damage(&mixed(n, &others)), (starts[4] as u64, 4, OTHER_BLOCKS), "{n} of another");
    }
}

#[test]
fn whatever_follows_the_end_is_noticed() {
    let bytes = written(&some_blocks(2));
    for behind in [&[0][..], b"\n", &bytes] {
        let error = refused(&[&bytes, behind].concat());
        assert!(matches!(error, Error::Trailing { at } if at == bytes.len() as u64), "{error}");
    }
}

#[test]
fn other_bytes_differ_from_a_snapshot_of_another_version() {
    for other in [&b""[..], b"\0", b"swarmsnq", b"d8:announce", b"SWARMSNP", &[0; 4096], b" swarmsnp"] {
        assert!(matches!(refused(other), Error::NotASnapshot), "{other:?}");
    }
    let bytes = written(&some_blocks(1));
    for version in [0, 2, 3, 256, u32::MAX] {
        let mut other = bytes.clone();
        other[8..12].copy_from_slice(&version.to_le_bytes());
        // The version is checked before the rest of the header, whatever the length.
        for len in [12, 20, 64, other.len()] {
            assert!(matches!(refused(&other[..len]), Error::Version { found } if found == version));
        }
    }
}

/// Corrects the checksum of the header at `at`.
fn mend(bytes: &mut [u8], at: usize) {
    if at == 0 {
        let checksum = crc32c::crc32c(&bytes[..60]);
        bytes[60..64].copy_from_slice(&checksum.to_le_bytes());
    } else {
        let id: [u8; 16] = *bytes[16..].first_chunk().expect("a header");
        let own = crc32c::crc32c_append(crc32c::crc32c(&id), &bytes[at..at + 36]);
        bytes[at + 36..at + 40].copy_from_slice(&own.to_le_bytes());
    }
}

#[test]
fn impossible_headers_are_refused_even_if_their_checksums_fit() {
    let bytes = written(&some_blocks(3));
    let starts = starts_of(&bytes);
    let changed = |at: usize, new: &[u8], header: usize| {
        let mut bytes = bytes.clone();
        bytes[at..at + new.len()].copy_from_slice(new);
        mend(&mut bytes, header);
        bytes
    };
    let (first, end) = (starts[0], starts[3]);
    for (at, new, header, what) in [
        (first, &b"blob"[..], first, "this is neither a block nor the end"),
        (first + 4, &[1], first, ANOTHER_BLOCK),
        (first + 8, &[0xff; 8], first, "the block is longer than any may be"),
        (first + 8, &[1, 0, 0, 1], first, "the block is longer than any may be"),
        (first + 24, &[4], first, "the block holds another number of swarms than it says"),
        (first + 32, &[0; 4], first, RECORDS_CHECKSUM),
        (end + 4, &[2], end, ANOTHER_BLOCK),
        (end + 8, &[1], end, OTHER_BLOCKS),
        (end + 16, &[1], end, OTHER_BLOCKS),
        (end + 24, &[1], end, OTHER_BLOCKS),
        (end + 32, &[1, 2, 3, 4], end, OTHER_BLOCKS),
    ] {
        let block = starts.binary_search(&header).expect("a block") as u32;
        assert_eq!(damage(&changed(at, new, header)), (header as u64, block, what), "byte {at}");
    }
    // A block of the maximum length without its bytes: the reader takes no more memory than there are
    // bytes.
    let long = changed(first + 8, &(16_u64 << 20).to_le_bytes(), first);
    assert!(matches!(refused(&long), Error::Truncated { at } if at == bytes.len() as u64));
    // An end before all blocks were read.
    let mut early = bytes[..starts[1]].to_vec();
    early.extend_from_slice(&bytes[end..]);
    early[starts[1] + 4] = 1;
    mend(&mut early, starts[1]);
    assert_eq!(damage(&early), (starts[1] as u64, 1, OTHER_BLOCKS));
    // Reserved bytes are not read, but the checksum includes them.
    for at in (12..16).chain(40..60) {
        let reserved = changed(at, &[1], 0);
        // The end contains the checksum of the header, which has changed.
        assert_eq!(damage(&reserved), (end as u64, 3, OTHER_BLOCKS));
    }
    // Another time, which is valid too.
    assert_eq!(damage(&changed(32, &[1], 0)).2, OTHER_BLOCKS);
}

#[test]
fn records_that_are_none_are_refused_at_their_byte_though_all_checksums_fit() {
    let blocks = some_blocks(2);
    let bytes = written(&blocks);
    let starts = starts_of(&bytes);
    let content = starts[1] + BLOCK_HEADER;
    let second = 22;
    let forged = |at: usize, new: u8| {
        let mut bytes = bytes.clone();
        bytes[content + at] = new;
        let checksum = crc32c::crc32c(&bytes[content..starts[2]]);
        bytes[starts[1] + 32..starts[1] + 36].copy_from_slice(&checksum.to_le_bytes());
        mend(&mut bytes, starts[1]);
        bytes
    };
    let unknown = "a download count has an unknown width";
    assert_eq!(damage(&forged(0, 0b1100)), (content as u64, 1, unknown));
    assert_eq!(damage(&forged(second, 0b1101)), ((content + second) as u64, 1, unknown));
}

/// A source with other bytes in its second read: from position `from` on they are `with`.
struct Changing {
    bytes: Bytes<Vec<u8>>,
    looks: u32,
    interrupts: bool,
    from: usize,
    with: Vec<u8>,
}

impl Read for Changing {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        // Reads a few bytes at a time, and is interrupted every other time.
        self.interrupts = !self.interrupts;
        if self.interrupts {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let some = into.len().min(17);
        self.bytes.read(&mut into[..some])
    }
}

impl Seek for Changing {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        if to == SeekFrom::Start(0) {
            self.looks += 1;
            if self.looks == 2 {
                self.bytes.get_mut().truncate(self.from);
                self.bytes.get_mut().extend_from_slice(&self.with);
            }
        }
        self.bytes.seek(to)
    }
}

fn changing(bytes: &[u8], from: usize, with: &[u8]) -> Result<Vec<Records>, Error> {
    let bytes = Bytes::new(bytes.to_vec());
    let mut reader = Reader::new(Changing { bytes, looks: 0, interrupts: false, from, with: with.to_vec() })?;
    let (mut all, mut records) = (Vec::new(), Records::new(NOW));
    while reader.next(&mut records, NOW)? {
        all.push(records.clone());
    }
    Ok(all)
}

#[test]
fn a_source_that_changes_after_it_was_looked_at_is_noticed() {
    let blocks = some_blocks(3);
    let bytes = written(&blocks);
    let starts = starts_of(&bytes);
    assert_eq!(changing(&bytes, bytes.len(), &[]).expect("nothing changes"), blocks);
    // Another snapshot, a longer one, a shorter one, and the same blocks in another order.
    let changed = "the snapshot was changed while it was read";
    for other in [
        written_as([8; 16], &blocks),
        written(&some_blocks(4)),
        written(&some_blocks(2)),
        written(&[&blocks[1..], &blocks[..1]].concat()),
        written(&[]),
    ] {
        match changing(&bytes, 0, &other) {
            Err(Error::Damaged { what, .. }) => assert_eq!(what, changed),
            other => panic!("{other:?}"),
        }
    }
    // One changed byte, another rest, and additional bytes.
    let mut flipped = bytes.clone();
    flipped[starts[1] + 50] ^= 1;
    assert!(matches!(changing(&bytes, 0, &flipped), Err(Error::Damaged { block: 1, .. })));
    let (second, behind) = (starts[1], bytes.len());
    assert!(matches!(changing(&bytes, second, &[]), Err(Error::Truncated { at }) if at == second as u64));
    assert!(matches!(changing(&bytes, behind, &[1]), Err(Error::Trailing { at }) if at == behind as u64));
}

/// A device that fails at one byte position.
struct Failing<'a> {
    bytes: Bytes<&'a [u8]>,
    at: u64,
}

impl Read for Failing<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let left = (self.at - self.bytes.position()) as usize;
        if left == 0 {
            return Err(io::Error::other("a bad sector"));
        }
        let some = into.len().min(left);
        self.bytes.read(&mut into[..some])
    }
}

impl Seek for Failing<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.bytes.seek(to)
    }
}

#[test]
fn an_error_of_the_source_is_returned_with_its_place() {
    let bytes = written(&some_blocks(2));
    for fails_at in 0..=bytes.len() as u64 {
        let source = Failing { bytes: Bytes::new(&bytes), at: fails_at };
        match Reader::new(source).map(|_| ()).expect_err("it fails") {
            Error::Io { at, source } => {
                assert_eq!((at, source.to_string().as_str()), (fails_at, "a bad sector"));
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn errors_name_the_position_and_the_problem() {
    let bytes = written(&some_blocks(2));
    let mut newer = bytes.clone();
    newer[8] = 2;
    let mut flipped = bytes.clone();
    flipped[200] ^= 1;
    for (error, said) in [
        (refused(b"no"), "this is no snapshot: it does not begin with `swarmsnp`"),
        (
            refused(&newer),
            "at byte 8: this is a snapshot of version 2, and only version 1 is known; take a newer swarmkeep",
        ),
        (refused(&bytes[..100]), "at byte 100: it ends in the middle; the rest was lost"),
        (refused(&flipped), "at byte 64, in block 0: the checksum of the block does not fit it"),
        (
            refused(&[&bytes[..], b"x"].concat()),
            &format!(
                "at byte {}: something follows the end; is this two snapshots in one file?",
                bytes.len()
            ),
        ),
        (
            Error::Io { at: 7, source: io::Error::other("a bad sector") },
            "cannot read at byte 7: a bad sector",
        ),
    ] {
        assert_eq!(error.to_string(), said);
    }
}
