//! Bencoding (BEP 3): integers, byte strings, lists and dictionaries.
//!
//! Reading borrows and never allocates. [`Value::parse`] checks a whole message once; the values that it
//! returns read the bytes again. The nesting is limited, so the cost of hostile input is proportional to its
//! length.
//!
//! ```
//! use swarmkeep_bittorrent::bencode::Value;
//!
//! let message = Value::parse(b"d8:completei3e5:peers6:abcdefe")?;
//! let fields = message.dict().unwrap();
//! assert_eq!(fields.get(b"complete").and_then(Value::integer), Some(3));
//! assert_eq!(fields.get(b"peers").and_then(Value::bytes), Some(&b"abcdef"[..]));
//! # Ok::<(), swarmkeep_bittorrent::bencode::Error>(())
//! ```

use std::fmt;

/// The maximum nesting of lists and dictionaries. Metainfo of BEP 52 takes one level per folder.
pub const MOST_NESTED: usize = 128;

/// The reason why bytes are not a bencoded value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not bencoded: {what} at byte {at}")]
#[non_exhaustive]
pub struct Error {
    /// The byte position.
    pub at: usize,
    /// The problem at that position.
    pub what: &'static str,
}

/// A bencoded value, borrowed from its message.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Value<'a>(&'a [u8]);

/// A list, borrowed from its message.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct List<'a>(Rest<'a>);

/// A dictionary, borrowed from its message. Its keys are in the order of the message; of equal keys the first
/// counts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Dict<'a>(Rest<'a>);

impl<'a> Value<'a> {
    /// Reads a message that consists of exactly one value.
    ///
    /// The keys of dictionaries need not be sorted: some clients do not sort them.
    ///
    /// # Errors
    /// [`Error`] if the message is not bencoded.
    pub fn parse(message: &'a [u8]) -> Result<Self, Error> {
        let (value, rest) = Self::parse_first(message)?;
        match rest {
            [] => Ok(value),
            _ => Err(Error { at: value.0.len(), what: "something behind the value" }),
        }
    }

    /// Reads the value that a message begins with. Returns the value and the bytes after it, which the
    /// messages of BEP 9 have.
    ///
    /// # Errors
    /// [`Error`] if the message is not bencoded.
    pub fn parse_first(message: &'a [u8]) -> Result<(Self, &'a [u8]), Error> {
        let mut scan = Scan { bytes: message, at: 0 };
        scan.value()?;
        let (value, rest) = message.split_at(scan.at);
        Ok((Self(value), rest))
    }

    /// Returns the bytes of the value in the message. The info hash is the hash of such bytes.
    pub const fn encoded(self) -> &'a [u8] {
        self.0
    }

    /// Returns the integer; `None` if the value is not an integer.
    pub fn integer(self) -> Option<i64> {
        match self.token() {
            Token::Integer(integer) => Some(integer),
            _ => None,
        }
    }

    /// Returns the byte string; `None` if the value is not a byte string.
    pub fn bytes(self) -> Option<&'a [u8]> {
        match self.token() {
            Token::Bytes(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// Returns the byte string as text; `None` if the value is not a byte string or not UTF-8.
    pub fn text(self) -> Option<&'a str> {
        std::str::from_utf8(self.bytes()?).ok()
    }

    /// Returns the list; `None` if the value is not a list.
    pub fn list(self) -> Option<List<'a>> {
        matches!(self.token(), Token::List).then(|| List(self.inside()))
    }

    /// Returns the dictionary; `None` if the value is not a dictionary.
    pub fn dict(self) -> Option<Dict<'a>> {
        matches!(self.token(), Token::Dict).then(|| Dict(self.inside()))
    }

    /// Returns the tokens of the value, including those of nested values, in one pass. In contrast, nested
    /// calls of [`Dict::iter`] read a value once for each list or dictionary around it.
    pub fn tokens(self) -> impl Iterator<Item = Token<'a>> {
        let mut scan = Scan { bytes: self.0, at: 0 };
        std::iter::from_fn(move || {
            (scan.at < scan.bytes.len()).then(|| scan.token().expect("checked when it was parsed"))
        })
    }

    fn token(self) -> Token<'a> {
        Scan { bytes: self.0, at: 0 }.token().expect("checked when it was parsed")
    }

    /// Returns the bytes between the first byte and the last.
    fn inside(self) -> Rest<'a> {
        Rest(&self.0[1..self.0.len() - 1])
    }
}

