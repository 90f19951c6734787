//! The paper's pictures, as SVG.

use std::{io, path::Path};

use plotters::{
    coord::Shift,
    drawing::DrawingAreaErrorKind,
    prelude::{DrawingArea, IntoDrawingArea, PathElement, Rectangle, SVGBackend, Text},
    style::{Color, RGBColor, WHITE, text_anchor::HPos},
};
use swarmkeep_benches::charts::{Plot, colour, font};
use swarmkeep_workload::tables::{grouped, significant};

use crate::content::{
    Disk, Options, Pictures, Report, mix,
    pictures::METADATA,
    plan::{Setup, Store},
};

type Drawn = Result<(), DrawingAreaErrorKind<io::Error>>;
type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

const fn way(store: Store, aged: bool, cache: bool) -> Setup {
    Setup { store, aged, cache, affinity: cache, free: false }
}

/// Offset over time: the file, the row and what it shows.
const OFFSETS: [(&str, Setup, &str); 6] = [
    ("offsets-files-sparse", Setup::SPARSE, "Sparse files"),
    (
        "offsets-files-sparse-cache",
        way(Store::FilesSparse, false, true),
        "Sparse files behind the stripe cache",
    ),
    ("offsets-sequential", Setup::BEST, "Block store, sequential, behind the stripe cache"),
    (
        "offsets-sequential-aged",
        way(Store::BlockSequential, true, true),
        "Block store, sequential, aged to 75 %, behind the stripe cache",
    ),
    (
        "offsets-ordered",
        way(Store::BlockOrdered, false, true),
        "Block store, ordered, behind the stripe cache",
    ),
    (
        "offsets-ordered-aged",
        way(Store::BlockOrdered, true, true),
        "Block store, ordered, aged to 75 %, behind the stripe cache",
    ),
];

/// Layout on the device.
const LAYOUTS: [(&str, Setup, &str); 4] = [
    ("layout-sequential", Setup::BEST, "Layout: sequential"),
    ("layout-ordered", way(Store::BlockOrdered, false, true), "Layout: ordered"),
    ("layout-sequential-aged", way(Store::BlockSequential, true, true), "Layout: sequential, aged to 75 %"),
    ("layout-ordered-aged", way(Store::BlockOrdered, true, true), "Layout: ordered, aged to 75 %"),
];

/// The files that there is something to draw into, and what they show.
pub(crate) fn files(report: &Report) -> Vec<(String, String)> {
    let mut files = Vec::new();
    let mut add = |file: &str, title: &str| files.push((format!("{file}.svg"), title.to_owned()));
    if report.pictures(Setup::SPARSE).is_some() {
        add("benchmark", "The benchmark itself: where in the torrents pieces come");
    }
    for (file, way, title) in OFFSETS {
        if report.pictures(way).is_some() {
            add(file, &format!("Offset over time: {title}"));
        }
    }
    for (file, way, title) in LAYOUTS {
        if report.pictures(way).is_some() {
            add(file, title);
        }
    }
    add("piece-sizes", "Piece sizes");
    add("torrent-sizes", "Torrent sizes");
    files
}

pub(crate) fn draw(report: &Report, folder: &Path) -> io::Result<Vec<String>> {
    drawn(report, folder).map_err(io::Error::other)?;
    Ok(files(report).into_iter().map(|(file, _)| file).collect())
}

