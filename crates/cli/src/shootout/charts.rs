//! Charts of a shootout: bars for what is compared, lines for what grows.

use std::{error::Error, path::Path};

use plotters::{
    coord::Shift,
    prelude::{Circle, DrawingArea, IntoDrawingArea, PathElement, Rectangle, SVGBackend, Text},
    style::{
        BLACK, Color, IntoFont, RGBColor, ShapeStyle, TextStyle, WHITE,
        text_anchor::{HPos, Pos, VPos},
    },
};

use super::{
    report::{Report, Value, in_words, significant},
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
        of("a swarm, live", Kind::OnePeer, Number::LiveBytesPerSwarm),
        of("a swarm, RSS", Kind::OnePeer, Number::RssBytesPerSwarm),
        of("a peer, live", Kind::OneSwarm, Number::LiveBytesPerPeer),
        of("a peer, RSS", Kind::OneSwarm, Number::RssBytesPerPeer),
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

/// A colour that neighbours in a chart do not share.
const fn colour(n: usize) -> RGBColor {
    const COLOURS: [RGBColor; 8] = [
        RGBColor(31, 119, 180),
        RGBColor(255, 127, 14),
        RGBColor(44, 160, 44),
        RGBColor(148, 103, 189),
        RGBColor(214, 39, 40),
        RGBColor(140, 86, 75),
        RGBColor(227, 119, 194),
        RGBColor(127, 127, 127),
    ];
    COLOURS[n % COLOURS.len()]
}

const WIDTH: i32 = 1000;
/// Where bars begin: right of the longest name in the catalog.
const LEFT: i32 = 330;
/// Room for the number behind the longest bar.
const RIGHT: i32 = 100;
const TOP: i32 = 50;
/// Labels side by side.
const LEGEND: usize = 4;
/// Height of a label.
const LABEL: i32 = 20;
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
            let end = LEFT + (number / longest * f64::from(WIDTH - LEFT - RIGHT)) as i32;
            area.draw(&Rectangle::new([(LEFT, y), (end.max(LEFT + 1), y + BAR - 2)], colour(n).filled()))?;
            area.draw(&Text::new(significant(number), (end + 6, y), font(15, HPos::Left)))?;
        }
    }
    area.present()?;
    Ok(())
}

/// One line of a chart. Lines of one colour have one label.
pub(crate) struct Line {
    pub(crate) label: String,
    pub(crate) colour: usize,
    pub(crate) dashed: bool,
    pub(crate) points: Vec<(f64, f64)>,
}

/// Where the lines are: left and right of them are the numbers of the axis and the labels.
const PLOT: Plot = Plot { left: 70, right: 640, top: 60, bottom: 440 };

/// Draws lines over two logarithmic axes; nothing if there is not even one line.
pub(crate) fn lines(path: &Path, title: &str, grows: &str, lines: &[Line]) -> Result<(), Box<dyn Error>> {
    let points = || lines.iter().flat_map(|line| &line.points);
    let mut xs: Vec<_> = points().map(|&(x, _)| x).collect();
    xs.sort_by(f64::total_cmp);
    xs.dedup();
    if xs.len() < 2 {
        return Ok(());
    }
    let ys = round_numbers(points().map(|&(_, y)| y));
    let (x_axis, y_axis) = (Axis::over(&xs), Axis::over(&ys));
    let at = |&(x, y): &(f64, f64)| PLOT.at(x_axis.share(x), y_axis.share(y));

    let labels = lines.iter().filter(|line| !line.dashed).count() as i32;
    let height = (PLOT.bottom + 60).max(PLOT.top + labels * LABEL);
    let area = SVGBackend::new(path, (WIDTH as u32, height as u32)).into_drawing_area();
    area.fill(&WHITE)?;
    area.draw(&Text::new(title.to_owned(), (PLOT.left, 16), font(20, HPos::Left)))?;
    area.draw(&Text::new(grows.to_owned(), (PLOT.right, PLOT.bottom + 32), font(15, HPos::Right)))?;
    let grid = RGBColor(221, 221, 221).stroke_width(1);
    for &y in &ys {
        let [left, right] = [0.0, 1.0].map(|x| PLOT.at(x, y_axis.share(y)));
        area.draw(&PathElement::new(vec![left, right], grid))?;
        area.draw(&Text::new(short(y), (left.0 - 8, left.1 - 7), font(14, HPos::Right)))?;
    }
    for &x in &xs {
        let [bottom, top] = [0.0, 1.0].map(|y| PLOT.at(x_axis.share(x), y));
        area.draw(&PathElement::new(vec![bottom, top], grid))?;
        area.draw(&Text::new(short(x), (bottom.0, bottom.1 + 8), font(13, HPos::Center)))?;
    }
    let mut label = PLOT.top;
    for line in lines {
        let style = colour(line.colour).stroke_width(2);
        let points: Vec<_> = line.points.iter().map(at).collect();
        draw_line(&area, &points, style, line.dashed)?;
        if !line.dashed {
            for &point in &points {
                area.draw(&Circle::new(point, 3, style.filled()))?;
            }
            let x = PLOT.right + 20;
            area.draw(&Rectangle::new([(x, label), (x + 10, label + 10)], style.filled()))?;
            area.draw(&Text::new(line.label.clone(), (x + 16, label - 2), font(13, HPos::Left)))?;
            label += LABEL;
        }
    }
    area.present()?;
    Ok(())
}

