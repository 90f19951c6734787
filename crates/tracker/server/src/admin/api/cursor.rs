//! Positions in listings, in a form that clients cannot forge.

use data_encoding::BASE64URL_NOPAD;
use swarmkeep::{Cursor, implement::CursorExt as _};

use crate::{admin::problem::Problem, tokens::Key};

/// A listing that has positions.
#[derive(Debug, Clone, Copy)]
pub(super) enum Listing<'a> {
    Torrents,
    /// Of the peers of this torrent.
    Peers(&'a [u8; 20]),
}

/// How many bytes of the code are sent. A guess has one chance in 2^64, and gains a position in a list that
/// the client may read.
const CODE: usize = 8;

/// Where to go on; `None` at the end.
pub(super) fn encode(key: &Key, listing: Listing<'_>, cursor: Cursor) -> Option<String> {
    let bytes = cursor.bytes().filter(|_| !cursor.is_end())?;
    Some(BASE64URL_NOPAD.encode(&[&code(key, listing, bytes)[..], bytes].concat()))
}

/// The position that [`encode`] has written; the start if there is none.
pub(super) fn decode(key: &Key, listing: Listing<'_>, text: Option<&str>) -> Result<Cursor, Problem> {
    let Some(text) = text else { return Ok(Cursor::START) };
    let decoded = BASE64URL_NOPAD.decode(text.as_bytes()).unwrap_or_default();
    match decoded.split_at_checked(CODE) {
        // Only bytes from `encode` have this code, so they are no longer than a cursor.
        Some((given, bytes)) if given == code(key, listing, bytes) => Ok(Cursor::after(bytes)),
        _ => Err(Problem::bad_request(
            "cursor: not one that this tracker has given for this listing since it started; begin again without",
        )),
    }
}

fn code(key: &Key, listing: Listing<'_>, bytes: &[u8]) -> [u8; CODE] {
    let code = match listing {
        Listing::Torrents => key.mac(b"torrents", &[bytes]),
        Listing::Peers(info_hash) => key.mac(b"peers", &[info_hash, bytes]),
    };
    (code as u64).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_comes_back_and_no_other_is_taken() {
        let key = Key::drawn().expect("entropy");
        let listings = [Listing::Torrents, Listing::Peers(&[1; 20]), Listing::Peers(&[2; 20])];
        for len in 0..=24 {
            let cursor = Cursor::after(&[7; 24][..len]);
            for (n, listing) in listings.into_iter().enumerate() {
                let text = encode(&key, listing, cursor).expect("not the end");
                for (m, other) in listings.into_iter().enumerate() {
                    assert_eq!(decode(&key, other, Some(&text)).ok(), (n == m).then_some(cursor));
                }
                for at in 0..text.len() {
                    let mut wrong = text.clone().into_bytes();
                    wrong[at] = if wrong[at] == b'A' { b'B' } else { b'A' };
                    let wrong = String::from_utf8(wrong).expect("ASCII");
                    assert!(decode(&key, listing, Some(&wrong)).is_err(), "{text} {wrong}");
                }
            }
        }
        for made_up in ["", "A", "AAAA", "AAAAAAAAAAA", &"A".repeat(1000), "é", "=", "AAAAAAAAAAAAAAAA"] {
            assert!(decode(&key, Listing::Torrents, Some(made_up)).is_err(), "{made_up}");
        }
        assert_eq!(encode(&key, Listing::Torrents, Cursor::END), None);
        assert_eq!(decode(&key, Listing::Torrents, None).ok(), Some(Cursor::START));
    }
}