fn drawn(report: &Report, folder: &Path) -> Drawn {
    let file = |name: &str| folder.join(format!("{name}.svg"));
    if let Some(pictures) = report.pictures(Setup::SPARSE) {
        benchmark(&file("benchmark"), pictures, &report.options)?;
    }
    // So that slopes can be compared, all rows have the axis of the slowest.
    let seconds = OFFSETS.iter().filter_map(|(_, way, _)| Some(report.row(*way)?.modelled()));
    let longest = seconds.fold(0.0, f64::max);
    for (name, way, title) in OFFSETS {
        if let (Some(pictures), Some(row)) = (report.pictures(way), report.row(way)) {
            let caption = format!(
                "{title}: {} s, {} seeks",
                significant(row.modelled()),
                grouped(row.requests().modelled.seeks)
            );
            offsets(&file(name), &caption, pictures, longest, report.options.disk)?;
        }
    }
    for (name, way, title) in LAYOUTS {
        if let Some(pictures) = report.pictures(way) {
            layout(&file(name), title, pictures, &report.options)?;
        }
    }
    piece_sizes(&file("piece-sizes"), &report.options)?;
    torrent_sizes(&file("torrent-sizes"), &report.options)
}

const WIDTH: i32 = 1000;
const HEIGHT: i32 = 520;
/// Where numbers are drawn.
const PLOT: Plot = Plot { left: 80, right: 960, top: 70, bottom: 450 };
const GRID: RGBColor = RGBColor(221, 221, 221);
const BLACK: RGBColor = RGBColor(0, 0, 0);
/// What was on the device before.
const OLD: RGBColor = RGBColor(200, 200, 200);
/// Nobody's.
const FREE: RGBColor = RGBColor(245, 245, 245);

/// An axis with round numbers, evenly or by factors of two.
struct Axis {
    first: f64,
    last: f64,
    /// Where a number stands, and which.
    ticks: Vec<(f64, String)>,
    doubling: bool,
}

impl Axis {
    /// From the first of two numbers to the second, at least as long as there is something to see; what it
    /// shows is divided by `unit`.
    fn even(first: f64, last: f64, unit: f64) -> Self {
        let last = if last > first { last } else { first + unit };
        let step = round((last - first) / unit / 6.0);
        let mut ticks = Vec::new();
        let mut tick = (first / unit / step).ceil() * step;
        while tick * unit <= last {
            ticks.push((tick * unit, significant_or_whole(tick)));
            tick += step;
        }
        Self { first, last, ticks, doubling: false }
    }

    /// Powers of two, all of them.
    fn doubling(first: f64, last: f64, every: usize) -> Self {
        let powers = first.log2().round() as i32..=last.log2().round() as i32;
        let ticks = powers.step_by(every).map(|power| {
            let bytes = 2_f64.powi(power);
            (bytes, in_words(bytes))
        });
        Self { first, last, ticks: ticks.collect(), doubling: true }
    }

    fn share(&self, number: f64) -> f64 {
        if self.doubling {
            (number / self.first).log2() / (self.last / self.first).log2()
        } else {
            (number - self.first) / (self.last - self.first)
        }
    }
}

/// 1, 2 or 5 times a power of ten, not less.
fn round(number: f64) -> f64 {
    let power = 10_f64.powf(number.log10().floor());
    let digit = [1.0, 2.0, 5.0, 10.0].into_iter().find(|digit| digit * power >= number * 0.999);
    digit.unwrap_or(10.0) * power
}

fn significant_or_whole(number: f64) -> String {
    if (number - number.round()).abs() < 1e-9 {
        grouped(number.round() as u64)
    } else {
        format!("{}", (number * 1e3).round() / 1e3)
    }
}

/// `16 KiB`, `4 MiB`.
fn in_words(bytes: f64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let unit = ((bytes.log2() / 10.0).floor() as usize).min(units.len() - 1);
    format!("{} {}", bytes / 1024_f64.powi(unit as i32), units[unit])
}

