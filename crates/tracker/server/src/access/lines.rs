//! The lines of a list, through one buffer of fixed size.

use std::{
    fs::{self, File},
    hint,
    io::{self, Read},
    ops::Range,
    path::Path,
};

use super::{AccessError, set::SortedSet};

/// The size of the buffer, and so the most bytes in a line with its end.
const BUFFER: usize = 1 << 16;

const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// The set of the values that `read` returns for the entries of a file. `shortest` is the length of the
/// shortest line with an entry, end included. Memory is reserved for the most entries that fit into the file;
/// unused memory is freed.
pub(super) fn read_set<const N: usize>(
    path: &Path,
    shortest: u64,
    mut read: impl FnMut(&Path, &Line<'_>) -> Result<[u8; N], AccessError>,
) -> Result<SortedSet<N>, AccessError> {
    let too_long = |entries| AccessError::TooLong { path: path.to_owned(), entries };
    let mut lines = Lines::open(path)?;
    // The last line may lack its end.
    let most = usize::try_from(lines.bytes() / shortest + 1).unwrap_or(usize::MAX);
    let mut entries = Vec::new();
    entries.try_reserve_exact(most).map_err(|_| too_long(most))?;
    while let Some(line) = lines.next()? {
        if !line.entry.is_empty() {
            entries.push(read(path, &line)?);
        }
    }
    SortedSet::new(entries).map_err(|entries| too_long(entries.len()))
}

/// An open list. When dropped, it erases its buffer as far as the language allows: the lines may be passkeys.
pub(super) struct Lines<'p> {
    path: &'p Path,
    file: File,
    metadata: fs::Metadata,
    buffer: Box<[u8]>,
    /// The bytes of the buffer that are not returned yet.
    rest: Range<usize>,
    line: u64,
}

/// One line.
pub(super) struct Line<'l> {
    /// Counted from 1.
    pub(super) number: u64,
    /// The byte order mark, if one stands before it.
    pub(super) mark: &'l [u8],
    /// The bytes in the file after the mark, with the end of the line, if it has one.
    pub(super) bytes: &'l [u8],
    /// The entry without comment and blanks around it; empty if there is none.
    pub(super) entry: &'l str,
}

impl<'p> Lines<'p> {
    pub(super) fn open(path: &'p Path) -> Result<Self, AccessError> {
        let read = |source| AccessError::Read { path: path.to_owned(), source };
        // Opening a pipe would wait for its other end.
        if !fs::metadata(path).map_err(read)?.is_file() {
            return Err(AccessError::NotAFile { path: path.to_owned() });
        }
        let file = File::open(path).map_err(read)?;
        let metadata = file.metadata().map_err(read)?;
        Ok(Self { path, file, metadata, buffer: vec![0; BUFFER].into(), rest: 0..0, line: 0 })
    }

    /// The file as it was when it was opened.
    pub(super) fn metadata(&self) -> &fs::Metadata {
        &self.metadata
    }

    fn bytes(&self) -> u64 {
        self.metadata.len()
    }

    /// The next line; `None` after the last.
    pub(super) fn next(&mut self) -> Result<Option<Line<'_>>, AccessError> {
        let length = loop {
            let rest = &self.buffer[self.rest.clone()];
            if let Some(end) = rest.iter().position(|&byte| byte == b'\n') {
                break end + 1;
            }
            if rest.len() == BUFFER {
                return Err(AccessError::LongLine {
                    path: self.path.to_owned(),
                    line: self.line + 1,
                    most: BUFFER - 1,
                });
            }
            if self.fill()? == 0 {
                break self.rest.len();
            }
        };
        if length == 0 {
            return Ok(None);
        }
        self.line += 1;
        let bytes = &self.buffer[self.rest.start..][..length];
        self.rest.start += length;
        let marked = self.line == 1 && bytes.starts_with(BYTE_ORDER_MARK);
        let (mark, bytes) = bytes.split_at(if marked { BYTE_ORDER_MARK.len() } else { 0 });
        let entry = bytes.split(|&byte| byte == b'#').next().unwrap_or_default();
        let text = str::from_utf8(entry).ok().filter(|text| !text.contains('\0'));
        let entry = text
            .ok_or_else(|| AccessError::NotText { path: self.path.to_owned(), line: self.line })?
            .trim_ascii();
        Ok(Some(Line { number: self.line, mark, bytes, entry }))
    }

    /// Appends bytes of the file to the rest of the buffer. Returns their number: 0 at the end of the file.
    fn fill(&mut self) -> Result<usize, AccessError> {
        self.buffer.copy_within(self.rest.clone(), 0);
        self.rest = 0..self.rest.len();
        loop {
            match self.file.read(&mut self.buffer[self.rest.end..]) {
                Ok(read) => {
                    self.rest.end += read;
                    return Ok(read);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(AccessError::Read { path: self.path.to_owned(), source }),
            }
        }
    }
}

