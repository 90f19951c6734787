//! Answers to a scrape over HTTP (BEP 48). An answer with all torrents may have hundreds of megabytes, so the
//! reader makes one pass and keeps none of it.
//!
//! `d5:filesd20:…d8:completei5e10:downloadedi50e10:incompletei10eeee`

use std::ops::Deref;

use swarmkeep_bittorrent::{InfoHash, bencode::MOST_NESTED};

use super::{
    input::Input,
    reading::{Entries, Stop},
};

/// Reads an answer.
pub(super) fn read(input: &mut Input<'_>, entries: &mut Entries<'_>) -> Result<(), Stop> {
    let mut pull = Pull { input, at: 0 };
    if pull.token()? != Token::Dict {
        return Err(pull.wrong("no dictionary, as answers to a scrape are"));
    }
    let mut files = false;
    while let Some(length) = pull.key()? {
        match &*pull.string(length)? {
            b"files" => {
                if pull.token()? != Token::Dict {
                    return Err(pull.wrong("`files` is no dictionary"));
                }
                files = true;
                while let Some(length) = pull.key()? {
                    torrent(&mut pull, length, entries)?;
                }
            }
            b"failure reason" => {
                if let Token::Bytes(length) = pull.token()? {
                    let why = pull.string(length)?;
                    let why = String::from_utf8_lossy(&why).escape_debug().to_string();
                    return Err(pull.wrong(&format!("the tracker refused the scrape: \"{why}\"")));
                }
                return Err(pull.wrong("the tracker refused the scrape"));
            }
            _ => pull.pass_value()?,
        }
    }
    let newline = pull.peek()? == Some(b'\n');
    if newline {
        pull.next()?;
    }
    pull.at = pull.input.at();
    match pull.peek()? {
        Some(_) => Err(pull.wrong("something behind the answer")),
        None if !files => Err(pull.wrong("no `files` in it: not the answer to a scrape")),
        None => Ok(()),
    }
}

/// Reads one torrent of an answer, from its info hash on.
fn torrent(pull: &mut Pull<'_, '_>, length: u64, entries: &mut Entries<'_>) -> Result<(), Stop> {
    let place = pull.at;
    let info_hash = pull.string(length)?;
    let wrong = match <[u8; 20]>::try_from(&*info_hash) {
        Ok(info_hash) => match fields(pull)? {
            Ok(downloads) => {
                entries.take(InfoHash::new(info_hash), downloads);
                return Ok(());
            }
            Err(wrong) => wrong,
        },
        _ => {
            pull.pass_value()?;
            format!("{length} bytes where an info hash has 20")
        }
    };
    entries.refuse(format!("byte {place}"), wrong);
    Ok(())
}

/// The downloads in a torrent's dictionary, or the reason why they are wrong.
fn fields(pull: &mut Pull<'_, '_>) -> Result<Result<u32, String>, Stop> {
    let token = pull.token()?;
    if token != Token::Dict {
        pull.pass_rest(token)?;
        return Ok(Err("no dictionary behind the info hash".into()));
    }
    let mut downloads = Err("no `downloaded`".to_owned());
    while let Some(length) = pull.key()? {
        if &*pull.string(length)? != b"downloaded" {
            pull.pass_value()?;
            continue;
        }
        downloads = match pull.token()? {
            Token::Integer(number) => match u32::try_from(number) {
                Ok(number) => Ok(number),
                Err(_) if number < 0 => Err("`downloaded` is below zero".into()),
                Err(_) => Err("`downloaded` is above 4,294,967,295".into()),
            },
            other => {
                pull.pass_rest(other)?;
                Err("`downloaded` is no integer".into())
            }
        };
    }
    Ok(downloads)
}

/// A token of bencode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token {
    /// Saturates at 64 bits.
    Integer(i64),
    /// The length of a byte string. Its bytes follow.
    Bytes(u64),
    List,
    Dict,
    End,
}

/// Reads bencoded values from front to back.
struct Pull<'i, 'f> {
    input: &'i mut Input<'f>,
    /// The offset of the last token.
    at: u64,
}

/// More bytes than any known key has.
const PREFIX: usize = 64;

