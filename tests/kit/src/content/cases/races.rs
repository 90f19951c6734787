//! Threads at work on the same torrents.

use std::{
    sync::{
        Arc, Barrier,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    thread,
    time::Duration,
};

use parking_lot::Mutex;
use swarmkeep_conformance::common::SetOnDrop;
use swarmkeep_content::{Content, ContentExt, Error, Result};

use crate::content::{Subject, kit::*};

const THREADS: usize = 4;

fn at_once<T: Send>(threads: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let (barrier, work) = (Barrier::new(threads), &work);
    thread::scope(|scope| {
        let started: Vec<_> = (0..threads)
            .map(|thread| {
                let barrier = &barrier;
                scope.spawn(move || {
                    barrier.wait();
                    work(thread)
                })
            })
            .collect();
        started
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    })
}

/// Runs `work` on other threads, again and again, until `meanwhile` has ended.
fn while_doing(threads: usize, work: impl Fn(usize, u64) + Sync, meanwhile: impl FnOnce()) {
    let (over, work) = (AtomicBool::new(false), &work);
    thread::scope(|scope| {
        for thread in 0..threads {
            let over = &over;
            scope.spawn(move || {
                let _set = SetOnDrop(over);
                (0..).take_while(|_| !over.load(SeqCst)).for_each(|n| work(thread, n));
            });
        }
        let _set = SetOnDrop(&over);
        meanwhile();
    });
}

/// Asserts that a call failed only as it may.
#[track_caller]
fn assert_only<T>(result: Result<T>, allowed: impl Fn(&Error) -> bool) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(error) => {
            assert!(allowed(&error), "{error}");
            None
        }
    }
}

pub(crate) fn disjoint_writes_at_once_all_arrive(subject: &dyn Subject) {
    let (_folder, store) = Folder::opened(subject);
    let mut draw = Draw::new(6);
    for n in rounds(8) {
        let length = 120_001;
        let content = store.new_torrent(n, length, 10_007);
        let (mut cuts, mut at) = (vec![0], 0);
        while at < length {
            at = (at + 1 + draw.below(600)).min(length);
            cuts.push(at);
        }
        // Neighbours are of different threads, and share sectors, pages and pieces.
        at_once(THREADS, |thread| {
            for cut in cuts.windows(2).skip(thread).step_by(THREADS) {
                put(&*content, cut[0]..cut[1], Pattern(n as u16));
            }
        });
        assert_reads(&*content, 0..length, Pattern(n as u16));
        assert!((0..content.geometry().pieces()).all(|piece| content.mark_complete(piece).unwrap()));
        assert_reads(&*content, 0..length, Pattern(n as u16));
    }
}

pub(crate) fn of_overlapping_writes_each_byte_is_that_of_one(subject: &dyn Subject) {
    let (_folder, store) = Folder::opened(subject);
    let (length, mut draw) = (6 * BLOCK, Draw::new(7));
    let content = store.new_torrent(1, length, BLOCK as u32);
    put(&*content, 0..length, Pattern(0));
    let mut before = Pattern(0).bytes(0..length);
    for _ in rounds(60) {
        let ranges: Vec<_> = (0..THREADS)
            .map(|_| {
                let start = BLOCK + draw.below(3 * BLOCK);
                start..start + 1 + draw.below(BLOCK)
            })
            .collect();
        let patterns: Vec<_> = (0..THREADS).map(|_| Pattern(1 + draw.below(4000) as u16)).collect();
        at_once(THREADS, |thread| put(&*content, ranges[thread].clone(), patterns[thread]));
        let mut bytes = vec![0; length as usize];
        content.read(0, &mut bytes).unwrap();
        let told: Vec<_> = patterns.iter().map(|pattern| pattern.bytes(0..length)).collect();
        for (at, &byte) in (0..).zip(&bytes) {
            let mut written = (0..THREADS).filter(|&thread| ranges[thread].contains(&(at as u64))).peekable();
            if written.peek().is_none() {
                assert_eq!(byte, before[at], "byte {at} is of no write, and has changed");
            } else {
                assert!(written.any(|thread| told[thread][at] == byte), "byte {at} is of none of its writes");
            }
        }
        before = bytes;
    }
}

