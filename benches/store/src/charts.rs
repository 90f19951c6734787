//! Line charts with linear and logarithmic axes, as SVG.

use std::{io, path::Path};

use plotters::{
    drawing::DrawingAreaErrorKind,
    prelude::{Circle, IntoDrawingArea, PathElement, Rectangle, SVGBackend, Text},
    style::{
        BLACK, Color, IntoFont, RGBColor, TextStyle, WHITE,
        text_anchor::{HPos, Pos, VPos},
    },
};

type Drawn = Result<(), DrawingAreaErrorKind<io::Error>>;

/// One line of a chart.
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    /// The label beside the chart.
    pub label: String,
    /// The number of its colour.
    pub colour: usize,
    /// The points, from left to right.
    pub points: Vec<(f64, f64)>,
}

const WIDTH: i32 = 1000;
/// The height of a label.
const LABEL: i32 = 20;

/// The area of the lines. The numbers of the axis are on its left, the labels on its right.
const PLOT: Plot = Plot { left: 70, right: 640, top: 60, bottom: 440 };

/// The scale of an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// Evenly.
    Linear,
    /// By factors.
    Logarithmic,
}

/// Draws lines over a logarithmic axis of values; draws nothing if there are no lines. `grows` is the title
/// of the horizontal axis.
///
/// # Errors
/// Errors of the file system.
pub fn lines(path: &Path, title: &str, grows: &str, scale: Scale, lines: &[Line]) -> io::Result<()> {
    plot(path, title, grows, [scale, Scale::Logarithmic], lines)
}

/// Draws lines with the given scales: that of the horizontal axis and that of the values.
///
/// # Errors
/// Errors of the file system.
pub fn plot(path: &Path, title: &str, grows: &str, scales: [Scale; 2], lines: &[Line]) -> io::Result<()> {
    draw(path, title, grows, scales, lines).map_err(io::Error::other)
}

/// A line with more points than this is drawn without point marks.
const POINTS: usize = 40;

fn draw(path: &Path, title: &str, grows: &str, scales: [Scale; 2], lines: &[Line]) -> Drawn {
    let points = || lines.iter().flat_map(|line| &line.points);
    let mut xs: Vec<_> = points().map(|&(x, _)| x).collect();
    xs.sort_by(f64::total_cmp);
    xs.dedup();
    if xs.len() < 2 {
        return Ok(());
    }
    let xs = if lines.iter().any(|line| line.points.len() > POINTS) {
        scales[0].round(xs.into_iter())
    } else {
        xs
    };
    let ys = scales[1].round(points().map(|&(_, y)| y));
    let (x_axis, y_axis) = (Axis::over(&xs, scales[0]), Axis::over(&ys, scales[1]));
    let at = |&(x, y): &(f64, f64)| PLOT.at(x_axis.share(x), y_axis.share(y));

    let labels = lines.len() as i32;
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
    // Only as many numbers as fit beside each other.
    let every = xs.len().div_ceil(12);
    for &x in xs.iter().step_by(every) {
        let [bottom, top] = [0.0, 1.0].map(|y| PLOT.at(x_axis.share(x), y));
        area.draw(&PathElement::new(vec![bottom, top], grid))?;
        area.draw(&Text::new(short(x), (bottom.0, bottom.1 + 8), font(13, HPos::Center)))?;
    }
    let mut label = PLOT.top;
    for line in lines {
        let style = colour(line.colour).stroke_width(2);
        let points: Vec<_> = line.points.iter().map(at).collect();
        area.draw(&PathElement::new(points.clone(), style))?;
        for &point in points.iter().filter(|_| points.len() <= POINTS) {
            area.draw(&Circle::new(point, 3, style.filled()))?;
        }
        let x = PLOT.right + 20;
        area.draw(&Rectangle::new([(x, label), (x + 10, label + 10)], style.filled()))?;
        area.draw(&Text::new(line.label.clone(), (x + 16, label - 2), font(13, HPos::Left)))?;
        label += LABEL;
    }
    area.present()?;
    Ok(())
}

/// The rectangle in which a chart is drawn, in pixels.
#[derive(Debug, Clone, Copy)]
pub struct Plot {
    /// Its left side.
    pub left: i32,
    /// Its right side.
    pub right: i32,
    /// Its upper side.
    pub top: i32,
    /// Its lower side.
    pub bottom: i32,
}

impl Plot {
    /// Returns the pixel at the shares `x` of the width and `y` of the height, from the lower left corner. A
    /// value that has no place on an axis, such as 0 on a logarithmic one, is at the end of the axis.
    pub fn at(&self, x: f64, y: f64) -> (i32, i32) {
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
pub const fn colour(n: usize) -> RGBColor {
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
pub fn font(size: i32, side: HPos) -> TextStyle<'static> {
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
        assert_eq!(even_steps(60.0), [0.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0]);
    }

    #[test]
    fn a_log_axis_spreads_factors_evenly_and_a_linear_one_differences() {
        let axis = Axis::over(&[10.0, 100.0, 1000.0], Scale::Logarithmic);
        assert!((axis.share(100.0) - 0.5).abs() < 1e-9);
        let axis = Axis::over(&[0.0, 10.0], Scale::Linear);
        assert!((axis.share(2.5) - 0.25).abs() < 1e-9);
        assert_eq!(PLOT.at(0.0, 0.0), (PLOT.left, PLOT.bottom));
        let axis = Axis::over(&[1.0, 10.0], Scale::Logarithmic);
        assert_eq!(PLOT.at(1.0, axis.share(0.0)), (PLOT.right, PLOT.bottom));
    }
}
