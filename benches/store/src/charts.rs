//! Charts as SVG: lines, dots and bars.

use std::{io, path::Path};

use plotters::{
    coord::Shift,
    drawing::{DrawingArea, DrawingAreaErrorKind},
    prelude::{Circle, IntoDrawingArea, PathElement, Rectangle, SVGBackend, Text},
    style::{
        BLACK, Color, IntoFont, RGBColor, TextStyle, WHITE,
        text_anchor::{HPos, Pos, VPos},
    },
};

use crate::tables::significant;

type Failure = DrawingAreaErrorKind<io::Error>;
type Sheet<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// One line, the dots of one colour, or the bars of one colour.
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    /// The label beside a line.
    pub label: String,
    /// The number of its colour.
    pub colour: usize,
    /// The points, from left to right.
    pub points: Vec<(f64, f64)>,
}

/// The bars of one colour: a label, and a number for each row of bars.
pub type Series = (String, Vec<Option<f64>>);

/// The scale of an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// Evenly.
    Linear,
    /// By factors.
    Logarithmic,
}

const WIDTH: i32 = 1000;
/// The height of a label.
const LABEL: i32 = 20;
/// A line with more points than this is drawn without point marks.
const POINTS: usize = 40;

/// Draws lines over a logarithmic axis of values; draws nothing if there are no lines. `grows` is the title
/// of the horizontal axis.
pub fn lines(path: &Path, title: &str, grows: &str, scale: Scale, lines: &[Line]) -> io::Result<()> {
    let mut xs: Vec<_> = lines.iter().flat_map(|line| &line.points).map(|&(x, _)| x).collect();
    xs.sort_by(f64::total_cmp);
    xs.dedup();
    if xs.len() < 2 {
        return Ok(());
    }
    if lines.iter().any(|line| line.points.len() > POINTS) {
        xs = scale.round(xs.into_iter());
    }
    let draw = || {
        let (plot, scales) = (Plot { right: 640, ..PLOT }, [scale, Scale::Logarithmic]);
        let frame = Frame::new(path, [title, grows], plot, (scales, &xs), lines)?;
        let sheet = &frame.sheet;
        let mut label = plot.top;
        for line in lines {
            let style = colour(line.colour).stroke_width(2);
            let points: Vec<_> = line.points.iter().map(|&point| frame.at(point)).collect();
            sheet.draw(&PathElement::new(points.clone(), style))?;
            for &point in points.iter().filter(|_| points.len() <= POINTS) {
                sheet.draw(&Circle::new(point, 3, style.filled()))?;
            }
            let x = plot.right + 20;
            sheet.draw(&Rectangle::new([(x, label), (x + 10, label + 10)], style.filled()))?;
            sheet.draw(&Text::new(line.label.clone(), (x + 16, label - 2), font(13, HPos::Left)))?;
            label += LABEL;
        }
        sheet.present()
    };
    draw().map_err(io::Error::other)
}

/// Draws dots over even axes from 0; the horizontal one reaches `until` at least.
pub fn dots(path: &Path, title: &str, grows: &str, until: f64, dots: &[Line]) -> io::Result<()> {
    let draw = || {
        let points = dots.iter().flat_map(|line| &line.points);
        let xs = Scale::Linear.round(points.map(|&(x, _)| x).chain([until]));
        let frame = Frame::new(path, [title, grows], PLOT, ([Scale::Linear; 2], &xs), dots)?;
        for line in dots {
            let mut places: Vec<_> = line.points.iter().map(|&point| frame.at(point)).collect();
            places.sort_unstable();
            places.dedup();
            for (x, y) in places {
                let dot = [(x - 1, y - 1), (x + 1, y + 1)];
                frame.sheet.draw(&Rectangle::new(dot, colour(line.colour).filled()))?;
            }
        }
        frame.sheet.present()
    };
    draw().map_err(io::Error::other)
}

