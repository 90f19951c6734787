//! torrust-tracker's SQLite file.
//!
//! Its table is the same in all versions from 2.2 to 4.0, `torrents (id, info_hash TEXT UNIQUE, completed
//! INTEGER)`, with 40 hexadecimal digits as the info hash; a migration that no version has yet makes it
//! `completed_v1 (info_hash, count)`. Tables of other things, and columns, come and go, so the columns are
//! looked for and the rest is left alone.

use std::{path::Path, time::Duration};

use indicatif::ProgressBar;
use rusqlite::{Connection, OpenFlags, Row, limits::Limit, params_from_iter, types::ValueRef};

use super::reading::{Reading, Stop};

/// Where counts may be: a table, its columns of info hashes and downloads, and what takes both and counts the
/// table.
const TABLES: [Table; 2] = [
    Table {
        name: "torrents",
        columns: ["info_hash", "completed"],
        rows: "SELECT info_hash, completed FROM torrents",
        count: "SELECT count(*) FROM torrents",
    },
    Table {
        name: "completed_v1",
        columns: ["info_hash", "count"],
        rows: "SELECT info_hash, count FROM completed_v1",
        count: "SELECT count(*) FROM completed_v1",
    },
];

struct Table {
    name: &'static str,
    columns: [&'static str; 2],
    rows: &'static str,
    count: &'static str,
}

/// How long a tracker that writes is waited for.
const PATIENCE: Duration = Duration::from_secs(10);
/// The longest value that is read from a file that anybody may have made.
const LONGEST: i32 = 1 << 20;

/// Reads a file, which stays as it is. The bar is over the file's bytes.
pub(super) fn read(path: &Path, bar: &ProgressBar, reading: &mut Reading<'_>) -> Result<(), Stop> {
    let failed = |error: rusqlite::Error| Stop::Failed(format!("SQLite: {error}"));
    let connection = open(path).map_err(failed)?;
    let table = table(&connection)?;
    let rows: i64 = connection.query_row(table.count, [], |row| row.get(0)).map_err(failed)?;
    let (rows, bytes) = (rows.unsigned_abs(), bar.length().unwrap_or_default());

    let mut statement = connection.prepare(table.rows).map_err(failed)?;
    let mut found = statement.query([]).map_err(failed)?;
    for number in 1_u64.. {
        match found.next() {
            Ok(Some(row)) => match count(row, table) {
                Ok((info_hash, downloads)) => reading.take(info_hash, downloads)?,
                Err(what) => reading.refuse(format!("row {number} of `{}`", table.name), what),
            },
            Ok(None) => break,
            Err(error) => {
                return Err(Stop::broken(
                    format!("row {number} of `{}`", table.name),
                    format!("SQLite: {error}"),
                ));
            }
        }
        if number.is_multiple_of(4096) {
            bar.set_position((u128::from(bytes) * u128::from(number) / u128::from(rows.max(number))) as u64);
        }
    }
    Ok(())
}

fn open(path: &Path) -> rusqlite::Result<Connection> {
    // Without SQLITE_OPEN_URI: a path is a path.
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(PATIENCE)?;
    connection.set_limit(Limit::SQLITE_LIMIT_LENGTH, LONGEST)?;
    // What SQLite's authors advise for files of strangers.
    connection.pragma_update(None, "trusted_schema", false)?;
    connection.pragma_update(None, "cell_size_check", true)?;
    Ok(connection)
}

/// The table that has the counts.
fn table(connection: &Connection) -> Result<&'static Table, Stop> {
    let failed = |error: rusqlite::Error| Stop::Failed(format!("SQLite: {error}"));
    // Neither a view nor a virtual table, either of which could do anything when it is read.
    let tables = "SELECT name FROM sqlite_schema WHERE type = 'table' AND sql NOT LIKE 'create virtual%' ORDER BY name";
    let tables = strings(connection, tables, None).map_err(failed)?;
    let Some(table) = TABLES.iter().find(|table| tables.iter().any(|name| name == table.name)) else {
        let tables: Vec<String> =
            tables.iter().take(10).map(|name| name.escape_debug().to_string()).collect();
        let found = if tables.is_empty() { "no tables".into() } else { tables.join(", ") };
        return Err(Stop::Failed(format!(
            "no table `torrents` as torrust-tracker has it; in the file there are: {found}"
        )));
    };
    let columns = "SELECT name FROM pragma_table_info(?1)";
    let columns = strings(connection, columns, Some(table.name)).map_err(failed)?;
    match table.columns.iter().find(|column| !columns.iter().any(|name| name == *column)) {
        Some(column) => {
            let columns: Vec<String> = columns.iter().map(|name| name.escape_debug().to_string()).collect();
            Err(Stop::Failed(format!(
                "table `{}` has no column `{column}` as torrust-tracker's has, but: {}",
                table.name,
                columns.join(", ")
            )))
        }
        None => Ok(table),
    }
}

