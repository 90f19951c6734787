//! The durability suite: the rules for stores that outlive their process, as cases. A [`PersistentSubject`]
//! opens such a store in a folder; `durability_suite!` makes a `#[test]` of every case for it.
//!
//! The rules:
//!
//! - **Snapshots.** A snapshot contains every announce that was answered before the snapshot began. A store
//!   opens with the latest valid snapshot, or empty; it contains nothing of a damaged snapshot.
//! - **Download counts** are stored separately from swarms, for every torrent that was ever downloaded from
//!   two prefixes (IPv4 /24, IPv6 /48): a store may keep others, but need not. A new swarm
//!   gets its stored count as soon as the count is loaded, and no announce waits for it; until then the swarm
//!   shows the downloads since it was created. A snapshot and the stored counts contain the same downloads:
//!   the larger one counts, and they are not added up.
//! - **[`restore`](swarmkeep::TorrentRepository::restore) and `import`** use the largest count too, and the
//!   stored count is one of those compared. [`add_downloads`](swarmkeep::TorrentRepository::add_downloads)
//!   adds to the stored count as well as to the swarm.
//! - **[`remove`](swarmkeep::TorrentRepository::remove)** deletes the stored count, also of a torrent without
//!   a swarm. `remove_where` deletes the stored counts of the swarms that it removes. Sweeps and evictions
//!   delete no stored count. A kill may undo a removal that is later than the latest snapshot.
//! - **A kill** loses at most the announces since the latest snapshot, and the downloads since the last call
//!   of [`settle`](Persistent::settle).

mod cases;
#[macro_use]
mod faults;
mod reference;

use std::{
    error::Error,
    io,
    ops::Range,
    path::{Path, PathBuf},
};

use swarmkeep::{RepositoryConfig, Timestamp, TorrentRepository};

use cases::{counts, snapshots};
pub(crate) use faults::Fault;
pub(crate) use reference::Reference;

/// An open store that outlives its process.
pub(crate) trait Persistent: Send + Sync {
    /// Returns the open store.
    fn store(&self) -> &dyn TorrentRepository;

    /// Takes a snapshot, which is durable when the call returns.
    ///
    /// # Errors
    /// If the snapshot cannot be written.
    fn snapshot(&self, now: Timestamp) -> Result<(), Box<dyn Error>>;

    /// Waits until every download counted so far is durable, and until the stored count of every swarm is
    /// loaded.
    fn settle(&self);

    /// Stops the store in order: takes a last snapshot and makes all counts durable.
    fn stop(self: Box<Self>, now: Timestamp);

    /// Ends the store like a killed process: writes nothing more.
    fn kill(self: Box<Self>);
}

/// A kind of persistent store that the suite can open; the suite provides the folder.
pub(crate) trait PersistentSubject: Sync {
    /// Opens the store of a folder, or creates one in an empty folder.
    ///
    /// # Errors
    /// If the folder is open already, or if the store does not support `config`. A damaged snapshot is no
    /// error.
    fn open(
        &self,
        folder: &Path,
        config: &RepositoryConfig,
        now: Timestamp,
    ) -> Result<Box<dyn Persistent>, Box<dyn Error>>;

    /// Returns the file of the latest snapshot in a folder that is not open, for the cases that damage it;
    /// `None` if there is none.
    fn latest_snapshot(&self, folder: &Path) -> Option<PathBuf>;

    /// Writes into a folder that is not open the files that a process leaves if it is killed after it has
    /// written `bytes` of a snapshot, before the end.
    ///
    /// # Errors
    /// The errors of the file system.
    fn leave_unfinished_snapshot(&self, folder: &Path, bytes: &[u8]) -> io::Result<()>;

    /// Returns the positions of the blocks of a snapshot, for the case that combines blocks of different
    /// snapshots.
    fn blocks(&self, snapshot: &[u8]) -> Vec<Range<usize>>;
}

/// One sentence about persistent stores as a test that can be run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Case {
    /// The sentence, as an identifier.
    name: &'static str,
    /// The numbers of the rules of the contract that it tests.
    #[expect(dead_code, reason = "for the reader of the list")]
    rules: &'static [u8],
    run: fn(&dyn PersistentSubject),
}

/// Returns the subject that `durability_suite!` was given.
pub(crate) const fn subject<S: PersistentSubject>(subject: S) -> S {
    subject
}

swarmkeep_conformance::cases! {
    /// All cases, those of snapshots before those of counts.
    DURABILITY_CASES of PersistentSubject;

    /// Makes a module with a `#[test]` of every case for one persistent store.
    ///
    /// The arguments are the name of the module and a `PersistentSubject`: `durability_suite!(my_store,
    /// MySubject);`. The subject is evaluated for each test and can use all names in scope at the macro call.
    durability_suite in $crate::durability;

    snapshots {
        a_snapshot_holds_every_peer_whose_announce_returned_before_it_began [24]
        a_snapshot_loads_with_its_counts_roles_and_downloads_and_ages_rounded_younger [24]
        what_expired_meanwhile_stays_out [16 24]
        a_snapshot_counts_the_download_of_every_seeder_it_holds [24 25]
        a_stop_keeps_everything_that_was_answered [24]
        a_kill_loses_nothing_older_than_the_last_snapshot [24]
        a_second_snapshot_replaces_the_first [24]
        an_announce_after_a_restart_finds_the_peers_that_were_there [7 24]
        a_truncated_snapshot_is_refused_as_a_whole [24]
        an_altered_snapshot_is_refused_as_a_whole [24]
        a_snapshot_with_something_behind_it_is_refused_as_a_whole [24]
        blocks_that_do_not_belong_together_are_no_snapshot [24]
        without_a_good_snapshot_a_store_opens_empty_and_keeps_its_counts [24 25]
        after_a_damaged_snapshot_the_next_one_is_good_again [24]
        an_unfinished_snapshot_leaves_the_last_good_one [24]
        a_folder_is_open_once_at_a_time [24]
        a_snapshot_does_not_stall_announces [18 24]
    }
    counts {
        download_counts_outlive_a_stop [25]
        download_counts_outlive_a_kill_once_they_are_settled [25]
        a_kill_loses_no_more_than_what_was_not_settled [25]
        a_swarm_that_was_swept_comes_back_with_its_count [19 25]
        an_eviction_forgets_no_count [21 25]
        counts_that_come_back_never_fall_and_end_exactly_right [25]
        downloads_that_race_with_a_stored_count_are_counted_once [25]
        downloads_that_race_with_sweeps_are_counted_once [25]
        a_count_that_both_snapshot_and_store_hold_is_not_added_up [24 25]
        a_snapshot_taken_before_counts_have_come_counts_nothing_twice [24 25]
        remove_forgets_the_stored_count [20 25]
        remove_where_forgets_the_stored_counts [20 25]
        no_stored_count_comes_after_a_removal [20 25]
        only_live_swarms_are_in_memory_after_a_restart [25]
        downloads_that_were_added_are_stored_once [25]
        restored_downloads_are_stored_and_never_added_up [24 25]
        stored_counts_saturate [5 25]
        batches_count_like_single_announces [25]
        a_panic_in_the_callers_randomness_leaves_one_count_in_memory_and_store [23 25]
        announces_do_not_wait_for_stored_counts [25]
    }
}

mod broken;
