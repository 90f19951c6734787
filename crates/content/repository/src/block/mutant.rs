//! Ways to get the order of things wrong, for tests that must notice (feature `mutants`).

/// One way.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Mutant {
    /// A root names an i-node before it is written.
    RootBeforeInode,
    /// Every root is written over the one before.
    RootInPlace,
    /// Blocks of a deleted torrent are reused before the root without it is written.
    ReuseBeforeRoot,
    /// Blocks of a deleted torrent are reused as soon as one root without it is durable.
    ReuseAfterOneRoot,
    /// A have-bit may be written together with the data of its piece.
    HaveBitsWithData,
    /// A map block is pointed at before its contents are durable.
    MapBlockWithContent,
    /// A map block is pointed at, and its old contents are left in it.
    MapBlockAsFound,
    /// A sector of i-nodes is written with changes of its other i-nodes that must not be written yet.
    NeighboursAsTheyAre,
    /// A have-bit is cleared in memory, and on the device some time later.
    ClearedLater,
    /// Boot takes a root of which parts were not written.
    TornRoot,
    /// Boot takes have-bits of pieces that have no blocks.
    BitsWithoutBlocks,
    /// Boot leaves a root that names deleted torrents.
    OlderRootLeft,
    /// Boot leaves wrong data on the device.
    NothingMended,
    /// Boot gives a block to every torrent that claims it.
    SharedBlocks,
    /// Boot forgets which torrents it lost.
    LostNotRecorded,
    /// Boot does not check the owner of a logical sector.
    AnyInode,
}

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Mutation(#[cfg(feature = "mutants")] pub(super) Option<Mutant>);

impl Mutation {
    /// Whether it is this one. Nothing but `false` without the feature.
    #[inline]
    pub(super) fn is(self, mutant: Mutant) -> bool {
        #[cfg(feature = "mutants")]
        return self.0 == Some(mutant);
        #[cfg(not(feature = "mutants"))]
        {
            let _ = mutant;
            false
        }
    }
}
