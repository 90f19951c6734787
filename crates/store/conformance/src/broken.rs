//! Stores that are broken on purpose, each in exactly one way: what proves that the cases can fail.
//!
//! A broken store is the [`Model`] with one fault around it. Most of these faults were found in stores that are in use.

use std::{
    collections::{BTreeMap, HashSet},
    fmt, hint, mem,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    thread,
    time::Duration,
};

use swarmkeep::{
    Announce, AnnounceEvent, Announced, BoundedBy, Budget, Capabilities, Changes, ConfigError, Cursor,
    Endpoint, Evicted, Export, Families, Family, InfoHash, Limits, MemoryUse, PeerBuffer, PeerRecord, Random,
    Records, Removed, RepositoryConfig, Request, Restored, Retention, Role, SplitMix64, SwarmStats,
    SwarmSummary, Swept, Timestamp, TorrentRepository, Totals,
};

use crate::{
    Model,
    model::{State, Swarm, hand_out},
};

faults! {
    /// One way to be broken.
    for_each_fault:

    /// Looks a swarm up, lets go of the lock, and inserts a new one whatever has come meanwhile.
    get_then_insert GetThenInsert => racing_first_announces_are_all_kept;
    /// Collects empty swarms, lets go of the lock, and removes them without looking again.
    sweep_drops_a_swarm_being_filled SweepDropsFilling => announces_survive_sweeps_of_empty_swarms;
    /// Collects expired peers, lets go of the lock, and removes them without looking again.
    sweep_drops_a_peer_being_refreshed SweepDropsRefreshed => refreshes_survive_sweeps_of_expired_peers;
    /// Looks up all swarms of a batch, lets go of the lock, and makes the missing ones whatever has come meanwhile.
    batch_in_two_steps BatchInTwoSteps => racing_batches_lose_nobody;
    /// Removes a known peer and inserts it again in two steps.
    announce_in_two_steps AnnounceInTwoSteps => announce_is_seen_whole_or_not_at_all;
    /// Answers with the counts from before the update.
    counts_before_the_update CountsBeforeUpdate => announce_answers_with_the_counts_after_the_update;
    /// Takes each peer id of an endpoint for a peer of its own.
    identity_by_peer_id IdentityByPeerId => a_peer_is_its_endpoint_whatever_peer_id_it_uses;
    /// Takes each address for one peer, whatever the port.
    identity_by_address IdentityByAddress => two_ports_of_one_address_are_two_peers;
    /// Counts a leecher that becomes a seeder in both roles.
    leecher_left_behind LeecherLeftBehind => a_leecher_that_becomes_a_seeder_moves_and_is_counted_once;
    /// Once a seeder, always a seeder.
    seeder_for_ever SeederForEver => a_seeder_may_become_a_leecher_again;
    /// A refresh leaves the time of the first announce.
    refresh_keeps_the_old_time RefreshKeepsTime => an_announce_renews_the_lifetime;
    /// A `stopped` for an unknown info hash creates the swarm.
    stopped_creates_a_swarm StoppedCreates => stopped_for_an_unknown_info_hash_creates_no_swarm;
    /// A `stopped` is answered with peers.
    stopped_is_handed_peers StoppedIsHandedPeers => stopped_removes_the_peer_and_selects_nobody;
    /// Counts a download for each `completed`.
    completed_counts_each_time CompletedCountsAgain => a_repeated_completed_counts_no_second_download;
    /// Counts a download for a `completed` with bytes left.
    completed_counts_with_bytes_left CompletedCountsWithBytesLeft => completed_with_bytes_left_is_an_ordinary_announce;
    /// Counts no download for a peer it did not know.
    completed_from_unknown_is_ignored CompletedFromUnknownIgnored => completed_counts_one_download_for_an_unknown_peer;
    /// Counts from the largest number to zero.
    counters_wrap CountersWrap => download_counts_saturate;
    /// Calls every change of a known peer a refresh and no more.
    changes_are_not_told ChangesNotTold => changes_say_what_the_announce_did;
    /// Answers all of a batch with what is true at its end.
    batch_answers_with_the_end BatchAnswersWithTheEnd => a_batch_does_what_single_announces_do;
    /// Selects for all of a batch when all have been updated: some are handed peers that came after them.
    batch_selects_at_the_end BatchSelectsAtTheEnd => a_batch_does_what_single_announces_do;
    /// Takes the second announce of an endpoint in a batch for a repetition of the first.
    batch_skips_repeats BatchSkipsRepeats => a_batch_does_what_single_announces_do;
    /// Lets those who leave go first, whatever they announce before in the same batch.
    batch_does_stopped_first BatchStoppedFirst => a_batch_does_what_single_announces_do;
    /// Leaves an answer that is there already.
    batch_keeps_earlier_answers BatchKeepsAnswers => a_batch_does_what_single_announces_do;
    /// Leaves the peers of an earlier announce in the buffer of one that wants nobody.
    batch_keeps_earlier_peers BatchKeepsPeers => a_batch_does_what_single_announces_do;
    /// Draws for all of a batch before anybody is updated.
    batch_draws_first BatchDrawsFirst => a_panic_in_the_middle_of_a_batch_leaves_what_came_before_it_done;
    /// Hands out the first peers in order, always the same.
    first_peers_in_order FirstPeers => the_same_announcer_gets_other_samples;
    /// Draws each peer anew, so that one can be drawn twice.
    selection_with_replacement WithReplacement => announce_hands_out_all_eligible_when_there_are_no_more_than_wanted;
    /// Draws until it finds another one, whatever the generator says.
    selection_that_may_not_end DrawsForEver => a_constant_generator_still_gives_distinct_peers;
    /// Hands out as many as there is room for.
    want_ignored WantIgnored => announce_hands_out_at_most_want_distinct_peers_of_the_swarm;
    /// Hands out one peer fewer than wanted where there is a choice.
    one_peer_too_few OneTooFew => announce_hands_out_as_many_as_wanted_when_more_are_eligible;
    /// Hands seeders to seeders.
    seeders_to_seeders SeedersToSeeders => seeders_are_never_handed_to_seeders;
    /// Hands the announcer to itself.
    announcer_to_itself AnnouncerToItself => announce_never_hands_out_the_announcer;
    /// Draws a window with the announcer in it and then skips it: those behind it are likelier.
    window_before_the_announcer_is_out WindowBeforeAnnouncer => selection_is_fair_in_a_swarm_of_75;
    /// Draws leechers and seeders with equal probability, however many there are of each.
    roles_not_weighted_by_number RolesNotWeighted => selection_stays_fair_when_a_swarm_has_shrunk;
    /// Lets the info hash decide where selection begins.
    selection_by_info_hash SelectionByInfoHash => selection_follows_the_callers_randomness_whatever_clients_choose;
    /// Hands out both families to everybody.
    families_mixed FamiliesMixed => only_families_asked_for_are_handed_out;
    /// Takes as many peers as wanted, and then leaves out those of the other family.
    limit_before_filter LimitBeforeFilter => a_limit_counts_only_peers_of_the_family;
    /// Lets IPv4 peers take all that is wanted.
    one_family_takes_all OneFamilyTakesAll => both_families_get_half_each_and_what_one_leaves_goes_to_the_other;
    /// Panics, with the lock held, when a swarm has peers of the other family only.
    crash_on_the_other_family CrashesOnOtherFamily => a_swarm_of_the_other_family_answers_with_none;
    /// Writes ports with the low byte first.
    ports_low_byte_first PortsLowByteFirst => peers_are_written_in_compact_form;
    /// Appends to what is in the buffer.
    buffer_not_cleared BufferNotCleared => the_buffer_is_cleared_first;
    /// A scrape of an unknown info hash creates the swarm.
    scrape_creates_a_swarm ScrapeCreates => scrape_of_an_unknown_info_hash_is_zeroes_and_stays_unknown;
    /// A promotion leaves the leecher in the totals.
    totals_drift TotalsDrift => totals_are_exact_by_family_and_role;
    /// Counts over all swarms come from a walk.
    totals_by_walking TotalsByWalking => totals_cost_no_walk_over_swarms;
    /// The counts of a swarm come from a walk.
    counts_by_walking CountsByWalking => counts_never_come_from_walking_a_swarm;
    /// Selection looks at every peer of the swarm.
    selection_by_walking SelectionByWalking => selecting_costs_what_is_wanted_not_what_is_there;
    /// A walk shows a swarm again.
    walk_repeats WalkRepeats => walk_shows_every_swarm_exactly_once;
    /// A walk goes on at a number of swarms, whichever have gone meanwhile.
    walk_by_position WalkByPosition => walk_shows_swarms_that_stay_exactly_once_while_others_come_and_go;
    /// A step of a walk counts all that is before it.
    walk_counts_from_the_start WalkCountsFromTheStart => a_step_of_a_walk_costs_the_same_at_any_position;
    /// A page leaves out the swarm that it begins with.
    page_skips PageSkips => page_goes_in_ascending_order_of_info_hashes;
    /// A page begins with nothing if the info hash it follows is gone.
    page_needs_its_info_hash PageNeedsItsInfoHash => page_follows_an_info_hash_that_is_not_there;
    /// Peers are listed by position, seeders first.
    peers_by_position PeersByPosition => peers_that_stay_are_shown_exactly_once_whatever_moves_around_them;
    /// Lists peers with the first second of a tick of its clock: older than they are.
    times_rounded_older TimesRoundedOlder => peers_are_listed_with_role_and_time;
    /// Lists peers with the last second of a tick of its clock, even if that is still to come.
    times_in_the_future TimesInTheFuture => role_and_time_are_those_of_the_last_announce;
    /// Lists every peer with the latest time of all.
    times_not_kept TimesNotKept => peers_are_listed_with_role_and_time;
    /// Gives peer details that it declares not to keep.
    details_not_declared DetailsNotDeclared => peer_details_are_kept_or_absent_as_declared;
    /// Removes peers that are exactly as old as the lifetime.
    expiry_off_by_one ExpiresEarly => a_peer_is_never_swept_while_it_is_no_older_than_the_lifetime;
    /// Takes the beginning of a tick of its clock for the time of an announce: expires up to a tick early.
    ages_rounded_older AgesRoundedOlder => a_peer_is_never_swept_while_it_is_no_older_than_the_lifetime;
    /// Removes peers ten seconds late, and declares a clock of whole seconds.
    expiry_late ExpiresLate => a_peer_is_swept_once_its_age_exceeds_the_lifetime_by_the_clock_resolution;
    /// Keeps time in 16 bits and compares what is left of it.
    clock_of_16_bits ClockOf16Bits => late_sweeps_make_no_expired_peer_young;
    /// Keeps time in 8 bits, in ticks of 32 seconds, and compares what is left of it.
    clock_of_8_bits ClockOf8Bits => late_sweeps_make_no_expired_peer_young;
    /// Moves the base that a swarm's times are counted from when a peer announces, and not the times of the others.
    base_moves_alone BaseMovesAlone => missing_sweeps_make_no_expired_peer_young;
    /// Moves the base that a swarm's times are counted from, and has the others begin there.
    ages_lost_with_the_base AgesLostWithTheBase => ages_stay_true_while_others_announce;
    /// Has a clock that is coarser for longer lifetimes, and declares the same resolution for all.
    resolution_of_another_lifetime ResolutionOfAnotherLifetime => every_lifetime_in_range_is_kept;
    /// Takes any lifetime.
    any_lifetime AnyLifetime => lifetimes_out_of_range_are_refused;
    /// Believes a clock that was set back.
    earlier_times_believed EarlierTimesBelieved => an_earlier_time_counts_as_the_latest_seen;
    /// A step of a sweep does the whole pass.
    sweep_ignores_its_budget SweepIgnoresBudget => a_step_of_a_sweep_visits_about_its_budget;
    /// Drops the peers of a large swarm all at once, and says that it visited what it was meant to.
    sweep_drops_whole_swarms SweepDropsWholeSwarms => a_step_of_a_sweep_touches_no_more_than_its_budget_and_one_hold;
    /// Each caller sweeps from the start.
    sweep_from_the_start SweepFromTheStart => concurrent_sweeps_share_one_pass;
    /// A step of a sweep holds the lock to its end.
    sweep_holds_the_lock SweepHoldsLock => a_sweep_holds_no_lock_for_long_even_in_a_large_swarm;
    /// Leaves the last swarm of a pass out.
    sweep_misses_the_last_swarm SweepMissesLast => an_expired_peer_goes_within_one_full_pass;
    /// Takes memory and never gives it back.
    memory_never_returned MemoryNeverReturned => memory_that_was_freed_is_returned_when_a_store_has_shrunk_a_lot;
    /// Gives memory back, down to a quarter of what it once took.
    memory_returned_in_part MemoryReturnedInPart => memory_falls_to_a_tenth_when_99_of_100_swarms_expire;
    /// Keeps swarms without peers, whatever the policy.
    empty_swarms_stay EmptySwarmsStay => a_swarm_without_peers_goes_with_the_next_sweep;
    /// Drops swarms without peers, whatever the policy.
    downloads_forgotten DownloadsForgotten => a_swarm_without_peers_stays_for_its_downloads_if_the_policy_says_so;
    /// A removal leaves the swarm in the totals.
    remove_keeps_totals RemoveKeepsTotals => remove_says_what_was_there;
    /// After a removal the next swarm is not asked about.
    removal_skips_the_next RemovalSkipsNext => remove_where_removes_all_that_is_forbidden_and_says_what;
    /// Calls the predicate with the lock held.
    predicate_under_the_lock PredicateUnderLock => a_predicate_is_called_without_a_lock_held;
    /// Takes a limit that it does not keep.
    limit_not_refused LimitNotRefused => a_limit_that_is_not_declared_is_refused;
    /// Names a least limit that it refuses as well.
    least_limit_refused LeastLimitRefused => a_limit_that_is_too_small_is_refused_with_the_least_that_works;
    /// Declares a limit on swarms, and forgets it.
    limit_not_kept LimitNotKept => max_swarms_is_kept_under_any_flood;
    /// Drops any swarm to make room, populated or not.
    eviction_of_anything EvictsAnything => a_flood_of_made_up_info_hashes_displaces_itself;
    /// Makes room before it lets a peer in, and none for that peer.
    bytes_exceeded_by_a_peer BytesExceeded => max_bytes_is_kept_under_any_flood;
    /// Does not count what it dropped for want of bytes.
    byte_evictions_not_counted ByteEvictionsNotCounted => max_bytes_is_kept_under_any_flood;
    /// Drops the announcer when its swarm outgrows the limit.
    bytes_drop_the_announcer BytesDropAnnouncer => a_swarm_that_outgrows_max_bytes_keeps_its_announcers_and_its_freshest;
    /// Drops the freshest peers but the announcer when a swarm outgrows the limit.
    bytes_drop_the_freshest BytesDropFreshest => a_swarm_that_outgrows_max_bytes_keeps_its_announcers_and_its_freshest;
    /// Drops populated swarms first for want of bytes.
    bytes_drop_the_populated BytesDropPopulated => a_flood_displaces_itself_where_bytes_are_limited;
    /// Makes room for peers, but not for what it keeps of their downloads.
    downloads_exceed_bytes DownloadsExceedBytes => max_bytes_is_kept_whatever_announces_change;
    /// Takes the room for a peer from its own swarm.
    growth_takes_own_peers GrowthTakesOwnPeers => a_swarm_that_grows_displaces_what_is_worth_less;
    /// Never uses again what swarms took that have gone.
    freed_bytes_stay_taken FreedBytesStayTaken => bytes_that_were_freed_are_used_before_anything_is_evicted;
    /// Restores beyond its limit of bytes.
    restore_ignores_bytes RestoreIgnoresBytes => max_bytes_holds_for_restored_swarms_too;
    /// Makes room for the first newcomer of a batch only.
    batch_makes_room_once BatchMakesRoomOnce => limits_hold_in_batches_too;
    /// Says nothing of the peers that it dropped.
    evictions_not_told EvictionsNotTold => max_peers_per_swarm_is_kept_and_the_announcer_stays;
    /// Drops the freshest peers first.
    freshest_dropped_first DropsFreshest => the_stalest_peers_are_dropped_first;
    /// Declares a limit on the endpoints of an address, and forgets it.
    endpoints_not_limited EndpointsNotLimited => max_endpoints_an_address_is_kept_and_the_announcer_stays;
    /// Counts the seeders of an address apart from its leechers.
    endpoints_counted_by_role EndpointsByRole => max_endpoints_an_address_is_kept_and_the_announcer_stays;
    /// Keeps a newcomer out whose address is at its limit, and says that it has joined.
    endpoint_kept_out EndpointKeptOut => max_endpoints_an_address_is_kept_and_the_announcer_stays;
    /// Does not count the endpoints that went for others of their address.
    endpoint_evictions_not_counted EndpointEvictionsNotCounted => max_endpoints_an_address_is_kept_and_the_announcer_stays;
    /// Drops the freshest endpoint of an address first.
    freshest_endpoint_dropped FreshestEndpointDropped => an_address_displaces_its_own_endpoint_that_announced_least_recently;
    /// Drops the stalest of all peers for a newcomer whose address is at its limit.
    endpoint_displaces_others EndpointDisplacesOthers => an_address_displaces_its_own_endpoint_that_announced_least_recently;
    /// In a full swarm, drops the stalest peer as well as one of the address.
    endpoint_goes_for_each_limit EndpointForEachLimit => an_address_at_its_limit_displaces_only_itself_in_a_full_swarm;
    /// Takes each announce of an address that is at its limit for one of a newcomer.
    refresh_displaces_an_endpoint RefreshDisplaces => an_endpoint_that_is_there_displaces_nobody;
    /// Counts the endpoints that have stopped.
    stopped_endpoint_keeps_its_place StoppedKeepsPlace => an_endpoint_that_stopped_leaves_its_place;
    /// Counts the endpoints that an address has in all swarms.
    endpoints_counted_over_all_swarms EndpointsOverAllSwarms => an_address_has_its_endpoints_in_each_swarm;
    /// Takes all 128 bits for an IPv6 address.
    ipv6_limited_by_128_bits EndpointsBy128Bits => an_ipv6_address_is_its_upper_64_bits;
    /// Takes the upper 56 bits for an IPv6 address, and the upper 24 for an IPv4 address.
    addresses_limited_by_their_networks EndpointsByNetwork => an_ipv6_address_is_its_upper_64_bits;
    /// Keeps an address to its limit at the first newcomer of a batch only.
    batch_limits_addresses_once BatchLimitsAddressesOnce => endpoints_an_address_are_limited_in_batches_too;
    /// Restores an address beyond its limit.
    restore_ignores_the_endpoints_limit RestoreIgnoresEndpoints => endpoints_beyond_the_limit_are_refused_when_restored;
    /// Drops endpoints of an address for those that are restored.
    restore_displaces_endpoints RestoreDisplacesEndpoints => endpoints_beyond_the_limit_are_refused_when_restored;
    /// Does not look through large swarms for the endpoints of an address.
    endpoints_not_limited_in_large_swarms EndpointsInLargeSwarms => one_address_takes_no_more_than_its_endpoints_of_a_large_swarm;
    /// Counts the endpoints of an address, lets go of the lock, and then lets one in.
    endpoints_counted_in_two_steps EndpointsInTwoSteps => racing_endpoints_of_one_address_keep_to_its_limit;
    /// Draws an address, and begins with its first endpoint.
    selection_by_address SelectionByAddress => selection_is_fair_among_the_endpoints_of_limited_addresses;
    /// Drops two endpoints of an IPv6 address for one that has just finished.
    two_endpoints_for_one TwoEndpointsForOne => random_stories_of_limited_addresses_go_as_with_the_model;
    /// Keeps info hashes in lists by their first bytes.
    unkeyed_hash UnkeyedHash => info_hashes_with_equal_first_bytes_cost_no_more;
    /// Leaves the lock poisoned after a panic in the caller's randomness, and panics with it ever after.
    lock_left_poisoned LockLeftPoisoned => a_panic_in_the_callers_randomness_leaves_the_store_usable;
    /// Draws before the totals are brought in line with the swarm.
    totals_after_the_draw TotalsAfterDraw => a_panic_in_the_callers_randomness_leaves_the_store_usable;
    /// Drops a living swarm for one that is restored.
    restore_displaces_others RestoreDisplaces => a_restore_displaces_nobody;
    /// Restoring a swarm in two calls adds its downloads up.
    restore_adds_downloads RestoreAddsDownloads => restore_may_be_done_in_several_calls;
    /// Restoring overwrites what a peer has announced itself.
    restore_overwrites RestoreOverwrites => restore_leaves_a_peer_as_it_announced_itself;
    /// Restored peers come back older than they were.
    restore_rounds_older RestoreRoundsOlder => restore_puts_back_peers_with_role_age_and_downloads;
    /// Restoring takes expired peers in.
    restore_revives RestoreRevives => restore_keeps_out_peers_older_than_the_lifetime;
    /// Downloads that were counted earlier create a swarm.
    add_downloads_creates_a_swarm AddDownloadsCreates => add_downloads_adds_what_was_counted_earlier;
    /// Goes on among the swarms at a number of them, whichever have gone meanwhile.
    export_by_position ExportByPosition => swarms_that_stay_are_exported_while_others_come_and_go;
    /// Reads the seeders of a swarm, and then its leechers: who becomes a seeder in between is missed.
    export_of_seeders_first ExportSeedersFirst => peers_that_stay_are_exported_whatever_moves_around_them;
    /// Reads the peers of a swarm by position.
    export_of_peers_by_position ExportPeersByPosition => peers_that_stay_are_exported_whatever_moves_around_them;
    /// Reads the downloads of a swarm, and then its peers.
    export_of_downloads_before_peers ExportDownloadsFirst => an_export_counts_the_download_of_every_seeder_it_shows;
    /// Leaves out a swarm that somebody is just announcing to.
    export_skips_what_is_busy ExportSkipsBusy => an_export_holds_every_peer_whose_announce_returned_before_it_began;
    /// Reads every peer as a leecher.
    export_without_roles ExportWithoutRoles => an_export_reads_every_swarm_with_its_peers_roles_times_and_downloads;
    /// Reads every peer as if it had just announced.
    export_without_times ExportWithoutTimes => an_export_reads_every_swarm_with_its_peers_roles_times_and_downloads;
    /// Leaves out what has no peers, whatever its downloads.
    export_without_peerless_swarms ExportSkipsPeerless => an_export_reads_every_swarm_with_its_peers_roles_times_and_downloads;
    /// Counts the ages of peers back from the time it is told, whatever the latest is.
    export_believes_an_earlier_time ExportBelievesEarlierTimes => an_export_told_an_earlier_time_shows_times_as_they_are;
    /// A step of an export reads everything.
    export_ignores_its_budget ExportIgnoresBudget => a_step_of_an_export_visits_about_its_budget;
    /// A step of an export holds the lock to its end.
    export_holds_the_lock ExportHoldsLock => an_export_holds_no_lock_for_long_even_in_a_large_swarm;
    /// Reads swarms that nothing is left of.
    export_of_empty_swarms ExportOfEmpties => an_export_leaves_out_what_has_neither_peers_nor_downloads;
    /// Adds the downloads that it takes in to those that it has counted itself.
    import_adds_downloads ImportAddsDownloads => import_does_what_restore_does_one_by_one;
    /// Takes the downloads of the first part of a swarm for those of all.
    import_of_the_first_downloads ImportFirstDownloads => import_does_what_restore_does_one_by_one;
    /// Has everybody who is taken in begin a new life.
    import_makes_everybody_fresh ImportFresh => what_one_store_exports_another_imports;
    /// Takes a second part of a swarm for a repetition of the first.
    import_skips_second_parts ImportSkipsSecondParts => import_does_what_restore_does_one_by_one;
    /// Leaves swarms alone that are there already.
    import_skips_known_swarms ImportSkipsKnown => import_does_what_restore_does_one_by_one;
    /// Takes in the first of several records.
    import_of_the_first_records ImportFirstRecords => import_does_what_restore_does_one_by_one;
    /// Says of expired peers that they were known.
    import_counts_expired_as_known ImportCountsExpiredAsKnown => import_does_what_restore_does_one_by_one;
    /// Forgets its limits for as long as it takes swarms in.
    import_ignores_limits ImportIgnoresLimits => import_keeps_to_limits_and_displaces_nobody;
    /// Makes room for what it takes in.
    import_displaces_others ImportDisplaces => import_keeps_to_limits_and_displaces_nobody;
    /// Looks who is there, lets go of the lock, and takes in all others whoever has come meanwhile.
    import_in_two_steps ImportInTwoSteps => announces_survive_imports_and_stay_as_they_were_made;
    /// Loses an IPv6 peer that completes as one of three.
    loss_on_a_rare_occasion RareLoss => random_stories_go_as_with_the_model;
}