impl<'a> List<'a> {
    /// Returns the items in their order.
    pub fn iter(self) -> impl Iterator<Item = Value<'a>> {
        self.0
    }
}

impl<'a> Dict<'a> {
    /// Returns the value of a key. The time is proportional to the length of the dictionary.
    pub fn get(self, key: &[u8]) -> Option<Value<'a>> {
        self.iter().find_map(|(name, value)| (name == key).then_some(value))
    }

    /// Returns keys and values in the order of the message.
    pub fn iter(self) -> impl Iterator<Item = (&'a [u8], Value<'a>)> {
        let Self(mut rest) = self;
        std::iter::from_fn(move || {
            let key = rest.next()?.bytes().expect("keys were checked when it was parsed");
            Some((key, rest.next().expect("every key has a value")))
        })
    }
}

impl fmt::Debug for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.token() {
            Token::Integer(integer) => integer.fmt(f),
            Token::Bytes(bytes) => write!(f, "\"{}\"", bytes.escape_ascii()),
            Token::List => List(self.inside()).fmt(f),
            Token::Dict => Dict(self.inside()).fmt(f),
            Token::End => unreachable!("no value begins so"),
        }
    }
}

impl fmt::Debug for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl fmt::Debug for Dict<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map()
            .entries(self.iter().map(|(key, value)| (key.escape_ascii().to_string(), value)))
            .finish()
    }
}

/// Consecutive values that were checked.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Rest<'a>(&'a [u8]);

impl<'a> Iterator for Rest<'a> {
    type Item = Value<'a>;

    fn next(&mut self) -> Option<Value<'a>> {
        if self.0.is_empty() {
            return None;
        }
        let (value, rest) = Value::parse_first(self.0).expect("checked when it was parsed");
        self.0 = rest;
        Some(value)
    }
}

/// A token of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Token<'a> {
    /// An integer.
    Integer(i64),
    /// A byte string.
    Bytes(&'a [u8]),
    /// The beginning of a list.
    List,
    /// The beginning of a dictionary.
    Dict,
    /// The end of the innermost open list or dictionary.
    End,
}

