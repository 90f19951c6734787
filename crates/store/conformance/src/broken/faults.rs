//! The list of faults, each with the case that must reject it.

crate::faults! {
    /// One fault of a store.
    for_each_fault:

    /// Looks up a swarm, releases the lock, and inserts a new one even if another call has done so by then.
    get_then_insert GetThenInsert => calls_of_several_threads_have_an_order;
    /// Collects empty swarms, releases the lock, and removes them without a second check.
    sweep_drops_a_swarm_being_filled SweepDropsFilling => calls_of_several_threads_have_an_order;
    /// Collects expired peers, releases the lock, and removes them without a second check.
    sweep_drops_a_peer_being_refreshed SweepDropsRefreshed => refreshes_survive_sweeps_of_expired_peers;
    /// Looks up all swarms of a batch, releases the lock, and creates the missing ones even if another call
    /// has created them meanwhile.
    batch_in_two_steps BatchInTwoSteps => calls_of_several_threads_have_an_order;
    /// Takes a known peer out, releases the lock, and puts it back before the announce.
    announce_in_two_steps AnnounceInTwoSteps => calls_of_several_threads_have_an_order;
    /// Copies the leechers of a swarm, releases the lock, adds the announcing peer, and writes the copy back.
    copy_of_a_swarm_put_back CopyPutBack => calls_of_several_threads_have_an_order;
    /// Reads the totals, releases the lock, and writes them back with its own change added.
    totals_in_two_steps TotalsInTwoSteps => calls_of_several_threads_have_an_order;
    /// Returns the counts from before the update.
    counts_before_the_update CountsBeforeUpdate => announce_answers_with_the_counts_after_the_update;
    /// Treats each peer id of an endpoint as a separate peer.
    identity_by_peer_id IdentityByPeerId => a_peer_is_its_endpoint_whatever_peer_id_it_uses;
    /// Treats all ports of an address as one peer.
    identity_by_address IdentityByAddress => two_ports_of_one_address_are_two_peers;
    /// Compares the first 16 bytes of info hashes, as one number.
    info_hashes_of_16_bytes InfoHashesOf16Bytes => swarms_are_apart;
    /// Counts a leecher that becomes a seeder in both roles.
    leecher_left_behind LeecherLeftBehind => a_leecher_that_becomes_a_seeder_moves_and_is_counted_once;
    /// Never makes a seeder a leecher again.
    seeder_for_ever SeederForEver => a_seeder_may_become_a_leecher_again;
    /// A refresh does not change the time of the peer.
    refresh_keeps_the_old_time RefreshKeepsTime => an_announce_renews_the_lifetime;
    /// A `completed` does not change the time of the peer.
    completed_keeps_the_old_time CompletedKeepsTime => started_none_and_completed_insert_or_refresh;
    /// A `stopped` for an unknown info hash creates the swarm.
    stopped_creates_a_swarm StoppedCreates => stopped_for_an_unknown_info_hash_creates_no_swarm;
    /// A `stopped` is answered with peers.
    stopped_is_handed_peers StoppedIsHandedPeers => stopped_removes_the_peer_and_selects_nobody;
    /// A `stopped` subtracts a peer from the totals even if the peer was unknown.
    stopped_counts_unknown_peers StoppedCountsUnknown => stopped_from_an_unknown_peer_changes_nothing;
    /// Removes the swarm with its download count when the last peer leaves.
    last_peer_takes_the_swarm LastPeerTakesSwarm => a_swarm_that_everybody_left_keeps_its_downloads_until_a_sweep;
    /// Counts a download for each `completed`.
    completed_counts_each_time CompletedCountsAgain => a_repeated_completed_counts_no_second_download;
    /// Counts a download for a `completed` with bytes left.
    completed_counts_with_bytes_left CompletedCountsWithBytesLeft => completed_with_bytes_left_is_an_ordinary_announce;
    /// Counts a download for each leecher that becomes a seeder, whatever the event.
    promotion_counts_a_download PromotionCounts => only_completed_counts_downloads;
    /// Checks whether the peer is a seeder after the update, so a leecher that finishes counts no download.
    completed_looks_too_late CompletedLooksTooLate => completed_counts_one_download_for_a_leecher_that_finishes;
    /// Counts no download for an unknown peer.
    completed_from_unknown_is_ignored CompletedFromUnknownIgnored => completed_counts_one_download_for_an_unknown_peer;
    /// Counters wrap from the largest number to zero.
    counters_wrap CountersWrap => download_counts_saturate;
    /// Reports every change of a known peer as a refresh only.
    changes_are_not_told ChangesNotTold => changes_say_what_the_announce_did;
    /// Answers every announce of a batch with the counts at the end of the batch.
    batch_answers_with_the_end BatchAnswersWithTheEnd => a_batch_does_what_single_announces_do;
    /// Selects peers after all announces of a batch have been updated, so that some selections contain peers
    /// of later announces.
    batch_selects_at_the_end BatchSelectsAtTheEnd => a_batch_does_what_single_announces_do;
    /// Ignores the second announce of an endpoint in a batch.
    batch_skips_repeats BatchSkipsRepeats => a_batch_does_what_single_announces_do;
    /// Does the `stopped` announces of a batch first, before earlier announces of the same peers.
    batch_does_stopped_first BatchStoppedFirst => a_batch_does_what_single_announces_do;
    /// Does not replace an answer that a request already has.
    batch_keeps_earlier_answers BatchKeepsAnswers => a_batch_does_what_single_announces_do;
    /// Does not clear the buffer of a request that wants no peers.
    batch_keeps_earlier_peers BatchKeepsPeers => a_batch_does_what_single_announces_do;
    /// Draws the random numbers of a whole batch before any update.
    batch_draws_first BatchDrawsFirst => a_panic_in_the_middle_of_a_batch_leaves_what_came_before_it_done;
    /// Clears an answer only at the turn of its request, which a panic may prevent.
    batch_keeps_answers_behind_a_panic BatchKeepsAnswersBehindAPanic => no_answer_of_an_earlier_batch_stays_when_a_later_one_panics;
    /// Draws random numbers ahead, and draws again if the generator panics.
    batch_swallows_panics BatchSwallowsPanics => a_panic_of_the_randomness_in_a_batch_reaches_the_caller;
    /// Always selects the first peers in order.
    first_peers_in_order FirstPeers => the_same_announcer_gets_other_samples;
    /// Draws each peer independently, so that one can be selected twice.
    selection_with_replacement WithReplacement => announce_hands_out_all_eligible_when_there_are_no_more_than_wanted;
    /// Draws until it finds another peer, without end if the generator is constant.
    selection_that_may_not_end DrawsForEver => a_constant_generator_still_gives_distinct_peers;
    /// Selects as many peers as the buffer has room for, and ignores `want`.
    want_ignored WantIgnored => announce_hands_out_at_most_want_distinct_peers_of_the_swarm;
    /// Truncates `want` to 32 bits.
    want_of_32_bits WantOf32Bits => no_want_is_too_large;
    /// Selects one peer fewer than wanted if more are eligible.
    one_peer_too_few OneTooFew => announce_hands_out_as_many_as_wanted_when_more_are_eligible;
    /// Selects seeders for seeders.
    seeders_to_seeders SeedersToSeeders => seeders_are_never_handed_to_seeders;
    /// Selects no seeders for a seeder that asks for them.
    seeders_are_not_asked_for SeedersAreNotAskedFor => seeders_that_ask_for_seeders_are_handed_them;
    /// Selects the announcing peer for itself.
    announcer_to_itself AnnouncerToItself => announce_never_hands_out_the_announcer;
    /// Selects a peer that a sweep has removed.
    swept_peers_handed_out SweptHandedOut => peers_that_are_gone_are_never_handed_out;
    /// Draws a window that contains the announcing peer and then skips that peer, so that the peers after it
    /// are selected more often.
    window_before_the_announcer_is_out WindowBeforeAnnouncer => selection_is_fair_to_the_peers_beside_the_announcer;
    /// Selects leechers and seeders with equal probability, whatever their numbers.
    roles_not_weighted_by_number RolesNotWeighted => selection_stays_fair_when_a_swarm_has_shrunk;
    /// Selects the first peers of a small swarm.
    small_swarms_in_order SmallInOrder => selection_is_fair_in_a_swarm_of_2;
    /// Keeps a large swarm in segments, each twice as long as the last, and draws each equally often.
    segments_not_weighted_by_length SegmentsNotWeighted => selection_is_fair_in_any_swarm;
    /// Draws a number of 16 bits.
    draw_of_16_bits DrawOf16Bits => selection_is_fair_in_a_swarm_of_100_000;
    /// For a seeder, draws one of all peers and starts at the next leecher.
    seeder_goes_on_to_a_leecher SeederGoesOn => selection_is_fair_in_any_swarm;
    /// Draws one place in both families together: the window of the other family begins at its first peer.
    one_draw_for_both_families OneDrawForBoth => selection_is_fair_in_any_swarm;
    /// Starts the selection at a place that depends on the info hash.
    selection_by_info_hash SelectionByInfoHash => selection_follows_the_callers_randomness_whatever_clients_choose;
    /// Counts with the lock held, and takes it again to select.
    selects_later SelectsLater => calls_of_several_threads_have_an_order;
    /// The same in swarms of more than 200 peers only.
    selects_later_from_many SelectsLaterFromMany => calls_of_several_threads_have_an_order;
    /// Selects peers of both families for every announce.
    families_mixed FamiliesMixed => only_families_asked_for_are_handed_out;
    /// Selects `want` peers and then discards those of the other family.
    limit_before_filter LimitBeforeFilter => a_limit_counts_only_peers_of_the_family;
    /// Gives all of `want` to IPv4 peers.
    one_family_takes_all OneFamilyTakesAll => both_families_get_half_each_and_what_one_leaves_goes_to_the_other;
    /// Panics, with the lock held, when a swarm has peers of the other family only.
    crash_on_the_other_family CrashesOnOtherFamily => a_swarm_of_the_other_family_answers_with_none;
    /// Writes ports with the low byte first.
    ports_low_byte_first PortsLowByteFirst => peers_are_written_in_compact_form;
    /// Divides `want` between the families, and then discards the peers without room in the buffer.
    shared_before_the_room_is_seen SharedBeforeRoom => the_room_in_the_buffer_bounds_the_selection;
    /// Appends to the buffer without clearing it.
    buffer_not_cleared BufferNotCleared => the_buffer_is_cleared_first;
    /// A scrape of an unknown info hash creates the swarm.
    scrape_creates_a_swarm ScrapeCreates => scrape_of_an_unknown_info_hash_is_zeroes_and_stays_unknown;
    /// A scrape leaves the IPv6 peers out.
    scrape_without_ipv6_peers ScrapeWithoutIpv6 => scrape_agrees_with_the_last_announce;
    /// In a batch of scrapes, leaves the counts of an unknown info hash as they were.
    batch_of_scrapes_skips_unknown ScrapesSkipUnknown => a_batch_of_scrapes_does_what_single_scrapes_do;
    /// Does not subtract the leecher from the totals when it becomes a seeder.
    totals_drift TotalsDrift => totals_are_exact_by_family_and_role;
    /// The sum of downloads does not fall when swarms are swept or removed.
    sum_never_falls SumNeverFalls => totals_are_exact_by_family_and_role;
    /// The sum of downloads keeps one of each evicted swarm.
    sum_keeps_evicted_downloads SumKeepsEvicted => max_swarms_is_kept_under_any_flood;
    /// Counts the totals by a walk over all swarms.
    totals_by_walking TotalsByWalking => totals_cost_no_walk_over_swarms;
    /// Counts a swarm by a walk over its peers.
    counts_by_walking CountsByWalking => counts_never_come_from_walking_a_swarm;
    /// Visits every peer of the swarm to select.
    selection_by_walking SelectionByWalking => selecting_costs_what_is_wanted_not_what_is_there;
    /// A walk shows a swarm twice.
    walk_repeats WalkRepeats => walk_shows_every_swarm_exactly_once;
    /// A walk continues at a number of swarms, even if swarms before it were removed.
    walk_by_position WalkByPosition => walk_shows_swarms_that_stay_exactly_once_while_others_come_and_go;
    /// A walk follows the order of the last announces.
    walk_by_last_announce WalkByLastAnnounce => walk_goes_in_a_stable_order;
    /// A step of a walk counts all swarms before it.
    walk_counts_from_the_start WalkCountsFromTheStart => a_step_of_a_walk_costs_the_same_at_any_position;
    /// A page omits its first swarm.
    page_skips PageSkips => page_goes_in_ascending_order_of_info_hashes;
    /// A page is empty if the swarm that it follows was removed.
    page_needs_its_info_hash PageNeedsItsInfoHash => page_follows_an_info_hash_that_is_not_there;
    /// Adds the length of the list to the limit of a page, which overflows.
    page_limit_overflows PageLimitOverflows => page_without_a_limit_shows_all;
    /// Stores the position at which a page ends, and begins the next page there, even if swarms before it
    /// were removed.
    page_by_position PageByPosition => page_shows_swarms_that_stay_exactly_once_while_others_come_and_go;
    /// Releases the lock in the middle of a page, and continues at a number of swarms.
    page_in_two_holds PageInTwoHolds => walk_and_page_show_what_stays_while_threads_change_the_rest;
    /// A listing of the peers of an unknown info hash creates the swarm.
    listing_peers_creates_a_swarm PeersCreates => peers_of_an_unknown_info_hash_are_none;
    /// A step of a listing of peers omits its first peer.
    listing_of_peers_skips PeersSkip => peers_shows_each_exactly_once_in_steps_of_any_size;
    /// A listing of peers never ends if the swarm was removed.
    listing_of_peers_never_ends PeersNeverEnd => a_listing_of_peers_ends_when_their_swarm_is_removed;
    /// Peers are listed by position, seeders first.
    peers_by_position PeersByPosition => peers_that_stay_are_shown_exactly_once_whatever_moves_around_them;
    /// Lists peers with the first second of a tick of its clock, which makes them older than they are.
    times_rounded_older TimesRoundedOlder => peers_are_listed_with_role_and_time;
    /// Lists peers with the last second of a tick of its clock, even if that second is in the future.
    times_in_the_future TimesInTheFuture => role_and_time_are_those_of_the_last_announce;
    /// Lists every peer with the latest time of all.
    times_not_kept TimesNotKept => peers_are_listed_with_role_and_time;
    /// Returns peer details although it declares that it keeps none.
    details_not_declared DetailsNotDeclared => peer_details_are_kept_or_absent_as_declared;
    /// Removes peers that are exactly as old as the lifetime.
    expiry_off_by_one ExpiresEarly => a_peer_is_never_swept_while_it_is_no_older_than_the_lifetime;
    /// Stores the start of a tick of its clock as the time of an announce: peers expire up to a tick early.
    ages_rounded_older AgesRoundedOlder => a_peer_is_never_swept_while_it_is_no_older_than_the_lifetime;
    /// Removes peers ten seconds late, and declares a clock of whole seconds.
    expiry_late ExpiresLate => a_peer_is_swept_once_its_age_exceeds_the_lifetime_by_the_clock_resolution;
    /// Keeps only the lowest 16 bits of times and compares them.
    clock_of_16_bits ClockOf16Bits => late_sweeps_make_no_expired_peer_young;
    /// Keeps only the lowest 8 bits of times in ticks of 32 seconds, and compares them.
    clock_of_8_bits ClockOf8Bits => late_sweeps_make_no_expired_peer_young;
    /// When a peer announces, moves the base of the times of the swarm without adjusting the times of the
    /// other peers.
    base_moves_alone BaseMovesAlone => missing_sweeps_make_no_expired_peer_young;
    /// When a peer announces, moves the base of the times of the swarm, and sets all other times to it.
    ages_lost_with_the_base AgesLostWithTheBase => ages_stay_true_while_others_announce;
    /// Never lists a peer as older than the lifetime and a seventh of it.
    ages_end_after_a_lifetime AgesEnd => peers_that_no_sweep_removes_grow_old_and_are_not_imported;
    /// Has a coarser clock for longer lifetimes, but declares the same resolution for all.
    resolution_of_another_lifetime ResolutionOfAnotherLifetime => every_lifetime_in_range_is_kept;
    /// Accepts any lifetime.
    any_lifetime AnyLifetime => lifetimes_out_of_range_are_refused;
    /// Uses a time that is earlier than the latest one seen.
    earlier_times_believed EarlierTimesBelieved => an_earlier_time_counts_as_the_latest_seen;
    /// Does not remember the time that `advance` is given.
    advance_forgets AdvanceForgets => advance_tells_the_time_and_returns_the_latest;
    /// Returns the time that `advance` is given, even if it is not the latest.
    advance_returns_its_argument AdvanceReturnsItsArgument => advance_tells_the_time_and_returns_the_latest;
    /// A step of a sweep does the whole pass.
    sweep_ignores_its_budget SweepIgnoresBudget => a_step_of_a_sweep_visits_about_its_budget;
    /// Removes all peers of a large swarm at once, and reports a small number of visits.
    sweep_drops_whole_swarms SweepDropsWholeSwarms => a_step_of_a_sweep_touches_no_more_than_its_budget_and_one_hold;
    /// Keeps a node of every swarm that a walk has shown.
    walk_keeps_its_nodes WalkKeepsNodes => swarms_that_were_listed_leave_no_memory_behind;
    /// Reads all swarms to find the swarms of the next step of a sweep.
    sweep_looks_at_all_swarms SweepLooksAtAll => a_pass_of_sweeps_costs_in_proportion_to_the_swarms;
    /// Each caller sweeps from the start.
    sweep_from_the_start SweepFromTheStart => concurrent_sweeps_share_one_pass;
    /// A step of a sweep holds the lock to its end.
    sweep_holds_the_lock SweepHoldsLock => a_sweep_holds_no_lock_for_long_even_in_a_large_swarm;
    /// Omits the last swarm of a pass.
    sweep_misses_the_last_swarm SweepMissesLast => an_expired_peer_goes_within_one_full_pass;
    /// Sweeps the IPv4 peers of a swarm only if it has no IPv6 peers.
    sweep_ends_with_ipv6 SweepEndsWithIpv6 => peers_of_both_families_and_roles_expire;
    /// Lists the expired peers when a pass begins, and removes them step by step without a second check.
    sweep_by_a_list SweepByList => a_peer_that_announces_while_a_sweep_runs_survives_it;
    /// Counts only the swarms from which it has removed the last peer itself.
    swept_empty_swarms_not_counted EmptiesNotCounted => a_sweep_says_what_it_removed;
    /// Never frees memory.
    memory_never_returned MemoryNeverReturned => memory_that_was_freed_is_returned_when_a_store_has_shrunk_a_lot;
    /// Frees memory only down to a quarter of the largest amount.
    memory_returned_in_part MemoryReturnedInPart => memory_falls_to_a_tenth_when_99_of_100_swarms_expire;
    /// Keeps swarms without peers, whatever the policy.
    empty_swarms_stay EmptySwarmsStay => a_swarm_without_peers_goes_with_the_next_sweep;
    /// Removes swarms without peers, whatever the policy.
    downloads_forgotten DownloadsForgotten => a_swarm_without_peers_stays_for_its_downloads_if_the_policy_says_so;
    /// A removal does not subtract the swarm from the totals.
    remove_keeps_totals RemoveKeepsTotals => remove_says_what_was_there;
    /// After a removal, does not call the predicate for the next swarm.
    removal_skips_the_next RemovalSkipsNext => remove_where_removes_all_that_is_forbidden_and_says_what;
    /// Calls the predicate a second time before it removes a swarm.
    removal_asks_twice RemovalAsksTwice => remove_where_asks_once_about_every_swarm_that_stays;
    /// Removes a swarm from the map while it calls the predicate for it.
    swarm_taken_out_while_asked_about TakenOutWhileAsked => a_panic_in_the_callers_predicate_leaves_the_store_usable;
    /// Reads the counts of a swarm, releases the lock, and then removes the swarm.
    remove_in_two_steps RemoveInTwoSteps => calls_of_several_threads_have_an_order;
    /// Looks up the position of a swarm, releases the lock, and removes the swarm that is there by then.
    remove_by_position RemoveByPosition => calls_of_several_threads_have_an_order;
    /// Calls the predicate with the lock held.
    predicate_under_the_lock PredicateUnderLock => a_predicate_is_called_without_a_lock_held;
    /// Accepts a limit that it does not support.
    limit_not_refused LimitNotRefused => a_limit_that_is_not_declared_is_refused;
    /// Reports a smallest limit that it refuses too.
    least_limit_refused LeastLimitRefused => a_limit_that_is_too_small_is_refused_with_the_least_that_works;
    /// Declares a limit on swarms, and ignores it.
    limit_not_kept LimitNotKept => max_swarms_is_kept_under_any_flood;
    /// Without a limit, has room for 256 swarms and then evicts one instead of growing.
    table_that_does_not_grow TableDoesNotGrow => a_store_without_limits_evicts_nobody;
    /// Never reuses the room of removed swarms.
    freed_room_stays_taken FreedRoomStaysTaken => room_that_was_freed_is_used_before_anything_is_evicted;
    /// Chooses the swarm to evict and counts its peers, releases the lock, and then evicts it.
    eviction_in_two_steps EvictsInTwoSteps => announces_survive_evictions_of_others;
    /// Evicts any swarm to make room, populated or not.
    eviction_of_anything EvictsAnything => a_flood_of_made_up_info_hashes_displaces_itself;
    /// Counts endpoints as if each were a network.
    endpoints_as_networks EndpointsAsNetworks => a_flood_from_one_network_displaces_itself;
    /// Counts the networks of no more than the eight freshest peers of a swarm.
    networks_of_the_freshest NetworksOfTheFreshest => a_flood_cannot_cheapen_a_living_swarm;
    /// Takes each swarm of many peers for a populated one.
    many_peers_as_a_return ManyPeersAsAReturn => a_flood_of_large_swarms_displaces_itself;
    /// Makes room before it inserts a peer, without counting the peer itself.
    bytes_exceeded_by_a_peer BytesExceeded => max_bytes_is_kept_under_any_flood;
    /// Does not count evictions at the limit of bytes.
    byte_evictions_not_counted ByteEvictionsNotCounted => max_bytes_is_kept_under_any_flood;
    /// Evicts the announcing peer when its swarm exceeds the limit of bytes.
    bytes_drop_the_announcer BytesDropAnnouncer => a_swarm_that_outgrows_max_bytes_keeps_its_announcers_and_its_freshest;
    /// Evicts the latest peers, except the announcing one, when a swarm exceeds the limit of bytes.
    bytes_drop_the_freshest BytesDropFreshest => a_swarm_that_outgrows_max_bytes_keeps_its_announcers_and_its_freshest;
    /// Evicts populated swarms first at the limit of bytes.
    bytes_drop_the_populated BytesDropPopulated => a_flood_displaces_itself_where_bytes_are_limited;
    /// Makes room for peers, but not for the bytes of download counts.
    downloads_exceed_bytes DownloadsExceedBytes => max_bytes_is_kept_whatever_announces_change;
    /// Evicts peers of the same swarm to make room for a peer.
    growth_takes_own_peers GrowthTakesOwnPeers => a_swarm_that_grows_displaces_what_is_worth_less;
    /// Evicts peers of the same swarm to make room for a peer, in swarms of a thousand peers or more.
    sated_swarm_takes_own_peers SatedTakesOwnPeers => a_swarm_that_becomes_popular_displaces_none_of_its_own_peers;
    /// Evicts a swarm of any size for a newcomer.
    populous_swarm_goes_for_one PopulousGoesForOne => a_newcomer_displaces_few_peers_of_a_populous_swarm;
    /// Evicts the peers of a full swarm that announced least recently, of whatever network.
    stalest_of_any_network StalestOfAnyNetwork => one_network_cannot_take_over_a_full_swarm;
    /// In a full swarm, counts each /48 of an IPv6 prefix as a network by itself.
    stalest_of_any_prefix StalestOfAnyPrefix => one_network_cannot_take_over_a_full_swarm;
    /// Evicts seeders of a full swarm first.
    seeders_dropped_first SeedersDroppedFirst => families_and_roles_keep_their_shares_of_a_full_swarm;
    /// Counts each /48 of an IPv6 prefix as a network by itself.
    each_48_as_a_network Each48AsNetwork => an_ipv6_prefix_displaces_no_more_than_ten_ipv4_networks;
    /// Never reuses the bytes of removed swarms.
    freed_bytes_stay_taken FreedBytesStayTaken => bytes_that_were_freed_are_used_before_anything_is_evicted;
    /// Restores beyond its limit of bytes.
    restore_ignores_bytes RestoreIgnoresBytes => max_bytes_holds_for_restored_swarms_too;
    /// Restores more peers of a swarm than the limit allows.
    restore_ignores_the_peers_limit RestoreIgnoresPeers => limits_hold_for_restored_swarms_too;
    /// Treats a restored swarm like one that was announced only once.
    restored_swarms_worth_nothing RestoredWorthNothing => a_flood_displaces_no_restored_swarms;
    /// Makes room for the first new peer of a batch only.
    batch_makes_room_once BatchMakesRoomOnce => limits_hold_in_batches_too;
    /// Does not report evicted peers.
    evictions_not_told EvictionsNotTold => max_peers_per_swarm_is_kept_and_the_announcer_stays;
    /// Evicts the peers that announced most recently first.
    freshest_dropped_first DropsFreshest => the_stalest_peers_are_dropped_first;
    /// Declares a limit on the endpoints of an address, and ignores it.
    endpoints_not_limited EndpointsNotLimited => max_endpoints_per_address_is_kept_and_the_announcer_stays;
    /// Counts the seeders and the leechers of an address separately.
    endpoints_counted_by_role EndpointsByRole => max_endpoints_per_address_is_kept_and_the_announcer_stays;
    /// Does not insert a new endpoint of an address at its limit, but reports that it joined.
    endpoint_kept_out EndpointKeptOut => max_endpoints_per_address_is_kept_and_the_announcer_stays;
    /// Does not count endpoints that were replaced by endpoints of the same address.
    endpoint_evictions_not_counted EndpointEvictionsNotCounted => max_endpoints_per_address_is_kept_and_the_announcer_stays;
    /// Replaces the endpoint of an address that announced most recently.
    freshest_endpoint_dropped FreshestEndpointDropped => an_address_displaces_its_own_endpoint_that_announced_least_recently;
    /// For a new endpoint of an address at its limit, evicts the oldest peer of any address.
    endpoint_displaces_others EndpointDisplacesOthers => an_address_displaces_its_own_endpoint_that_announced_least_recently;
    /// In a full swarm, evicts the peer that announced least recently as well as one of the address.
    endpoint_goes_for_each_limit EndpointForEachLimit => an_address_at_its_limit_displaces_only_itself_in_a_full_swarm;
    /// Treats each announce of an address at its limit as one of a new endpoint.
    refresh_displaces_an_endpoint RefreshDisplaces => an_endpoint_that_is_there_displaces_nobody;
    /// Counts endpoints that have stopped.
    stopped_endpoint_keeps_its_place StoppedKeepsPlace => an_endpoint_that_stopped_leaves_its_place;
    /// Counts the endpoints of an address in all swarms together.
    endpoints_counted_over_all_swarms EndpointsOverAllSwarms => an_address_has_its_endpoints_in_each_swarm;
    /// Treats all 128 bits of an IPv6 address as the address.
    ipv6_limited_by_128_bits EndpointsBy128Bits => an_ipv6_address_is_its_upper_64_bits;
    /// Treats the upper 56 bits of an IPv6 address, and the upper 24 of an IPv4 address, as the address.
    addresses_limited_by_their_networks EndpointsByNetwork => an_ipv6_address_is_its_upper_64_bits;
    /// Limits the /64 of IPv6, and no wider networks.
    ipv6_limited_by_64_bits_only EndpointsBy64BitsOnly => wider_networks_of_ipv6_have_5_and_25_times_the_endpoints;
    /// Looks at the /48 of IPv6 before the narrower networks.
    ipv6_limited_widest_first EndpointsWidestFirst => wider_networks_of_ipv6_have_5_and_25_times_the_endpoints;
    /// Limits an address only at the first new endpoint of a batch.
    batch_limits_addresses_once BatchLimitsAddressesOnce => endpoints_per_address_are_limited_in_batches_too;
    /// Restores more endpoints of an address than the limit allows.
    restore_ignores_the_endpoints_limit RestoreIgnoresEndpoints => endpoints_beyond_the_limit_are_refused_when_restored;
    /// Evicts endpoints of an address to restore other endpoints.
    restore_displaces_endpoints RestoreDisplacesEndpoints => endpoints_beyond_the_limit_are_refused_when_restored;
    /// Does not limit the endpoints of an address in large swarms.
    endpoints_not_limited_in_large_swarms EndpointsInLargeSwarms => one_address_takes_no_more_than_its_endpoints_of_a_large_swarm;
    /// Counts the endpoints of an address, releases the lock, and then inserts one.
    endpoints_counted_in_two_steps EndpointsInTwoSteps => racing_endpoints_of_one_address_keep_to_its_limit;
    /// Draws an address, and starts the selection at its first endpoint.
    selection_by_address SelectionByAddress => selection_is_fair_among_the_endpoints_of_limited_addresses;
    /// Evicts two endpoints of an IPv6 address for one that completes.
    two_endpoints_for_one TwoEndpointsForOne => random_stories_of_limited_addresses_go_as_with_the_model;
    /// Keeps info hashes in lists chosen by their first bytes.
    unkeyed_hash UnkeyedHash => info_hashes_with_equal_first_bytes_cost_no_more;
    /// Keeps info hashes in lists chosen by their last bytes.
    unkeyed_hash_of_the_last_bytes UnkeyedHashOfLastBytes => info_hashes_with_equal_last_bytes_cost_no_more;
    /// Keeps info hashes in lists chosen by an unkeyed product, which a client can compute.
    unkeyed_multiply_hash UnkeyedMultiplyHash => info_hashes_made_for_an_unkeyed_hash_cost_no_more;
    /// Adds the lifetime to each time, and panics at an overflow.
    time_overflows TimeOverflows => no_announce_panics_the_store;
    /// Leaves the lock poisoned after a panic in the caller's randomness, and panics in every later call.
    lock_left_poisoned LockLeftPoisoned => a_panic_in_the_callers_randomness_leaves_the_store_usable;
    /// Draws random numbers before it updates the totals.
    totals_after_the_draw TotalsAfterDraw => a_panic_in_the_callers_randomness_leaves_the_store_usable;
    /// Evicts a swarm with peers to restore another one.
    restore_displaces_others RestoreDisplaces => a_restore_displaces_nobody;
    /// Adds up the download counts when a swarm is restored in two calls.
    restore_adds_downloads RestoreAddsDownloads => restore_may_be_done_in_several_calls;
    /// Replaces a larger download count by a smaller restored one.
    restore_overwrites_downloads RestoreOverwritesDownloads => restore_takes_the_larger_download_count;
    /// Replaces the announced record of a peer by the restored one.
    restore_overwrites RestoreOverwrites => restore_leaves_a_peer_as_it_announced_itself;
    /// Restores peers older than they were.
    restore_rounds_older RestoreRoundsOlder => restore_puts_back_peers_with_role_age_and_downloads;
    /// Restores expired peers.
    restore_revives RestoreRevives => restore_keeps_out_peers_older_than_the_lifetime;
    /// Never sweeps a restored peer before it announces.
    restored_peers_not_swept RestoredNotSwept => restored_peers_are_swept_when_their_time_has_come;
    /// Creates a swarm even if there is nothing to restore.
    restore_creates_an_empty_swarm RestoreCreates => restore_creates_no_swarm_without_living_peers_and_downloads;
    /// Restores peers without their details.
    restore_without_details RestoreWithoutDetails => a_listing_restores_into_another_store_as_it_was;
    /// Creates a swarm when downloads are added.
    add_downloads_creates_a_swarm AddDownloadsCreates => add_downloads_adds_what_was_counted_earlier;
    /// An export continues at a number of swarms, even if swarms before it were removed.
    export_by_position ExportByPosition => swarms_that_stay_are_exported_while_others_come_and_go;
    /// Reads the seeders of a swarm, then its leechers, and misses peers that change their role in between.
    export_of_seeders_first ExportSeedersFirst => peers_that_stay_are_exported_whatever_moves_around_them;
    /// Reads the peers of a swarm by position.
    export_of_peers_by_position ExportPeersByPosition => peers_that_stay_are_exported_whatever_moves_around_them;
    /// Reads the download count of a swarm before its peers.
    export_of_downloads_before_peers ExportDownloadsFirst => an_export_counts_the_download_of_every_seeder_it_shows;
    /// Reads the peers of a swarm, releases the lock, and reads its download count, even if another swarm has
    /// its info hash by then.
    export_in_two_reads ExportInTwoReads => an_export_shows_one_life_of_a_swarm_that_is_removed_and_made_again;
    /// Does not remember the time that an export is given.
    export_forgets_the_time ExportForgetsTime => the_time_given_to_an_export_or_an_import_counts;
    /// Omits a swarm while an announce to it is in flight.
    export_skips_what_is_busy ExportSkipsBusy => an_export_holds_every_peer_whose_announce_returned_before_it_began;
    /// Reads every peer as a leecher.
    export_without_roles ExportWithoutRoles => an_export_reads_every_swarm_with_its_peers_roles_times_and_downloads;
    /// Reads every peer as if it had just announced.
    export_without_times ExportWithoutTimes => an_export_reads_every_swarm_with_its_peers_roles_times_and_downloads;
    /// Omits swarms without peers, whatever their download count.
    export_without_peerless_swarms ExportSkipsPeerless => an_export_reads_every_swarm_with_its_peers_roles_times_and_downloads;
    /// Computes the ages of peers from the given time, even if it is not the latest.
    export_believes_an_earlier_time ExportBelievesEarlierTimes => an_export_at_an_earlier_time_shows_times_as_they_are;
    /// A step of an export reads the whole store.
    export_ignores_its_budget ExportIgnoresBudget => a_step_of_an_export_visits_about_its_budget;
    /// A step of an export holds the lock to its end.
    export_holds_the_lock ExportHoldsLock => an_export_holds_no_lock_for_long_even_in_a_large_swarm;
    /// Reads swarms that have neither peers nor downloads.
    export_of_empty_swarms ExportOfEmpties => an_export_leaves_out_what_has_neither_peers_nor_downloads;
    /// Adds imported downloads to the downloads that it has counted itself.
    import_adds_downloads ImportAddsDownloads => import_does_what_restore_does_one_by_one;
    /// Imports the download count of the first part of a swarm only.
    import_of_the_first_downloads ImportFirstDownloads => import_does_what_restore_does_one_by_one;
    /// Imports every peer as if it had just announced.
    import_makes_everybody_fresh ImportFresh => what_one_store_exports_another_imports;
    /// Ignores the second part of a swarm.
    import_skips_second_parts ImportSkipsSecondParts => import_does_what_restore_does_one_by_one;
    /// Does not import swarms that exist already.
    import_skips_known_swarms ImportSkipsKnown => import_does_what_restore_does_one_by_one;
    /// Imports only the first of several records.
    import_of_the_first_records ImportFirstRecords => import_does_what_restore_does_one_by_one;
    /// Counts expired peers as known.
    import_counts_expired_as_known ImportCountsExpiredAsKnown => import_does_what_restore_does_one_by_one;
    /// Ignores its limits during an import.
    import_ignores_limits ImportIgnoresLimits => import_keeps_to_limits_and_displaces_nobody;
    /// Evicts swarms to make room for imported ones.
    import_displaces_others ImportDisplaces => import_keeps_to_limits_and_displaces_nobody;
    /// Reads which peers exist, releases the lock, and imports all others, even if they announced by then.
    import_in_two_steps ImportInTwoSteps => announces_survive_imports_and_stay_as_they_were_made;
    /// Reads the counts of an answer at another moment than its peers.
    counts_of_another_moment CountsOfAnotherMoment => calls_of_several_threads_have_an_order;
    /// Shows a peer that has completed before it counts the download.
    peer_before_its_download PeerBeforeDownload => calls_of_several_threads_have_an_order;
    /// Copies a swarm, releases the lock, and puts the copy back if the swarm was removed meanwhile.
    removed_swarm_put_back RemovedPutBack => calls_of_several_threads_have_an_order;
    /// Shows the newcomer of the last announce of a batch before the others are done.
    batch_overtakes_itself BatchOvertakesItself => calls_of_several_threads_have_an_order;
    /// Scrapes from a cache that each change clears, and that keeps what was read before the change.
    scrape_from_a_stale_cache ScrapeFromCache => calls_of_several_threads_have_an_order;
    /// Lists the leechers of a swarm, releases the lock, and lists its seeders.
    peers_in_two_holds PeersInTwoHolds => calls_of_several_threads_have_an_order;
    /// Keeps the time of a peer that comes back within a minute.
    refresh_within_a_minute_keeps_the_time MinuteKeepsTime => role_and_time_are_those_of_the_last_announce;
    /// Keeps the time of a leecher that becomes a seeder without `completed`.
    promoted_keeps_the_old_time PromotedKeepsTime => role_and_time_are_those_of_the_last_announce;
    /// A restored time after the current one stays.
    restored_time_ahead RestoredAhead => restored_peers_are_swept_when_their_time_has_come;
    /// A restore sets the role of a known peer.
    restore_sets_the_role RestoreSetsRole => restore_leaves_a_peer_as_it_announced_itself;
    /// Never selects the last of more than 200 eligible peers.
    last_of_200_is_not_selected LastOf200NotSelected => selection_is_fair_in_any_swarm;
    /// Of 200 to 900 eligible peers, half of the selection is the newest.
    half_is_newest HalfIsNewest => selection_is_fair_in_any_swarm;
    /// Selects fresh peers more often.
    fresh_peers_preferred FreshPreferred => selection_is_fair_in_any_swarm;
    /// Selects seeders first where they are few.
    few_seeders_first FewSeedersFirst => selection_is_fair_in_any_swarm;
    /// The one peer that is wanted is always a seeder.
    one_is_always_a_seeder OneIsASeeder => selection_is_fair_in_any_swarm;
    /// Does not select a peer that moved to the place of a removed one until another joins.
    moved_peer_is_not_selected MovedNotSelected => peers_that_are_gone_are_never_handed_out;
    /// Selects one peer too few of both families if an odd number is wanted.
    odd_want_is_one_less OddWantOneLess => both_families_get_half_each_and_what_one_leaves_goes_to_the_other;
    /// Selects the first peers if the buffer has less room than is wanted.
    small_room_in_order SmallRoomInOrder => the_room_in_the_buffer_bounds_the_selection;
    /// Truncates `want` to 16 bits.
    want_of_16_bits WantOf16Bits => no_want_is_too_large;
    /// Counts the peers and downloads of a swarm with 16 bits.
    counts_of_16_bits CountsOf16Bits => selection_is_fair_in_a_swarm_of_100_000;
    /// Evicts peers of the newcomer's family only.
    eviction_within_a_family EvictsOwnFamily => families_and_roles_keep_their_shares_of_a_full_swarm;
    /// Allows the maximum number of peers in each family.
    peers_limited_by_family PeersLimitedByFamily => max_peers_per_swarm_is_kept_and_the_announcer_stays;
    /// An evicted seeder takes a download along.
    evicted_seeder_takes_its_download EvictedSeederTakesDownload => max_peers_per_swarm_is_kept_and_the_announcer_stays;
    /// Answers the later announces of a batch for a swarm with its counts before the batch.
    batch_counts_before BatchCountsBefore => a_batch_does_what_single_announces_do;
    /// Draws the same number for the 128th announce of each batch.
    batch_repeats_a_draw BatchRepeatsADraw => selection_is_fair_to_the_peers_beside_the_announcer;
    /// In a batch, `seeders_too` holds for the next announce as well.
    seeders_too_stays SeedersTooStays => a_batch_does_what_single_announces_do;
    /// In a large swarm the ports of an IPv6 address are one peer.
    ports_of_an_ipv6_address PortsOfAnIpv6Address => two_ports_of_one_address_are_two_peers;
    /// A `stopped` of an unknown port removes another peer of its address.
    stopped_by_address StoppedByAddress => two_ports_of_one_address_are_two_peers;
    /// A `completed` of an expired seeder counts a download.
    expired_seeder_completes ExpiredSeederCompletes => a_repeated_completed_counts_no_second_download;
    /// A `completed` of a restored seeder counts a download.
    restored_seeder_completes RestoredSeederCompletes => restore_puts_back_peers_with_role_age_and_downloads;
    /// Removals by a predicate leave the IPv6 peers in the totals, as leechers.
    removal_keeps_ipv6_totals RemovalKeepsIpv6 => remove_where_removes_all_that_is_forbidden_and_says_what;
    /// A page that follows a removed swarm leaves out the next one.
    page_skips_after_a_removed_swarm PageSkipsAfterRemoved => page_follows_an_info_hash_that_is_not_there;
    /// Lists the leechers first, so that a peer that completes meanwhile is shown twice.
    peers_by_role PeersByRole => peers_that_stay_are_shown_exactly_once_whatever_moves_around_them;
    /// An announce with an earlier time makes its peer older.
    earlier_time_ages_a_peer EarlierTimeAges => an_earlier_time_counts_as_the_latest_seen;
    /// A sweep with a budget above a million panics.
    long_sweep_panics LongSweepPanics => a_sweep_holds_no_lock_for_long_even_in_a_large_swarm;
    /// The budget of a sweep counts removed peers.
    budget_of_removed_peers BudgetOfRemoved => a_step_of_a_sweep_visits_about_its_budget;
    /// Loses an IPv6 peer that completes in a swarm of three.
    loss_on_a_rare_occasion RareLoss => random_stories_go_as_with_the_model;
    /// Numbers the incarnations of a swarm with 3 bits, and takes peers of the eighth for left-over ones.
    lives_of_3_bits LivesOf3Bits => long_random_stories_go_as_with_the_model;
}
