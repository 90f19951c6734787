//! Tables and numbers in Markdown.

/// Returns a Markdown table that is readable as plain text. `columns` are its columns, each with its title
/// first. All columns but the first are aligned to the right.
pub fn markdown(columns: &[Vec<String>]) -> String {
    let width = |cell: &String| cell.chars().count();
    let widths: Vec<_> = columns.iter().map(|column| column.iter().map(width).max().unwrap_or(0)).collect();
    let lines = (0..columns[0].len()).map(|line| {
        let cells = columns.iter().zip(&widths).enumerate();
        let cells = cells.map(|(n, (column, &width))| match n {
            0 => format!("| {:<width$} |", column[line]),
            _ => format!(" {:>width$} |", column[line]),
        });
        cells.collect::<String>() + "\n"
    });
    let dashes = widths.iter().enumerate().map(|(n, &width)| {
        let dashes = "-".repeat(width + 1);
        if n == 0 { format!("|{dashes}-|") } else { format!("{dashes}:|") }
    });
    let mut lines: Vec<_> = lines.collect();
    lines.insert(1, dashes.collect::<String>() + "\n");
    lines.concat()
}

/// Returns `number` with at least three significant digits: measurements are no more precise than some per
/// cent.
pub fn significant(number: f64) -> String {
    if number == 0.0 {
        "0".to_owned()
    } else if number < 9.995 {
        format!("{number:.2}")
    } else if number < 99.95 {
        format!("{number:.1}")
    } else {
        grouped(number.round() as u64)
    }
}

/// Returns `number` with separators: `1,234,567`.
pub fn grouped(number: u64) -> String {
    if number < 1000 {
        number.to_string()
    } else {
        format!("{},{:03}", grouped(number / 1000), number % 1000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped() {
        for (number, text) in [(0, "0"), (12, "12"), (123, "123"), (1234, "1,234"), (1_234_567, "1,234,567")]
        {
            assert_eq!(grouped(number), text);
        }
        for (number, text) in [
            (0.0, "0"),
            (0.0804, "0.08"),
            (9.996, "10.0"),
            (99.94, "99.9"),
            (99.95, "100"),
            (1999.9, "2,000"),
        ] {
            assert_eq!(significant(number), text);
        }
    }

    #[test]
    fn a_table_is_as_wide_as_its_cells() {
        let columns = [vec!["a".to_owned(), "1 × 2".into()], vec!["long".into(), "3".into()]];
        assert_eq!(markdown(&columns), "| a     | long |\n|-------|-----:|\n| 1 × 2 |    3 |\n");
    }
}
