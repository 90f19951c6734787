//! Tables and numbers in Markdown, and the machine that they were measured on.

use std::fs;

use swarmkeep::bittorrent::counted;

use crate::cores;

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

/// Returns the name of the processor, and the number of cores that this process may use.
pub fn machine() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    let name = name.map_or_else(|| std::env::consts::ARCH, |(_, name)| name.trim());
    format!("{name}, {}", counted(cores(), "core"))
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
    fn a_table_is_as_wide_as_its_cells() {
        let text = table(&[3], &[("a", &|_| "1 × 2".to_owned()), ("long", &|row| row.to_string())]);
        assert_eq!(text, "| a     | long |\n|-------|-----:|\n| 1 × 2 |    3 |\n");
    }
}
