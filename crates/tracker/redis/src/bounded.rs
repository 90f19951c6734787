//! A limit for the replies of a server: their bytes are counted against the expected size before anything
//! else reads them.

use std::{
    io::{self, ErrorKind},
    pin::Pin,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
};

use redis::Value;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The memory of an element of a reply, besides its bytes.
pub(crate) const ELEMENT: usize = size_of::<Value>();

/// Bytes for the replies to a greeting: to the password, and to commands that the server may not know.
const GREETINGS: usize = 4096;

/// The most arrays within each other: `CLUSTER SLOTS` has four.
const NESTED: usize = 8;

/// The digits of a number of 64 bits, and its sign.
const DIGITS: usize = 20;

/// Memory left for the replies of all waiting calls. A call that its caller has given up keeps its share,
/// since its reply may still come.
#[derive(Debug)]
pub(crate) struct Allowance {
    left: AtomicUsize,
    exceeded: OnceLock<String>,
}

impl Allowance {
    pub(crate) const fn new() -> Self {
        Self { left: AtomicUsize::new(GREETINGS), exceeded: OnceLock::new() }
    }

    /// Adds the share of calls with replies of at most `most` bytes.
    pub(crate) fn grant(&self, most: usize) {
        self.left.fetch_add(most, Relaxed);
    }

    /// Takes back the part of `most` that the replies did not need.
    pub(crate) fn settle(&self, most: usize, replies: &[Value]) {
        let took: usize = replies.iter().map(memory_of).sum();
        debug_assert!(took <= most, "{took} bytes of replies, and {most} were granted");
        self.left.fetch_sub(most.saturating_sub(took), Relaxed);
    }

    /// Why the connection was ended, if it was because of a reply.
    pub(crate) fn exceeded(&self) -> Option<&str> {
        self.exceeded.get().map(String::as_str)
    }

    fn take(&self, bytes: usize) -> Result<(), &'static str> {
        let taken = self.left.try_update(Relaxed, Relaxed, |left| left.checked_sub(bytes));
        taken.map(drop).map_err(|_| "more")
    }
}

/// The memory of a reply, as [`Replies`] counts it.
fn memory_of(reply: &Value) -> usize {
    ELEMENT
        + match reply {
            Value::BulkString(bytes) => bytes.len(),
            Value::SimpleString(text) => text.len(),
            Value::Okay => "OK".len(),
            Value::ServerError(error) => {
                error.code().len() + error.details().map_or(0, |text| 1 + text.len())
            }
            Value::Array(elements) => elements.iter().map(memory_of).sum(),
            _ => 0,
        }
}

/// A stream that fails to read as soon as a reply begins to exceed the allowance.
pub(crate) struct Bounded<S> {
    stream: S,
    replies: Replies,
    allowance: Arc<Allowance>,
}