/// Draws a row of bars for each name; draws nothing if there are no numbers. Logarithmic bars begin at 1.
pub fn bars(path: &Path, title: &str, names: &[&str], series: &[Series], scale: Scale) -> io::Result<()> {
    /// The left end of the bars: right of the longest name in the catalog.
    const LEFT: i32 = 330;
    /// The room for the number after the longest bar.
    const RIGHT: i32 = 100;
    /// The number of labels side by side.
    const LEGEND: usize = 4;
    const BAR: i32 = 16;
    const GAP: i32 = 12;
    let longest = series.iter().flat_map(|(_, numbers)| numbers).flatten().copied().fold(0.0, f64::max);
    if longest == 0.0 {
        return Ok(());
    }
    let draw = || {
        let block = BAR * series.len() as i32 + GAP;
        let first = 50 + series.len().div_ceil(LEGEND) as i32 * LABEL;
        let sheet = sheet(path, title, LEFT, first + block * names.len() as i32)?;
        for (n, (label, _)) in series.iter().enumerate() {
            let x = LEFT + (n % LEGEND) as i32 * (WIDTH - LEFT) / LEGEND as i32;
            let y = 40 + (n / LEGEND) as i32 * LABEL;
            sheet.draw(&Rectangle::new([(x, y), (x + 10, y + 10)], colour(n).filled()))?;
            sheet.draw(&Text::new(label.as_str(), (x + 14, y - 1), font(15, HPos::Left)))?;
        }
        for (row, name) in names.iter().enumerate() {
            let top = first + block * row as i32;
            let middle = top + (block - GAP) / 2;
            sheet.draw(&Text::new(*name, (LEFT - 8, middle - 6), font(15, HPos::Right)))?;
            for (n, (_, numbers)) in series.iter().enumerate() {
                let Some(number) = numbers[row] else { continue };
                let y = top + BAR * n as i32;
                let share = match scale {
                    Scale::Linear => number / longest,
                    Scale::Logarithmic => number.max(1.0).ln() / longest.ln(),
                };
                let end = (LEFT + (share * f64::from(WIDTH - LEFT - RIGHT)) as i32).max(LEFT + 1);
                sheet.draw(&Rectangle::new([(LEFT, y), (end, y + BAR - 2)], colour(n).filled()))?;
                sheet.draw(&Text::new(significant(number), (end + 6, y), font(15, HPos::Left)))?;
            }
        }
        sheet.present()
    };
    draw().map_err(io::Error::other)
}

/// A white sheet with a title.
fn sheet<'a>(path: &'a Path, title: &str, left: i32, height: i32) -> Result<Sheet<'a>, Failure> {
    let sheet = SVGBackend::new(path, (WIDTH as u32, height as u32)).into_drawing_area();
    sheet.fill(&WHITE)?;
    sheet.draw(&Text::new(title.to_owned(), (left, 14), font(20, HPos::Left)))?;
    Ok(sheet)
}

/// A sheet with two axes.
struct Frame<'a> {
    sheet: Sheet<'a>,
    plot: Plot,
    axes: [Axis; 2],
}

impl<'a> Frame<'a> {
    /// Draws the axes, with the numbers `xs` at the horizontal one.
    fn new(
        path: &'a Path,
        [title, grows]: [&str; 2],
        plot: Plot,
        (scales, xs): ([Scale; 2], &[f64]),
        lines: &[Line],
    ) -> Result<Self, Failure> {
        let ys = scales[1].round(lines.iter().flat_map(|line| &line.points).map(|&(_, y)| y));
        let [x_axis, y_axis] = [Axis::over(xs, scales[0]), Axis::over(&ys, scales[1])];
        let height = (plot.bottom + 60).max(plot.top + LABEL * lines.len() as i32);
        let sheet = sheet(path, title, plot.left, height)?;
        sheet.draw(&Text::new(grows.to_owned(), (plot.right, plot.bottom + 32), font(15, HPos::Right)))?;
        let grid = RGBColor(221, 221, 221).stroke_width(1);
        for &y in &ys {
            let [left, right] = [0.0, 1.0].map(|x| plot.at(x, y_axis.share(y)));
            sheet.draw(&PathElement::new(vec![left, right], grid))?;
            sheet.draw(&Text::new(short(y), (left.0 - 8, left.1 - 7), font(14, HPos::Right)))?;
        }
        // Only as many numbers as fit beside each other.
        let every = xs.len().div_ceil(12);
        for &x in xs.iter().step_by(every) {
            let [bottom, top] = [0.0, 1.0].map(|y| plot.at(x_axis.share(x), y));
            sheet.draw(&PathElement::new(vec![bottom, top], grid))?;
            sheet.draw(&Text::new(short(x), (bottom.0, bottom.1 + 8), font(13, HPos::Center)))?;
        }
        Ok(Self { sheet, plot, axes: [x_axis, y_axis] })
    }

    fn at(&self, (x, y): (f64, f64)) -> (i32, i32) {
        self.plot.at(self.axes[0].share(x), self.axes[1].share(y))
    }
}

