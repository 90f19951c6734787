//! The list of cases. [`CASES`] and [`suite!`](crate::suite) are made of it.

use crate::{Case, Subject, cases::*};

crate::cases! {
    /// All cases, in the order of the contract.
    CASES of Subject;

    /// Makes a module with a `#[test]` of every case for one store.
    ///
    /// The arguments are the name of the module and a function that returns a store for a
    /// [`RepositoryConfig`](swarmkeep::RepositoryConfig): `suite!(my_store, |config| MyStore::new(config));`.
    /// The function can use all names in scope at the macro call, and is evaluated for each test.
    suite in $crate;

    announcing {
        announce_answers_with_the_counts_after_the_update [1]
        a_peer_is_its_endpoint_whatever_peer_id_it_uses [2]
        two_ports_of_one_address_are_two_peers [2]
        started_none_and_completed_insert_or_refresh [3]
        a_leecher_that_becomes_a_seeder_moves_and_is_counted_once [3]
        a_seeder_may_become_a_leecher_again [3]
        role_and_time_are_those_of_the_last_announce [3]
        stopped_removes_the_peer_and_selects_nobody [4]
        stopped_from_an_unknown_peer_changes_nothing [4]
        stopped_for_an_unknown_info_hash_creates_no_swarm [4]
        a_swarm_that_everybody_left_keeps_its_downloads_until_a_sweep [4 19]
        completed_counts_one_download_for_a_leecher_that_finishes [5]
        completed_counts_one_download_for_an_unknown_peer [5]
        a_repeated_completed_counts_no_second_download [5]
        completed_with_bytes_left_is_an_ordinary_announce [5]
        only_completed_counts_downloads [5]
        download_counts_saturate [5]
        changes_say_what_the_announce_did [1 3 5]
        swarms_are_apart [1]
    }
    batches {
        a_batch_does_what_single_announces_do [1 3 4 5 7 8 9 11]
        a_panic_in_the_middle_of_a_batch_leaves_what_came_before_it_done [23]
        no_answer_of_an_earlier_batch_stays_when_a_later_one_panics [23]
        a_panic_of_the_randomness_in_a_batch_reaches_the_caller [23]
    }
    selecting {
        announce_hands_out_at_most_want_distinct_peers_of_the_swarm [7]
        announce_never_hands_out_the_announcer [7]
        announce_hands_out_all_eligible_when_there_are_no_more_than_wanted [7]
        announce_hands_out_as_many_as_wanted_when_more_are_eligible [7]
        peers_that_are_gone_are_never_handed_out [7]
        seeders_are_never_handed_to_seeders [8]
        seeders_that_ask_for_seeders_are_handed_them [8]
        only_families_asked_for_are_handed_out [9]
        a_limit_counts_only_peers_of_the_family [9]
        a_swarm_of_the_other_family_answers_with_none [9 23]
        both_families_get_half_each_and_what_one_leaves_goes_to_the_other [9]
        the_same_announcer_gets_other_samples [10]
        selection_follows_the_callers_randomness_whatever_clients_choose [10]
        a_constant_generator_still_gives_distinct_peers [7 10]
        the_room_in_the_buffer_bounds_the_selection [11]
        peers_are_written_in_compact_form [11]
        the_buffer_is_cleared_first [11]
        no_want_is_too_large [7 23]
    }
    fairness {
        selection_is_fair_in_a_swarm_of_2 [10]
        selection_is_fair_to_the_peers_beside_the_announcer [10]
        selection_is_fair_in_any_swarm [8 9 10]
        selection_is_fair_in_a_swarm_of_100_000 [10]
        selection_stays_fair_when_a_swarm_has_shrunk [10]
        selection_is_fair_among_the_endpoints_of_limited_addresses [10 21]
    }
    reading {
        scrape_of_an_unknown_info_hash_is_zeroes_and_stays_unknown [12]
        scrape_agrees_with_the_last_announce [1 12]
        a_batch_of_scrapes_does_what_single_scrapes_do [12]
        totals_are_exact_by_family_and_role [13]
        walk_shows_every_swarm_exactly_once [14]
        walk_goes_in_a_stable_order [14]
        walk_shows_swarms_that_stay_exactly_once_while_others_come_and_go [14]
        page_goes_in_ascending_order_of_info_hashes [14]
        page_follows_an_info_hash_that_is_not_there [14]
        page_without_a_limit_shows_all [14]
        page_shows_swarms_that_stay_exactly_once_while_others_come_and_go [14]
        peers_are_listed_with_role_and_time [15]
        peers_of_an_unknown_info_hash_are_none [15]
        peers_shows_each_exactly_once_in_steps_of_any_size [15]
        peers_that_stay_are_shown_exactly_once_whatever_moves_around_them [15]
        a_listing_of_peers_ends_when_their_swarm_is_removed [15]
        peer_details_are_kept_or_absent_as_declared [15]
    }
    forgetting {
        a_peer_is_never_swept_while_it_is_no_older_than_the_lifetime [16]
        a_peer_is_swept_once_its_age_exceeds_the_lifetime_by_the_clock_resolution [16]
        an_announce_renews_the_lifetime [3 16]
        peers_of_both_families_and_roles_expire [16]
        lifetimes_out_of_range_are_refused [16]
        every_lifetime_in_range_is_kept [16]
        late_sweeps_make_no_expired_peer_young [16]
        missing_sweeps_make_no_expired_peer_young [16]
        ages_stay_true_while_others_announce [15 16]
        an_earlier_time_counts_as_the_latest_seen [3 16]
        advance_tells_the_time_and_returns_the_latest [16]
        a_peer_that_announces_while_a_sweep_runs_survives_it [17]
        an_expired_peer_goes_within_one_full_pass [18]
        a_sweep_says_what_it_removed [18]
        a_step_of_a_sweep_visits_about_its_budget [18]
        a_step_of_a_sweep_touches_no_more_than_its_budget_and_one_hold [18]
        concurrent_sweeps_share_one_pass [18]
        a_sweep_holds_no_lock_for_long_even_in_a_large_swarm [18]
        memory_that_was_freed_is_returned_when_a_store_has_shrunk_a_lot [18]
        memory_falls_to_a_tenth_when_99_of_100_swarms_expire [18]
        swarms_that_were_listed_leave_no_memory_behind [18]
        a_swarm_without_peers_goes_with_the_next_sweep [19]
        a_swarm_without_peers_stays_for_its_downloads_if_the_policy_says_so [19]
        remove_says_what_was_there [20]
        remove_where_removes_all_that_is_forbidden_and_says_what [20]
        remove_where_asks_once_about_every_swarm_that_stays [20]
        a_predicate_is_called_without_a_lock_held [20]
    }
    bounds {
        a_limit_that_is_not_declared_is_refused [21]
        a_limit_that_is_too_small_is_refused_with_the_least_that_works [21]
        a_store_without_limits_evicts_nobody [21]
        max_swarms_is_kept_under_any_flood [21]
        a_restore_displaces_nobody [21 24]
        max_peers_per_swarm_is_kept_and_the_announcer_stays [21]
        the_stalest_peers_are_dropped_first [21]
        max_bytes_is_kept_under_any_flood [21]
        a_swarm_that_outgrows_max_bytes_keeps_its_announcers_and_its_freshest [21]
        max_bytes_is_kept_whatever_announces_change [21]
        limits_hold_for_restored_swarms_too [21 24]
        max_bytes_holds_for_restored_swarms_too [21 24]
        limits_hold_in_batches_too [21]
        room_that_was_freed_is_used_before_anything_is_evicted [21]
        bytes_that_were_freed_are_used_before_anything_is_evicted [21]
    }
    floods {
        a_flood_of_made_up_info_hashes_displaces_itself [21]
        a_flood_from_one_network_displaces_itself [21]
        a_flood_cannot_cheapen_a_living_swarm [21]
        a_flood_of_large_swarms_displaces_itself [21]
        a_flood_displaces_no_restored_swarms [21 24]
        a_swarm_that_grows_displaces_what_is_worth_less [21]
        a_swarm_that_becomes_popular_displaces_none_of_its_own_peers [21]
        a_newcomer_displaces_few_peers_of_a_populous_swarm [21]
        one_network_cannot_take_over_a_full_swarm [21]
        families_and_roles_keep_their_shares_of_a_full_swarm [21]
        an_ipv6_prefix_displaces_no_more_than_ten_ipv4_networks [21]
        a_flood_displaces_itself_where_bytes_are_limited [21]
    }
    endpoints {
        max_endpoints_per_address_is_kept_and_the_announcer_stays [21]
        an_address_displaces_its_own_endpoint_that_announced_least_recently [21]
        an_endpoint_that_is_there_displaces_nobody [21]
        an_endpoint_that_stopped_leaves_its_place [21]
        an_address_has_its_endpoints_in_each_swarm [21]
        an_ipv6_address_is_its_upper_64_bits [2 21]
        wider_networks_of_ipv6_have_5_and_25_times_the_endpoints [21]
        an_address_at_its_limit_displaces_only_itself_in_a_full_swarm [21]
        endpoints_per_address_are_limited_in_batches_too [21]
        endpoints_beyond_the_limit_are_refused_when_restored [21 24]
        one_address_takes_no_more_than_its_endpoints_of_a_large_swarm [21]
    }
    hostile {
        info_hashes_with_equal_first_bytes_cost_no_more [22]
        info_hashes_with_equal_last_bytes_cost_no_more [22]
        info_hashes_made_for_an_unkeyed_hash_cost_no_more [22]
        counts_never_come_from_walking_a_swarm [23]
        selecting_costs_what_is_wanted_not_what_is_there [10 23]
        totals_cost_no_walk_over_swarms [13]
        a_step_of_a_walk_costs_the_same_at_any_position [14]
        a_pass_of_sweeps_costs_in_proportion_to_the_swarms [18]
        no_announce_panics_the_store [23]
        a_panic_in_the_callers_randomness_leaves_the_store_usable [23]
        a_panic_in_the_callers_predicate_leaves_the_store_usable [23]
    }
    restoring {
        restore_puts_back_peers_with_role_age_and_downloads [24]
        restored_peers_are_swept_when_their_time_has_come [16 24]
        restore_may_be_done_in_several_calls [24]
        restore_leaves_a_peer_as_it_announced_itself [24]
        restore_keeps_out_peers_older_than_the_lifetime [16 24]
        peers_that_no_sweep_removes_grow_old_and_are_not_imported [15 16 24]
        restore_takes_the_larger_download_count [24]
        restore_creates_no_swarm_without_living_peers_and_downloads [19 24]
        a_listing_restores_into_another_store_as_it_was [24]
        add_downloads_adds_what_was_counted_earlier [25]
    }
    exporting {
        an_export_reads_every_swarm_with_its_peers_roles_times_and_downloads [24]
        an_export_at_an_earlier_time_shows_times_as_they_are [24]
        peers_that_stay_are_exported_whatever_moves_around_them [24]
        swarms_that_stay_are_exported_while_others_come_and_go [24]
        an_export_holds_every_peer_whose_announce_returned_before_it_began [24]
        an_export_counts_the_download_of_every_seeder_it_shows [24]
        an_export_shows_one_life_of_a_swarm_that_is_removed_and_made_again [24]
        the_time_given_to_an_export_or_an_import_counts [24]
        a_step_of_an_export_visits_about_its_budget [18 24]
        an_export_holds_no_lock_for_long_even_in_a_large_swarm [18 24]
        an_export_leaves_out_what_has_neither_peers_nor_downloads [24]
        import_does_what_restore_does_one_by_one [24]
        import_keeps_to_limits_and_displaces_nobody [21 24]
        what_one_store_exports_another_imports [24]
        announces_survive_imports_and_stay_as_they_were_made [6 24]
    }
    races {
        calls_of_several_threads_have_an_order [1 4 5 6 7 8 9 12 13 15 19 20 24 25]
        refreshes_survive_sweeps_of_expired_peers [6 17]
        announces_survive_evictions_of_others [6 21]
        racing_endpoints_of_one_address_keep_to_its_limit [6 21]
        walk_and_page_show_what_stays_while_threads_change_the_rest [14]
    }
    stories {
        random_stories_go_as_with_the_model [1 3 4 5 7 8 9 12 13 14 15 16 19 20]
        long_random_stories_go_as_with_the_model [1 3 4 5 7 8 9 12 13 14 15 16 19 20]
        random_stories_of_limited_addresses_go_as_with_the_model [21 24]
    }
}