/// Reads a message from its first byte to its last.
struct Scan<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Scan<'a> {
    /// Skips one value with all nested values.
    fn value(&mut self) -> Result<(), Error> {
        // One bit for each open list or dictionary: 1 for a dictionary.
        let (mut dicts, mut open) = (0_u128, 0);
        let mut key_next = false;
        loop {
            let at = self.at;
            let wrong = |what| Err(Error { at, what });
            let token = self.token()?;
            let in_dict = open > 0 && dicts & 1 == 1;
            if key_next && !matches!(token, Token::Bytes(_) | Token::End) {
                return wrong("a key that is no byte string");
            }
            match token {
                Token::List | Token::Dict => {
                    if open == MOST_NESTED {
                        return wrong("too many lists and dictionaries in each other");
                    }
                    let dict = matches!(token, Token::Dict);
                    (dicts, open, key_next) = (dicts << 1 | u128::from(dict), open + 1, dict);
                    continue;
                }
                Token::End if open == 0 => return wrong("an end of nothing"),
                Token::End if in_dict && !key_next => return wrong("a key without a value"),
                Token::End => (dicts, open) = (dicts >> 1, open - 1),
                Token::Bytes(_) if key_next => {
                    key_next = false;
                    continue;
                }
                Token::Bytes(_) | Token::Integer(_) => {}
            }
            if open == 0 {
                return Ok(());
            }
            key_next = dicts & 1 == 1;
        }
    }

    fn token(&mut self) -> Result<Token<'a>, Error> {
        let at = self.at;
        self.at += 1;
        match self.bytes.get(at) {
            Some(b'i') => self.integer(at).map(Token::Integer),
            Some(b'l') => Ok(Token::List),
            Some(b'd') => Ok(Token::Dict),
            Some(b'e') => Ok(Token::End),
            Some(b'0'..=b'9') => {
                self.at = at;
                self.byte_string(at).map(Token::Bytes)
            }
            Some(_) => Err(Error { at, what: "a byte that no value begins with" }),
            None => Err(Error { at, what: "an early end" }),
        }
    }

    fn integer(&mut self, at: usize) -> Result<i64, Error> {
        let negative = self.bytes.get(self.at) == Some(&b'-');
        self.at += usize::from(negative);
        let digits = self.digits(b'e')?;
        let wrong = |what| Error { at, what };
        if negative && digits == b"0" {
            return Err(wrong("a zero with a sign"));
        }
        digits
            .iter()
            .try_fold(0_i64, |number, digit| {
                let digit = i64::from(digit - b'0');
                let tens = number.checked_mul(10)?;
                if negative { tens.checked_sub(digit) } else { tens.checked_add(digit) }
            })
            .ok_or_else(|| wrong("an integer of more than 64 bits"))
    }

    fn byte_string(&mut self, at: usize) -> Result<&'a [u8], Error> {
        let digits = self.digits(b':')?;
        let len = digits.iter().try_fold(0_usize, |number, digit| {
            number.checked_mul(10)?.checked_add(usize::from(digit - b'0'))
        });
        let bytes = len.and_then(|len| self.bytes[self.at..].get(..len));
        let bytes = bytes.ok_or(Error { at, what: "a byte string longer than the message" })?;
        self.at += bytes.len();
        Ok(bytes)
    }

    /// Reads digits without leading zeroes and the byte `end`; returns the digits.
    fn digits(&mut self, end: u8) -> Result<&'a [u8], Error> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let wrong = |what| Error { at: self.at, what };
        let count = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        match (&rest[..count], rest.get(count)) {
            ([], _) => Err(wrong("no digit where one is needed")),
            ([b'0', _, ..], _) => Err(wrong("a number that begins with zero")),
            (digits, Some(&byte)) if byte == end => {
                self.at += count + 1;
                Ok(digits)
            }
            _ => Err(wrong("a number that does not end")),
        }
    }
}

/// A destination of encoded bytes.
pub trait Sink {
    /// Appends `bytes`.
    fn put(&mut self, bytes: &[u8]);
}

impl Sink for Vec<u8> {
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// A [`Sink`] that counts bytes. With it the code that writes a message also computes its length in advance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Length(pub usize);

impl Sink for Length {
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        self.0 += bytes.len();
    }
}

/// Appends bencoded values to a [`Sink`].
///
/// The caller writes the keys of a dictionary in sorted order; the writer does not check this.
#[derive(Debug)]
pub struct Writer<'a, S = Vec<u8>>(&'a mut S);

impl<'a, S: Sink> Writer<'a, S> {
    /// Returns a writer that appends to `out`.
    pub const fn new(out: &'a mut S) -> Self {
        Self(out)
    }

