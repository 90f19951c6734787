//! The list of cases, from which both `CASES` and [`content_suite!`](crate::content_suite) are made.

use super::{Case, Subject, cases::*};

swarmkeep_conformance::cases! {
    /// Every case, in the order of the contract.
    CASES of Subject;

    /// Makes a module with a `#[test]` of every case for one store.
    ///
    /// The arguments are the name of the module and a function that opens the store in the folder of a
    /// `ContentConfig`: `content_suite!(my_store, |config| MyStore::open(config));`. The function can use all
    /// names in scope at the macro call, and is evaluated for each test.
    content_suite in $crate::content;

    opening {
        a_new_store_holds_nothing
        capabilities_have_a_stripe_that_is_a_power_of_two
        labels_are_kept_as_declared
        create_takes_in_a_torrent_of_which_nothing_is_written_and_no_piece_complete
        torrents_of_all_measures_are_taken_in
        bytes_beyond_four_gibibytes_have_places_of_their_own
        create_of_a_torrent_that_is_there_is_refused_and_leaves_it_as_it_was
        open_of_an_unknown_torrent_is_refused
        handles_of_a_torrent_show_the_same_bytes_and_pieces
        torrents_differ_by_every_byte_of_their_info_hash
        list_shows_every_torrent_once_in_ascending_order_of_info_hash
        list_tells_measures_and_how_many_pieces_are_complete
        a_thousand_torrents_are_kept_apart
    }
    writing {
        what_was_written_can_be_read_when_the_write_returns
        lengths_are_exact
        buffers_are_written_one_after_another
        ranges_across_every_boundary_read_as_they_were_written
        pieces_of_every_length_are_written_in_any_order
        a_torrent_may_be_written_at_once
        written_again_a_byte_reads_as_it_was_written_last
        neighbours_of_a_write_stay_as_they_were
        a_write_of_nothing_does_nothing
        a_write_out_of_range_is_refused_and_changes_nothing
        a_write_into_a_complete_piece_is_refused_and_changes_nothing
    }
    reading {
        buffers_are_filled_one_after_another
        any_range_of_complete_pieces_can_be_read
        a_byte_that_was_never_written_is_an_error_that_names_the_first
        errors_of_a_read_name_the_first_byte_across_buffers
        a_read_out_of_range_is_refused
        a_read_of_nothing_is_answered_wherever_it_lies_in_the_torrent
        torrents_are_apart
        no_bytes_of_another_torrent_are_ever_read
    }
    marking {
        a_piece_is_complete_once_it_was_marked
        a_mark_is_refused_unless_every_byte_was_written
        the_last_piece_may_be_shorter
        a_repeated_mark_answers_false
        pieces_that_do_not_exist_are_refused
        mark_incomplete_forgets_the_bytes_of_the_piece_and_no_others
        mark_incomplete_of_an_incomplete_piece_leaves_it_as_it_was
        a_piece_marked_incomplete_may_be_written_again
    }
    deleting {
        delete_forgets_a_torrent_and_says_whether_there_was_one
        delete_leaves_other_torrents_alone
        handles_of_a_deleted_torrent_answer_deleted
        a_torrent_created_anew_has_nothing_of_the_old
    }
    lasting {
        what_was_flushed_is_there_when_the_store_is_opened_again
        bytes_of_incomplete_pieces_do_not_outlive_the_store
        what_was_not_flushed_may_survive_and_reads_as_when_it_was_marked
        a_torrent_is_there_after_create_returned
        a_torrent_is_gone_after_delete_returned
        a_piece_is_incomplete_after_mark_incomplete_returned
        a_piece_that_was_written_anew_reads_so_when_the_store_is_opened_again
        a_store_can_be_opened_again_and_again
        a_flush_covers_all_torrents
        a_label_that_was_flushed_is_there_when_the_store_is_opened_again
    }
    bounds {
        a_capacity_that_is_not_declared_is_refused
        free_is_returned_where_a_capacity_was_given
        a_capacity_is_kept
        a_capacity_is_kept_by_racing_writes
        a_write_without_room_changes_nothing
        a_create_without_room_leaves_nothing
        a_full_store_reads_marks_and_flushes
        room_that_was_freed_is_used_again
        a_piece_marked_incomplete_can_be_written_in_a_full_store
        a_capacity_too_small_for_anything_is_full_at_once_or_when_written_to
        unwritten_bytes_never_exceed_most_unwritten
        a_write_larger_than_most_unwritten_goes_through
    }
    telling {
        statistics_count_calls_and_bytes
        statistics_tell_how_many_torrents_there_are
        used_rises_with_what_is_written_and_falls_with_what_is_deleted
        room_is_returned_that_is_enough_for_a_write
        statistics_count_flushes
        places_are_returned_for_bytes_of_the_torrent_alone
    }
    races {
        disjoint_writes_at_once_all_arrive
        of_overlapping_writes_each_byte_is_that_of_one
        of_racing_creates_one_wins
        of_racing_deletes_one_answers_true
        of_racing_marks_one_answers_true
        a_complete_piece_never_changes_whatever_is_written_at_once
        reads_racing_mark_incomplete_see_what_was_written
        calls_racing_a_delete_are_done_or_answer_deleted
        a_flush_races_with_everything
        readers_never_see_bytes_of_another_torrent
        list_shows_what_stays_while_torrents_come_and_go
        threads_with_torrents_of_their_own_do_not_disturb_one_another
    }
    stories {
        random_stories_of_small_torrents_go_as_with_the_model
        random_stories_of_torrents_of_many_blocks_go_as_with_the_model
        random_stories_of_large_torrents_go_as_with_the_model
        a_long_random_story_goes_as_with_the_model
    }
}
