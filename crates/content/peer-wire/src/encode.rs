//! Writing messages: one description of each, which counts or writes.

use swarmkeep_bittorrent::bencode::{Length, Sink};

/// Something that can be sent to a peer.
///
/// A message writes itself to a [`Sink`]. The sink [`Length`] counts the bytes of the same description, so
/// that the length prefix is known before anything is written.
pub trait Encode {
    /// Writes all of it, the length prefix included.
    ///
    /// # Panics
    /// If the length of the payload does not fit in 32 bits.
    fn encode<S: Sink>(&self, out: &mut S);

    /// Bytes that [`encode`](Self::encode) writes.
    #[inline]
    fn encoded_len(&self) -> usize {
        let mut length = Length::default();
        self.encode(&mut length);
        length.0
    }
}

/// The length prefix of a message with `behind_id` bytes behind its id.
#[inline]
pub(crate) fn prefix(behind_id: usize) -> [u8; 4] {
    u32::try_from(behind_id + 1).expect("no payload is as long as 4 GiB").to_be_bytes()
}