/// The beginning of a byte string.
struct Prefix {
    bytes: [u8; PREFIX],
    length: usize,
}

impl Prefix {
    fn extend(&mut self, part: &[u8]) {
        let fits = part.len().min(PREFIX - self.length);
        self.bytes[self.length..self.length + fits].copy_from_slice(&part[..fits]);
        self.length += fits;
    }
}

impl Deref for Prefix {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl Pull<'_, '_> {
    fn wrong(&self, error: &str) -> Stop {
        Stop::broken(format!("byte {}", self.at), error.to_owned())
    }

    fn cut_off(&mut self) -> Stop {
        self.at = self.input.at();
        self.wrong("an early end: the file was cut off")
    }

    fn peek(&mut self) -> Result<Option<u8>, Stop> {
        self.input.peek().map_err(|error| Stop::reading(error, self.input))
    }

    fn next(&mut self) -> Result<u8, Stop> {
        match self.input.next() {
            Ok(Some(byte)) => Ok(byte),
            Ok(None) => Err(self.cut_off()),
            Err(error) => Err(Stop::reading(error, self.input)),
        }
    }

    fn token(&mut self) -> Result<Token, Stop> {
        self.at = self.input.at();
        match self.next()? {
            b'i' => self.integer(),
            b'l' => Ok(Token::List),
            b'd' => Ok(Token::Dict),
            b'e' => Ok(Token::End),
            first @ b'0'..=b'9' => {
                let length = self.digits(first, b':')?;
                u64::try_from(length)
                    .map(Token::Bytes)
                    .map_err(|_| self.wrong("a byte string without an end"))
            }
            _ => Err(self.wrong("not bencoded: a byte that no value begins with")),
        }
    }

    fn integer(&mut self) -> Result<Token, Stop> {
        let first = self.next()?;
        let negative = first == b'-';
        let first = if negative { self.next()? } else { first };
        let number = self.digits(first, b'e')?;
        match (negative, number) {
            (true, 0) => Err(self.wrong("not bencoded: a zero with a sign")),
            (true, number) => Ok(Token::Integer(number.saturating_neg())),
            (false, number) => Ok(Token::Integer(number)),
        }
    }

    /// The number that begins with the digit `first` and ends before the byte `end`.
    fn digits(&mut self, first: u8, end: u8) -> Result<i64, Stop> {
        if !first.is_ascii_digit() {
            return Err(self.wrong("not bencoded: no digit where one is needed"));
        }
        let mut number = i64::from(first - b'0');
        loop {
            match self.next()? {
                byte if byte == end => return Ok(number),
                byte if byte.is_ascii_digit() && first != b'0' => {
                    number = number.saturating_mul(10).saturating_add(i64::from(byte - b'0'));
                }
                byte if byte.is_ascii_digit() => {
                    return Err(self.wrong("not bencoded: a number that begins with zero"));
                }
                _ => return Err(self.wrong("not bencoded: a number that does not end")),
            }
        }
    }

    /// The length of the next key of the open dictionary; `None` at its end.
    fn key(&mut self) -> Result<Option<u64>, Stop> {
        match self.token()? {
            Token::Bytes(length) => Ok(Some(length)),
            Token::End => Ok(None),
            _ => Err(self.wrong("not bencoded: a key that is no byte string")),
        }
    }

    /// Passes a byte string, and returns its beginning.
    fn string(&mut self, length: u64) -> Result<Prefix, Stop> {
        let mut prefix = Prefix { bytes: [0; PREFIX], length: 0 };
        let passed = self.input.pass(length, |part| prefix.extend(part));
        match passed.map_err(|error| Stop::reading(error, self.input))? {
            passed if passed == length => Ok(prefix),
            _ => Err(self.cut_off()),
        }
    }

    fn pass_value(&mut self) -> Result<(), Stop> {
        let token = self.token()?;
        self.pass_rest(token)
    }