fn frame<'a>(
    path: &'a Path,
    title: &str,
    x: (&Axis, &str),
    y: (&Axis, &str),
) -> Result<Area<'a>, DrawingAreaErrorKind<io::Error>> {
    let area = SVGBackend::new(path, (WIDTH as u32, HEIGHT as u32)).into_drawing_area();
    area.fill(&WHITE)?;
    area.draw(&Text::new(title.to_owned(), (PLOT.left, 14), font(20, HPos::Left)))?;
    area.draw(&Text::new(y.1.to_owned(), (PLOT.left, PLOT.top - 22), font(14, HPos::Left)))?;
    area.draw(&Text::new(x.1.to_owned(), (PLOT.right, PLOT.bottom + 34), font(14, HPos::Right)))?;
    let line = GRID.stroke_width(1);
    for (number, text) in &y.0.ticks {
        let [left, right] = [0.0, 1.0].map(|x| PLOT.at(x, y.0.share(*number)));
        area.draw(&PathElement::new(vec![left, right], line))?;
        area.draw(&Text::new(text.clone(), (left.0 - 8, left.1 - 7), font(13, HPos::Right)))?;
    }
    for (number, text) in &x.0.ticks {
        let [bottom, top] = [0.0, 1.0].map(|y| PLOT.at(x.0.share(*number), y));
        area.draw(&PathElement::new(vec![bottom, top], line))?;
        area.draw(&Text::new(text.clone(), (bottom.0, bottom.1 + 8), font(13, HPos::Center)))?;
    }
    Ok(area)
}

/// The colour of a torrent, or of what is nobody's.
fn colour_of(whose: u32) -> RGBColor {
    match whose {
        METADATA => BLACK,
        torrent => colour(torrent as usize),
    }
}

fn dot(area: &Area<'_>, (x, y): (i32, i32), whose: u32) -> Drawn {
    let half = if whose == METADATA { 2 } else { 1 };
    area.draw(&Rectangle::new([(x - half, y - half), (x + half, y + half)], colour_of(whose).filled()))
}

/// Where the head is, over the time of the modelled disk.
fn offsets(path: &Path, title: &str, pictures: &Pictures, longest: f64, disk: Disk) -> Drawn {
    let ends = pictures
        .accesses
        .iter()
        .fold((f64::MAX, 0.0_f64), |(least, most), (_, at, _)| (least.min(*at), most.max(*at)));
    let (x, y) = (Axis::even(0.0, longest, 1.0), Axis::even(ends.0.min(ends.1), ends.1, 1e9));
    let seconds = format!("seconds on the modelled disk of {:.0} turns a minute", disk.turns);
    let each = match pictures.each {
        1 => String::new(),
        each => format!(", each dot one access of {each}"),
    };
    let offset = format!("GB from the beginning of the device; a colour a torrent, black: metadata{each}");
    let area = frame(path, title, (&x, &seconds), (&y, &offset))?;
    let mut drawn = std::collections::HashSet::new();
    for &(seconds, at, whose) in &pictures.accesses {
        let place = PLOT.at(x.share(seconds), y.share(at));
        if drawn.insert((place, whose)) {
            dot(&area, place, whose)?;
        }
    }
    area.present()
}

/// Where in the torrents pieces come, one after another.
fn benchmark(path: &Path, pictures: &Pictures, options: &Options) -> Drawn {
    let total = options.work().bytes() as f64;
    let (x, y) = (Axis::even(0.0, total, 1e9), Axis::even(0.0, total, 1e9));
    let title = format!(
        "The benchmark itself: {} torrents of {} MB, {} at a time",
        options.torrents,
        grouped(options.size / 1_000_000),
        options.parallel.min(options.torrents)
    );
    let each = format!(
        "GB in the torrents, as if one after another; a colour a torrent, each dot one piece of {}",
        pictures.each
    );
    let area = frame(path, &title, (&x, "GB downloaded"), (&y, &each))?;
    for &(bytes, at, whose) in &pictures.arrivals {
        dot(&area, PLOT.at(x.share(bytes), y.share(at)), whose)?;
    }
    area.present()
}

/// More cells than a page shows are none.
const CELLS: u32 = 6000;
const COLUMNS: i32 = 110;
const CELL: i32 = 8;

