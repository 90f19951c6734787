//! Writing messages: one description of each, which counts or writes.

use swarmkeep_bittorrent::bencode::{Length, Sink};

/// What can be sent to a peer.
///
/// A message is described once, by what it puts into a [`Sink`]; its length is what [`Length`] counts of the
/// same, so that prefixes are computed before anything is written, and nothing is written twice.
pub trait Encode {
    /// Writes all of it, the length prefix included.
    ///
    /// # Panics
    /// If a payload is so long that 32 bits do not hold its length.
    fn encode<S: Sink>(&self, out: &mut S);

    /// Bytes that [`encode`](Self::encode) writes.
    #[inline]
    fn encoded_len(&self) -> usize {
        let mut length = Length::default();
        self.encode(&mut length);
        length.0
    }
}

/// The length prefix of a message with so many bytes behind its id.
#[inline]
pub(crate) fn prefix(behind_id: usize) -> [u8; 4] {
    u32::try_from(behind_id + 1).expect("no payload is as long as 4 GiB").to_be_bytes()
}