/// The model with a fault.
pub struct Broken {
    model: Model,
    fault: Fault,
    /// What a fault keeps of a swarm: how many leechers were left behind, or the tick that its times are counted from.
    notes: Mutex<BTreeMap<InfoHash, u32>>,
    /// By how much the totals are wrong, or what else a fault counts.
    drift: AtomicU64,
}

impl Broken {
    /// A store with one fault.
    ///
    /// # Errors
    /// Those of the model.
    pub fn new(fault: Fault, config: &RepositoryConfig) -> Result<Self, ConfigError> {
        let without_limits = RepositoryConfig::new(config.hash_key());
        let built = match (fault, Model::new(config)) {
            (Fault::LimitNotRefused, _) if config.limits().bytes.is_some() => Model::new(&without_limits)?,
            (Fault::ResolutionOfAnotherLifetime, _) => Model::coarse(config)?,
            (Fault::LeastLimitRefused, Err(ConfigError::Limit { what, given, least })) => {
                return Err(ConfigError::Limit { what, given, least: least.max(2) - 1 });
            }
            (Fault::AnyLifetime, Err(ConfigError::Lifetime { given, .. })) => {
                Model::new(&without_limits.lifetime(Duration::from_secs(given.as_secs().max(1))))?
            }
            (_, built) => built?,
        };
        let mut state = built.state();
        match fault {
            Fault::ExpiresEarly => state.lifetime_secs -= 1,
            Fault::ExpiresLate => state.lifetime_secs += 10,
            Fault::LimitNotKept => state.limits.swarms = None,
            Fault::EndpointsNotLimited => state.limits.endpoints_an_address = None,
            Fault::BytesExceeded => state.limits.bytes = state.limits.bytes.map(|most| most + 32),
            _ => {}
        }
        drop(state);
        Ok(Self { model: built, fault, notes: Mutex::default(), drift: AtomicU64::new(0) })
    }