fn strings(connection: &Connection, query: &str, about: Option<&str>) -> rusqlite::Result<Vec<String>> {
    let mut statement = connection.prepare(query)?;
    statement.query_map(params_from_iter(about), |row| row.get(0))?.collect()
}

fn count(row: &Row<'_>, table: &Table) -> Result<super::spool::Count, String> {
    let [info_hash, downloads] = table.columns;
    let value = |column| row.get_ref(column).map_err(|error| error.to_string());
    let hash = match value(0)? {
        ValueRef::Text(text) => {
            str::from_utf8(text).ok().and_then(|text| text.parse().ok()).ok_or_else(|| {
                let shown = text.get(..80).unwrap_or(text).escape_ascii();
                format!("{info_hash} is not 40 hexadecimal digits: \"{shown}\"")
            })
        }
        other => Err(format!("{info_hash} is no text but {}", other.data_type())),
    }?;
    match value(1)? {
        ValueRef::Integer(number) => match u32::try_from(number) {
            Ok(number) => Ok((hash, number)),
            Err(_) if number < 0 => Err(format!("{downloads} is below zero: {number}")),
            Err(_) => Err(format!("{downloads} is above 4,294,967,295: {number}")),
        },
        other => Err(format!("{downloads} is no integer but {}", other.data_type())),
    }
}

#[cfg(test)]
mod tests {
    use tempfile::NamedTempFile;

    use super::*;
    use crate::tests::{Read, read_with};

    /// What torrust-tracker makes.
    const MADE: &str = "CREATE TABLE IF NOT EXISTS whitelist (id INTEGER PRIMARY KEY AUTOINCREMENT, info_hash TEXT NOT NULL UNIQUE);
        CREATE TABLE IF NOT EXISTS torrents (
            id INTEGER PRIMARY KEY AUTOINCREMENT, info_hash TEXT NOT NULL UNIQUE, completed INTEGER DEFAULT 0 NOT NULL
        );";

    fn made(statements: &str) -> NamedTempFile {
        let file = NamedTempFile::new().unwrap();
        Connection::open(file.path()).unwrap().execute_batch(statements).unwrap();
        file
    }

    fn read_path(path: &Path) -> Read {
        read_with(|reading| read(path, &ProgressBar::hidden(), reading))
    }

    #[test]
    fn counts_come_from_either_table() {
        let file = made(&format!(
            "{MADE} INSERT INTO torrents (info_hash, completed) VALUES ('{}', 7), ('{}', 0)",
            "0a".repeat(20),
            "FF".repeat(20)
        ));
        let before = std::fs::read(file.path()).unwrap();
        let read = read_path(file.path());
        assert_eq!(read.counts, [([10; 20].into(), 7), ([255; 20].into(), 0)], "{:?}", read.broken);
        assert_eq!((read.refused.len(), read.broken), (0, None));
        assert_eq!(std::fs::read(file.path()).unwrap(), before);

        let later = made(&format!(
            "CREATE TABLE completed_v1 (info_hash TEXT PRIMARY KEY NOT NULL, count INTEGER DEFAULT 1 NOT NULL CHECK (count >= 1)) WITHOUT ROWID;
             INSERT INTO completed_v1 VALUES ('{}', 3)", "0a".repeat(20)
        ));
        assert_eq!(read_path(later.path()).counts, [([10; 20].into(), 3)]);
    }

