//! Bytes of a file with their offsets, read from front to back through a buffer of fixed size.

use std::io::{self, ErrorKind, Read};

/// The most bytes per read, and the most that [`Input::head`] returns.
const BUFFER: usize = 128 << 10;

pub(super) struct Input<'a> {
    from: Box<dyn Read + 'a>,
    buffer: Box<[u8]>,
    /// The bytes of the buffer that were read and not yet consumed: from `start` to `end`.
    start: usize,
    end: usize,
    /// The number of consumed bytes.
    at: u64,
}

impl<'a> Input<'a> {
    pub(super) fn new(from: impl Read + 'a) -> Self {
        Self { from: Box::new(from), buffer: vec![0; BUFFER].into(), start: 0, end: 0, at: 0 }
    }

    /// The offset of the next byte.
    pub(super) fn at(&self) -> u64 {
        self.at
    }

    /// The next `length` bytes, or fewer at the end of the file. Does not consume them.
    pub(super) fn head(&mut self, length: usize) -> io::Result<&[u8]> {
        debug_assert!(length <= BUFFER);
        if self.start + length > BUFFER {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        while self.end - self.start < length && self.fill()? {}
        Ok(&self.buffer[self.start..self.end.min(self.start + length)])
    }

    /// The next byte. Does not consume it.
    #[inline]
    pub(super) fn peek(&mut self) -> io::Result<Option<u8>> {
        if self.start == self.end {
            self.refill()?;
        }
        Ok(self.buffer[self.start..self.end].first().copied())
    }

    /// Consumes the next byte.
    #[inline]
    pub(super) fn next(&mut self) -> io::Result<Option<u8>> {
        let byte = self.peek()?;
        self.taken(usize::from(byte.is_some()));
        Ok(byte)
    }

    /// Consumes up to `length` bytes, calls `part` with each part of them, and returns their number.
    pub(super) fn pass(&mut self, length: u64, mut part: impl FnMut(&[u8])) -> io::Result<u64> {
        let mut left = length;
        while left > 0 && self.peek()?.is_some() {
            let count = left.min((self.end - self.start) as u64) as usize;
            part(&self.buffer[self.start..self.start + count]);
            self.taken(count);
            left -= count as u64;
        }
        Ok(length - left)
    }

    /// Consumes a line, and stores up to `most` bytes of it in `line`, without the end of the line.
    pub(super) fn line(&mut self, most: usize, line: &mut Vec<u8>) -> io::Result<LineEnd> {
        line.clear();
        if self.peek()?.is_none() {
            return Ok(LineEnd::Nothing);
        }
        let mut whole = true;
        while self.peek()?.is_some() {
            let ready = &self.buffer[self.start..self.end];
            let end = ready.iter().position(|byte| *byte == b'\n');
            let part = &ready[..end.unwrap_or(ready.len())];
            let fits = part.len().min(most - line.len());
            whole &= fits == part.len();
            line.extend_from_slice(&part[..fits]);
            let count = part.len() + usize::from(end.is_some());
            self.taken(count);
            if end.is_some() {
                line.pop_if(|last| *last == b'\r');
                return Ok(if whole { LineEnd::Newline } else { LineEnd::TooLong });
            }
        }
        Ok(LineEnd::File)
    }

    fn taken(&mut self, count: usize) {
        self.start += count;
        self.at += count as u64;
    }

    #[cold]
    fn refill(&mut self) -> io::Result<()> {
        (self.start, self.end) = (0, 0);
        self.fill()?;
        Ok(())
    }

    /// Reads once; `false` at the end of the file.
    fn fill(&mut self) -> io::Result<bool> {
        loop {
            match self.from.read(&mut self.buffer[self.end..]) {
                Ok(count) => {
                    self.end += count;
                    return Ok(count > 0);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// The end of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LineEnd {
    Newline,
    /// After more than `most` bytes.
    TooLong,
    /// Without a newline.
    File,
    /// There was no more line.
    Nothing,
}

impl Read for Input<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.peek()?;
        let count = out.len().min(self.end - self.start);
        out[..count].copy_from_slice(&self.buffer[self.start..self.start + count]);
        self.taken(count);
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns one byte per read, as a slow pipe does.
    struct Slow<'a>(&'a [u8]);

    impl Read for Slow<'_> {
        fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
            let count = out.len().min(1);
            self.0.read(&mut out[..count])
        }
    }

    #[test]
    fn peeked_bytes_are_not_consumed() {
        let mut input = Input::new(Slow(b"some bytes"));
        assert_eq!(input.head(4).unwrap(), b"some");
        assert_eq!(input.head(99).unwrap(), b"some bytes");
        assert_eq!((input.next().unwrap(), input.at()), (Some(b's'), 1));
        let mut rest = Vec::new();
        assert_eq!(input.pass(99, |part| rest.extend_from_slice(part)).unwrap(), 9);
        assert_eq!((rest.as_slice(), input.at(), input.next().unwrap()), (&b"ome bytes"[..], 10, None));
    }

    #[test]
    fn looking_ahead_works_at_the_end_of_the_buffer() {
        let bytes: Vec<u8> = (0..=255).cycle().take(BUFFER + 1000).collect();
        let mut input = Input::new(&*bytes);
        let most = BUFFER as u64 - 10;
        assert_eq!(input.pass(most, |_| {}).unwrap(), most);
        assert_eq!(input.head(500).unwrap(), &bytes[BUFFER - 10..BUFFER + 490]);
        assert_eq!(input.at(), most);
    }

    #[test]
    fn lines_end_in_several_ways() {
        let mut input = Input::new(Slow(b"one\r\n\nthree is too long\nlast"));
        let mut line = Vec::new();
        for (expected, end) in [
            ("one", LineEnd::Newline),
            ("", LineEnd::Newline),
            ("three", LineEnd::TooLong),
            ("last", LineEnd::File),
            ("", LineEnd::Nothing),
        ] {
            assert_eq!(input.line(5, &mut line).unwrap(), end);
            assert_eq!(line, expected.as_bytes());
        }
    }
}