    /// Passes the rest of a value after its first token, however nested.
    fn pass_rest(&mut self, mut token: Token) -> Result<(), Stop> {
        // One bit for each open list or dictionary: whether it is a dictionary.
        let (mut dicts, mut open, mut key_next) = (0_u128, 0, false);
        loop {
            if key_next && !matches!(token, Token::Bytes(_) | Token::End) {
                return Err(self.wrong("not bencoded: a key that is no byte string"));
            }
            match token {
                Token::Bytes(length) => {
                    self.string(length)?;
                    key_next = open > 0 && dicts & 1 == 1 && !key_next;
                }
                Token::Integer(_) => key_next = open > 0 && dicts & 1 == 1,
                Token::List | Token::Dict => {
                    if open == MOST_NESTED {
                        return Err(self.wrong("too many lists and dictionaries in each other"));
                    }
                    let dict = token == Token::Dict;
                    (dicts, open, key_next) = (dicts << 1 | u128::from(dict), open + 1, dict);
                }
                Token::End if open == 0 || (dicts & 1 == 1 && !key_next) => {
                    return Err(self.wrong("not bencoded: a key without a value"));
                }
                Token::End => {
                    (dicts, open) = (dicts >> 1, open - 1);
                    key_next = open > 0 && dicts & 1 == 1;
                }
            }
            if open == 0 {
                return Ok(());
            }
            token = self.token()?;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::MOST_NESTED;
    use crate::{
        Format,
        tests::{Read, read},
    };

    fn scrape(bytes: &[u8]) -> Read {
        read(Format::Scrape, bytes)
    }

    /// An answer with a torrent that has this dictionary, and another torrent.
    fn of_one(value: &[u8]) -> Vec<u8> {
        [b"d5:filesd20:aaaaaaaaaaaaaaaaaaaa", value, b"20:bbbbbbbbbbbbbbbbbbbbd10:downloadedi3eeee"].concat()
    }

    #[test]
    fn downloads_are_read_whatever_stands_around_them() {
        let answer = b"d5:filesd20:aaaaaaaaaaaaaaaaaaaad8:completei1e10:downloadedi7e10:incompletei2ee\
            20:bbbbbbbbbbbbbbbbbbbbd10:downloadedi0e4:name3:abc5:otherld1:ali1eeeeee5:flagsd20:min_request_intervali1eee\n";
        let read = scrape(answer);
        let counts: Vec<_> =
            read.counts.iter().map(|(hash, downloads)| (hash.as_bytes()[0], *downloads)).collect();
        assert_eq!(counts, [(b'a', 7), (b'b', 0)], "{:?}", read.broken);
        assert_eq!((read.refused.len(), read.broken), (0, None));
        let none = scrape(b"d5:filesdee");
        assert_eq!((none.counts.len(), none.broken), (0, None));
    }

    #[test]
    fn a_wrong_torrent_is_refused_and_the_next_one_read() {
        for (value, error) in [
            (&b"de"[..], "no `downloaded`"),
            (b"d8:completei1ee", "no `downloaded`"),
            (b"d10:downloadedi-1ee", "`downloaded` is below zero"),
            (b"d10:downloadedi4294967296ee", "`downloaded` is above 4,294,967,295"),
            (b"d10:downloadedi99999999999999999999999999999999ee", "`downloaded` is above 4,294,967,295"),
            (b"d10:downloadedi-99999999999999999999999999999999ee", "`downloaded` is below zero"),
            (b"d10:downloaded1:7e", "`downloaded` is no integer"),
            (b"d10:downloadedd1:xleee", "`downloaded` is no integer"),
            (b"i7e", "no dictionary behind the info hash"),
            (b"l1:ae", "no dictionary behind the info hash"),
        ] {
            let read = scrape(&of_one(value));
            assert_eq!(read.refused, [format!("byte 9: {error}")], "{}", value.escape_ascii());
            assert_eq!((read.counts.len(), read.broken), (1, None));
        }
        let read = scrape(b"d5:filesd19:aaaaaaaaaaaaaaaaaaad10:downloadedi1ee0:le21:aaaaaaaaaaaaaaaaaaaaade100:\
            aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaai1eee");
        assert_eq!(
            read.refused,
            [
                "byte 9: 19 bytes where an info hash has 20",
                "byte 49: 0 bytes where an info hash has 20",
                "byte 53: 21 bytes where an info hash has 20",
                "byte 79: 100 bytes where an info hash has 20"
            ]
        );
        assert_eq!(read.broken, None);
    }

    #[test]
    fn broken_answers_have_errors_with_their_places() {
        for (bytes, error) in [
            (&b""[..], "byte 0: an early end: the file was cut off"),
            (b"d5:files", "byte 8: an early end: the file was cut off"),
            (b"d5:filesd20:aaaa", "byte 16: an early end: the file was cut off"),
            (b"d5:filesd9223372036854775807:aaaa", "byte 33: an early end: the file was cut off"),
            (b"d5:filesd99999999999999999999999:aaaa", "byte 37: an early end: the file was cut off"),
            (
                b"d5:filesd20:aaaaaaaaaaaaaaaaaaaad10:downloadedi1",
                "byte 48: an early end: the file was cut off",
            ),
            (b"d5:filesdee5:again", "byte 11: something behind the answer"),
            (b"d5:filesi1ee", "byte 8: `files` is no dictionary"),
            (b"de", "byte 2: no `files` in it: not the answer to a scrape"),
            (b"le", "byte 0: no dictionary, as answers to a scrape are"),
            (
                b"d14:failure reason9:no \"you\"\ne",
                "byte 18: the tracker refused the scrape: \"no \\\"you\\\"\\n\"",
            ),
            (b"d14:failure reason9:no", "byte 22: an early end: the file was cut off"),
            (b"di1ei2ee", "byte 1: not bencoded: a key that is no byte string"),
            (b"d1:ae", "byte 4: not bencoded: a key without a value"),
            (b"d1:ad1:bee", "byte 8: not bencoded: a key without a value"),
            (b"d1:ad1:bi1ei2eee", "byte 11: not bencoded: a key that is no byte string"),
            (b"d1:ai-0ee", "byte 4: not bencoded: a zero with a sign"),
            (b"d1:ai01ee", "byte 4: not bencoded: a number that begins with zero"),
            (b"d1:aiee", "byte 4: not bencoded: no digit where one is needed"),
            (b"d1:ai1xe", "byte 4: not bencoded: a number that does not end"),
            (b"d01:a", "byte 1: not bencoded: a number that begins with zero"),
            (b"dx", "byte 1: not bencoded: a byte that no value begins with"),
        ] {
            assert_eq!(scrape(bytes).broken.as_deref(), Some(error), "{}", bytes.escape_ascii());
        }
    }

    #[test]
    fn nesting_is_bounded() {
        let nested = |depth: usize| {
            [b"d1:x", "l".repeat(depth).as_bytes(), "e".repeat(depth).as_bytes(), b"5:filesdee"].concat()
        };
        assert_eq!(scrape(&nested(MOST_NESTED)).broken, None);
        let broken = scrape(&nested(MOST_NESTED + 1)).broken.unwrap();
        assert_eq!(broken, "byte 132: too many lists and dictionaries in each other");
        assert!(scrape(&[b"d1:x", "d1:a".repeat(1 << 20).as_bytes()].concat()).broken.is_some());
    }

    #[test]
    fn every_cut_is_noticed_and_earlier_torrents_are_kept() {
        let whole = of_one(b"d10:downloadedi7ee");
        for length in 0..whole.len() {
            let read = scrape(&whole[..length]);
            assert_eq!(read.broken, Some(format!("byte {length}: an early end: the file was cut off")));
            assert_eq!(read.counts.len(), usize::from(length >= 50) + usize::from(length >= 91), "{length}");
        }
    }

    proptest! {
        /// Closer to a right answer than arbitrary bytes: its parts in any order.
        #[test]
        fn arbitrary_parts_never_panic(parts in prop::collection::vec(prop::sample::select(vec![
            "d", "e", "l", "i1e", "i-7e", "i", "5:files", "10:downloaded", "20:aaaaaaaaaaaaaaaaaaaa", "0:", "9:", "14:failure reason", "\n",
        ]), 0..40)) {
            scrape(format!("d5:filesd{}", parts.concat()).as_bytes());
        }
    }
}
