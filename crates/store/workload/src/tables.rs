//! Tables and numbers in Markdown.

/// Returns a Markdown table that is readable as plain text. `columns` are its columns, each with its title
/// first. All columns but the first are aligned to the right.
pub fn markdown(columns: &[Vec<String>]) -> String {
    let row = |line: usize| columns.iter().map(|column| column[line].clone()).collect();
    lines(|| (0..columns[0].len()).map(row)).collect()
}

/// The lines of such a table, of rows that are made twice instead of kept: first for the widths.
pub fn lines<I: Iterator<Item = Vec<String>>>(rows: impl Fn() -> I) -> impl Iterator<Item = String> {
    let mut widths = Vec::new();
    for row in rows() {
        widths.resize(row.len(), 0);
        widths.iter_mut().zip(row).for_each(|(width, cell)| *width = cell.chars().count().max(*width));
    }
    let dashes = widths.iter().enumerate().map(|(n, &width)| {
        let dashes = "-".repeat(width + 1);
        if n == 0 { format!("|{dashes}-|") } else { format!("{dashes}:|") }
    });
    let mut dashes = Some(dashes.collect::<String>() + "\n");
    rows().flat_map(move |row| {
        let cells = row.into_iter().zip(&widths).enumerate().map(|(n, (cell, &width))| match n {
            0 => format!("| {cell:<width$} |"),
            _ => format!(" {cell:>width$} |"),
        });
        [Some(cells.collect::<String>() + "\n"), dashes.take()].into_iter().flatten()
    })
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