    fn is(&self, fault: Fault) -> bool {
        self.fault == fault
    }

    fn state(&self) -> MutexGuard<'_, State> {
        assert!(!(self.is(Fault::LockLeftPoisoned) && self.model.is_poisoned()), "the lock is poisoned");
        self.model.state()
    }

    /// What a fault does before the step of an announce, with no lock held in between, and whom it drops.
    fn before(&self, told: &mut Announce) -> Evicted {
        let mut evicted = Evicted::default();
        let (torrent, stopped) = (told.info_hash, told.event == AnnounceEvent::Stopped);
        match self.fault {
            Fault::GetThenInsert if !stopped => {
                let known = self.state().swarms.contains_key(&torrent);
                let_others_in();
                if !known {
                    self.state().remove(&torrent);
                }
            }
            Fault::AnnounceInTwoSteps => {
                let mut state = self.state();
                if state.swarms.contains_key(&torrent) {
                    state.change(torrent, |swarm| swarm.remove(&told.endpoint));
                }
                drop(state);
                let_others_in();
            }
            Fault::IdentityByPeerId => {
                told.endpoint = with_port(told.endpoint, 1 + told.peer_id.as_bytes()[0] as u16)
            }
            Fault::IdentityByAddress => told.endpoint = with_port(told.endpoint, 6881),
            Fault::StoppedCreates => self.state().change(torrent, |_| ()),
            Fault::EvictsAnything => {
                let mut state = self.state();
                let full = state.limits.swarms.is_some_and(|most| state.swarms.len() >= most);
                if full && !state.swarms.contains_key(&torrent) {
                    let victim = *state.swarms.keys().next().expect("it is full");
                    state.evict(&victim, &mut evicted);
                }
            }
            Fault::BytesDropPopulated => {
                let mut state = self.state();
                let full = state.limits.bytes.is_some_and(|most| state.bytes() + 96 > most as u64);
                let populated = state.swarms.iter().find(|(_, swarm)| swarm.peers.len() > 1);
                if let Some((&victim, _)) = populated.filter(|_| full) {
                    state.evict(&victim, &mut evicted);
                }
            }
            Fault::GrowthTakesOwnPeers => {
                let mut state = self.state();
                let full = state.limits.bytes.is_some_and(|most| state.bytes() + 96 > most as u64);
                let peers = state.swarms.get(&torrent).map_or(0, |swarm| swarm.peers.len());
                if full && peers > 1 {
                    let left = Some(peers - 1);
                    let drop = |swarm: &mut Swarm| swarm.drop_stalest_but(told.endpoint, left);
                    evicted.peers += state.change(torrent, drop);
                }
            }
            Fault::RefreshDisplaces | Fault::StoppedKeepsPlace | Fault::EndpointsByNetwork => {
                evicted.peers += self.make_needless_place(told);
            }
            Fault::EndpointForEachLimit => {
                let mut state = self.state();
                let most = state.limits.peers_per_swarm.unwrap_or(usize::MAX);
                let full = state.swarms.get(&torrent).is_some_and(|swarm| {
                    swarm.peers.len() >= most && !swarm.peers.contains_key(&told.endpoint)
                });
                if full {
                    let drop = |swarm: &mut Swarm| swarm.drop_stalest_but(told.endpoint, Some(most - 1));
                    evicted.peers += state.change(torrent, drop);
                }
            }
            Fault::EndpointsOverAllSwarms => {
                let mut state = self.state();
                let most = state.limits.endpoints_an_address.unwrap_or(usize::MAX);
                let of_address = |swarm: &Swarm| swarm.of_address(told.endpoint).count();
                let first = state.swarms.iter().find(|(_, swarm)| of_address(swarm) > 0);
                let (first, all) = (first.map(|(&first, _)| first), state.swarms.values().map(of_address));
                if all.sum::<usize>() >= most
                    && let Some(first) = first
                {
                    let left = Some(of_address(&state.swarms[&first]) - 1);
                    let drop = |swarm: &mut Swarm| swarm.drop_stalest_of_address_but(told.endpoint, left);
                    evicted.peers += state.change(first, drop);
                }
            }
            Fault::UnkeyedHash => {
                let mut first = [0; 20];
                first[..8].copy_from_slice(&torrent.as_bytes()[..8]);
                hint::black_box(self.state().swarms.range(InfoHash::new(first)..torrent).take(3000).count());
            }
            Fault::EarlierTimesBelieved => self.state().latest = Timestamp::default(),
            _ => {}
        }
        evicted
    }

    /// Drops an endpoint for an announce that needs no place, or none more; how many.
    fn make_needless_place(&self, told: &Announce) -> u64 {
        let mut state = self.state();
        let Some(most) = state.limits.endpoints_an_address else { return 0 };
        let Some(swarm) = state.swarms.get(&told.info_hash) else { return 0 };
        let (held, known) =
            (swarm.of_address(told.endpoint).count(), swarm.peers.contains_key(&told.endpoint));
        let stopped = told.event == AnnounceEvent::Stopped;
        match self.fault {
            Fault::RefreshDisplaces if held >= most && known && !stopped => {
                let drop =
                    |swarm: &mut Swarm| swarm.drop_stalest_of_address_but(told.endpoint, Some(most - 1));
                state.change(told.info_hash, drop)
            }
            Fault::StoppedKeepsPlace if stopped => {
                *self.notes().entry(told.info_hash).or_default() += u32::from(known);
                0
            }
            Fault::StoppedKeepsPlace if !known => {
                let left = self
                    .notes()
                    .get(&told.info_hash)
                    .map_or(most, |&gone| most.saturating_sub(gone as usize).max(1));
                let drop =
                    |swarm: &mut Swarm| swarm.drop_stalest_of_address_but(told.endpoint, Some(left - 1));
                if held >= left { state.change(told.info_hash, drop) } else { 0 }
            }
            Fault::EndpointsByNetwork if !known && !stopped => {
                let network = |endpoint: &Endpoint| match endpoint.family() {
                    Family::V4 => endpoint.as_bytes()[..3].to_vec(),
                    Family::V6 => endpoint.as_bytes()[..7].to_vec(),
                };
                let own = network(&told.endpoint);
                let others: Vec<_> =
                    swarm.peers.keys().filter(|other| network(other) == own).copied().collect();
                if held < most && others.len() >= most {
                    state.change(told.info_hash, |swarm| swarm.remove(&others[0]));
                    return 1;
                }
                0
            }
            _ => 0,
        }
    }

    /// An announce that counts the endpoints of its address under another hold of the lock than it joins under.
    fn announce_beyond_the_endpoints(&self, told: &Announce, now: Timestamp) -> Announced {
        let (limits, full) = {
            let state = self.state();
            let (most, swarm) = (state.limits.endpoints_an_address, state.swarms.get(&told.info_hash));
            let held = swarm.map_or(0, |swarm| {
                swarm.of_address(told.endpoint).filter(|(endpoint, _)| **endpoint != told.endpoint).count()
            });
            (state.limits, most.filter(|&most| held >= most))
        };
        let_others_in();
        let mut state = self.state();
        state.limits = Limits::default();
        let mut announced = state.update(told, now);
        state.limits = limits;
        if full.is_some() && announced.changes.contains(Changes::JOINED) {
            let held = state.swarms[&told.info_hash].of_address(told.endpoint).count();
            let drop = |swarm: &mut Swarm| swarm.drop_stalest_of_address_but(told.endpoint, Some(held - 1));
            let dropped = state.change(told.info_hash, drop);
            state.totals.evicted.peers += dropped;
            announced.evicted.peers += dropped;
            announced.stats = state.swarms[&told.info_hash].stats();
        }
        announced
    }

    /// Which endpoint has gone for another of its address, and what a fault makes of it.
    fn after_displacing(
        &self,
        state: &mut State,
        told: &Announce,
        stale: (Endpoint, Role, Timestamp),
        announced: &mut Announced,
    ) {
        let (torrent, most) = (told.info_hash, state.limits.endpoints_an_address.unwrap_or(usize::MAX));
        let swarm = &state.swarms[&torrent];
        let others = || swarm.peers.iter().filter(|(endpoint, _)| **endpoint != told.endpoint);
        let put_back = |swarm: &mut Swarm| swarm.put(stale.0, stale.1, stale.2, None);
        let instead = match self.fault {
            Fault::EndpointKeptOut => Some(told.endpoint),
            Fault::FreshestEndpointDropped => {
                let own = swarm.of_address(told.endpoint).filter(|(endpoint, _)| **endpoint != told.endpoint);
                own.max_by_key(|(_, peer)| peer.last_announce).map(|(endpoint, _)| *endpoint)
            }
            Fault::EndpointDisplacesOthers => {
                others().min_by_key(|(_, peer)| peer.last_announce).map(|(endpoint, _)| *endpoint)
            }
            _ => None,
        };
        let with_role = swarm.of_address(told.endpoint).filter(|(_, peer)| peer.role == told.role()).count();
        let spared = match self.fault {
            Fault::EndpointsByRole => with_role + usize::from(stale.1 == told.role()) <= most,
            Fault::EndpointsBy128Bits => stale.0.ip() != told.endpoint.ip(),
            Fault::EndpointsInLargeSwarms => swarm.peers.len() > 1000,
            _ => false,
        };
        let second = swarm.of_address(told.endpoint).map(|(&endpoint, _)| endpoint);
        let second = second.filter(|endpoint| *endpoint != told.endpoint).min();
        if let Some(instead) = instead {
            state.change(torrent, |swarm| {
                swarm.remove(&instead);
                put_back(swarm);
            });
        } else if spared {
            state.change(torrent, put_back);
            state.totals.evicted.peers -= 1;
            announced.evicted.peers -= 1;
        } else if self.is(Fault::EndpointEvictionsNotCounted) {
            state.totals.evicted.peers -= announced.evicted.peers;
        } else if self.is(Fault::TwoEndpointsForOne)
            && told.endpoint.family() == Family::V6
            && announced.changes.contains(Changes::COMPLETED)
            && let Some(second) = second
        {
            state.change(torrent, |swarm| swarm.remove(&second));
            state.totals.evicted.peers += 1;
            announced.evicted.peers += 1;
        }
        announced.stats = state.swarms[&torrent].stats();
    }

    /// What a fault makes of the update.
    fn after_update(&self, state: &mut State, told: &Announce, before: &Before, announced: &mut Announced) {
        let torrent = told.info_hash;
        let completed = told.event == AnnounceEvent::Completed;
        let counted = announced.changes.contains(Changes::COMPLETED);
        let mut downloads = announced.stats.downloaded;
        if announced.evicted.peers > 0
            && let Some(stale) = before.stalest_of_address
        {
            self.after_displacing(state, told, stale, announced);
        }
        match self.fault {
            Fault::CountsBeforeUpdate => announced.stats = before.stats,
            Fault::LeecherLeftBehind if announced.changes.contains(Changes::PROMOTED) => {
                *self.notes().entry(torrent).or_default() += 1;
            }
            Fault::SeederForEver if announced.changes.contains(Changes::DEMOTED) => {
                state.change(torrent, |swarm| swarm.put(told.endpoint, Role::Seeder, before.latest, None));
            }
            Fault::RefreshKeepsTime => {
                if let Some(last_announce) = before.last_announce {
                    state.change(torrent, |swarm| swarm.put(told.endpoint, told.role(), last_announce, None));
                }
            }
            Fault::AgesRoundedOlder if told.event != AnnounceEvent::Stopped => {
                let time = begin_of_tick(state.latest);
                state.change(torrent, |swarm| swarm.put(told.endpoint, told.role(), time, None));
            }
            Fault::BaseMovesAlone | Fault::AgesLostWithTheBase => self.move_base(state, told),
            Fault::CompletedCountsAgain if completed && told.left == 0 && !counted => downloads += 1,
            Fault::CompletedCountsWithBytesLeft if completed && told.left > 0 => downloads += 1,
            Fault::CompletedFromUnknownIgnored if counted && before.last_announce.is_none() => downloads -= 1,
            Fault::CountersWrap if counted && before.stats.downloaded == u32::MAX => downloads = 0,
            Fault::ChangesNotTold if announced.changes.contains(Changes::REFRESHED) => {
                announced.changes = Changes::REFRESHED;
            }
            Fault::TotalsDrift if announced.changes.contains(Changes::PROMOTED) => {
                self.drift.fetch_add(1, SeqCst);
            }
            // Not while a test fills the swarm: the walks of that would take longer than all the other faults together.
            Fault::CountsByWalking if !announced.changes.contains(Changes::JOINED) => {
                let swarm = &state.swarms[&torrent];
                hint::black_box(swarm.peers.values().filter(|peer| peer.role.is_seeder()).count());
            }
            Fault::DownloadsExceedBytes if counted => {
                self.drift.fetch_add(8, SeqCst);
            }
            Fault::EvictionsNotTold => announced.evicted = Evicted::default(),
            Fault::ByteEvictionsNotCounted => {
                state.totals.evicted.swarms -= announced.evicted.swarms;
                state.totals.evicted.peers -= announced.evicted.peers;
            }
            Fault::BytesDropAnnouncer if announced.evicted.swarms == 0 && announced.evicted.peers > 0 => {
                state.change(torrent, |swarm| swarm.remove(&told.endpoint));
            }
            Fault::DropsFreshest | Fault::BytesDropFreshest if announced.evicted.peers > 0 => {
                // Puts a stale one back and takes the freshest but the announcer instead.
                let swarm = &state.swarms[&torrent];
                let others = swarm.peers.iter().filter(|(endpoint, _)| **endpoint != told.endpoint);
                let freshest =
                    others.max_by_key(|(_, peer)| peer.last_announce).map(|(endpoint, _)| *endpoint);
                if let (Some(freshest), Some(stale)) = (freshest, before.stalest) {
                    state.change(torrent, |swarm| {
                        swarm.remove(&freshest);
                        swarm.put(stale.0, stale.1, stale.2, None);
                    });
                }
            }
            Fault::RareLoss
                if counted && announced.stats.peers() == 3 && told.endpoint.family() == Family::V6 =>
            {
                state.change(torrent, |swarm| swarm.remove(&told.endpoint));
            }
            _ => {}
        }
        if downloads != announced.stats.downloaded {
            state.change(torrent, |swarm| swarm.downloaded = downloads);
            announced.stats.downloaded = downloads;
        }
        announced.stats.incomplete += self.ghosts(&torrent);
    }

    /// What a clock of 8 bits does with those who stay when a peer announces beyond its reach.
    fn move_base(&self, state: &mut State, told: &Announce) {
        const TICK: u64 = 32;
        let (latest, now) = (state.latest, (state.latest.as_secs() / TICK) as u32);
        let mut notes = self.notes();
        let base = notes.entry(told.info_hash).or_insert(now.saturating_sub(128));
        if now - *base < 256 || told.event == AnnounceEvent::Stopped {
            return;
        }
        let by = u64::from(now - 128 - *base) * TICK;
        *base = now - 128;
        let swarm = &state.swarms[&told.info_hash];
        let others = swarm.peers.iter().filter(|(endpoint, _)| **endpoint != told.endpoint);
        let others: Vec<_> =
            others.map(|(&endpoint, peer)| (endpoint, peer.role, peer.last_announce)).collect();
        state.change(told.info_hash, |swarm| {
            for (endpoint, role, last_announce) in others {
                let shown = match self.fault {
                    Fault::BaseMovesAlone => last_announce.saturating_add(by),
                    _ => latest.saturating_sub(128 * TICK),
                };
                swarm.put(endpoint, role, shown, None);
            }
        });
    }

    /// The selection, if it is what is broken; `false` if the model's own will do.
    fn select_wrongly(
        &self,
        state: &State,
        told: &Announce,
        rng: &mut dyn Random,
        peers: &mut PeerBuffer<'_>,
    ) -> bool {
        let Some(swarm) = state.swarms.get(&told.info_hash).filter(|_| told.want > 0) else { return false };
        let row = |families: Families, role: Role| {
            let mut as_asked = told.families(families);
            as_asked.left = u64::from(role == Role::Leecher);
            eligible(swarm, &as_asked)
        };
        let mut own = row(told.families, told.role());
        let want = told.want;
        match self.fault {
            Fault::StoppedIsHandedPeers => hand_out_window(&own, want, 0, peers),
            _ if told.event == AnnounceEvent::Stopped => return false,
            Fault::FirstPeers => hand_out_window(&own, want, 0, peers),
            Fault::SelectionByInfoHash => {
                hand_out_window(&own, want, usize::from(told.info_hash.as_bytes()[0]), peers);
            }
            Fault::WithReplacement => {
                peers.clear();
                for _ in 0..want.min(own.len()) {
                    put(own[rng.below(own.len())], peers);
                }
            }
            Fault::DrawsForEver => {
                let (mut chosen, mut drawn) = (Vec::new(), 0);
                while chosen.len() < want.min(own.len()) {
                    let one = own[rng.below(own.len())];
                    if !chosen.contains(&one) {
                        chosen.push(one);
                    }
                    drawn += 1;
                    if drawn > 100_000 {
                        // It never ends, but it leaves the processor to others.
                        thread::sleep(Duration::from_secs(1));
                    }
                }
                hand_out_window(&chosen, want, 0, peers);
            }
            Fault::WantIgnored => hand_out_window(&own, usize::MAX, 0, peers),
            Fault::OneTooFew if own.len() > want => {
                hand_out_window(&own, want.saturating_sub(1), rng.below(own.len()), peers)
            }
            Fault::SeedersToSeeders => hand_out_window(&row(told.families, Role::Leecher), want, 0, peers),
            Fault::AnnouncerToItself => {
                own.insert(0, told.endpoint);
                hand_out_window(&own, want, 0, peers);
            }
            Fault::WindowBeforeAnnouncer => {
                let mut all: Vec<_> = swarm.peers.keys().copied().collect();
                let start = rng.below(all.len());
                all.rotate_left(start);
                all.retain(|&endpoint| endpoint != told.endpoint);
                hand_out_window(&all, want, 0, peers);
            }
            Fault::RolesNotWeighted => {
                let (mut leechers, mut seeders) = (row(told.families, Role::Seeder), own);
                seeders.retain(|endpoint| !leechers.contains(endpoint));
                let (leecher, seeder) = (rng.below(leechers.len().max(1)), rng.below(seeders.len().max(1)));
                leechers.rotate_left(leecher);
                seeders.rotate_left(seeder);
                leechers.truncate(want / 2);
                leechers.append(&mut seeders);
                hand_out_window(&leechers, want, 0, peers);
            }
            Fault::SelectionByAddress => {
                own.sort_by_key(|endpoint| endpoint.ip());
                let firsts: Vec<_> =
                    (0..own.len()).filter(|&n| n == 0 || own[n].ip() != own[n - 1].ip()).collect();
                let start = if own.len() > want { firsts[rng.below(firsts.len())] } else { 0 };
                hand_out_window(&own, want, start, peers);
            }
            Fault::FamiliesMixed => hand_out_window(&row(Families::all(), told.role()), want, 0, peers),
            Fault::LimitBeforeFilter => {
                let mut all = row(Families::all(), told.role());
                if told.endpoint.family() == Family::V4 {
                    all.reverse();
                }
                all.truncate(want);
                all.retain(|endpoint| told.families.contains(family_flag(*endpoint)));
                hand_out_window(&all, want, 0, peers);
            }
            Fault::OneFamilyTakesAll => {
                hand_out_window(&own, want, rng.below(own.len().max(1)) / 1000, peers)
            }
            Fault::CrashesOnOtherFamily => {
                let others = swarm.peers.keys().filter(|&&endpoint| endpoint != told.endpoint);
                let family = told.endpoint.family();
                assert!(
                    others.clone().count() == 0 || others.clone().any(|other| other.family() == family),
                    "no such peers"
                );
                return false;
            }
            Fault::PortsLowByteFirst => {
                let turned: Vec<_> = own
                    .iter()
                    .map(|&endpoint| with_port(endpoint, endpoint.port().swap_bytes().max(1)))
                    .collect();
                hand_out_window(&turned, want, 0, peers);
            }
            Fault::BufferNotCleared => {
                let room = peers.v4.room() + peers.v6.room();
                own.iter().take(want.min(room)).for_each(|&endpoint| put(endpoint, peers));
            }
            Fault::SelectionByWalking => {
                hint::black_box(swarm.peers.values().map(|peer| peer.last_announce).max());
                return false;
            }
            _ => return false,
        }
        true
    }

    fn notes(&self) -> MutexGuard<'_, BTreeMap<InfoHash, u32>> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leechers of a swarm that were left behind.
    fn ghosts(&self, info_hash: &InfoHash) -> u32 {
        let notes = self.is(Fault::LeecherLeftBehind).then(|| self.notes());
        notes.and_then(|notes| notes.get(info_hash).copied()).unwrap_or_default()
    }

    /// Does something, and takes what it frees for used, if that is the fault.
    fn losing_bytes<T>(&self, work: impl FnOnce() -> T) -> T {
        let before = self.state().bytes();
        let result = work();
        let mut state = self.state();
        let freed = before.saturating_sub(state.bytes());
        if self.is(Fault::FreedBytesStayTaken) {
            self.drift.fetch_add(freed, SeqCst);
            state.limits.bytes = state.limits.bytes.map(|most| most.saturating_sub(freed as usize).max(96));
        }
        result
    }

    /// Collects under the lock, and removes under another hold of it what was found, whatever has become of it.
    fn sweep_in_two_holds(&self, now: Timestamp, policy: Retention, budget: Budget) -> Swept {
        let state = self.state();
        let oldest = state.latest.max(now).saturating_sub(state.lifetime_secs);
        let empty = |swarm: &Swarm| swarm.peers.is_empty();
        let empties: Vec<_> =
            state.swarms.iter().filter(|(_, swarm)| empty(swarm)).map(|(&torrent, _)| torrent).collect();
        let mut expired = Vec::new();
        for (&torrent, swarm) in &state.swarms {
            let old = swarm.peers.iter().filter(|(_, peer)| peer.last_announce < oldest);
            expired.extend(old.map(|(&endpoint, _)| (torrent, endpoint)));
        }
        drop(state);
        let_others_in();
        if self.is(Fault::SweepDropsFilling) {
            for torrent in empties {
                self.state().remove(&torrent);
            }
        } else {
            for (torrent, endpoint) in expired {
                let mut state = self.state();
                if state.swarms.contains_key(&torrent) {
                    state.change(torrent, |swarm| swarm.remove(&endpoint));
                }
            }
        }
        self.model.sweep(now, policy, budget)
    }

    /// Makes peers look as young as a clock of so many bits tells that ticks every `tick` seconds.
    fn wrap_times(&self, now: Timestamp, tick: u64, bits: u32) {
        let mut state = self.state();
        let all: Vec<_> = state
            .swarms
            .iter()
            .flat_map(|(&torrent, swarm)| {
                swarm
                    .peers
                    .iter()
                    .map(move |(&endpoint, peer)| (torrent, endpoint, peer.role, peer.last_announce))
            })
            .collect();
        for (torrent, endpoint, role, last_announce) in all {
            let ticks = now.as_secs() / tick - last_announce.as_secs() / tick;
            let shown = now.saturating_sub((ticks & ((1 << bits) - 1)) * tick);
            state.change(torrent, |swarm| swarm.put(endpoint, role, shown, None));
        }
    }
}