impl<S> Bounded<S> {
    pub(crate) fn new(stream: S, allowance: Arc<Allowance>) -> Self {
        Self { stream, replies: Replies::default(), allowance }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Bounded<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { stream, replies, allowance } = self.get_mut();
        let before = buf.filled().len();
        ready!(Pin::new(stream).poll_read(context, buf))?;
        if let Err(excess) = replies.read(&buf.filled()[before..], allowance) {
            buf.set_filled(before);
            let said = || format!("it answers with {excess} than requested");
            let error = allowance.exceeded.get_or_init(said).as_str();
            return Poll::Ready(Err(io::Error::new(ErrorKind::InvalidData, error)));
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Bounded<S> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }
}

/// A parser of just enough of the protocol to count the memory of the replies. It refuses only replies that
/// no server sends in version 2 of the protocol.
#[derive(Debug, Default)]
struct Replies {
    /// The elements still to come in each open array, the innermost last.
    open: Vec<usize>,
    at: At,
}

#[derive(Debug, Default)]
enum At {
    /// The byte with the kind of an element.
    #[default]
    Kind,
    /// A simple string or an error.
    Text { ends: bool },
    /// A number, or the length of a string or of an array.
    Number { kind: u8, digits: Vec<u8> },
    /// The bytes still to come of a string, with the end of its line.
    Bytes(usize),
}

impl Replies {
    fn read(&mut self, mut bytes: &[u8], allowance: &Allowance) -> Result<(), &'static str> {
        while let [byte, rest @ ..] = bytes {
            bytes = rest;
            match &mut self.at {
                At::Kind => {
                    if self.open.is_empty() {
                        allowance.take(ELEMENT)?;
                    }
                    self.at = match byte {
                        b'+' | b'-' => At::Text { ends: false },
                        b':' | b'$' | b'*' => At::Number { kind: *byte, digits: Vec::with_capacity(DIGITS) },
                        _ => return Err("a reply of another kind"),
                    };
                }
                At::Text { ends } => match byte {
                    b'\n' if *ends => self.end(),
                    b'\r' if !*ends => *ends = true,
                    b'\r' | b'\n' => return Err("a line of another form"),
                    _ if *ends => return Err("a line of another form"),
                    _ => allowance.take(1)?,
                },
                At::Number { kind, digits } => match byte {
                    b'\r' if digits.last() != Some(&b'\r') => digits.push(b'\r'),
                    b'\n' if digits.pop() == Some(b'\r') => {
                        let (kind, digits) = (*kind, std::mem::take(digits));
                        self.number(kind, &digits, allowance)?;
                    }
                    b'-' | b'0'..=b'9' if digits.len() < DIGITS && digits.last() != Some(&b'\r') => {
                        digits.push(*byte);
                    }
                    _ => return Err("a number of another form"),
                },
                At::Bytes(left) => {
                    let skipped = (*left - 1).min(rest.len());
                    bytes = &rest[skipped..];
                    *left -= 1 + skipped;
                    if *left == 0 {
                        self.end();
                    }
                }
            }
        }
        Ok(())
    }

    fn number(&mut self, kind: u8, digits: &[u8], allowance: &Allowance) -> Result<(), &'static str> {
        let number = str::from_utf8(digits).ok().and_then(|digits| digits.parse::<i64>().ok());
        let number = number.ok_or("a number of another form")?;
        let length = || match number {
            -1 => Ok(None),
            _ => usize::try_from(number).map(Some).map_err(|_| "a number of another form"),
        };
        match kind {
            b'$' if let Some(bytes) = length()? => {
                allowance.take(bytes)?;
                self.at = At::Bytes(bytes + "\r\n".len());
            }
            b'*' if let Some(elements @ 1..) = length()? => {
                if self.open.len() == NESTED {
                    return Err("arrays nested deeper");
                }
                allowance.take(elements.saturating_mul(ELEMENT))?;
                self.open.push(elements);
                self.at = At::Kind;
            }
            _ => self.end(),
        }
        Ok(())
    }

    /// The end of an element, and of all arrays that end with it.
    fn end(&mut self) {
        self.at = At::Kind;
        while let Some(elements) = self.open.last_mut() {
            *elements -= 1;
            if *elements > 0 {
                break;
            }
            self.open.pop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The memory that is counted while replies come equals the memory of the parsed replies, however the
    /// stream is cut. Otherwise a connection would end after some hours.
    #[test]
    fn the_counted_memory_is_the_memory_of_the_replies() {
        let replies =
            b"+OK\r\n-MOVED 1 192.0.2.1:1\r\n-ERR\r\n:-17\r\n$-1\r\n$5\r\na\r\nbc\r\n*-1\r\n*0\r\n$0\r\n\r\n\
            *3\r\n*2\r\n:1\r\n+text\r\n$2\r\nab\r\n*1\r\n*0\r\n";
        for cut in 1..replies.len() {
            let allowance = Allowance::new();
            let mut counted = Replies::default();
            for piece in replies.chunks(cut) {
                counted.read(piece, &allowance).unwrap();
            }
            let (mut parser, mut rest) = (redis::Parser::new(), &replies[..]);
            let took: usize = (0..10).map(|_| memory_of(&parser.parse_value(&mut rest).unwrap())).sum();
            assert_eq!(allowance.left.load(Relaxed) + took, GREETINGS, "in pieces of {cut}");
            allowance.grant(1000);
            allowance.settle(1000, &[]);
            assert_eq!(allowance.left.load(Relaxed) + took, GREETINGS);
        }
    }
}