/// The rectangle of the points, in pixels. The numbers of the axis are on its left, labels on its right.
#[derive(Clone, Copy)]
struct Plot {
    left: i32,
    right: i32,
    top: i32,
    bottom: i32,
}

const PLOT: Plot = Plot { left: 70, right: 960, top: 60, bottom: 440 };

impl Plot {
    /// Returns the pixel at the shares `x` of the width and `y` of the height, from the lower left corner. A
    /// value that has no place on an axis, such as 0 on a logarithmic one, is at the end of the axis.
    fn at(self, x: f64, y: f64) -> (i32, i32) {
        let (x, y) = (x.clamp(0.0, 1.0), y.clamp(0.0, 1.0));
        let (width, height) = (f64::from(self.right - self.left), f64::from(self.bottom - self.top));
        (self.left + (x * width).round() as i32, self.bottom - (y * height).round() as i32)
    }
}
struct Axis {
    first: f64,
    last: f64,
    scale: Scale,
}

impl Axis {
    /// Returns the axis from the first of these numbers to the last.
    fn over(numbers: &[f64], scale: Scale) -> Self {
        Self { first: scale.of(numbers[0]), last: scale.of(numbers[numbers.len() - 1]), scale }
    }

    fn share(&self, number: f64) -> f64 {
        (self.scale.of(number) - self.first) / (self.last - self.first)
    }
}

impl Scale {
    fn of(self, number: f64) -> f64 {
        match self {
            Self::Linear => number,
            Self::Logarithmic => number.ln(),
        }
    }

    /// Returns round numbers for an axis that covers all of `numbers`.
    fn round(self, numbers: impl Iterator<Item = f64> + Clone) -> Vec<f64> {
        match self {
            Self::Linear => even_steps(numbers.fold(0.0, f64::max)),
            Self::Logarithmic => round_numbers(numbers),
        }
    }
}

/// Returns 1, 2 or 5 times powers of ten, from the last that is not above any of `numbers` to the first that
/// is not below any.
fn round_numbers(numbers: impl Iterator<Item = f64> + Clone) -> Vec<f64> {
    let (least, most) = numbers
        .fold((f64::MAX, f64::MIN_POSITIVE), |(least, most), number| (least.min(number), most.max(number)));
    let all: Vec<_> =
        (-9..12).flat_map(|power| [1.0, 2.0, 5.0].map(|digit| digit * 10_f64.powi(power))).collect();
    let first = all.partition_point(|&number| number <= least).saturating_sub(1);
    let last = all.partition_point(|&number| number < most).max(first + 1);
    all[first..=last].to_vec()
}

/// Returns numbers from 0 to the first that is not below `most`, in up to ten steps of 1, 2 or 5 times a
/// power of ten.
fn even_steps(most: f64) -> Vec<f64> {
    let powers = (-9..12).flat_map(|power| [1.0, 2.0, 5.0].map(|digit| digit * 10_f64.powi(power)));
    let step = powers.into_iter().find(|step| step * 10.0 >= most).unwrap_or(most);
    let last = (most / step).ceil().max(1.0) as u32;
    (0..=last).map(|n| f64::from(n) * step).collect()
}

/// Returns a short form of a number: `20`, `500 k`, `2 M`.
fn short(number: f64) -> String {
    match number {
        1e6.. => format!("{} M", number / 1e6),
        1e4.. => format!("{} k", number / 1e3),
        _ => format!("{}", (number * 1e3).round() / 1e3),
    }
}

/// Returns colour number `n`; consecutive numbers have different colours.
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

/// Returns black text of `size` pixels, on the given side of its position.
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
    fn a_linear_axis_begins_at_0_and_has_even_steps() {
        assert_eq!(even_steps(100.0).len(), 11);
        assert_eq!(even_steps(3.1), [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5]);
    }

    #[test]
    fn a_log_axis_spreads_factors_evenly_and_a_linear_one_differences() {
        let axis = Axis::over(&[10.0, 100.0, 1000.0], Scale::Logarithmic);
        assert!((axis.share(100.0) - 0.5).abs() < 1e-9);
        let axis = Axis::over(&[0.0, 10.0], Scale::Linear);
        assert!((axis.share(2.5) - 0.25).abs() < 1e-9);
        let axis = Axis::over(&[1.0, 10.0], Scale::Logarithmic);
        assert_eq!(PLOT.at(1.0, axis.share(0.0)), (PLOT.right, PLOT.bottom));
    }
}