/// What was there before an announce.
struct Before {
    stats: SwarmStats,
    last_announce: Option<Timestamp>,
    latest: Timestamp,
    stalest: Option<(Endpoint, Role, Timestamp)>,
    /// Only where the number of its endpoints is limited.
    stalest_of_address: Option<(Endpoint, Role, Timestamp)>,
}

impl Before {
    fn of(state: &State, told: &Announce, fault: Fault) -> Self {
        let swarm = state.swarms.get(&told.info_hash);
        let needed = matches!(fault, Fault::DropsFreshest | Fault::BytesDropFreshest);
        let stalest = swarm
            .filter(|_| needed)
            .and_then(|swarm| swarm.peers.iter().min_by_key(|(_, peer)| peer.last_announce));
        let limited = swarm.filter(|_| state.limits.endpoints_an_address.is_some());
        let own = limited.into_iter().flat_map(|swarm| swarm.of_address(told.endpoint));
        let own = own.min_by_key(|(_, peer)| peer.last_announce);
        Self {
            stalest_of_address: own.map(|(&endpoint, peer)| (endpoint, peer.role, peer.last_announce)),
            stats: swarm.map(Swarm::stats).unwrap_or_default(),
            last_announce: swarm
                .and_then(|swarm| swarm.peers.get(&told.endpoint))
                .map(|peer| peer.last_announce),
            latest: state.latest,
            stalest: stalest.map(|(&endpoint, peer)| (endpoint, peer.role, peer.last_announce)),
        }
    }
}

