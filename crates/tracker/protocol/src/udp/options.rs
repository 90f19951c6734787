//! The options of BEP 41 after an announce request.

/// The options after an announce request. They are read leniently: an option that is cut short ends the list,
/// and bytes that are not an option are an unknown extension and no error (a tracker that insists on 98 bytes
/// refuses qBittorrent 5).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options<'a>(&'a [u8]);

/// One option of BEP 41.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum AnnounceOption<'a> {
    /// A piece of the path and query of the announce URL. All pieces together are the value.
    UrlData(&'a [u8]),
    /// An option that BEP 41 does not know.
    Unknown {
        /// Its number.
        kind: u8,
        /// Its value.
        data: &'a [u8],
    },
}

impl<'a> Options<'a> {
    const END: u8 = 0;
    const NOP: u8 = 1;
    const URL_DATA: u8 = 2;

    pub(super) const fn new(trailing: &'a [u8]) -> Self {
        Self(trailing)
    }
}

impl<'a> Iterator for Options<'a> {
    type Item = AnnounceOption<'a>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match *self.0 {
                [Self::NOP, ref rest @ ..] => self.0 = rest,
                // Every option but those of one byte has a length, so that unknown ones can be stepped over.
                [kind, len, ref rest @ ..] if kind != Self::END && rest.len() >= usize::from(len) => {
                    let (data, rest) = rest.split_at(usize::from(len));
                    self.0 = rest;
                    return Some(match kind {
                        Self::URL_DATA => AnnounceOption::UrlData(data),
                        kind => AnnounceOption::Unknown { kind, data },
                    });
                }
                _ => {
                    self.0 = &[];
                    return None;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(trailing: &[u8]) -> Vec<AnnounceOption<'_>> {
        Options::new(trailing).collect()
    }

    #[test]
    fn url_data_may_come_in_pieces_between_padding() {
        use AnnounceOption::UrlData;
        assert_eq!(read(b"\x02\x09/announce"), [UrlData(b"/announce")]);
        assert_eq!(
            read(b"\x01\x02\x03/an\x01\x01\x02\x02no\x00\x02\x01x"),
            [UrlData(b"/an"), UrlData(b"no")]
        );
        assert_eq!(read(b"\x02\x00"), [UrlData(b"")]);
    }

    #[test]
    fn unknown_options_are_stepped_over() {
        let options = read(b"\x09\x02ab\x02\x01c");
        assert_eq!(
            options,
            [AnnounceOption::Unknown { kind: 9, data: b"ab" }, AnnounceOption::UrlData(b"c")]
        );
    }

    #[test]
    fn an_option_that_is_cut_short_ends_the_list() {
        assert_eq!(read(b""), []);
        assert_eq!(read(b"\x00\x02\x01c"), []);
        assert_eq!(read(b"\x02"), []);
        assert_eq!(read(b"\x02\x05abc"), []);
        assert_eq!(read(b"\x02\x01c\x02\xff"), [AnnounceOption::UrlData(b"c")]);
    }
}
