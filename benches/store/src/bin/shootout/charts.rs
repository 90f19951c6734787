//! Bar charts of a shootout.

use std::{error::Error, path::Path};

use plotters::{
    prelude::{IntoDrawingArea, Rectangle, SVGBackend, Text},
    style::{Color, WHITE, text_anchor::HPos},
};
use swarmkeep_benches::charts::{Scale, colour, font};
use swarmkeep_workload::tables::significant;

use super::{
    report::{Report, Value, in_words},
    row::{Number, Row},
    work::Kind,
};

/// Draws every chart for which there are numbers.
pub(crate) fn draw(report: &Report, directory: &Path) -> Result<(), Box<dyn Error>> {
    let speed = |kind| {
        let series = report.ways().into_iter().map(move |way| {
            Series::new(in_words(way), kind, move |row| {
                row.get(Number::NsPerAnnounce).filter(|_| (row.threads, row.batch) == way)
            })
        });
        series.collect::<Vec<_>>()
    };
    let of = |label: &str, kind, number| Series::new(label, kind, move |row| row.get(number));
    let tail = vec![of("zipf", Kind::Zipf, Number::P999Ns), of("hot", Kind::Hot, Number::P999Ns)];
    let bytes = vec![
        of("per swarm of one peer", Kind::OnePeer, Number::RssBytesPerSwarm),
        of("per peer of one large swarm", Kind::OneSwarm, Number::RssBytesPerPeer),
    ];
    for (file, title, series) in [
        ("zipf.svg", "Nanoseconds per announce, swarm sizes by Zipf's law", speed(Kind::Zipf)),
        ("hot.svg", "Nanoseconds per announce, one hot swarm", speed(Kind::Hot)),
        ("tail.svg", "99.9th percentile of announces during a sweep, nanoseconds", tail),
        ("memory.svg", "Bytes of resident memory, logarithmic scale", bytes),
    ] {
        let scale = if file == "memory.svg" { Scale::Logarithmic } else { Scale::Linear };
        bars(report, &directory.join(file), title, &series, scale)?;
    }
    Ok(())
}

/// The bars of one colour: one for each store.
struct Series {
    label: String,
    kind: Kind,
    value: Value,
}

impl Series {
    fn new(label: impl Into<String>, kind: Kind, value: impl Fn(&Row) -> Option<f64> + 'static) -> Self {
        Self { label: label.into(), kind, value: Box::new(value) }
    }
}

const WIDTH: i32 = 1000;
/// The left end of the bars: right of the longest name in the catalog.
const LEFT: i32 = 330;
/// The room for the number after the longest bar.
const RIGHT: i32 = 100;
const TOP: i32 = 50;
/// The number of labels side by side.
const LEGEND: usize = 4;
/// The height of a label.
const LABEL: i32 = 20;
const BAR: i32 = 16;
const GAP: i32 = 12;

/// Logarithmic bars begin at 1.
fn bars(
    report: &Report,
    path: &Path,
    title: &str,
    series: &[Series],
    scale: Scale,
) -> Result<(), Box<dyn Error>> {
    let numbers = |series: &Series| -> Vec<Option<f64>> {
        report.stores().iter().map(|store| report.find(store, series.kind, &series.value)).collect()
    };
    let series: Vec<_> = series.iter().map(|series| (&series.label, numbers(series))).collect();
    let longest = series.iter().flat_map(|(_, numbers)| numbers).flatten().copied().fold(0.0, f64::max);
    if longest == 0.0 {
        return Ok(());
    }

    let stores = report.stores();
    let block = BAR * series.len() as i32 + GAP;
    let legends = series.len().div_ceil(LEGEND) as i32;
    let first = TOP + legends * LABEL;
    let height = first + block * stores.len() as i32;
    let area = SVGBackend::new(path, (WIDTH as u32, height as u32)).into_drawing_area();
    area.fill(&WHITE)?;
    area.draw(&Text::new(title, (LEFT, 12), font(22, HPos::Left)))?;
    for (n, (label, _)) in series.iter().enumerate() {
        let x = LEFT + (n % LEGEND) as i32 * (WIDTH - LEFT) / LEGEND as i32;
        let y = 40 + (n / LEGEND) as i32 * LABEL;
        area.draw(&Rectangle::new([(x, y), (x + 10, y + 10)], colour(n).filled()))?;
        area.draw(&Text::new(label.as_str(), (x + 14, y - 1), font(15, HPos::Left)))?;
    }
    for (row, store) in stores.into_iter().enumerate() {
        let top = first + block * row as i32;
        let middle = top + BAR * series.len() as i32 / 2;
        area.draw(&Text::new(store, (LEFT - 8, middle - 6), font(15, HPos::Right)))?;
        for (n, (_, numbers)) in series.iter().enumerate() {
            let Some(number) = numbers[row] else { continue };
            let y = top + BAR * n as i32;
            let share = match scale {
                Scale::Linear => number / longest,
                Scale::Logarithmic => number.max(1.0).ln() / longest.ln(),
            };
            let end = LEFT + (share * f64::from(WIDTH - LEFT - RIGHT)) as i32;
            area.draw(&Rectangle::new([(LEFT, y), (end.max(LEFT + 1), y + BAR - 2)], colour(n).filled()))?;
            area.draw(&Text::new(significant(number), (end + 6, y), font(15, HPos::Left)))?;
        }
    }
    area.present()?;
    Ok(())
}