pub(crate) fn of_racing_creates_one_wins(subject: &dyn Subject) {
    let (_folder, store) = Folder::opened(subject);
    for n in rounds(60) {
        let length = |thread: usize| 1000 + thread as u64;
        let created = at_once(THREADS, |thread| {
            let created = store.create(&torrent(n, length(thread), 100));
            assert_only(created, |error| matches!(error, Error::Exists(of) if *of == hash(n)))
        });
        let winners: Vec<_> = (0..THREADS).filter(|&thread| created[thread].is_some()).collect();
        assert_eq!(winners.len(), 1, "of {THREADS} creates, one must win");
        let content = created[winners[0]].as_ref().expect("it won");
        assert_eq!(content.geometry().len(), length(winners[0]));
        assert_eq!(store.torrent(n).geometry().len(), length(winners[0]));
        put(&**content, 0..1000, Pattern(n as u16));
        assert_reads(&*store.torrent(n), 0..1000, Pattern(n as u16));
        assert_eq!(store.list().unwrap().len() as u64, n + 1);
    }
}

pub(crate) fn of_racing_deletes_one_answers_true(subject: &dyn Subject) {
    let (_folder, store) = Folder::opened(subject);
    for n in rounds(60) {
        put(&*store.new_torrent(n, 1000, 100), 0..500, Pattern(1));
        let deleted = at_once(THREADS, |_| store.delete(&hash(n)).unwrap());
        assert_eq!(deleted.into_iter().filter(|&deleted| deleted).count(), 1);
        assert_eq!(store.statistics().torrents, 0);
    }
}

pub(crate) fn of_racing_marks_one_answers_true(subject: &dyn Subject) {
    let (_folder, store) = Folder::opened(subject);
    let content = store.new_torrent(1, 40_000, 1000);
    put(&*content, 0..40_000, Pattern(1));
    for piece in rounds(40).map(|n| n as u32) {
        let marked = at_once(THREADS, |_| content.mark_complete(piece).unwrap());
        assert_eq!(marked.into_iter().filter(|&marked| marked).count(), 1, "marks of piece {piece}");
        let taken = at_once(THREADS, |_| content.mark_incomplete(piece).unwrap());
        assert_eq!(taken.into_iter().filter(|&taken| taken).count(), 1, "marks of piece {piece} taken back");
        put(&*content, content.geometry().piece(piece).unwrap(), Pattern(1));
    }
}

pub(crate) fn a_complete_piece_never_changes_whatever_is_written_at_once(subject: &dyn Subject) {
    let (_folder, store) = Folder::opened(subject);
    let (pieces, length) = (32, 1000);
    let content = store.new_torrent(1, pieces * length, length as u32);
    put(&*content, 0..pieces * length, Pattern(0));
    let read = |piece: u32| content.read_piece(piece).unwrap();
    let mut marked = Vec::new();
    for piece in rounds(pieces).map(|n| n as u32) {
        let (range, is_marked) = (content.geometry().piece(piece).unwrap(), AtomicBool::new(false));
        let bytes = Mutex::new(Vec::new());
        at_once(THREADS, |thread| {
            if thread == 0 {
                thread::yield_now();
                assert!(content.mark_complete(piece).unwrap());
                is_marked.store(true, SeqCst);
                *bytes.lock() = read(piece);
                return;
            }
            for n in 0..20 {
                let was_marked = is_marked.load(SeqCst);
                let (start, end) =
                    if n % 2 == 0 { (range.start, range.end) } else { (range.start + 300, range.end - 300) };
                let told = Pattern((thread * 100 + n) as u16).bytes(start..end);
                let written = assert_only(
                    content.write(start, &told),
                    |error| matches!(error, Error::Complete { piece: of } if *of == piece),
                );
                assert!(!was_marked || written.is_none(), "a write that began after the mark was accepted");
            }
        });
        marked.push(bytes.into_inner());
        assert!(read(piece) == marked[piece as usize], "piece {piece} has changed after it was marked");
    }
    for (piece, bytes) in marked.iter().enumerate() {
        assert!(&read(piece as u32) == bytes, "piece {piece} has changed after it was marked");
    }
}