/// Whose each block is, in rows from the upper left.
fn layout(path: &Path, title: &str, pictures: &Pictures, options: &Options) -> Drawn {
    let mut blocks = vec![None; pictures.blocks as usize];
    for &(first, end, whose) in &pictures.layout {
        blocks[first as usize..end as usize].fill(Some(whose));
    }
    // Those of the bench stand out where a cell has more than one block.
    let cell = |of: &[Option<u32>]| {
        let ours = of.iter().flatten().find(|whose| **whose < options.torrents || **whose == METADATA);
        ours.or(of.iter().flatten().next()).copied()
    };
    let group = pictures.blocks.div_ceil(CELLS).max(1);
    let cells: Vec<_> = blocks.chunks(group as usize).map(cell).collect();
    let rows = (cells.len() as i32 + COLUMNS - 1) / COLUMNS;
    let (left, top) = (PLOT.left, 96);
    let area = SVGBackend::new(path, (WIDTH as u32, (top + rows * CELL + 24) as u32)).into_drawing_area();
    area.fill(&WHITE)?;
    area.draw(&Text::new(title.to_owned(), (left, 14), font(20, HPos::Left)))?;
    let what = match group {
        1 => format!(
            "{} blocks of {} KiB, a cell each, row by row",
            grouped(pictures.blocks.into()),
            options.block / 1024
        ),
        _ => format!(
            "{} blocks of {} KiB, {group} a cell, row by row",
            grouped(pictures.blocks.into()),
            options.block / 1024
        ),
    };
    area.draw(&Text::new(what, (left, 42), font(14, HPos::Left)))?;
    let mut x = left;
    let aged = blocks.iter().flatten().any(|whose| *whose >= options.torrents && *whose != METADATA);
    let legend = [
        (colour(0), "the bench's torrents, a colour each (eight take turns)", true),
        (OLD, "was there before", aged),
        (BLACK, "root, i-nodes", true),
        (FREE, "free", true),
    ];
    for (colour, text, _) in legend.into_iter().filter(|(_, _, shown)| *shown) {
        area.draw(&Rectangle::new([(x, 66), (x + 10, 76)], colour.filled()))?;
        area.draw(&Text::new(text, (x + 16, 64), font(13, HPos::Left)))?;
        x += 50 + 7 * text.len() as i32;
    }
    let colour_of = |whose: Option<u32>| match whose {
        None => FREE,
        Some(whose) if whose >= options.torrents && whose != METADATA => OLD,
        Some(whose) => colour_of(whose),
    };
    for (row, cells) in cells.chunks(COLUMNS as usize).enumerate() {
        let y = top + row as i32 * CELL;
        let mut from = 0;
        while from < cells.len() {
            let run =
                cells[from..].iter().take_while(|whose| colour_of(**whose) == colour_of(cells[from])).count();
            let ends = [from, from + run].map(|column| left + column as i32 * CELL);
            let corners = [(ends[0], y), (ends[1] - 1, y + CELL - 1)];
            area.draw(&Rectangle::new(corners, colour_of(cells[from]).filled()))?;
            from += run;
        }
    }
    area.present()
}

/// Percentages of torrents up to a size.
fn shares() -> Axis {
    Axis::even(0.0, 100.0, 1.0)
}

fn curve(area: &Area<'_>, points: Vec<(i32, i32)>, n: usize) -> Drawn {
    area.draw(&PathElement::new(points, colour(n).stroke_width(2)))
}

fn legend(area: &Area<'_>, lines: &[(usize, String)]) -> Drawn {
    let bottom = PLOT.top + 12 + lines.len() as i32 * 22;
    let corners = [(PLOT.left + 8, PLOT.top + 6), (PLOT.left + 440, bottom)];
    area.draw(&Rectangle::new(corners, WHITE.filled()))?;
    for (row, (n, text)) in (0..).zip(lines) {
        let y = PLOT.top + 14 + row * 22;
        area.draw(&Rectangle::new([(PLOT.left + 16, y), (PLOT.left + 26, y + 10)], colour(*n).filled()))?;
        area.draw(&Text::new(text.clone(), (PLOT.left + 34, y - 2), font(14, HPos::Left)))?;
    }
    Ok(())
}

