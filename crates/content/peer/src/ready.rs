//! A torrent with its info dictionary.

use std::sync::Arc;

use swarmkeep_content::Content;
use swarmkeep_metainfo::Info;
use swarmkeep_peer_wire::Limits;

use crate::Error;

/// A torrent in the store, with its info dictionary.
#[derive(Debug)]
pub(crate) struct Ready {
    pub(crate) info: Arc<Info>,
    pub(crate) content: Arc<dyn Content>,
    pub(crate) limits: Limits,
}

/// The longest frame that a connection buffers. PEX and metadata messages are shorter.
const LONGEST_FRAME: u32 = 128 << 10;

impl Ready {
    /// Fails if no messages can be about the torrent.
    pub(crate) fn new(info: Arc<Info>, content: Arc<dyn Content>) -> Result<Self, Error> {
        let limits = if info.has_v1() {
            Limits::for_torrent(info.length(), info.piece_length())
        } else {
            Limits::for_v2_torrent(info.piece_count(), info.piece_length())
        };
        let mut limits = limits.map_err(|error| Error::Torrent(error.to_string()))?;
        limits.longest_frame = LONGEST_FRAME;
        Ok(Self { info, content, limits })
    }
}
