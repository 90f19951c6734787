//! Blocks on their way from a store to a peer.

use std::{ops::Range, sync::Arc};

use swarmkeep_content::{ContentExt, Error};
use swarmkeep_peer_wire::Block;

use crate::ready::Ready;

/// A block in memory that it shares with others.
#[derive(Debug, Clone)]
pub(crate) struct Slice {
    memory: Arc<Vec<u8>>,
    range: Range<usize>,
}

impl AsRef<[u8]> for Slice {
    fn as_ref(&self) -> &[u8] {
        &self.memory[self.range.clone()]
    }
}

/// Memory that blocks are read into again and again: at a steady rate of sending, nothing is allocated.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    spare: Vec<Arc<Vec<u8>>>,
}

impl Memory {
    /// The most batches of one connection: one is being read, one is being sent, and one is about to be.
    const MOST: usize = 3;

    fn take(&mut self) -> Arc<Vec<u8>> {
        let free = self.spare.iter().position(|memory| Arc::strong_count(memory) == 1);
        free.map_or_else(Arc::default, |free| self.spare.swap_remove(free))
    }

    fn keep(&mut self, memory: Arc<Vec<u8>>) {
        if self.spare.len() < Self::MOST {
            self.spare.push(memory);
        }
    }
}

/// Requested blocks that are read with one call.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) blocks: Vec<Block>,
    memory: Arc<Vec<u8>>,
}

impl Batch {
    /// Bytes that are read at once: 16 blocks, as much as a socket takes.
    pub(crate) const MOST: usize = 256 << 10;

    /// Takes blocks from the front of `asked`: at least one, and at most `most` bytes if there are several.
    pub(crate) fn take(
        asked: &mut std::collections::VecDeque<Block>,
        memory: &mut Memory,
        most: usize,
    ) -> Option<Self> {
        let mut bytes = 0;
        let fits = |block: &&Block| {
            bytes += block.length as usize;
            bytes == block.length as usize || bytes <= most.min(Self::MOST)
        };
        let count = asked.iter().take_while(fits).count();
        let blocks: Vec<_> = asked.drain(..count).collect();
        (!blocks.is_empty()).then(|| Self { blocks, memory: memory.take() })
    }

    pub(crate) fn bytes(&self) -> usize {
        self.blocks.iter().map(|block| block.length as usize).sum()
    }

    /// Reads the blocks. `read` fills a buffer with the bytes from a place in the torrent; blocks that follow
    /// each other in the torrent are one read. Behind the end of the torrent there are zeroes, which
    /// libtorrent requests where the last file of v2 ends.
    pub(crate) fn read<E>(
        &mut self,
        Ready { info, content, .. }: &Ready,
        mut read: impl FnMut(u64, &mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let bytes = self.bytes();
        let len = content.geometry().len();
        // `Memory::take` returns memory that no other batch has.
        let memory = Arc::get_mut(&mut self.memory).expect("no other batch has it");
        if memory.len() < bytes {
            memory.resize(bytes, 0);
        }
        let place = |block: &Block| {
            u64::from(block.piece.0) * u64::from(info.piece_length()) + u64::from(block.begin)
        };
        let (mut rest, mut blocks) = (&mut memory[..bytes], &self.blocks[..]);
        while let Some(first) = blocks.first() {
            let from = place(first);
            let mut end = from;
            let run = blocks.iter().take_while(|block| {
                let follows = place(block) == end;
                end += if follows { u64::from(block.length) } else { 0 };
                follows
            });
            let count = run.count();
            let (now, later) = rest.split_at_mut((end - from) as usize);
            let (there, behind) = now.split_at_mut((end.min(len).saturating_sub(from)) as usize);
            behind.fill(0);
            if !there.is_empty() {
                read(from, there)?;
            }
            (rest, blocks) = (later, &blocks[count..]);
        }
        Ok(())
    }

    /// Calls `tell` for each piece that cannot be read. Each block is read for itself. Wrong pieces are
    /// marked incomplete before, so that they are fetched again.
    pub(crate) fn find_unreadable(
        &self,
        Ready { info, content, .. }: &Ready,
        mut tell: impl FnMut(u32, &Error),
    ) {
        let (mut bytes, mut told) = (Vec::new(), None);
        for block in &self.blocks {
            let piece = block.piece.0;
            let from = u64::from(piece) * u64::from(info.piece_length()) + u64::from(block.begin);
            let there = content.geometry().len().saturating_sub(from).min(block.length.into());
            bytes.resize(there as usize, 0);
            if there > 0
                && told != Some(piece)
                && let Err(error) = content.read(from, &mut bytes)
            {
                let refused = match error {
                    Error::Wrong { .. } => content.mark_incomplete(piece).err(),
                    _ => None,
                };
                tell(piece, &refused.unwrap_or(error));
                told = Some(piece);
            }
        }
    }

    /// The blocks and their bytes; the memory is used again when they are dropped.
    pub(crate) fn into_slices(self, memory: &mut Memory) -> impl Iterator<Item = (Block, Slice)> {
        memory.keep(Arc::clone(&self.memory));
        let mut at = 0;
        self.blocks.into_iter().map(move |block| {
            let range = at..at + block.length as usize;
            at = range.end;
            (block, Slice { memory: Arc::clone(&self.memory), range })
        })
    }
}

#[cfg(test)]
mod tests {
    use swarmkeep_content::{ContentConfig, ContentRepository, Memory as Store, NewTorrent};
    use swarmkeep_metainfo::Info;
    use swarmkeep_peer_wire::PieceIndex;

    use super::*;

    #[test]
    fn a_block_behind_the_end_of_a_v2_torrent_is_not_unreadable() {
        // Two pieces, and 10 KiB of a third one.
        let root = "r".repeat(32);
        let file = format!("d6:lengthi{}e11:pieces root32:{root}e", (128 + 10) << 10);
        let info =
            format!("d9:file treed1:xd0:{file}ee12:meta versioni2e4:name1:x12:piece lengthi{}ee", 64 << 10);
        let info = Arc::new(Info::parse(info.as_bytes()).unwrap());
        let store = Store::new(&ContentConfig::new(""));
        let content = store.create(&NewTorrent::of(&info).unwrap()).unwrap();
        let block = |piece, begin| Block { piece: PieceIndex(piece), begin, length: 16 << 10 };
        let batch = Batch { blocks: vec![block(0, 0), block(2, 32 << 10)], memory: Arc::default() };
        let ready = Ready::new(info, content).unwrap();
        let mut unreadable = Vec::new();
        batch.find_unreadable(&ready, |piece, _| unreadable.push(piece));
        assert_eq!(unreadable, [0]);
    }
}
