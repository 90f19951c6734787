//! Random stories, of all operations in any order, that must go as they go with the model.

use std::{
    collections::BTreeMap,
    fmt::Debug,
    io::{IoSlice, IoSliceMut},
    panic::{self, AssertUnwindSafe},
    sync::Arc,
};

use swarmkeep_content::{Content, ContentExt, ContentRepository, Geometry, NewTorrent};

use crate::content::{Model, Subject, kit::*};

/// A step of a story. Its numbers are random, and count modulo the number of choices.
#[derive(Debug, Clone, Copy)]
enum StoryStep {
    Create { n: u64, measures: u64 },
    Open { n: u64 },
    Delete { n: u64 },
    Write { handle: u64, start: u64, len: u64, pattern: Pattern },
    Finish { handle: u64, piece: u64, pattern: Pattern },
    Read { handle: u64, start: u64, len: u64 },
    Mark { handle: u64, piece: u64, complete: bool },
    List,
    Flush,
    Reopen,
    Copy,
}

type Measures = &'static [(u64, u32)];

const SMALL: Measures = &[(1, 1), (50, 7), (64, 64), (100, 1000), (777, 100)];
const MEDIUM: Measures = &[(20_000, 4096), (50_001, 1 << 14), (9000, 513), (40_000, 1 << 15)];
const LARGE: Measures = &[(1 << 19, 1 << 17), (700_001, 1 << 18), (300_000, 99_999)];

pub(crate) fn random_stories_of_small_torrents_go_as_with_the_model(subject: &dyn Subject) {
    (1..=6).for_each(|seed| tell(subject, seed, 500, SMALL));
}

pub(crate) fn random_stories_of_torrents_of_many_blocks_go_as_with_the_model(subject: &dyn Subject) {
    (11..=14).for_each(|seed| tell(subject, seed, 500, MEDIUM));
}

pub(crate) fn random_stories_of_large_torrents_go_as_with_the_model(subject: &dyn Subject) {
    tell(subject, 21, 300, LARGE);
}

pub(crate) fn a_long_random_story_goes_as_with_the_model(subject: &dyn Subject) {
    tell(subject, 31, 4000, MEDIUM);
}

/// Puts the store through a story. If it fails, repeats it with fewer steps, as long as it still fails.
fn tell(subject: &dyn Subject, seed: u64, steps: usize, measures: Measures) {
    let mut draw = Draw::new(seed);
    let mut story: Vec<_> = (0..steps).map(|_| step(&mut draw)).collect();
    let fails = |story: &[StoryStep]| {
        panic::catch_unwind(AssertUnwindSafe(|| go_through(subject, story, measures))).is_err()
    };
    if !fails(&story) {
        return;
    }
    let mut part = story.len() / 2;
    let mut tries = 200;
    while part > 0 && tries > 0 {
        let mut start = 0;
        while start < story.len() && tries > 0 {
            let mut shorter = story.clone();
            shorter.drain(start..(start + part).min(shorter.len()));
            tries -= 1;
            if fails(&shorter) {
                story = shorter;
            } else {
                start += part;
            }
        }
        part /= 2;
    }
    eprintln!("seed {seed}, {} steps of {steps}: {story:#?}", story.len());
    go_through(subject, &story, measures);
    panic!("it went wrong only sometimes");
}

fn step(draw: &mut Draw) -> StoryStep {
    let (n, handle, piece) = (draw.below(4), draw.next(), draw.next());
    let pattern = Pattern(draw.below(4096) as u16);
    match draw.below(1000) {
        0..60 => StoryStep::Create { n, measures: draw.next() },
        60..120 => StoryStep::Open { n },
        120..145 => StoryStep::Delete { n },
        145..400 => StoryStep::Write { handle, start: draw.next(), len: draw.next(), pattern },
        400..540 => StoryStep::Finish { handle, piece, pattern },
        540..780 => StoryStep::Read { handle, start: draw.next(), len: draw.next() },
        drawn @ 780..935 => StoryStep::Mark { handle, piece, complete: drawn < 900 },
        935..960 => StoryStep::List,
        960..980 => StoryStep::Flush,
        980..993 => StoryStep::Reopen,
        _ => StoryStep::Copy,
    }
}