    /// Writes a byte string.
    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.length(bytes.len()).put(bytes)
    }

    /// Begins a byte string of `len` bytes, which the caller then writes with [`put`](Self::put).
    pub fn length(&mut self, len: usize) -> &mut Self {
        self.number(len as u64).put(b":")
    }

    /// Writes an integer.
    pub fn integer(&mut self, integer: i64) -> &mut Self {
        self.put(if integer < 0 { b"i-" } else { b"i" }).number(integer.unsigned_abs()).put(b"e")
    }

    /// Begins a dictionary; [`end`](Self::end) ends it.
    pub fn dict(&mut self) -> &mut Self {
        self.put(b"d")
    }

    /// Begins a list; [`end`](Self::end) ends it.
    pub fn list(&mut self) -> &mut Self {
        self.put(b"l")
    }

    /// Ends a list or a dictionary.
    pub fn end(&mut self) -> &mut Self {
        self.put(b"e")
    }

    /// Writes bytes unchanged: bencoded bytes, or a part of a byte string.
    pub fn put(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.put(bytes);
        self
    }

    fn number(&mut self, mut number: u64) -> &mut Self {
        let (mut digits, mut first) = ([0; 20], 20);
        loop {
            first -= 1;
            digits[first] = b'0' + (number % 10) as u8;
            number /= 10;
            if number == 0 {
                return self.put(&digits[first..]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn what(message: &[u8]) -> &'static str {
        Value::parse(message).unwrap_err().what
    }

    #[test]
    fn values_are_read_as_they_were_written() {
        for integer in [0, 1, -1, 10, i64::MAX, i64::MIN] {
            let mut out = Vec::new();
            let mut writer = Writer::new(&mut out);
            writer.dict().bytes(b"a").integer(integer);
            writer.bytes(b"b").list().bytes(b"").bytes(b"x:y").end().end();
            let dict = Value::parse(&out).unwrap().dict().unwrap();
            assert_eq!(dict.get(b"a").and_then(Value::integer), Some(integer));
            let items: Vec<_> = dict.get(b"b").unwrap().list().unwrap().iter().map(Value::bytes).collect();
            assert_eq!(items, [Some(&b""[..]), Some(b"x:y")]);
            assert_eq!(dict.get(b"c"), None);
        }
    }

    #[test]
    fn a_value_has_only_its_own_type() {
        let value = Value::parse(b"3:abc").unwrap();
        assert_eq!((value.integer(), value.text()), (None, Some("abc")));
        assert!(value.list().is_none() && value.dict().is_none());
        assert_eq!(Value::parse(b"1:\xff").unwrap().text(), None);
    }

    #[test]
    fn the_bytes_of_a_value_are_those_of_the_message() {
        let message = b"d4:infod6:lengthi5ee3:zzzi1ee";
        let info = Value::parse(message).unwrap().dict().unwrap().get(b"info").unwrap();
        assert_eq!(info.encoded(), b"d6:lengthi5ee");
        assert_eq!(Value::parse_first(b"i1erest").unwrap().1, b"rest");
    }

    #[test]
    fn of_equal_keys_the_first_counts_and_order_does_not() {
        let dict = Value::parse(b"d1:bi1e1:ai2e1:ai3ee").unwrap().dict().unwrap();
        assert_eq!(dict.get(b"a").and_then(Value::integer), Some(2));
        assert_eq!(dict.iter().count(), 3);
    }

    #[test]
    fn every_error_names_the_problem_and_the_position() {
        for (message, expected) in [
            (&b""[..], "an early end"),
            (b"l", "an early end"),
            (b"di1ei2ee", "a key that is no byte string"),
            (b"d1:ae", "a key without a value"),
            (b"e", "an end of nothing"),
            (b"i1ei2e", "something behind the value"),
            (b"i01e", "a number that begins with zero"),
            (b"i-0e", "a zero with a sign"),
            (b"i-e", "no digit where one is needed"),
            (b"ie", "no digit where one is needed"),
            (b"i1", "a number that does not end"),
            (b"i1x", "a number that does not end"),
            (b"i9223372036854775808e", "an integer of more than 64 bits"),
            (b"02:ab", "a number that begins with zero"),
            (b"3:ab", "a byte string longer than the message"),
            (b"99999999999999999999999:a", "a byte string longer than the message"),
            (b"x", "a byte that no value begins with"),
        ] {
            assert_eq!(what(message), expected, "{}", message.escape_ascii());
        }
        assert_eq!(Value::parse(b"li1e2:ab3:c").unwrap_err().at, 8);
    }

    #[test]
    fn nesting_is_bounded_and_not_recursive() {
        let nested = |depth: usize| [vec![b'l'; depth], vec![b'e'; depth]].concat();
        assert!(Value::parse(&nested(MOST_NESTED)).is_ok());
        assert_eq!(what(&nested(MOST_NESTED + 1)), "too many lists and dictionaries in each other");
        assert_eq!(what(&vec![b'l'; 1 << 20]), "too many lists and dictionaries in each other");
        let dicts = [b"d1:a".repeat(MOST_NESTED - 1), b"de".to_vec(), b"e".repeat(MOST_NESTED - 1)].concat();
        assert!(Value::parse(&dicts).unwrap().dict().is_some());
    }
}
