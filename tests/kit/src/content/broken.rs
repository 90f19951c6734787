//! Stores that are broken on purpose: the model, each with one fault, and the case that must reject it. Most
//! are faults of stores in use. One in two steps looks, lets go of the lock, and acts on what it saw.
#![allow(missing_docs, reason = "the names of most faults say it")]

mod content;
mod store;

use std::{
    collections::{BTreeMap, BTreeSet},
    thread,
    time::Duration,
};

use swarmkeep_content::InfoHash;

pub use self::store::Broken;
use super::model::ModelTorrent;

swarmkeep_conformance::faults! {
    /// One way to be broken.
    for_each_content_fault:

    stripe_that_is_no_power_of_two OddStripe => capabilities_have_a_stripe_that_is_a_power_of_two;
    labels_not_declared LabelsNotDeclared => labels_are_kept_as_declared;
    labels_for_all LabelsForAll => labels_are_kept_as_declared;
    labels_in_memory LabelsInMemory => a_label_that_was_flushed_is_there_when_the_store_is_opened_again;
    offsets_of_32_bits OffsetsOf32Bits => bytes_beyond_four_gibibytes_have_places_of_their_own;
    create_empties_what_exists CreateEmpties => create_of_a_torrent_that_is_there_is_refused_and_leaves_it_as_it_was;
    open_creates OpenCreates => open_of_an_unknown_torrent_is_refused;
    handle_keeps_its_pieces HandleKeepsPieces => handles_of_a_torrent_show_the_same_bytes_and_pieces;
    identity_by_first_bytes IdentityByFirstBytes => torrents_differ_by_every_byte_of_their_info_hash;
    list_unsorted ListUnsorted => list_shows_every_torrent_once_in_ascending_order_of_info_hash;
    list_twice ListTwice => list_shows_every_torrent_once_in_ascending_order_of_info_hash;
    list_misses ListMisses => list_shows_every_torrent_once_in_ascending_order_of_info_hash;
    list_counts_written_pieces ListCountsWritten => list_tells_measures_and_how_many_pieces_are_complete;
    list_ends_early ListEndsEarly => a_thousand_torrents_are_kept_apart;
    /// Carries a write out when the next one comes.
    writes_lag WritesLag => what_was_written_can_be_read_when_the_write_returns;
    /// Has torrents end at a whole sector.
    length_rounded_up LengthRoundedUp => lengths_are_exact;
    first_buffer_written FirstBufferWritten => buffers_are_written_one_after_another;
    empty_buffer_ends_a_write EmptyBufferEnds => buffers_are_written_one_after_another;
    buffers_beyond_1024_not_written BuffersBeyond1024 => buffers_are_written_one_after_another;
    odd_offsets_rounded OffsetsRounded => ranges_across_every_boundary_read_as_they_were_written;
    writes_end_with_the_stripe WritesEndWithStripe => ranges_across_every_boundary_read_as_they_were_written;
    pieces_rounded_to_sectors PiecesRounded => pieces_of_every_length_are_written_in_any_order;
    long_writes_cut LongWritesCut => a_torrent_may_be_written_at_once;
    first_write_wins FirstWriteWins => written_again_a_byte_reads_as_it_was_written_last;
    neighbours_zeroed NeighboursZeroed => neighbours_of_a_write_stay_as_they_were;
    write_of_nothing_refused EmptyWriteRefused => a_write_of_nothing_does_nothing;
    write_of_nothing_writes EmptyWriteWrites => a_write_of_nothing_does_nothing;
    out_of_range_writes_what_fits OutOfRangeWritesWhatFits => a_write_out_of_range_is_refused_and_changes_nothing;
    offsets_wrap OffsetsWrap => a_write_out_of_range_is_refused_and_changes_nothing;
    write_into_complete WriteIntoComplete => a_write_into_a_complete_piece_is_refused_and_changes_nothing;
    half_of_a_refused_write HalfOfRefused => a_write_into_a_complete_piece_is_refused_and_changes_nothing;
    first_piece_of_a_write_checked FirstPieceChecked => a_write_into_a_complete_piece_is_refused_and_changes_nothing;
    first_buffer_filled FirstBufferFilled => buffers_are_filled_one_after_another;
    reads_rounded ReadsRounded => any_range_of_complete_pieces_can_be_read;
    zeroes_for_never_written ZeroesForUnwritten => a_byte_that_was_never_written_is_an_error_that_names_the_first;
    written_by_the_page WrittenByPage => a_byte_that_was_never_written_is_an_error_that_names_the_first;
    first_byte_of_the_read_named NamesStartOfRead => a_byte_that_was_never_written_is_an_error_that_names_the_first;
    byte_of_the_buffer_named NamesByteOfBuffer => errors_of_a_read_name_the_first_byte_across_buffers;
    /// Reads up to the end, and leaves the rest of the buffers.
    reads_end_with_the_torrent ReadsClamped => a_read_out_of_range_is_refused;
    read_of_nothing_refused EmptyReadRefused => a_read_of_nothing_is_answered_wherever_it_lies_in_the_torrent;
    marks_shared_among_torrents MarksShared => torrents_are_apart;
    another_torrents_bytes_in_reused_room OldRoomShown => no_bytes_of_another_torrent_are_ever_read;
    another_torrents_bytes_in_failed_reads OldRoomInBuffers => no_bytes_of_another_torrent_are_ever_read;
    last_piece_not_shown LastPieceNotShown => a_piece_is_complete_once_it_was_marked;
    mark_unverified MarkUnverified => a_mark_is_refused_unless_every_byte_was_written;
    mark_looks_at_the_ends MarkLooksAtEnds => a_mark_is_refused_unless_every_byte_was_written;
    last_piece_never_complete LastPieceWhole => the_last_piece_may_be_shorter;
    repeated_mark_is_new RepeatedMarkNew => a_repeated_mark_answers_false;
    any_piece_exists AnyPieceExists => pieces_that_do_not_exist_are_refused;
    mark_incomplete_keeps_bytes UnmarkKeepsBytes => mark_incomplete_forgets_the_bytes_of_the_piece_and_no_others;
    mark_incomplete_forgets_neighbours UnmarkForgetsNeighbours => mark_incomplete_forgets_the_bytes_of_the_piece_and_no_others;
    mark_incomplete_forgets_incomplete UnmarkForgetsIncomplete => mark_incomplete_of_an_incomplete_piece_leaves_it_as_it_was;
    complete_for_ever CompleteForEver => a_piece_marked_incomplete_may_be_written_again;
    delete_always_true DeleteAlwaysTrue => delete_forgets_a_torrent_and_says_whether_there_was_one;
    delete_takes_two DeleteTakesTwo => delete_leaves_other_torrents_alone;
    delete_leaves_the_handle_alive HandleSurvives => handles_of_a_deleted_torrent_answer_deleted;
    handle_reaches_the_new_torrent HandleReachesNew => handles_of_a_deleted_torrent_answer_deleted;
    create_shows_the_old_bytes CreateRevives => a_torrent_created_anew_has_nothing_of_the_old;
    marks_lost_on_reopen FlushDoesNothing => what_was_flushed_is_there_when_the_store_is_opened_again;
    flushed_when_closed FlushedWhenClosed => what_was_flushed_is_there_when_the_store_is_opened_again;
    durable_and_not_declared DurableNotDeclared => what_was_flushed_is_there_when_the_store_is_opened_again;
    unmarked_pieces_complete_after_reopen WrittenIsComplete => bytes_of_incomplete_pieces_do_not_outlive_the_store;
    marks_before_bytes MarksBeforeBytes => what_was_not_flushed_may_survive_and_reads_as_when_it_was_marked;
    create_not_durable CreateNotDurable => a_torrent_is_there_after_create_returned;
    delete_not_durable DeleteNotDurable => a_torrent_is_gone_after_delete_returned;
    mark_incomplete_not_durable UnmarkNotDurable => a_piece_is_incomplete_after_mark_incomplete_returned;
    /// Flushes the bytes that a piece had when it was complete for the first time.
    old_bytes_flushed OldBytesFlushed => a_piece_that_was_written_anew_reads_so_when_the_store_is_opened_again;
    /// Loses a mark when it is opened for the eighth time.
    later_openings_forget LaterOpeningsForget => a_store_can_be_opened_again_and_again;
    flush_misses_a_torrent FlushMissesOne => a_flush_covers_all_torrents;
    /// Takes a capacity, does not declare it, and keeps to it.
    capacity_not_refused CapacityNotRefused => a_capacity_that_is_not_declared_is_refused;
    free_not_told FreeNotTold => free_is_returned_where_a_capacity_was_given;
    /// Ignores the capacity, and says that nothing is free.
    capacity_ignored CapacityIgnored => a_capacity_is_kept;
    capacity_in_two_steps CapacityInTwoSteps => a_capacity_is_kept_by_racing_writes;
    full_half_done FullHalfDone => a_write_without_room_changes_nothing;
    create_half_done CreateHalfDone => a_create_without_room_leaves_nothing;
    full_refuses_marks FullRefusesMarks => a_full_store_reads_marks_and_flushes;
    delete_frees_nothing DeleteFreesNothing => room_that_was_freed_is_used_again;
    full_for_ever FullForEver => room_that_was_freed_is_used_again;
    mark_incomplete_frees_nothing UnmarkFreesNothing => a_piece_marked_incomplete_can_be_written_in_a_full_store;
    small_capacity_is_none SmallCapacityIsNone => a_capacity_too_small_for_anything_is_full_at_once_or_when_written_to;
    unwritten_beyond_the_limit UnwrittenBeyondLimit => unwritten_bytes_never_exceed_most_unwritten;
    large_write_refused LargeWriteRefused => a_write_larger_than_most_unwritten_goes_through;
    buffers_counted_as_calls BuffersCountedAsCalls => statistics_count_calls_and_bytes;
    refused_bytes_counted RefusedBytesCounted => statistics_count_calls_and_bytes;
    deleted_torrents_counted DeletedTorrentsCounted => statistics_tell_how_many_torrents_there_are;
    used_not_told UsedNotTold => used_rises_with_what_is_written_and_falls_with_what_is_deleted;
    room_not_told RoomNotTold => room_is_returned_that_is_enough_for_a_write;
    /// Says that the shorter a write is, the more room it takes.
    room_told_of_the_rest RoomToldOfRest => room_is_returned_that_is_enough_for_a_write;
    flushes_not_counted FlushesNotCounted => statistics_count_flushes;
    places_beyond_the_end PlacesBeyondEnd => places_are_returned_for_bytes_of_the_torrent_alone;
    neighbours_lost_in_a_race SectorsInTwoSteps => disjoint_writes_at_once_all_arrive;
    bytes_of_neither_change PagesInTwoSteps => of_overlapping_writes_each_byte_is_that_of_one;
    racing_creates_both_win CreateInTwoSteps => of_racing_creates_one_wins;
    racing_deletes_both_win DeleteInTwoSteps => of_racing_deletes_one_answers_true;
    racing_marks_both_win MarkInTwoSteps => of_racing_marks_one_answers_true;
    write_after_the_mark WriteInTwoSteps => a_complete_piece_never_changes_whatever_is_written_at_once;
    mark_incomplete_in_two_steps UnmarkInTwoSteps => reads_racing_mark_incomplete_see_what_was_written;
    /// Looks whether a torrent is there, lets go of the lock, and writes to the one with its info hash then.
    write_after_the_delete WriteAfterDelete => calls_racing_a_delete_are_done_or_answer_deleted;
    flush_in_two_steps FlushInTwoSteps => a_flush_races_with_everything;
    /// Reads the second half from the torrent that has the info hash then.
    read_in_two_steps ReadInTwoSteps => readers_never_see_bytes_of_another_torrent;
    /// Lists by position, and lets go of the lock after each torrent.
    list_by_position ListByPosition => list_shows_what_stays_while_torrents_come_and_go;
    /// Loses a write on a rare occasion: of three buffers and more, across two pieces, of a length that 7
    /// divides.
    loss_on_a_rare_occasion RareLoss => a_long_random_story_goes_as_with_the_model;
}

/// The memory of faults.
#[derive(Default)]
struct FaultNotes {
    /// Chunks of torrents that are gone.
    room: BTreeMap<u64, Vec<Option<u8>>>,
    deleted: BTreeMap<InfoHash, ModelTorrent>,
    /// The write that is to be carried out yet.
    late: Option<(u64, Vec<u8>)>,
    /// The bytes of pieces when they were complete before.
    earlier: BTreeMap<(InfoHash, u32), Vec<u8>>,
    ever_complete: BTreeSet<u32>,
    was_full: bool,
    /// By how much a count is wrong.
    drift: u64,
}

fn let_others_in() {
    thread::sleep(Duration::from_micros(50));
}
