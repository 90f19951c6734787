//! Tables and numbers in Markdown.

use std::{
    fmt, fs, io,
    ops::Range,
    path::{Path, PathBuf},
};

use serde::Serialize;

/// A column: its title, and the cell of a row.
pub type Column<'a, R> = (&'a str, &'a dyn Fn(&R) -> String);

/// Returns a table with a line for each row.
pub fn table<R>(rows: &[R], columns: &[Column<'_, R>]) -> String {
    let column = |(title, cell): &Column<'_, R>| {
        [(*title).to_owned()].into_iter().chain(rows.iter().map(cell)).collect::<Vec<_>>()
    };
    markdown(&columns.iter().map(column).collect::<Vec<_>>())
}

/// Returns a table that is readable as plain text. `columns` are its columns, each with its title first. All
/// columns but the first are aligned to the right.
pub fn markdown(columns: &[Vec<String>]) -> String {
    let mut lines = vec![String::new(); columns[0].len() + 1];
    for (n, column) in columns.iter().enumerate() {
        let width = column.iter().map(|cell| cell.chars().count()).max().unwrap_or(0);
        let (lead, dashes) = (if n == 0 { "|" } else { "" }, "-".repeat(width + 1));
        let end = if n == 0 { "-" } else { ":" };
        let cells = column.iter().map(|cell| match n {
            0 => format!("{lead} {cell:<width$} |"),
            _ => format!(" {cell:>width$} |"),
        });
        let mut cells: Vec<_> = cells.collect();
        cells.insert(1, format!("{lead}{dashes}{end}|"));
        lines.iter_mut().zip(cells).for_each(|(line, cell)| *line += &cell);
    }
    lines.join("\n") + "\n"
}

/// Returns `number` with at least three significant digits: measurements are no more precise than some per
/// cent.
pub fn significant(number: f64) -> String {
    match number {
        0.0 => "0".to_owned(),
        ..9.995 => format!("{number:.2}"),
        ..99.95 => format!("{number:.1}"),
        _ => whole(number),
    }
}

/// Returns the nearest whole number.
pub fn whole(number: f64) -> String {
    grouped(number.round() as u64)
}

/// Returns `number` with separators: `1,234,567`.
pub fn grouped(number: u64) -> String {
    match number {
        ..1000 => number.to_string(),
        _ => format!("{},{:03}", grouped(number / 1000), number % 1000),
    }
}

/// The values of one number in several measurements.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Spread {
    /// The middle value, or the mean of the two in the middle.
    pub median: f64,
    /// The smallest value.
    pub least: f64,
    /// The largest value.
    pub most: f64,
}

impl Spread {
    /// Returns the spread of the numbers; `None` if there are none.
    pub fn of(numbers: impl Iterator<Item = f64>) -> Option<Self> {
        let mut numbers: Vec<_> = numbers.collect();
        numbers.sort_by(f64::total_cmp);
        let (least, most) = (*numbers.first()?, *numbers.last()?);
        let middle = |n: usize| numbers[n.min(numbers.len() - 1)];
        let median = f64::midpoint(middle((numbers.len() - 1) / 2), middle(numbers.len() / 2));
        Some(Self { median, least, most })
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [median, least, most] = [self.median, self.least, self.most].map(significant);
        if least == most { f.write_str(&median) } else { write!(f, "{median} ({least}–{most})") }
    }
}

/// A file with two marks around a table.
pub struct Marked {
    path: PathBuf,
    text: String,
    between: Range<usize>,
}

impl Marked {
    /// Reads the file and finds the marks `<!-- NAME:begin -->` and `<!-- NAME:end -->`.
    ///
    /// # Errors
    /// Errors of the file system, and a file without the marks.
    pub fn read(path: &Path, name: &str) -> io::Result<Self> {
        let failed = |what: &dyn fmt::Display| io::Error::other(format!("{}: {what}", path.display()));
        let text = fs::read_to_string(path).map_err(|error| failed(&error))?;
        let [first, last] = ["begin", "end"].map(|which| format!("<!-- {name}:{which} -->"));
        let begin = text.find(&first).map(|at| at + first.len());
        let between = begin.and_then(|begin| Some(begin..begin + text[begin..].find(&last)?));
        let between = between.ok_or_else(|| failed(&format!("expected {first} and, behind it, {last}")))?;
        Ok(Self { path: path.to_owned(), text, between })
    }

    /// Writes the file with `table` between the marks.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn write(mut self, table: &str) -> io::Result<()> {
        self.text.replace_range(self.between, &format!("\n{table}"));
        fs::write(self.path, self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped() {
        for (number, text) in [(0, "0"), (123, "123"), (1234, "1,234"), (1_002_003, "1,002,003")] {
            assert_eq!(grouped(number), text);
        }
        for (number, text) in [(0.0, "0"), (0.0804, "0.08"), (9.996, "10.0"), (99.94, "99.9"), (99.95, "100")]
        {
            assert_eq!(significant(number), text);
        }
    }

    #[test]
    fn a_spread_has_the_middle_and_both_ends() {
        let spread = |numbers: &[f64]| Spread::of(numbers.iter().copied());
        assert_eq!(spread(&[3.0, 1.0, 9.0]), Some(Spread { median: 3.0, least: 1.0, most: 9.0 }));
        assert_eq!(spread(&[4.0, 1.0]), Some(Spread { median: 2.5, least: 1.0, most: 4.0 }));
        assert_eq!(spread(&[]), None);
    }

    #[test]
    fn a_table_is_as_wide_as_its_cells() {
        let text = table(&[3], &[("a", &|_| "1 × 2".to_owned()), ("long", &|row| row.to_string())]);
        assert_eq!(text, "| a     | long |\n|-------|-----:|\n| 1 × 2 |    3 |\n");
    }
}