type ContentPair = (Arc<dyn Content>, Arc<dyn Content>);

fn go_through(subject: &dyn Subject, story: &[StoryStep], measures: Measures) {
    let (folder, mut store) = Folder::opened(subject);
    let mut model = Model::in_memory();
    // Some are of torrents that were deleted.
    let mut handles: Vec<ContentPair> = Vec::new();
    let mut draw = Draw::new(story.len() as u64);
    for &step in story {
        match step {
            StoryStep::Create { n, measures: nth } => {
                let (length, piece_length) = measures[nth as usize % measures.len()];
                let torrent = NewTorrent::new(hash(n), length, piece_length).unwrap();
                handles.extend(both(step, said(store.create(&torrent)), said(model.create(&torrent))));
            }
            StoryStep::Open { n } => {
                handles.extend(both(step, said(store.open(&hash(n))), said(model.open(&hash(n)))));
            }
            StoryStep::Delete { n } => same(step, said(store.delete(&hash(n))), said(model.delete(&hash(n)))),
            StoryStep::List => same(step, said(store.list()), said(model.list())),
            StoryStep::Flush => same(step, said(store.flush()), said(model.flush())),
            StoryStep::Copy => {
                assert_survives(&folder.copy().open(), &model);
            }
            StoryStep::Reopen => {
                handles.clear();
                store = folder.again(store);
                match assert_survives(&store, &model) {
                    Some(survived) => model.reopen(|info_hash, piece| survived[&info_hash].contains(&piece)),
                    None => model = Model::in_memory(),
                }
            }
            _ => {
                if handles.len() > 12 {
                    handles.drain(..6);
                }
                if !handles.is_empty() {
                    with_content(step, &handles, &mut draw);
                }
            }
        }
    }
    for info_hash in (0..4).map(hash) {
        if let (Ok(content), Ok(model)) = (store.open(&info_hash), model.open(&info_hash)) {
            assert_same_content(&*content, &*model);
        }
    }
}

fn with_content(step: StoryStep, handles: &[ContentPair], draw: &mut Draw) {
    let of = |handle: u64| &handles[handle as usize % handles.len()];
    let is_there = |model: &Arc<dyn Content>| model.pieces().is_ok();
    match step {
        StoryStep::Write { handle, start, len, pattern } => {
            let (content, model) = of(handle);
            let range = range(model.geometry(), start, len, is_there(model));
            let bytes = pattern.bytes(range.clone());
            let (mut rest, mut buffers) = (&bytes[..], Vec::new());
            for len in draw.split(bytes.len() as u64) {
                let (now, later) = rest.split_at(len);
                buffers.push(IoSlice::new(now));
                rest = later;
            }
            let [said, expected] = [content, model].map(|it| said(it.write_at(range.start, &buffers)));
            same(step, said, expected);
        }
        StoryStep::Finish { handle, piece, pattern } => {
            let (content, model) = of(handle);
            let piece = (piece % u64::from(model.geometry().pieces())) as u32;
            let range = model.geometry().piece(piece).unwrap();
            let bytes = pattern.bytes(range.clone());
            let written = [content, model].map(|it| said(it.write(range.start, &bytes)));
            let marked = [content, model].map(|it| said(it.mark_complete(piece)));
            let ([said, expected], [said_of_mark, expected_of_mark]) = (written, marked);
            same(step, said, expected);
            same(step, said_of_mark, expected_of_mark);
        }
        StoryStep::Read { handle, start, len } => {
            let (content, model) = of(handle);
            let range = range(model.geometry(), start, len, is_there(model));
            let lengths = draw.split(range.end - range.start);
            let [(said, bytes), (expected, expected_bytes)] = [content, model].map(|it| {
                let mut buffers: Vec<_> = lengths.iter().map(|&len| vec![0xa5; len]).collect();
                let mut slices: Vec<_> = buffers.iter_mut().map(|buffer| IoSliceMut::new(buffer)).collect();
                let said = said(it.read_at(range.start, &mut slices));
                (said, buffers.concat())
            });
            let is_read = expected.is_ok();
            same(step, said, expected);
            if is_read {
                assert_same_bytes(&bytes, &expected_bytes, range.start);
            }
        }
        StoryStep::Mark { handle, piece, complete } => {
            let (content, model) = of(handle);
            let piece = (piece % (u64::from(model.geometry().pieces()) + u64::from(is_there(model)))) as u32;
            let mark = if complete { Content::mark_complete } else { Content::mark_incomplete };
            same(step, said(mark(&**content, piece)), said(mark(&**model, piece)));
            same(step, said(content.pieces()), said(model.pieces()));
        }
        _ => unreachable!("it needs no content"),
    }
}