pub(crate) fn reads_racing_mark_incomplete_see_what_was_written(subject: &dyn Subject) {
    let (_folder, store) = Folder::opened(subject);
    let length = 4 * BLOCK;
    let content = store.new_torrent(1, length, BLOCK as u32);
    (0..4).for_each(|piece| complete(&*content, piece, Pattern(1)));
    let read = |thread: usize, n: u64| {
        let piece = (thread as u64 + n) % 4;
        let mut bytes = vec![0xa5; 3000];
        let start = piece * BLOCK + n % 10_000;
        let result = content.read(start, &mut bytes);
        if assert_only(result, |error| matches!(error, Error::NotWritten { .. })).is_some() {
            assert_bytes(&bytes, start, Pattern(1));
        }
    };
    while_doing(2, read, || {
        for n in rounds(200) {
            let piece = (n % 4) as u32;
            assert!(content.mark_incomplete(piece).unwrap());
            let range = content.geometry().piece(piece).unwrap();
            put(&*content, range.start..range.start + 5000, Pattern(1));
            put(&*content, range.start + 5000..range.end, Pattern(1));
            assert!(content.mark_complete(piece).unwrap());
        }
    });
}

pub(crate) fn calls_racing_a_delete_are_done_or_answer_deleted(subject: &dyn Subject) {
    let (_folder, store) = Folder::opened(subject);
    for round in rounds(40) {
        let content = store.new_torrent(1, 4 * BLOCK, BLOCK as u32);
        put(&*content, 0..2 * BLOCK, Pattern(1));
        let (is_deleted, calls) = (AtomicBool::new(false), AtomicU64::new(0));
        at_once(THREADS, |thread| {
            if thread == 0 {
                while calls.load(SeqCst) < 10 {
                    thread::yield_now();
                }
                assert!(store.delete(&hash(1)).unwrap());
                is_deleted.store(true, SeqCst);
                // The torrent that the calls under way would find.
                let new = store.new_torrent(1, 4 * BLOCK, BLOCK as u32);
                (0..20).for_each(|_| thread::yield_now());
                assert_untouched(&*new);
                return;
            }
            for n in 0.. {
                let was_deleted = is_deleted.load(SeqCst);
                let mut bytes = [0xa5; 500];
                let only = |error: &Error| {
                    matches!(error, Error::Deleted)
                        || !was_deleted && matches!(error, Error::NotWritten { .. } | Error::Complete { .. })
                };
                let start = 100 * (n % 500);
                let done = match (thread + n as usize) % 4 {
                    0 => assert_only(content.write(start, &Pattern(1).bytes(start..start + 500)), only)
                        .is_some(),
                    1 => {
                        let done = assert_only(content.read(start, &mut bytes), only).is_some();
                        if done {
                            assert_bytes(&bytes, start, Pattern(1));
                        }
                        done
                    }
                    2 => assert_only(content.mark_complete((n % 4) as u32), only).is_some(),
                    _ => assert_only(content.pieces(), only).is_some(),
                };
                assert!(!(was_deleted && done), "a call that began after the delete was done");
                calls.fetch_add(1, SeqCst);
                if was_deleted {
                    break;
                }
            }
        });
        assert_untouched(&*store.torrent(1));
        assert!(store.delete(&hash(1)).unwrap(), "round {round}");
    }
}

pub(crate) fn a_flush_races_with_everything(subject: &dyn Subject) {
    let (folder, store) = Folder::opened(subject);
    let length = 60 * BLOCK;
    let contents: Vec<_> = (0..3).map(|n| store.new_torrent(n, length, BLOCK as u32)).collect();
    let work = |thread: usize| {
        let (content, pattern) = (&*contents[thread], Pattern(thread as u16));
        for piece in 0..60 {
            // Every third is marked incomplete, perhaps after a flush, and every sixth complete again.
            complete(content, piece, pattern);
            if piece % 3 == 0 {
                thread::sleep(Duration::from_micros(50));
                assert!(content.mark_incomplete(piece).unwrap());
            }
            if piece % 6 == 0 {
                complete(content, piece, pattern);
            }
            if piece % 10 == 0 {
                let n = 100 + thread as u64;
                complete(&*store.new_torrent(n, BLOCK, BLOCK as u32), 0, Pattern(n as u16));
                assert!(store.delete(&hash(n)).unwrap());
            }
        }
    };
    while_doing(1, |_, _| store.flush().unwrap(), || drop(at_once(3, work)));
    store.flush().unwrap();
    let check = |content: &dyn Content, pattern: Pattern| {
        let expected: Vec<_> = (0..60).filter(|piece| piece % 3 != 0 || piece % 6 == 0).collect();
        assert_eq!(complete_pieces(content), expected);
        for piece in expected {
            assert_reads(content, content.geometry().piece(piece).unwrap(), pattern);
        }
    };
    for (n, content) in contents.iter().enumerate() {
        check(&**content, Pattern(n as u16));
    }
    drop(contents);
    let store = folder.again(store);
    if !store.is_durable() {
        store.assert_empty();
        return;
    }
    assert_eq!(store.list().unwrap().len(), 3);
    for n in 0..3 {
        check(&*store.torrent(n), Pattern(n as u16));
    }
}