impl TorrentRepository for Broken {
    fn announce(
        &self,
        announce: &Announce,
        now: Timestamp,
        rng: &mut dyn Random,
        peers: &mut PeerBuffer<'_>,
    ) -> Announced {
        let mut told = *announce;
        if self.is(Fault::EndpointsInTwoSteps) {
            let announced = self.announce_beyond_the_endpoints(&told, now);
            peers.clear();
            return announced;
        }
        let evicted = self.before(&mut told);
        let mut state = self.state();
        state.totals.evicted.swarms += evicted.swarms;
        state.totals.evicted.peers += evicted.peers;
        if self.is(Fault::TotalsAfterDraw) {
            let totals = state.totals;
            let announced = state.update(&told, now);
            let updated = std::mem::replace(&mut state.totals, totals);
            state.select(&told, rng, peers);
            state.totals = updated;
            return announced;
        }
        let before = Before::of(&state, &told, self.fault);
        let mut announced = state.update(&told, now);
        announced.evicted.swarms += evicted.swarms;
        announced.evicted.peers += evicted.peers;
        self.after_update(&mut state, &told, &before, &mut announced);
        if !self.select_wrongly(&state, &told, rng, peers) {
            state.select(&told, rng, peers);
        }
        announced
    }

    fn announce_batch(&self, batch: &mut [Request<'_>], now: Timestamp, rng: &mut dyn Random) {
        let mut all: Vec<_> = batch.iter_mut().collect();
        let mut done = HashSet::new();
        match self.fault {
            Fault::BatchStoppedFirst => {
                all.sort_by_key(|request| request.announce.event != AnnounceEvent::Stopped);
            }
            Fault::BatchInTwoSteps => {
                let unknown = |request: &&mut Request<'_>| {
                    let missing = !self.state().swarms.contains_key(&request.announce.info_hash);
                    (missing && request.announce.event != AnnounceEvent::Stopped)
                        .then_some(request.announce.info_hash)
                };
                let mut missing: HashSet<_> = all.iter().filter_map(unknown).collect();
                let_others_in();
                for request in &mut all {
                    if missing.remove(&request.announce.info_hash) {
                        self.state().remove(&request.announce.info_hash);
                    }
                    request.answer = Some(self.announce(&request.announce, now, rng, &mut request.peers));
                }
                return;
            }
            Fault::BatchDrawsFirst => {
                let draws = |request: &&mut Request<'_>| {
                    let state = self.state();
                    let swarm = state.swarms.get(&request.announce.info_hash);
                    let eligible = swarm.map_or(0, |swarm| eligible(swarm, &request.announce).len());
                    request.announce.want > 0 && eligible > request.announce.want
                };
                let seed = all.iter().filter(|request| draws(request)).fold(0, |_, _| rng.next_u64());
                let mut drawn = SplitMix64::new(seed);
                for request in all {
                    request.answer =
                        Some(self.announce(&request.announce, now, &mut drawn, &mut request.peers));
                }
                return;
            }
            Fault::BatchMakesRoomOnce | Fault::BatchLimitsAddressesOnce => {
                let limits = self.state().limits;
                for request in all {
                    request.answer = Some(self.announce(&request.announce, now, rng, &mut request.peers));
                    self.state().limits = Limits::default();
                }
                self.state().limits = limits;
                return;
            }
            _ => {}
        }
        for request in &mut all {
            let announce = request.announce;
            let repeated = !done.insert((announce.info_hash, announce.endpoint));
            if self.is(Fault::BatchSkipsRepeats) && repeated {
                let (stats, state) = (self.scrape(&announce.info_hash), self.state());
                request.peers.clear();
                if state.swarms.contains_key(&announce.info_hash) {
                    state.select(&announce, rng, &mut request.peers);
                }
                request.answer = Some(Announced::new(stats, Changes::REFRESHED));
                continue;
            }
            let (mut nobody, answered) = (PeerBuffer::new(&mut [], &mut []), request.answer);
            let leave = self.is(Fault::BatchKeepsPeers) && announce.want == 0;
            let peers = if leave { &mut nobody } else { &mut request.peers };
            request.answer = Some(self.announce(&announce, now, rng, peers));
            if self.is(Fault::BatchKeepsAnswers) && answered.is_some() {
                request.answer = answered;
            }
        }
        for request in all {
            let answer = request.answer.as_mut().expect("answered above");
            match self.fault {
                Fault::BatchAnswersWithTheEnd => answer.stats = self.scrape(&request.announce.info_hash),
                Fault::BatchSelectsAtTheEnd => {
                    let state = self.state();
                    if state.swarms.contains_key(&request.announce.info_hash) {
                        state.select(&request.announce, rng, &mut request.peers);
                    }
                }
                _ => {}
            }
        }
    }

    fn scrape(&self, info_hash: &InfoHash) -> SwarmStats {
        if self.is(Fault::ScrapeCreates) {
            self.state().change(*info_hash, |_| ());
        }
        let mut stats = self.model.scrape(info_hash);
        stats.incomplete += self.ghosts(info_hash);
        stats
    }

    fn totals(&self) -> Totals {
        let mut totals = self.state().totals;
        match self.fault {
            Fault::TotalsDrift => totals.v4.leechers += self.drift.load(SeqCst),
            Fault::RemoveKeepsTotals => totals.swarms += self.drift.load(SeqCst),
            Fault::TotalsByWalking => {
                totals.swarms =
                    self.state().swarms.keys().filter(|info_hash| info_hash.as_bytes() != &[0; 20]).count()
                        as u64
            }
            _ => {}
        }
        totals
    }

    fn walk(&self, from: Cursor, limit: usize, out: &mut Vec<SwarmSummary>) -> Cursor {
        match (self.fault, from.bytes()) {
            (Fault::WalkRepeats, _) => {
                let first = out.len();
                let next = self.model.walk(from, limit, out);
                if next.is_end() && first < out.len() && out.len() - first < limit {
                    out.push(out[first]);
                }
                next
            }
            (Fault::WalkByPosition, bytes) if !from.is_end() => {
                let position =
                    bytes.map_or(0, |bytes| u64::from_le_bytes(bytes.try_into().expect("8 bytes")) as usize);
                let limit = limit.min(1000);
                let (state, start) = (self.state(), out.len());
                let some = state.swarms.iter().skip(position).take(limit);
                out.extend(some.map(|(&info_hash, swarm)| SwarmSummary { info_hash, stats: swarm.stats() }));
                let shown = out.len() - start;
                if shown < limit {
                    Cursor::END
                } else {
                    Cursor::after(&((position + shown) as u64).to_le_bytes())
                }
            }
            (Fault::WalkCountsFromTheStart, Some(bytes)) => {
                let after = InfoHash::new(bytes.try_into().expect("the model's cursors are info hashes"));
                hint::black_box(self.state().swarms.range(..after).map(|(_, swarm)| swarm.downloaded).max());
                self.model.walk(from, limit, out)
            }
            _ => self.model.walk(from, limit, out),
        }
    }

    fn page(&self, after: Option<&InfoHash>, limit: usize, out: &mut Vec<SwarmSummary>) {
        match (self.fault, after) {
            (Fault::PageSkips, Some(after)) => {
                let mut skipped = Vec::new();
                self.model.page(Some(after), 1, &mut skipped);
                if let Some(skipped) = skipped.first() {
                    self.model.page(Some(&skipped.info_hash), limit, out);
                }
            }
            (Fault::PageNeedsItsInfoHash, Some(after)) if !self.state().swarms.contains_key(after) => {}
            _ => self.model.page(after, limit, out),
        }
    }

    fn peers(&self, info_hash: &InfoHash, from: Cursor, limit: usize, out: &mut Vec<PeerRecord>) -> Cursor {
        if !self.is(Fault::PeersByPosition) || from.is_end() {
            let (start, next) = (out.len(), self.model.peers(info_hash, from, limit, out));
            let latest = self.state().latest;
            for record in &mut out[start..] {
                let begin = begin_of_tick(record.last_announce);
                match self.fault {
                    Fault::TimesNotKept => record.last_announce = latest,
                    Fault::TimesRoundedOlder => record.last_announce = begin,
                    Fault::TimesInTheFuture => record.last_announce = begin.saturating_add(TICK_SECS - 1),
                    _ => {}
                }
            }
            return next;
        }
        let position =
            from.bytes().map_or(0, |bytes| u64::from_le_bytes(bytes.try_into().expect("8 bytes")) as usize);
        let mut all = Vec::new();
        let mut cursor = Cursor::START;
        while !cursor.is_end() {
            cursor = self.model.peers(info_hash, cursor, usize::MAX, &mut all);
        }
        all.sort_by_key(|record| record.role);
        out.extend(all.iter().skip(position).take(limit));
        if all.len() <= position.saturating_add(limit) {
            return Cursor::END;
        }
        Cursor::after(&((position + limit) as u64).to_le_bytes())
    }

    fn sweep(&self, now: Timestamp, policy: Retention, budget: Budget) -> Swept {
        match self.fault {
            Fault::SweepDropsFilling | Fault::SweepDropsRefreshed => {
                self.sweep_in_two_holds(now, policy, budget)
            }
            Fault::ClockOf16Bits | Fault::ClockOf8Bits => {
                let (tick, bits) = if self.is(Fault::ClockOf16Bits) { (1, 16) } else { (32, 8) };
                self.wrap_times(now, tick, bits);
                self.model.sweep(now, policy, budget)
            }
            Fault::SweepDropsWholeSwarms => {
                let mut state = self.state();
                let oldest = state.latest.max(now).saturating_sub(state.lifetime_secs);
                let expired = |swarm: &Swarm| swarm.peers.values().all(|peer| peer.last_announce < oldest);
                let large = state.swarms.iter().find(|(_, swarm)| swarm.peers.len() > 1000 && expired(swarm));
                let Some((&large, _)) = large else { return state.sweep(now, policy, budget.get()) };
                let expired = state.remove(&large).map_or(0, |stats| stats.peers());
                let mut swept = Swept::default();
                (swept.visited, swept.expired, swept.swarms_removed) = (budget.get() as u64, expired, 1);
                swept
            }
            Fault::FreedBytesStayTaken => self.losing_bytes(|| self.model.sweep(now, policy, budget)),
            Fault::EarlierTimesBelieved => {
                self.state().latest = Timestamp::default();
                self.model.sweep(now, policy, budget)
            }
            Fault::SweepIgnoresBudget => self.model.sweep(now, policy, Budget::peers(usize::MAX)),
            Fault::SweepFromTheStart => {
                let mut state = self.state();
                state.sweep = None;
                state.sweep(now, policy, usize::MAX)
            }
            Fault::SweepHoldsLock => self.state().sweep(now, policy, budget.get()),
            Fault::SweepMissesLast => {
                let mut state = self.state();
                let last = state.swarms.pop_last();
                let swept = state.sweep(now, policy, budget.get());
                state.swarms.extend(last);
                swept
            }
            Fault::EmptySwarmsStay => self.model.sweep(now, Retention::KeepDownloaded, budget),
            Fault::DownloadsForgotten => self.model.sweep(now, Retention::DropEmpty, budget),
            _ => self.model.sweep(now, policy, budget),
        }
    }

    fn remove(&self, info_hash: &InfoHash) -> Option<SwarmStats> {
        let removed = self.losing_bytes(|| self.model.remove(info_hash));
        if self.is(Fault::RemoveKeepsTotals) {
            self.drift.fetch_add(removed.is_some().into(), SeqCst);
        }
        removed
    }

    fn remove_where(
        &self,
        forbidden: &(dyn Fn(&InfoHash) -> bool + Sync),
        from: Cursor,
        budget: Budget,
    ) -> Removed {
        match self.fault {
            Fault::RemovalSkipsNext => {
                let skip = Mutex::new(false);
                let skipping = |info_hash: &InfoHash| {
                    let mut skip = skip.lock().unwrap_or_else(PoisonError::into_inner);
                    *skip = !*skip && forbidden(info_hash);
                    *skip
                };
                self.model.remove_where(&skipping, from, budget)
            }
            Fault::PredicateUnderLock => {
                let all: Vec<_> = self.state().swarms.keys().copied().collect();
                let held = self.state();
                let named: Vec<_> = all.into_iter().filter(|info_hash| forbidden(info_hash)).collect();
                drop(held);
                self.model.remove_where(&|info_hash| named.contains(info_hash), from, budget)
            }
            _ => self.losing_bytes(|| self.model.remove_where(forbidden, from, budget)),
        }
    }

    fn restore(&self, swarm: &SwarmSummary, peers: &[PeerRecord], now: Timestamp) -> Restored {
        let mut peers = peers.to_vec();
        match self.fault {
            Fault::RestoreDisplaces => {
                let mut state = self.state();
                if let Some(&victim) = state.swarms.keys().next() {
                    state.remove(&victim);
                }
            }
            Fault::RestoreDisplacesEndpoints => {
                let mut state = self.state();
                let most = state.limits.endpoints_an_address;
                state.change(swarm.info_hash, |swarm| {
                    for record in &peers {
                        let left = most.filter(|_| !swarm.peers.contains_key(&record.endpoint));
                        swarm.drop_stalest_of_address_but(record.endpoint, left.map(|most| most - 1));
                    }
                });
            }
            Fault::RestoreOverwrites => {
                let mut state = self.state();
                state.change(swarm.info_hash, |swarm| {
                    for record in &peers {
                        swarm.remove(&record.endpoint);
                    }
                });
            }
            Fault::RestoreRoundsOlder => {
                peers
                    .iter_mut()
                    .for_each(|record| record.last_announce = record.last_announce.saturating_sub(2));
            }
            Fault::RestoreRevives => {
                peers.iter_mut().for_each(|record| record.last_announce = now);
            }
            _ => {}
        }
        let before = self.scrape(&swarm.info_hash).downloaded;
        let limits = self.state().limits;
        match self.fault {
            Fault::RestoreIgnoresBytes => self.state().limits.bytes = None,
            Fault::RestoreIgnoresEndpoints => self.state().limits.endpoints_an_address = None,
            _ => {}
        }
        let restored = self.model.restore(swarm, &peers, now);
        self.state().limits = limits;
        if self.is(Fault::RestoreAddsDownloads) {
            self.model.add_downloads(&swarm.info_hash, before);
        }
        restored
    }

    fn export(&self, export: &mut Export, now: Timestamp, budget: Budget) {
        match self.fault {
            Fault::ExportByPosition
            | Fault::ExportHoldsLock
            | Fault::ExportBelievesEarlierTimes
            | Fault::ExportOfEmpties => {
                self.export_under_one_lock(export, now, budget);
            }
            Fault::ExportIgnoresBudget => self.model.export(export, now, Budget::peers(usize::MAX)),
            _ => Reading { broken: self, noted: Mutex::default() }.export(export, now, budget),
        }
    }

    fn import(&self, records: &[Records], now: Timestamp) -> Restored {
        let (mut restored, mut seen) = (Restored::default(), BTreeMap::new());
        let first = if self.is(Fault::ImportFirstRecords) { 1 } else { usize::MAX };
        for record in records.iter().take(first).flat_map(Records::iter) {
            let (torrent, mut peers) = (record.info_hash, record.peers().collect::<Vec<_>>());
            let mut swarm = record.summary();
            let known = self.state().swarms.get(&torrent).map(Swarm::stats);
            let earlier = seen.insert(torrent, swarm.stats.downloaded);
            match self.fault {
                Fault::ImportFirstDownloads => {
                    swarm.stats.downloaded = earlier.unwrap_or(swarm.stats.downloaded);
                    seen.insert(torrent, swarm.stats.downloaded);
                }
                Fault::ImportFresh => peers.iter_mut().for_each(|peer| peer.last_announce = now),
                Fault::ImportSkipsSecondParts if earlier.is_some() => continue,
                Fault::ImportSkipsKnown if known.is_some() && earlier.is_none() => continue,
                Fault::ImportDisplaces => {
                    let mut state = self.state();
                    let full = state.limits.swarms.is_some_and(|most| state.swarms.len() >= most);
                    if let Some(&victim) = state.swarms.keys().next().filter(|_| full) {
                        state.remove(&victim);
                    }
                }
                Fault::ImportInTwoSteps => {
                    let others: Vec<_> = {
                        let state = self.state();
                        let swarm = state.swarms.get(&torrent);
                        let is_there = |peer: &PeerRecord| {
                            swarm.is_some_and(|swarm| swarm.peers.contains_key(&peer.endpoint))
                        };
                        peers.iter().filter(|peer| !is_there(peer)).copied().collect()
                    };
                    let_others_in();
                    if !others.is_empty() {
                        self.state().change(torrent, |swarm| {
                            for peer in others {
                                swarm.put(peer.endpoint, peer.role, peer.last_announce, peer.details);
                            }
                        });
                    }
                }
                _ => {}
            }
            let limits = self.state().limits;
            if self.is(Fault::ImportIgnoresLimits) {
                self.state().limits = Limits::default();
            }
            let mut one = self.model.restore(&swarm, &peers, now);
            self.state().limits = limits;
            if self.is(Fault::ImportCountsExpiredAsKnown) {
                one.known += mem::take(&mut one.expired);
            }
            if let Some(known) = known.filter(|_| self.is(Fault::ImportAddsDownloads) && earlier.is_none()) {
                self.model.add_downloads(&torrent, known.downloaded.min(swarm.stats.downloaded));
            }
            restored += one;
        }
        restored
    }

    fn add_downloads(&self, info_hash: &InfoHash, earlier: u32) -> bool {
        if self.is(Fault::AddDownloadsCreates) {
            self.state().change(*info_hash, |_| ());
        }
        self.model.add_downloads(info_hash, earlier)
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = self.model.capabilities();
        capabilities.keeps_peer_details &= !self.is(Fault::DetailsNotDeclared);
        match self.fault {
            Fault::LimitNotRefused => capabilities.bounded.remove(BoundedBy::BYTES),
            Fault::ClockOf8Bits => capabilities.clock_resolution_secs = 31,
            Fault::AgesRoundedOlder
            | Fault::TimesRoundedOlder
            | Fault::TimesInTheFuture
            | Fault::ResolutionOfAnotherLifetime => capabilities.clock_resolution_secs = TICK_SECS - 1,
            _ => {}
        }
        capabilities
    }

    fn memory(&self) -> MemoryUse {
        let mut memory = self.model.memory();
        match self.fault {
            Fault::MemoryNeverReturned => {
                memory.bytes = memory.bytes.max(self.drift.fetch_max(memory.bytes, SeqCst));
            }
            Fault::MemoryReturnedInPart => {
                memory.bytes = memory.bytes.max(self.drift.fetch_max(memory.bytes, SeqCst) / 4);
            }
            Fault::FreedBytesStayTaken | Fault::DownloadsExceedBytes => {
                memory.bytes += self.drift.load(SeqCst);
            }
            _ => {}
        }
        memory
    }
}