fn piece_sizes(path: &Path, options: &Options) -> Drawn {
    let (x, y) = (Axis::doubling(8192.0, 2_f64.powi(24), 1), shares());
    let area = frame(
        path,
        "Piece sizes: how many torrents have no larger pieces",
        (&x, "bytes of a piece"),
        (&y, "% of torrents"),
    )?;
    let (mut points, mut before) = (vec![PLOT.at(0.0, 0.0)], 0.0);
    for (kib, share) in mix::PIECE_LENGTHS {
        let (size, share) = (x.share(f64::from(kib) * 1024.0), f64::from(share) / 1000.0);
        points.extend([PLOT.at(size, before), PLOT.at(size, share)]);
        before = share;
    }
    curve(&area, points, 0)?;
    for i in 0..options.torrents {
        let length = mix::piece_length(i, options.torrents);
        let (px, py) = PLOT.at(x.share(length.into()), (f64::from(i) + 0.5) / f64::from(options.torrents));
        area.draw(&Rectangle::new([(px - 4, py - 2), (px + 4, py + 2)], colour(1).filled()))?;
    }
    let of = format!("the {} torrents of this benchmark, at quantiles (i + ½) / {0}", options.torrents);
    legend(&area, &[(0, "some 700,000 torrents (A. Norberg, 2014)".to_owned()), (1, of)])?;
    area.present()
}

fn torrent_sizes(path: &Path, options: &Options) -> Drawn {
    let (x, y) = (Axis::doubling(2_f64.powi(24), 2_f64.powi(36), 1), shares());
    let area = frame(
        path,
        "Torrent sizes: how many torrents are no larger",
        (&x, "bytes of a torrent"),
        (&y, "% of torrents"),
    )?;
    let inside = |&(length, _): &(f64, f64)| (x.first..=x.last).contains(&length);
    let points =
        mix::torrent_lengths(400).filter(inside).map(|(length, share)| PLOT.at(x.share(length), share));
    curve(&area, points.collect(), 0)?;
    let lines = [
        (0, "estimate: the same number of pieces each, whatever the piece size".to_owned(), None),
        (
            1,
            format!(
                "{} GB: the mean of 8.25 million torrents (IsoHunt's index)",
                significant(mix::MEAN_TORRENT / 1e9)
            ),
            Some(mix::MEAN_TORRENT),
        ),
        (
            2,
            format!("{} MB: every torrent of this benchmark", grouped(options.size / 1_000_000)),
            Some(options.size as f64),
        ),
    ];
    for (n, _, at) in &lines {
        if let Some(at) = at.filter(|at| (x.first..=x.last).contains(at)) {
            curve(&area, vec![PLOT.at(x.share(at), 0.0), PLOT.at(x.share(at), 1.0)], *n)?;
        }
    }
    legend(&area, &lines.map(|(n, text, _)| (n, text)))?;
    area.present()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_have_round_numbers() {
        let texts = |axis: Axis| axis.ticks.into_iter().map(|(_, text)| text).collect::<Vec<_>>();
        assert_eq!(texts(Axis::even(0.0, 971.0, 1.0)), ["0", "200", "400", "600", "800"]);
        assert_eq!(texts(Axis::even(3.2e9, 5e9, 1e9)), ["3.5", "4", "4.5", "5"]);
        assert_eq!(texts(Axis::doubling(16384.0, 131_072.0, 1)), ["16 KiB", "32 KiB", "64 KiB", "128 KiB"]);
        assert!((Axis::doubling(16384.0, 65536.0, 1).share(32768.0) - 0.5).abs() < 1e-9);
    }
}