/// A range: often of a block or less, sometimes of everything, and seldom, if the torrent is still there, one
/// that it does not have.
fn range(geometry: Geometry, start: u64, len: u64, may_be_beyond: bool) -> std::ops::Range<u64> {
    let length = geometry.len();
    if len.is_multiple_of(17) {
        return 0..length;
    }
    let start = start % (length + u64::from(len.is_multiple_of(2)));
    let end = start + (len >> 8) % 20_000.min(length + 1);
    start..if may_be_beyond && len.is_multiple_of(13) { end } else { end.min(length) }
}

/// Asserts that a reopened store has all pieces that it must have and none that it must not. Returns these
/// pieces, if it is durable.
fn assert_survives(store: &Store, model: &Model) -> Option<BTreeMap<swarmkeep_content::InfoHash, Vec<u32>>> {
    if !store.is_durable() {
        store.assert_empty();
        return None;
    }
    let [listed, expected] = [store.list().unwrap(), model.list().unwrap()].map(|list| {
        list.into_iter().map(|summary| (summary.info_hash, summary.geometry)).collect::<Vec<_>>()
    });
    assert_eq!(listed, expected, "the list of the reopened store");
    let mut survived = BTreeMap::new();
    for (info_hash, geometry) in listed {
        let (content, expected) = (store.open(&info_hash).unwrap(), model.open(&info_hash).unwrap());
        let (pieces, were_complete) = (content.pieces().unwrap(), expected.pieces().unwrap());
        for piece in 0..geometry.pieces() {
            if pieces.contains(piece) {
                assert!(were_complete.contains(piece), "piece {piece} of {info_hash} was not complete");
                let start = geometry.piece(piece).unwrap().start;
                assert_same_bytes(
                    &content.read_piece(piece).unwrap(),
                    &expected.read_piece(piece).unwrap(),
                    start,
                );
            } else {
                assert!(!model.is_durable(info_hash, piece), "piece {piece} of {info_hash} was flushed");
            }
        }
        survived.insert(info_hash, pieces.iter().collect());
    }
    Some(survived)
}

fn assert_same_content(content: &dyn Content, model: &dyn Content) {
    let geometry = model.geometry();
    assert_eq!(content.pieces().unwrap(), model.pieces().unwrap());
    for start in (0..geometry.len()).step_by(1000) {
        let len = (geometry.len() - start).min(1000);
        let [(said, bytes), (expected, expected_bytes)] = [content, model].map(|it| {
            let mut bytes = vec![0xa5; len as usize];
            (said(it.read(start, &mut bytes)), bytes)
        });
        assert_eq!(said, expected);
        if expected.is_ok() {
            assert_same_bytes(&bytes, &expected_bytes, start);
        }
    }
}

fn assert_same_bytes(bytes: &[u8], expected: &[u8], start: u64) {
    let wrong = (0..bytes.len()).find(|&at| bytes[at] != expected[at]);
    assert_eq!(
        wrong.map(|at| start + at as u64),
        None,
        "the first byte that reads otherwise than with the model"
    );
}

fn same<T: PartialEq + Debug>(step: StoryStep, said: Result<T, String>, expected: Result<T, String>) {
    assert_eq!(said, expected, "{step:?}");
}

fn both<T: Debug>(step: StoryStep, said: Result<T, String>, expected: Result<T, String>) -> Option<(T, T)> {
    match (said, expected) {
        (Ok(content), Ok(model)) => Some((content, model)),
        (Err(said), Err(expected)) if said == expected => None,
        (said, expected) => panic!("{step:?}: {said:?}, and with the model: {expected:?}"),
    }
}
