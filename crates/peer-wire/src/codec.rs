//! For `tokio_util::codec`: a [`Codec`] for `Framed`, `FramedRead` and `FramedWrite`.
//!
//! Messages go out into the frame buffer and come in as [`Frame`]s, which hold their bytes without a copy and can be kept. Who sends many
//! blocks writes them with a [`SendQueue`](crate::SendQueue) instead: a framed sink copies each into its buffer.
//!
//! ```
//! # use futures_util::{SinkExt, StreamExt};
//! # use swarmkeep_peer_wire::{Limits, Message, codec::Codec};
//! # use tokio_util::codec::Framed;
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let (ours, theirs) = tokio::io::duplex(1024);
//! let mut ours = Framed::new(ours, Codec::new(Limits::new()));
//! let mut theirs = Framed::new(theirs, Codec::new(Limits::new()));
//! ours.send(Message::Interested).await?;
//! let frame = theirs.next().await.expect("one was sent")?;
//! assert_eq!(frame.message(), Message::Interested);
//! # Ok(())
//! # }
//! ```

use std::io;

use bytes::{Bytes, BytesMut};
use swarmkeep_bittorrent::bencode::Sink;
use tokio_util::codec::{Decoder, Encoder};

use crate::{Encode, Error, Limits, Message};

/// Reads [`Frame`]s and writes whatever is [`Encode`]. The handshake has been read before, with
/// [`Handshake::decode`](crate::Handshake::decode).
#[derive(Debug, Clone, Copy)]
pub struct Codec {
    /// What the peer may send.
    pub limits: Limits,
}

/// A message with its bytes: cheap to clone, no copy of what it came in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame(Bytes);

/// Why no more frames come, or nothing can be sent.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CodecError {
    /// The peer has sent what no peer may.
    #[error(transparent)]
    Peer(#[from] Error),
    /// The connection is broken.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl Codec {
    /// One for messages within `limits`.
    pub const fn new(limits: Limits) -> Self {
        Self { limits }
    }
}

impl Frame {
    /// The message, borrowed from its bytes. Costs as much as reading it did.
    pub fn message(&self) -> Message<'_> {
        let mut bytes = &self.0[..];
        let message = ANY.decode(&mut bytes).ok().flatten();
        message.expect("it was read within narrower limits")
    }

    /// The frame as it stood on the wire. A payload can be cut out of it with [`Bytes::slice_ref`].
    pub const fn bytes(&self) -> &Bytes {
        &self.0
    }
}

/// Whatever any limits allow, these do.
const ANY: Limits = Limits::new().longest_block(u32::MAX).longest_frame(u32::MAX);

impl Decoder for Codec {
    type Item = Frame;
    type Error = CodecError;

    fn decode(&mut self, bytes: &mut BytesMut) -> Result<Option<Frame>, CodecError> {
        let mut rest = &bytes[..];
        if self.limits.decode(&mut rest)?.is_none() {
            return Ok(None);
        }
        let len = bytes.len() - rest.len();
        Ok(Some(Frame(bytes.split_to(len).freeze())))
    }
}

impl<M: Encode> Encoder<M> for Codec {
    type Error = CodecError;

    fn encode(&mut self, message: M, out: &mut BytesMut) -> Result<(), CodecError> {
        out.reserve(message.encoded_len());
        message.encode(&mut Buffer(out));
        Ok(())
    }
}

struct Buffer<'a>(&'a mut BytesMut);

impl Sink for Buffer<'_> {
    fn put(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }
}
