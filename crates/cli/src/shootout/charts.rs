//! Charts of a shootout: a file for each question, a bar for each number.

use std::{error::Error, path::Path};

use plotters::{
    prelude::{IntoDrawingArea, Rectangle, SVGBackend, Text},
    style::{
        BLACK, Color, IntoFont, RGBColor, TextStyle, WHITE,
        text_anchor::{HPos, Pos, VPos},
    },
};

use super::{
    report::{Report, Row, Value, significant},
    work::Kind,
};

/// Draws every chart for which there are numbers.
pub(crate) fn draw(report: &Report, directory: &Path) -> Result<(), Box<dyn Error>> {
    let speed = |kind| {
        let series = report.thread_counts().into_iter().map(move |threads| {
            let label = format!("{threads} thread{}", if threads == 1 { "" } else { "s" });
            Series::new(label, kind, move |row| row.ns_per_announce.filter(|_| row.threads == threads))
        });
        series.collect::<Vec<_>>()
    };
    let tail = vec![
        Series::new("zipf", Kind::Zipf, |row| row.p999_ns.map(|ns| ns as f64)),
        Series::new("hot", Kind::Hot, |row| row.p999_ns.map(|ns| ns as f64)),
    ];
    let bytes = vec![
        Series::new("a swarm, live", Kind::OnePeer, |row| row.live_bytes_per_swarm),
        Series::new("a swarm, RSS", Kind::OnePeer, |row| row.rss_bytes_per_swarm),
        Series::new("a peer, live", Kind::OneSwarm, |row| row.live_bytes_per_peer),
        Series::new("a peer, RSS", Kind::OneSwarm, |row| row.rss_bytes_per_peer),
    ];
    for (file, title, series) in [
        ("zipf.svg", "Nanoseconds an announce, Zipf's law", speed(Kind::Zipf)),
        ("hot.svg", "Nanoseconds an announce, one hot swarm", speed(Kind::Hot)),
        ("tail.svg", "99.9 % of announces within, during a sweep (ns)", tail),
        ("memory.svg", "Bytes: a swarm of one peer, and a peer of one large swarm", bytes),
    ] {
        bars(report, &directory.join(file), title, &series)?;
    }
    Ok(())
}

/// Bars of one colour: one for each store.
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

const COLOURS: [RGBColor; 4] =
    [RGBColor(31, 119, 180), RGBColor(255, 127, 14), RGBColor(44, 160, 44), RGBColor(148, 103, 189)];
const WIDTH: i32 = 1000;
/// Where bars begin: right of the longest name in the catalog.
const LEFT: i32 = 330;
/// Room for the number behind the longest bar.
const RIGHT: i32 = 100;
const TOP: i32 = 70;
const BAR: i32 = 16;
const GAP: i32 = 12;

fn bars(report: &Report, path: &Path, title: &str, series: &[Series]) -> Result<(), Box<dyn Error>> {
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
    let height = TOP + block * stores.len() as i32;
    let area = SVGBackend::new(path, (WIDTH as u32, height as u32)).into_drawing_area();
    area.fill(&WHITE)?;
    area.draw(&Text::new(title, (LEFT, 12), font(22, HPos::Left)))?;
    for (n, (label, _)) in series.iter().enumerate() {
        let x = LEFT + n as i32 * (WIDTH - LEFT) / series.len() as i32;
        area.draw(&Rectangle::new([(x, 40), (x + 10, 50)], COLOURS[n].filled()))?;
        area.draw(&Text::new(label.as_str(), (x + 14, 39), font(15, HPos::Left)))?;
    }
    for (row, store) in stores.into_iter().enumerate() {
        let top = TOP + block * row as i32;
        let middle = top + BAR * series.len() as i32 / 2;
        area.draw(&Text::new(store, (LEFT - 8, middle - 6), font(15, HPos::Right)))?;
        for (n, (_, numbers)) in series.iter().enumerate() {
            let Some(number) = numbers[row] else { continue };
            let y = top + BAR * n as i32;
            let end = LEFT + (number / longest * f64::from(WIDTH - LEFT - RIGHT)) as i32;
            area.draw(&Rectangle::new([(LEFT, y), (end.max(LEFT + 1), y + BAR - 2)], COLOURS[n].filled()))?;
            area.draw(&Text::new(significant(number), (end + 6, y), font(15, HPos::Left)))?;
        }
    }
    area.present()?;
    Ok(())
}

fn font(size: i32, side: HPos) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(&BLACK).pos(Pos::new(side, VPos::Top))
}