    #[test]
    fn wrong_rows_say_what_and_where() {
        for (info_hash, completed, what) in [
            ("'abc'", "1", "info_hash is not 40 hexadecimal digits: \"abc\""),
            ("'zz'", "1", "info_hash is not 40 hexadecimal digits: \"zz\""),
            ("x'00ff'", "1", "info_hash is no text but Blob"),
            ("'0000000000000000000000000000000000000001'", "-1", "completed is below zero: -1"),
            (
                "'0000000000000000000000000000000000000001'",
                "4294967296",
                "completed is above 4,294,967,295: 4294967296",
            ),
            ("'0000000000000000000000000000000000000001'", "9e99", "completed is no integer but Real"),
            ("'0000000000000000000000000000000000000001'", "'many'", "completed is no integer but Text"),
        ] {
            let good = "('1111111111111111111111111111111111111111', 1)";
            let last = "('2222222222222222222222222222222222222222', 2)";
            let file = made(&format!(
                "{MADE} INSERT INTO torrents (info_hash, completed) VALUES {good}, ({info_hash}, {completed}), {last}"
            ));
            let read = read_path(file.path());
            assert_eq!(read.refused, [format!("row 2 of `torrents`: {what}")]);
            assert_eq!((read.counts.len(), read.broken), (2, None));
        }
    }

    #[test]
    fn other_databases_are_named() {
        let hidden = "CREATE VIEW torrents AS SELECT 'x' AS info_hash, 1 AS completed;";
        for (statements, what) in [
            (
                "CREATE TABLE a (b); CREATE TABLE c (d);",
                "no table `torrents` as torrust-tracker has it; in the file there are: a, c",
            ),
            (hidden, "no table `torrents` as torrust-tracker has it; in the file there are: no tables"),
            (
                "CREATE TABLE torrents (info_hash, downloads);",
                "table `torrents` has no column `completed` as torrust-tracker's has, but: info_hash, downloads",
            ),
        ] {
            assert_eq!(read_path(made(statements).path()).broken.as_deref(), Some(what));
        }
        let file = NamedTempFile::new().unwrap();
        std::fs::write(file.path(), [b"SQLite format 3\0".as_slice(), &[7; 5000]].concat()).unwrap();
        assert_eq!(read_path(file.path()).broken.as_deref(), Some("SQLite: file is not a database"));
        assert!(read_path(Path::new("/there/is/no/such/file")).broken.is_some());
    }

    #[test]
    fn a_file_that_is_cut_off_is_noticed() {
        let mut statements = MADE.to_owned();
        for number in 0..2000 {
            statements +=
                &format!("INSERT INTO torrents (info_hash, completed) VALUES ('{number:040x}', 1);");
        }
        let file = made(&format!("BEGIN; {statements} COMMIT"));
        assert_eq!(read_path(file.path()).counts.len(), 2000);
        let length = file.as_file().metadata().unwrap().len();
        for cut in [length / 2, length - 4096, 4096, 100] {
            file.as_file().set_len(cut).unwrap();
            assert!(read_path(file.path()).broken.is_some(), "{cut} of {length}");
        }
    }

    #[test]
    fn any_damage_is_an_error_or_other_counts_and_never_a_panic() {
        let file = made(&format!(
            "{MADE} INSERT INTO torrents (info_hash, completed) VALUES ('{}', 7)",
            "0a".repeat(20)
        ));
        let whole = std::fs::read(file.path()).unwrap();
        for at in (0..whole.len()).step_by(37) {
            let mut bytes = whole.clone();
            bytes[at] ^= 0xff;
            std::fs::write(file.path(), &bytes).unwrap();
            read_path(file.path());
        }
    }
}