impl Drop for Lines<'_> {
    fn drop(&mut self) {
        self.buffer.fill(0);
        // Without a reader, the compiler may remove the line above.
        hint::black_box(&self.buffer);
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, io::Write};

    use tempfile::NamedTempFile;

    use super::*;

    fn file(bytes: &[u8]) -> NamedTempFile {
        let mut file = NamedTempFile::new().unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    fn entries(bytes: &[u8]) -> Result<Vec<String>, String> {
        let file = file(bytes);
        let mut lines = Lines::open(file.path()).unwrap();
        let (mut entries, mut copy) = (Vec::new(), Vec::new());
        while let Some(line) = lines.next().map_err(|error| error.to_string())? {
            copy.extend([line.mark, line.bytes].concat());
            entries.push(line.entry.to_owned());
            assert_eq!(line.number, entries.len() as u64);
        }
        assert_eq!(copy, bytes, "no byte is lost");
        Ok(entries)
    }

    #[test]
    fn comments_blanks_and_the_habits_of_other_systems_are_no_part_of_an_entry() {
        for (bytes, expected) in [
            (&b""[..], &[][..]),
            (b"\n", &[""]),
            (b"a", &["a"]),
            (b"a\n", &["a"]),
            (b"a\r\nb\r\n", &["a", "b"]),
            (b"\xef\xbb\xbfa\n", &["a"]),
            (b"\xef\xbb\xbf", &[""]),
            (b" \ta \t# b\n#c\n\n#\n  \n##\n d", &["a", "", "", "", "", "", "d"]),
            (b"a # Latin-1: \xe9\n", &["a"]),
        ] {
            assert_eq!(entries(bytes).unwrap(), expected, "{bytes:?}");
        }
    }

    #[test]
    fn an_error_names_the_line_that_is_not_text() {
        let utf_16: Vec<u8> = "\u{feff}abc\n".encode_utf16().flat_map(u16::to_le_bytes).collect();
        for (bytes, line) in [(&b"a\n\xe9\n"[..], 2), (b"\0", 1), (b"a\n\nb\0 # c\n", 3), (&utf_16, 1)] {
            let error = entries(bytes).unwrap_err();
            assert!(error.contains(&format!(", line {line}: not text in UTF-8")), "{error}");
        }
    }

    #[test]
    fn lines_of_all_lengths_cross_the_buffers_end_whole() {
        let lines: Vec<String> = (0..2000_usize).map(|n| "x".repeat(n * 7919 % 3001)).collect();
        assert_eq!(entries(lines.join("\n").as_bytes()).unwrap(), lines);
    }

    #[test]
    fn a_line_may_have_as_many_bytes_as_the_buffer_less_one_for_its_end() {
        let longest = "x".repeat(BUFFER - 1);
        assert_eq!(entries(format!("{longest}\na\n").as_bytes()).unwrap(), [&longest, "a"]);
        assert_eq!(entries(format!("a\n{longest}").as_bytes()).unwrap(), ["a", &longest]);
        for end in ["", "\n"] {
            let error = entries(format!("a\n{longest}x{end}").as_bytes()).unwrap_err();
            assert!(error.contains(", line 2: longer than 65535 bytes"), "{error}");
        }
    }

    #[test]
    fn only_regular_files_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let error = |path: &Path| Lines::open(path).err().unwrap().to_string();
        let missing = folder.path().join("missing");
        assert_eq!(error(&missing), format!("cannot read {}: No such file or directory", missing.display()));
        for none in [folder.path(), Path::new("/dev/null")] {
            assert!(error(none).contains("is not a regular file"), "{}", error(none));
        }
        let pipe = folder.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        assert!(error(&pipe).contains("is not a regular file"), "without waiting for a writer");
    }

    #[test]
    fn memory_that_was_asked_for_and_not_used_is_given_back() {
        let file = file(b"a\nb\na\n#");
        // A hole, which is a comment of zeroes.
        fs::OpenOptions::new().append(true).open(file.path()).unwrap().set_len(1 << 16).unwrap();
        let set = read_set(file.path(), 2, |_, line| Ok([line.entry.as_bytes()[0]; 4])).unwrap();
        assert_eq!((set.len(), set.heap_bytes()), (2, 16));
    }
}
