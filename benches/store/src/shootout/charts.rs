//! Bar charts of a shootout.

use std::{error::Error, path::Path};

use super::{
    report::{Report, in_words},
    row::{Number, Row},
    work::Shape,
};
use crate::charts::{Scale, Series, bars};

/// Draws every chart for which there are numbers.
pub(crate) fn draw(report: &Report, directory: &Path) -> Result<(), Box<dyn Error>> {
    let stores = report.stores();
    let series = |label: &str, shape, value: &dyn Fn(&Row) -> Option<f64>| -> Series {
        (label.to_owned(), stores.iter().map(|store| report.find(store, shape, value)).collect())
    };
    let speed = |shape| {
        let series = report.ways().into_iter().map(|way| {
            series(&in_words(way), shape, &|row| {
                row.get(Number::NsPerAnnounce).filter(|_| (row.threads, row.batch) == way)
            })
        });
        series.collect::<Vec<_>>()
    };
    let of = |label, shape, number| series(label, shape, &|row| row.get(number));
    let tail = vec![of("zipf", Shape::Zipf, Number::P999Ns), of("hot", Shape::Hot, Number::P999Ns)];
    let bytes = vec![
        of("per swarm of one peer", Shape::OnePeer, Number::RssBytesPerSwarm),
        of("per peer of one large swarm", Shape::OneSwarm, Number::RssBytesPerPeer),
    ];
    let (way, time) = speed(Shape::Zipf).pop().unwrap_or_default();
    let title = format!("Time ({way}) and memory, as multiples of {}", stores.first().unwrap_or(&""));
    let main = [("ns per announce", &time), ("bytes per swarm of 1 peer", &bytes[0].1)];
    let main = main.map(|(label, numbers)| -> Series {
        let first = numbers.first().copied().flatten().filter(|&first| first > 0.0);
        (label.to_owned(), numbers.iter().map(|number| Some((*number)? / first?)).collect())
    });
    for (file, title, series, scale) in [
        ("stores", &*title, main.to_vec(), Scale::Linear),
        ("zipf", "Nanoseconds per announce, swarm sizes by Zipf's law", speed(Shape::Zipf), Scale::Linear),
        ("hot", "Nanoseconds per announce, one hot swarm", speed(Shape::Hot), Scale::Linear),
        ("tail", "99.9th percentile of announces during a sweep, nanoseconds", tail, Scale::Linear),
        ("memory", "Bytes of resident memory, logarithmic scale", bytes, Scale::Logarithmic),
    ] {
        bars(&directory.join(file).with_extension("svg"), title, &stores, &series, scale)?;
    }
    Ok(())
}