impl Broken {
    /// Reads everything up to the budget under one hold of the lock, a swarm as a whole.
    fn export_under_one_lock(&self, export: &mut Export, now: Timestamp, budget: Budget) {
        let state = self.state();
        let now = if self.is(Fault::ExportBelievesEarlierTimes) { now } else { now.max(state.latest) };
        let (from, records) = export.begin(now);
        let position = from.bytes().map_or(0, |bytes| u64::from_le_bytes(bytes.try_into().expect("8 bytes")));
        let (mut visited, mut shown) = (0, position);
        for (info_hash, swarm) in
            state.swarms.iter().skip(if from.is_end() { usize::MAX } else { position as usize })
        {
            if visited >= budget.get() {
                return export.go_on_at(Cursor::after(&shown.to_le_bytes()));
            }
            let peers: Vec<_> =
                swarm.peers.iter().map(|(&endpoint, peer)| peer.record(endpoint, state.latest)).collect();
            if !peers.is_empty() || swarm.downloaded > 0 || self.is(Fault::ExportOfEmpties) {
                records.push(info_hash, swarm.downloaded, &peers);
            }
            visited += 1 + peers.len();
            shown += 1;
        }
        export.go_on_at(Cursor::END);
    }
}

/// The listings that a broken export is made of.
#[derive(Debug)]
struct Reading<'a> {
    broken: &'a Broken,
    /// What a fault has seen of a swarm before its peers were read.
    noted: Mutex<BTreeMap<InfoHash, SwarmStats>>,
}