fn draw_line(
    area: &DrawingArea<SVGBackend<'_>, Shift>,
    points: &[(i32, i32)],
    style: ShapeStyle,
    dashed: bool,
) -> Result<(), Box<dyn Error>> {
    for ends in points.windows(2) {
        let [from, to] = [ends[0], ends[1]].map(|(x, y)| (f64::from(x), f64::from(y)));
        let length = (to.0 - from.0).hypot(to.1 - from.1);
        // One part, or dashes as long as the gaps.
        let parts = if dashed { ((length / 10.0) as usize).max(1) } else { 1 };
        let at = |share: f64| {
            ((from.0 + (to.0 - from.0) * share) as i32, (from.1 + (to.1 - from.1) * share) as i32)
        };
        for part in 0..parts {
            let start = part as f64 / parts as f64;
            let end = start + if dashed { 0.5 } else { 1.0 } / parts as f64;
            area.draw(&PathElement::new(vec![at(start), at(end)], style))?;
        }
    }
    Ok(())
}

/// The rectangle in which lines are drawn.
struct Plot {
    left: i32,
    right: i32,
    top: i32,
    bottom: i32,
}

impl Plot {
    /// The pixel at so much of the width and of the height, from the lower left corner.
    fn at(&self, x: f64, y: f64) -> (i32, i32) {
        let (width, height) = (f64::from(self.right - self.left), f64::from(self.bottom - self.top));
        (self.left + (x * width) as i32, self.bottom - (y * height) as i32)
    }
}

/// A logarithmic axis.
struct Axis {
    first: f64,
    last: f64,
}

impl Axis {
    /// From the first of these numbers to the last.
    fn over(numbers: &[f64]) -> Self {
        Self { first: numbers[0].ln(), last: numbers[numbers.len() - 1].ln() }
    }

    fn share(&self, number: f64) -> f64 {
        (number.ln() - self.first) / (self.last - self.first)
    }
}

/// 1, 2 or 5 times powers of ten, from the last that is not above all numbers to the first that is not below them.
fn round_numbers(numbers: impl Iterator<Item = f64> + Clone) -> Vec<f64> {
    let (least, most) = numbers
        .fold((f64::MAX, f64::MIN_POSITIVE), |(least, most), number| (least.min(number), most.max(number)));
    let all: Vec<_> =
        (-9..12).flat_map(|power| [1.0, 2.0, 5.0].map(|digit| digit * 10_f64.powi(power))).collect();
    let first = all.partition_point(|&number| number <= least).saturating_sub(1);
    let last = all.partition_point(|&number| number < most).max(first + 1);
    all[first..=last].to_vec()
}

/// `20`, `500 k`, `2 M`.
fn short(number: f64) -> String {
    match number {
        1e6.. => format!("{} M", number / 1e6),
        1e4.. => format!("{} k", number / 1e3),
        _ => format!("{}", (number * 1e3).round() / 1e3),
    }
}

fn font(size: i32, side: HPos) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(&BLACK).pos(Pos::new(side, VPos::Top))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_begin_and_end_with_round_numbers() {
        let around = |numbers: &[f64]| round_numbers(numbers.iter().copied());
        assert_eq!(around(&[8.1, 30.0]), [5.0, 10.0, 20.0, 50.0]);
        assert_eq!(around(&[100.0, 100.0]), [100.0, 200.0]);
        assert_eq!([20.0, 1000.0, 50_000.0, 2e6, 0.5].map(short), ["20", "1000", "50 k", "2 M", "0.5"]);
    }

    #[test]
    fn a_log_axis_spreads_factors_evenly() {
        let axis = Axis::over(&[10.0, 100.0, 1000.0]);
        assert!((axis.share(100.0) - 0.5).abs() < 1e-9);
        assert_eq!(PLOT.at(0.0, 0.0), (PLOT.left, PLOT.bottom));
    }
}
