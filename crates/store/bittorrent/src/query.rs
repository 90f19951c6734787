//! The query of a URL, percent-encoded, as in announces over HTTP (BEP 3) and magnet links (BEP 9).

/// A percent-encoded value, borrowed from its query.
///
/// A `+` means a plus: clients write it unescaped in an info hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Escaped<'a>(&'a [u8]);

impl<'a> Escaped<'a> {
    /// A value, or a part of a path, as a URL contains it.
    pub const fn new(encoded: &'a [u8]) -> Self {
        Self(encoded)
    }

    /// Percent-encodes `bytes` for a request. Overwrites the contents of `room` with the result.
    pub fn encode(bytes: &[u8], room: &'a mut Vec<u8>) -> Self {
        room.clear();
        escape(bytes, room);
        Self(room)
    }

    /// Returns the value as the query contains it.
    pub const fn encoded(self) -> &'a [u8] {
        self.0
    }

    /// Returns the decoded bytes. A `%` that is not followed by two hexadecimal digits yields one `None`, and
    /// the iterator ends there.
    #[inline]
    pub fn bytes(self) -> impl Iterator<Item = Option<u8>> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            let (&first, behind) = rest.split_first()?;
            rest = behind;
            if first != b'%' {
                return Some(Some(first));
            }
            let Some((&[high, low], behind)) = rest.split_first_chunk() else {
                rest = &[];
                return Some(None);
            };
            rest = behind;
            let digit = |byte: u8| char::from(byte).to_digit(16);
            let byte = digit(high).zip(digit(low)).map(|(high, low)| (high << 4 | low) as u8);
            if byte.is_none() {
                rest = &[];
            }
            Some(byte)
        })
    }

    /// Returns the decoded bytes if there are exactly `N`.
    pub fn exactly<const N: usize>(self) -> Option<[u8; N]> {
        let (mut out, mut bytes) = ([0; N], self.bytes());
        for slot in &mut out {
            *slot = bytes.next()??;
        }
        bytes.next().is_none().then_some(out)
    }

    /// Returns the result of `parse` for the decoded text; `None` if the text is longer than `N` bytes or not
    /// UTF-8.
    pub fn parse<const N: usize, T>(self, parse: impl FnOnce(&str) -> Option<T>) -> Option<T> {
        let (mut text, mut len) = ([0; N], 0);
        for byte in self.bytes() {
            *text.get_mut(len)? = byte?;
            len += 1;
        }
        parse(std::str::from_utf8(&text[..len]).ok()?)
    }

    /// Returns the decoded text; `None` if it is not UTF-8.
    pub fn text(self) -> Option<String> {
        String::from_utf8(self.bytes().collect::<Option<_>>()?).ok()
    }

    /// Returns the decoded text like [`text`](Self::text), with a blank for each `+`, as in forms.
    pub fn text_of_form(self) -> Option<String> {
        let mut escaped = self.0.to_vec();
        escaped.iter_mut().filter(|byte| **byte == b'+').for_each(|byte| *byte = b' ');
        Escaped(&escaped).text()
    }
}

/// Returns names and values in their order. A name without `=` has an empty value.
#[inline]
pub fn parameters(query: &[u8]) -> impl Iterator<Item = (&[u8], Escaped<'_>)> {
    query.split(|&byte| byte == b'&').filter(|parameter| !parameter.is_empty()).map(|parameter| {
        let end = parameter.iter().position(|&byte| byte == b'=');
        match end {
            Some(end) => (&parameter[..end], Escaped(&parameter[end + 1..])),
            None => (parameter, Escaped(&[])),
        }
    })
}

/// Appends `bytes` to `out`, percent-encoded for a query.
pub fn escape(bytes: &[u8], out: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for &byte in bytes {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(byte);
        } else {
            out.extend([b'%', DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_comes_back() {
        let all: Vec<u8> = (0..=255).collect();
        let mut escaped = Vec::new();
        escape(&all, &mut escaped);
        assert!(escaped.iter().all(|byte| byte.is_ascii_graphic() && !b"&=+#".contains(byte)));
        assert_eq!(Escaped(&escaped).bytes().collect::<Option<Vec<_>>>().as_deref(), Some(&all[..]));
        let mut room = b"before".to_vec();
        assert_eq!(Escaped::encode(&all, &mut room).encoded(), escaped);
    }

    #[test]
    fn a_broken_escape_is_no_value_and_ends_it() {
        for broken in ["%", "%1", "a%zz", "%1g", "%%20"] {
            assert_eq!(Escaped(broken.as_bytes()).bytes().collect::<Option<Vec<_>>>(), None, "{broken}");
            assert_eq!(Escaped(broken.as_bytes()).bytes().last(), Some(None), "{broken}");
        }
        assert_eq!(Escaped(b"a+b%2B").exactly(), Some(*b"a+b+"));
        assert_eq!(Escaped(b"abc").exactly::<2>(), None);
        assert_eq!(Escaped(b"abc").exactly::<4>(), None);
        assert_eq!(Escaped(b"a+b%2B%c3%A9").text().as_deref(), Some("a+b+\u{e9}"));
        assert_eq!(Escaped(b"a+b%2B").text_of_form().as_deref(), Some("a b+"));
        assert_eq!((Escaped(b"%ff").text(), Escaped(b"%f").text()), (None, None));
    }

    #[test]
    fn parameters_come_in_order_whatever_stands_between() {
        let found: Vec<_> =
            parameters(b"&a=1&&b=&c&=d&e=f=g&").map(|(name, value)| (name, value.encoded())).collect();
        let expected: [(&[u8], &[u8]); 5] =
            [(b"a", b"1"), (b"b", b""), (b"c", b""), (b"", b"d"), (b"e", b"f=g")];
        assert_eq!(found, expected);
    }
}