impl Reading<'_> {
    /// All peers of a swarm, in the order of the listing.
    fn all(&self, info_hash: &InfoHash) -> Vec<PeerRecord> {
        let state = self.broken.state();
        let swarm = state.swarms.get(info_hash);
        let peers = swarm.into_iter().flat_map(|swarm| &swarm.peers);
        peers.map(|(&endpoint, peer)| peer.record(endpoint, state.latest)).collect()
    }

    /// Peers by position, in an order by role.
    fn by_position(
        &self,
        info_hash: &InfoHash,
        from: Cursor,
        limit: usize,
        out: &mut Vec<PeerRecord>,
    ) -> Cursor {
        let mut all = self.all(info_hash);
        all.sort_by_key(|record| record.role);
        let position =
            from.bytes().map_or(0, |bytes| u64::from_le_bytes(bytes.try_into().expect("8 bytes")) as usize);
        out.extend(all.iter().skip(position).take(limit));
        match position.saturating_add(limit) {
            next if next >= all.len() => Cursor::END,
            next => Cursor::after(&(next as u64).to_le_bytes()),
        }
    }

    /// The seeders in order, and behind the last of them the leechers.
    fn seeders_first(
        &self,
        info_hash: &InfoHash,
        from: Cursor,
        limit: usize,
        out: &mut Vec<PeerRecord>,
    ) -> Cursor {
        let all = self.all(info_hash);
        let mut role = Role::Seeder;
        let mut after: Vec<u8> = Vec::new();
        if let Some((&first, rest)) = from.bytes().and_then(|bytes| bytes.split_first()) {
            role = if first == 0 { Role::Seeder } else { Role::Leecher };
            after = rest.to_vec();
        }
        let behind =
            all.iter().filter(|peer| peer.role == role && peer.endpoint.as_bytes() > after.as_slice());
        let mut own: Vec<_> = behind.copied().collect();
        own.sort_by(|one, other| one.endpoint.as_bytes().cmp(other.endpoint.as_bytes()));
        own.truncate(limit);
        out.extend(&own);
        match own.last() {
            Some(last) if own.len() == limit => {
                let mut cursor = vec![u8::from(role == Role::Leecher)];
                cursor.extend_from_slice(last.endpoint.as_bytes());
                Cursor::after(&cursor)
            }
            _ if role == Role::Seeder => Cursor::after(&[1]),
            _ => Cursor::END,
        }
    }
}

