//! The faults of the reference store, each with the case that rejects it.

swarmkeep_conformance::faults! {
    /// One fault of the [`Reference`](super::Reference).
    for_each_durability_fault:

    /// A snapshot omits a swarm while an announce to it is in flight.
    snapshot_skips_what_is_busy SnapshotSkipsBusy => a_snapshot_holds_every_peer_whose_announce_returned_before_it_began;
    /// Loads all peers as if they had just announced.
    ages_begin_anew AgesBeginAnew => a_snapshot_loads_with_its_counts_roles_and_downloads_and_ages_rounded_younger;
    /// Loads peers two seconds older than they were.
    ages_rounded_older AgesRoundedOlder => a_snapshot_loads_with_its_counts_roles_and_downloads_and_ages_rounded_younger;
    /// Loads expired peers as if they were just within their lifetime.
    expired_peers_are_loaded ExpiredAreLoaded => what_expired_meanwhile_stays_out;
    /// Replaces a loaded swarm by a new one at its first announce.
    loaded_swarm_made_anew LoadedSwarmMadeAnew => an_announce_after_a_restart_finds_the_peers_that_were_there;
    /// A snapshot reads download counts before peers.
    downloads_from_before_the_peers DownloadsBeforePeers => a_snapshot_counts_the_download_of_every_seeder_it_holds;
    /// A stop takes no snapshot.
    stop_without_a_snapshot StopWithoutSnapshot => a_stop_keeps_everything_that_was_answered;
    /// A snapshot does not survive its process.
    kill_loses_the_snapshot KillLosesSnapshot => a_kill_loses_nothing_older_than_the_last_snapshot;
    /// Does not write a second snapshot soon after the first.
    second_snapshot_is_left_out SecondSnapshotIsLeftOut => a_second_snapshot_replaces_the_first;
    /// Loads the part of a snapshot before the damage.
    half_of_a_snapshot_is_loaded HalfIsLoaded => a_truncated_snapshot_is_refused_as_a_whole;
    /// Keeps only the latest snapshot.
    previous_snapshot_is_lost PreviousIsLost => a_truncated_snapshot_is_refused_as_a_whole;
    /// Does not open if the latest snapshot is damaged.
    damaged_snapshot_refuses_to_open DamagedIsRefused => an_altered_snapshot_is_refused_as_a_whole;
    /// Ignores checksums.
    checksum_is_ignored ChecksumIgnored => an_altered_snapshot_is_refused_as_a_whole;
    /// Ignores bytes after the end.
    what_is_behind_the_end_is_ignored EndIgnored => a_snapshot_with_something_behind_it_is_refused_as_a_whole;
    /// Has checksums that do not depend on the order of the lines.
    checksum_of_single_lines ChecksumOfLines => blocks_that_do_not_belong_together_are_no_snapshot;
    /// Loads a damaged previous snapshot up to the damage.
    half_of_the_previous_is_loaded HalfOfPreviousIsLoaded => without_a_good_snapshot_a_store_opens_empty_and_keeps_its_counts;
    /// Deletes all counts if a snapshot is damaged.
    counts_go_with_a_snapshot CountsGoWithSnapshot => without_a_good_snapshot_a_store_opens_empty_and_keeps_its_counts;
    /// Keeps a damaged snapshot as the previous one instead of the valid one.
    damaged_becomes_the_previous DamagedBecomesPrevious => after_a_damaged_snapshot_the_next_one_is_good_again;
    /// Loads an unfinished snapshot as the latest.
    unfinished_is_the_latest UnfinishedIsLoaded => an_unfinished_snapshot_leaves_the_last_good_one;
    /// Does not open if there is an unfinished snapshot.
    unfinished_keeps_it_from_opening UnfinishedIsRefused => an_unfinished_snapshot_leaves_the_last_good_one;
    /// Opens a folder that is already open.
    folder_is_open_twice OpenTwice => a_folder_is_open_once_at_a_time;
    /// Holds its lock while it takes a snapshot.
    snapshot_holds_the_lock SnapshotHoldsLock => a_snapshot_does_not_stall_announces;
    /// A stop writes no counts.
    stop_forgets_counts StopForgetsCounts => download_counts_outlive_a_stop;
    /// Reports counts as durable, but writes them only when it stops.
    settled_counts_are_lost SettlesInMemory => download_counts_outlive_a_kill_once_they_are_settled;
    /// Writes only the counts that have changed, and loses the others.
    only_changes_are_kept SettlesChangesOnly => a_kill_loses_no_more_than_what_was_not_settled;
    /// A sweep deletes the stored counts of the swarms that it removes.
    sweep_forgets_counts SweepForgets => a_swarm_that_was_swept_comes_back_with_its_count;
    /// Writes only the counts of the swarms that exist when counts are settled.
    counts_of_live_swarms CountsOfLiveSwarms => a_swarm_that_was_swept_comes_back_with_its_count;
    /// Loads stored counts only when the store is opened.
    counts_come_at_open_only CountsComeAtOpenOnly => a_swarm_that_was_swept_comes_back_with_its_count;
    /// An eviction deletes the stored counts of the evicted swarms.
    eviction_forgets_counts EvictionForgets => an_eviction_forgets_no_count;
    /// Shows a stored count without the downloads counted since, and adds those later.
    counts_fall CountsFall => counts_that_come_back_never_fall_and_end_exactly_right;
    /// Adds some stored counts twice.
    counts_come_twice CountsComeTwice => counts_that_come_back_never_fall_and_end_exactly_right;
    /// Replaces the downloads counted since by the stored count.
    stored_count_replaces_the_newer_one StoredReplacesNewer => downloads_that_race_with_a_stored_count_are_counted_once;
    /// A sweep writes counts that it read a moment before.
    sweep_writes_stale_counts SweepWritesStaleCounts => downloads_that_race_with_sweeps_are_counted_once;
    /// Adds the counts of a snapshot to the stored counts.
    snapshot_adds_to_stored_counts SnapshotAddsCounts => a_count_that_both_snapshot_and_store_hold_is_not_added_up;
    /// Adds restored counts to the stored counts.
    restored_downloads_add_up RestoreAddsUp => a_snapshot_taken_before_counts_have_come_counts_nothing_twice;
    /// A removal does not delete the stored count.
    remove_keeps_the_count RemoveKeepsCount => remove_forgets_the_stored_count;
    /// A removal in steps does not delete the stored counts.
    remove_where_keeps_counts RemoveWhereKeepsCounts => remove_where_forgets_the_stored_counts;
    /// Loads a stored count that was requested before its torrent was removed.
    count_comes_after_a_removal AwaitedAfterRemoval => no_stored_count_comes_after_a_removal;
    /// Opens with a swarm for every torrent that ever existed.
    everything_is_in_memory EverythingInMemory => only_live_swarms_are_in_memory_after_a_restart;
    /// Does not store downloads that are added.
    added_downloads_are_not_stored AddedNotStored => downloads_that_were_added_are_stored_once;
    /// Does not store downloads that are restored.
    restored_downloads_are_not_stored RestoredNotStored => restored_downloads_are_stored_and_never_added_up;
    /// Stored counts wrap from the largest number to zero.
    stored_counts_wrap CountsWrap => stored_counts_saturate;
    /// Does not store the downloads of a batch.
    batches_are_not_counted BatchesNotCounted => batches_count_like_single_announces;
    /// Counts in memory before the caller's randomness is called, and stores after it.
    panic_loses_a_count PanicLosesCount => a_panic_in_the_callers_randomness_leaves_one_count_in_memory_and_store;
    /// An announce that creates a swarm waits for its stored count, after the counts of all other swarms.
    announce_waits_for_counts AnnounceWaitsForCounts => announces_do_not_wait_for_stored_counts;
}