pub(crate) fn readers_never_see_bytes_of_another_torrent(subject: &dyn Subject) {
    let (_folder, store) = Folder::opened(subject);
    let length = 4 * BLOCK;
    let read = |thread: usize, n: u64| {
        let Some(content) =
            assert_only(store.open(&hash(n % 3)), |error| matches!(error, Error::NotFound(_)))
        else {
            return;
        };
        // One handle always shows one torrent, any of the torrents with this info hash.
        let mut own = None;
        for at in 0..4 {
            let start = (thread as u64 * 1000 + 1500 * at + n) % (length - 4000);
            let mut bytes = vec![0xa5; 4000];
            let allowed = |error: &Error| matches!(error, Error::NotWritten { .. } | Error::Deleted);
            if assert_only(content.read(start, &mut bytes), allowed).is_none() {
                continue;
            }
            let pattern = *own.get_or_insert_with(|| {
                let patterns = (0..300).map(|nth| Pattern((3 * nth + n % 3) as u16));
                patterns
                    .into_iter()
                    .find(|pattern| pattern.bytes(start..start + 16) == bytes[..16])
                    .expect("a torrent's")
            });
            assert_bytes(&bytes, start, pattern);
            assert_nothing_of_others(&bytes, &[pattern]);
        }
    };
    while_doing(3, read, || {
        for round in rounds(300) {
            let content = store.new_torrent(round % 3, length, BLOCK as u32);
            let pattern = Pattern((3 * (round / 3) + round % 3) as u16);
            for start in (0..length).step_by(10_000) {
                put(&*content, start..(start + 10_000).min(length), pattern);
            }
            if round % 2 == 0 {
                assert!(content.mark_complete(1).unwrap());
            }
            if round >= 2 {
                assert!(store.delete(&hash((round - 2) % 3)).unwrap());
            }
        }
    });
}

pub(crate) fn list_shows_what_stays_while_torrents_come_and_go(subject: &dyn Subject) {
    let (_folder, store) = Folder::opened(subject);
    for n in 0..30 {
        complete(&*store.new_torrent(n, 1000, 100), 3, Pattern(n as u16));
    }
    let stay: Vec<_> = (0..30).map(hash).collect();
    let come_and_go = |thread: usize, n: u64| {
        let n = 100 * (1 + thread as u64) + n % 50;
        drop(store.new_torrent(n, 2000, 100));
        assert!(store.delete(&hash(n)).unwrap());
    };
    while_doing(2, come_and_go, || {
        for _ in rounds(200) {
            let listed = store.list().unwrap();
            assert!(listed.is_sorted_by(|a, b| a.info_hash < b.info_hash), "unsorted, or one twice");
            let stayed: Vec<_> = listed.iter().filter(|summary| stay.contains(&summary.info_hash)).collect();
            assert!(stayed.len() == 30 && stayed.iter().all(|summary| summary.complete == 1));
            let torrents = store.statistics().torrents;
            assert!((30..=32).contains(&torrents), "{torrents} torrents, of which 30 stay and 2 come and go");
        }
    });
}

pub(crate) fn threads_with_torrents_of_their_own_do_not_disturb_one_another(subject: &dyn Subject) {
    let (_folder, store) = Folder::opened(subject);
    at_once(THREADS, |thread| {
        let mut draw = Draw::new(thread as u64);
        let pattern = Pattern(thread as u16);
        for n in 0..5 {
            let n = 10 * thread as u64 + n;
            let content: Arc<dyn Content> = store.new_torrent(n, 100_000 + n, 7001);
            let mut order: Vec<_> = (0..content.geometry().pieces()).collect();
            draw.shuffle(&mut order);
            for &piece in &order {
                complete(&*content, piece, pattern);
            }
            assert_reads(&*content, 0..100_000 + n, pattern);
            if n.is_multiple_of(2) {
                assert!(store.delete(&hash(n)).unwrap());
            }
        }
    });
    for thread in 0..THREADS as u64 {
        for n in (0..5).map(|n| 10 * thread + n).filter(|n| n % 2 == 1) {
            assert_reads(&*store.torrent(n), 0..100_000 + n, Pattern(thread as u16));
        }
    }
}