impl TorrentRepository for Reading<'_> {
    fn peers(&self, info_hash: &InfoHash, from: Cursor, limit: usize, out: &mut Vec<PeerRecord>) -> Cursor {
        let (start, fault) = (out.len(), self.broken.fault);
        if fault == Fault::ExportSkipsBusy && self.broken.model.is_busy() {
            return Cursor::END;
        }
        if from.is_end() || limit == 0 {
            return from;
        }
        let mut noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        noted.insert(*info_hash, self.broken.model.scrape(info_hash));
        if fault == Fault::ExportDownloadsFirst {
            let_others_in();
        }
        let next = match fault {
            Fault::ExportPeersByPosition => self.by_position(info_hash, from, limit, out),
            Fault::ExportSeedersFirst => self.seeders_first(info_hash, from, limit, out),
            _ => self.broken.model.peers(info_hash, from, limit, out),
        };
        let latest = self.broken.state().latest;
        match fault {
            Fault::ExportWithoutRoles => out[start..].iter_mut().for_each(|peer| peer.role = Role::Leecher),
            Fault::ExportWithoutTimes => out[start..].iter_mut().for_each(|peer| peer.last_announce = latest),
            _ => {}
        }
        next
    }

    fn scrape(&self, info_hash: &InfoHash) -> SwarmStats {
        let mut stats = self.broken.model.scrape(info_hash);
        match self.broken.fault {
            Fault::ExportDownloadsFirst => {
                let noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
                stats.downloaded = noted.get(info_hash).map_or(0, |noted| noted.downloaded);
            }
            Fault::ExportSkipsPeerless if stats.peers() == 0 => stats.downloaded = 0,
            _ => {}
        }
        stats
    }

    swarmkeep::forward_repository! { |reading| reading.broken, except peers, scrape, export }
}

impl fmt::Debug for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Broken({:?})", self.fault)
    }
}

/// A tick of those clocks here that are coarse, with a lifetime of half an hour a hundredth of it.
const TICK_SECS: u64 = 18;

fn begin_of_tick(time: Timestamp) -> Timestamp {
    time.saturating_sub(time.as_secs() % TICK_SECS)
}

/// Sleeps, if only for a moment, so that whoever waits for the lock gets it.
fn let_others_in() {
    thread::sleep(Duration::from_micros(1));
}

/// The eligible peers of all families asked for, IPv4 first.
fn eligible(swarm: &Swarm, announce: &Announce) -> Vec<Endpoint> {
    let (v4, v6) = (swarm.eligible(announce, Family::V4), swarm.eligible(announce, Family::V6));
    (0..v4.len()).map(|n| v4.get(n)).chain((0..v6.len()).map(|n| v6.get(n))).collect()
}

/// Hands out up to `count` peers from `start` on, all if there are no more.
fn hand_out_window(row: &[Endpoint], count: usize, start: usize, peers: &mut PeerBuffer<'_>) {
    peers.clear();
    for offset in 0..count.min(row.len()) {
        put(row[(start + offset) % row.len()], peers);
    }
}

/// Hands out a peer if there is room.
fn put(endpoint: Endpoint, peers: &mut PeerBuffer<'_>) {
    let room = match endpoint.family() {
        Family::V4 => peers.v4.room(),
        Family::V6 => peers.v6.room(),
    };
    if room > 0 {
        hand_out(endpoint, peers);
    }
}

fn family_flag(endpoint: Endpoint) -> Families {
    match endpoint.family() {
        Family::V4 => Families::V4,
        Family::V6 => Families::V6,
    }
}

fn with_port(endpoint: Endpoint, port: u16) -> Endpoint {
    Endpoint::new(endpoint.ip(), port).expect("the port is not 0")
}
