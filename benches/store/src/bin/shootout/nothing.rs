//! A store that does nothing, to measure the cost of the measuring itself.

use swarmkeep::{
    Announce, Announced, Budget, Capabilities, Cursor, InfoHash, LongestHold, MemoryUse, PeerBuffer,
    PeerRecord, Random, Restored, Retention, SwarmStats, SwarmSummary, Swept, Timestamp, TorrentRepository,
    Totals,
};

/// A store that answers every call and keeps nothing.
#[derive(Debug)]
pub(crate) struct Nothing;

impl TorrentRepository for Nothing {
    fn announce(&self, _: &Announce, _: Timestamp, _: &mut dyn Random, _: &mut PeerBuffer<'_>) -> Announced {
        Announced::default()
    }

    fn scrape(&self, _: &InfoHash) -> SwarmStats {
        SwarmStats::default()
    }

    fn totals(&self) -> Totals {
        Totals::default()
    }

    fn walk(&self, _: Cursor, _: usize, _: &mut Vec<SwarmSummary>) -> Cursor {
        Cursor::END
    }

    fn peers(&self, _: &InfoHash, _: Cursor, _: usize, _: &mut Vec<PeerRecord>) -> Cursor {
        Cursor::END
    }

    fn advance(&self, now: Timestamp) -> Timestamp {
        now
    }

    fn sweep(&self, _: Timestamp, _: Retention, _: Budget) -> Swept {
        let mut swept = Swept::default();
        swept.pass_complete = true;
        swept
    }

    fn remove(&self, _: &InfoHash) -> Option<SwarmStats> {
        None
    }

    fn restore(&self, _: &SwarmSummary, _: &[PeerRecord], _: Timestamp) -> Restored {
        Restored::default()
    }

    fn add_downloads(&self, _: &InfoHash, _: u32) -> bool {
        false
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::new(LongestHold::Visits(0))
    }

    fn memory(&self) -> MemoryUse {
        MemoryUse::exact(0)
    }
}
