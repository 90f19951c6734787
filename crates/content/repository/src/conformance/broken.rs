//! Stores that are broken on purpose: the model, each with one fault, and the case that must reject it. Most
//! are faults of stores in use.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, fs,
    io::{IoSlice, IoSliceMut},
    ops::Range,
    sync::Arc,
    thread,
    time::Duration,
};

use parking_lot::{Mutex, MutexGuard};

use super::model::{Event, HEAD, Handle, MOST_UNWRITTEN, Model, State, Torrent};
use crate::{
    Capabilities, Content, ContentConfig, ContentExt, ContentRepository, Error, Geometry, InfoHash,
    NewTorrent, PieceBits, Result, Statistics, Summary,
};

/// Makes [`Fault`] of the rows below, and the macro that goes through them.
macro_rules! faults {
    ($($(#[doc = $doc:literal])+ $test:ident $fault:ident => $case:ident;)*) => {
        /// One way to be broken.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum Fault {
            $($(#[doc = $doc])+ $fault,)*
        }

        impl Fault {
            /// The name of the case that is meant to reject it.
            pub const fn case(self) -> &'static str {
                match self {
                    $(Self::$fault => stringify!($case),)*
                }
            }
        }

        faults! { @export ($) $($test $fault)* }
    };
    (@export ($d:tt) $($test:ident $fault:ident)*) => {
        /// Calls a macro with the faults, each in snake case and as the variant of `Fault`.
        #[doc(hidden)]
        #[macro_export]
        macro_rules! for_each_content_fault {
            ($d callback:ident) => { $d callback! { $($test $fault)* } };
        }
    };
}

faults! {
    /// Declares a stripe that is no power of two.
    stripe_that_is_no_power_of_two OddStripe => capabilities_have_a_stripe_that_is_a_power_of_two;
    /// Keeps the low 32 bits of an offset.
    offsets_of_32_bits OffsetsOf32Bits => bytes_beyond_four_gibibytes_have_places_of_their_own;
    /// Says that the torrent exists, and empties it.
    create_empties_what_exists CreateEmpties => create_of_a_torrent_that_is_there_is_refused_and_leaves_it_as_it_was;
    /// Creates a torrent that is opened and not there.
    open_creates OpenCreates => open_of_an_unknown_torrent_is_refused;
    /// Keeps the complete pieces as they were when a handle was opened.
    handle_keeps_its_pieces HandleKeepsPieces => handles_of_a_torrent_show_the_same_bytes_and_pieces;
    /// Knows torrents by the first eight bytes of their info hash.
    identity_by_first_bytes IdentityByFirstBytes => torrents_are_told_apart_by_every_byte_of_their_info_hash;
    /// Lists torrents in descending order.
    list_unsorted ListUnsorted => list_shows_every_torrent_once_in_ascending_order_of_info_hash;
    /// Lists the first torrent twice.
    list_twice ListTwice => list_shows_every_torrent_once_in_ascending_order_of_info_hash;
    /// Leaves out the last torrent.
    list_misses ListMisses => list_shows_every_torrent_once_in_ascending_order_of_info_hash;
    /// Lists pieces as complete that are written and not marked.
    list_counts_written_pieces ListCountsWritten => list_tells_measures_and_how_many_pieces_are_complete;
    /// Lists no more than 512 torrents.
    list_ends_early ListEndsEarly => a_thousand_torrents_are_kept_apart;
    /// Carries a write out when the next one comes.
    writes_lag WritesLag => what_was_written_can_be_read_when_the_write_returns;
    /// Has torrents end at a whole sector.
    length_rounded_up LengthRoundedUp => lengths_are_exact;
    /// Writes the first buffer alone.
    first_buffer_written FirstBufferWritten => buffers_are_written_one_after_another;
    /// Stops at an empty buffer.
    empty_buffer_ends_a_write EmptyBufferEnds => buffers_are_written_one_after_another;
    /// Writes no more than 1,024 buffers.
    buffers_beyond_1024_not_written BuffersBeyond1024 => buffers_are_written_one_after_another;
    /// Begins a write at the sector's beginning.
    odd_offsets_rounded OffsetsRounded => ranges_across_every_boundary_read_as_they_were_written;
    /// Loses what a write has beyond the end of a stripe.
    writes_end_with_the_stripe WritesEndWithStripe => ranges_across_every_boundary_read_as_they_were_written;
    /// Has pieces begin with a sector.
    pieces_rounded_to_sectors PiecesRounded => pieces_of_every_length_are_written_in_any_order;
    /// Writes no more than 256 KiB at once.
    long_writes_cut LongWritesCut => a_torrent_may_be_written_at_once;
    /// Leaves bytes that are written already.
    first_write_wins FirstWriteWins => written_again_a_byte_reads_as_it_was_written_last;
    /// Writes whole sectors, with zeroes around the bytes.
    neighbours_zeroed NeighboursZeroed => neighbours_of_a_write_stay_as_they_were;
    /// Refuses a write of nothing in a complete piece.
    write_of_nothing_refused EmptyWriteRefused => a_write_of_nothing_does_nothing;
    /// Takes a write of nothing for one of a byte.
    write_of_nothing_writes EmptyWriteWrites => a_write_of_nothing_does_nothing;
    /// Writes what lies in the torrent before it refuses the rest.
    out_of_range_writes_what_fits OutOfRangeWritesWhatFits => a_write_out_of_range_is_refused_and_changes_nothing;
    /// Adds offset and length without a look at the carry.
    offsets_wrap OffsetsWrap => a_write_out_of_range_is_refused_and_changes_nothing;
    /// Writes into complete pieces.
    write_into_complete WriteIntoComplete => a_write_into_a_complete_piece_is_refused_and_changes_nothing;
    /// Writes what lies before a complete piece, and then refuses.
    half_of_a_refused_write HalfOfRefused => a_write_into_a_complete_piece_is_refused_and_changes_nothing;
    /// Looks at the first piece of a write alone.
    first_piece_of_a_write_checked FirstPieceChecked => a_write_into_a_complete_piece_is_refused_and_changes_nothing;
    /// Fills the first buffer alone.
    first_buffer_filled FirstBufferFilled => buffers_are_filled_one_after_another;
    /// Reads from the sector's beginning.
    reads_rounded ReadsRounded => any_range_of_complete_pieces_can_be_read;
    /// Reads zeroes where nothing was written.
    zeroes_for_never_written ZeroesForUnwritten => a_byte_that_was_never_written_is_an_error_that_names_the_first;
    /// Takes all of a page as written when a byte of it was.
    written_by_the_page WrittenByPage => a_byte_that_was_never_written_is_an_error_that_names_the_first;
    /// Names the first byte of the read.
    first_byte_of_the_read_named NamesStartOfRead => a_byte_that_was_never_written_is_an_error_that_names_the_first;
    /// Counts the byte that it names from the beginning of a buffer.
    byte_of_the_buffer_named NamesByteOfBuffer => errors_of_a_read_name_the_first_byte_across_buffers;
    /// Reads what there is, and leaves the rest of the buffers.
    reads_end_with_the_torrent ReadsClamped => a_read_out_of_range_is_refused;
    /// Refuses a read of nothing where nothing was written.
    read_of_nothing_refused EmptyReadRefused => a_read_of_nothing_is_answered_wherever_it_lies_in_the_torrent;
    /// Takes back the mark of a piece in every torrent.
    marks_shared_among_torrents MarksShared => torrents_are_apart;
    /// Gives a new torrent the room of an old one, with what is in it.
    another_torrents_bytes_in_reused_room OldRoomShown => no_bytes_of_another_torrent_are_ever_read;
    /// Leaves bytes of a deleted torrent in the buffers of a read that fails.
    another_torrents_bytes_in_failed_reads OldRoomInBuffers => no_bytes_of_another_torrent_are_ever_read;
    /// Shows the last piece as incomplete.
    last_piece_not_shown LastPieceNotShown => a_piece_is_complete_once_it_was_marked;
    /// Believes every mark.
    mark_unverified MarkUnverified => a_mark_is_refused_unless_every_byte_was_written;
    /// Looks at the first byte of a piece and at the last.
    mark_looks_at_the_ends MarkLooksAtEnds => a_mark_is_refused_unless_every_byte_was_written;
    /// Wants the last piece to be as long as the others.
    last_piece_never_complete LastPieceWhole => the_last_piece_may_be_shorter;
    /// Answers every mark with true.
    repeated_mark_is_new RepeatedMarkNew => a_repeated_mark_answers_false;
    /// Has no opinion on pieces that do not exist.
    any_piece_exists AnyPieceExists => pieces_that_do_not_exist_are_refused;
    /// Keeps the bytes of a piece that is marked incomplete.
    mark_incomplete_keeps_bytes UnmarkKeepsBytes => mark_incomplete_forgets_the_bytes_of_the_piece_and_no_others;
    /// Forgets whole sectors with a piece.
    mark_incomplete_forgets_neighbours UnmarkForgetsNeighbours => mark_incomplete_forgets_the_bytes_of_the_piece_and_no_others;
    /// Forgets the bytes of a piece that was incomplete before.
    mark_incomplete_forgets_incomplete UnmarkForgetsIncomplete => mark_incomplete_of_an_incomplete_piece_leaves_it_as_it_was;
    /// Refuses writes into a piece that was ever complete.
    complete_for_ever CompleteForEver => a_piece_marked_incomplete_may_be_written_again;
    /// Says of every torrent that it was there.
    delete_always_true DeleteAlwaysTrue => delete_forgets_a_torrent_and_says_whether_there_was_one;
    /// Deletes the next torrent as well.
    delete_takes_two DeleteTakesTwo => delete_leaves_other_torrents_alone;
    /// Accepts writes of handles whose torrent is gone.
    delete_leaves_the_handle_alive HandleSurvives => handles_of_a_deleted_torrent_answer_deleted;
    /// Lets the handles of a torrent that is gone reach one created anew.
    handle_reaches_the_new_torrent HandleReachesNew => handles_of_a_deleted_torrent_answer_deleted;
    /// Gives a torrent created anew the bytes of the old.
    create_shows_the_old_bytes CreateRevives => a_torrent_created_anew_has_nothing_of_the_old;
    /// Flushes nothing.
    marks_lost_on_reopen FlushDoesNothing => what_was_flushed_is_there_when_the_store_is_opened_again;
    /// Flushes when it is closed, and no sooner.
    flushed_when_closed FlushedWhenClosed => what_was_flushed_is_there_when_the_store_is_opened_again;
    /// Keeps what it declares not to keep.
    durable_and_not_declared DurableNotDeclared => what_was_flushed_is_there_when_the_store_is_opened_again;
    /// Flushes pieces that were written and not marked.
    unmarked_pieces_complete_after_reopen WrittenIsComplete => bytes_of_incomplete_pieces_do_not_outlive_the_store;
    /// Makes marks durable at once, and bytes at the next flush.
    marks_before_bytes MarksBeforeBytes => what_was_not_flushed_may_survive_and_reads_as_when_it_was_marked;
    /// Keeps a new torrent in memory.
    create_not_durable CreateNotDurable => a_torrent_is_there_after_create_returned;
    /// Keeps in memory that a torrent is gone.
    delete_not_durable DeleteNotDurable => a_torrent_is_gone_after_delete_returned;
    /// Keeps in memory that a piece is incomplete.
    mark_incomplete_not_durable UnmarkNotDurable => a_piece_is_incomplete_after_mark_incomplete_returned;
    /// Flushes the bytes that a piece had when it was complete for the first time.
    old_bytes_flushed OldBytesFlushed => a_piece_that_was_written_anew_reads_so_when_the_store_is_opened_again;
    /// Loses a mark when it is opened for the eighth time.
    later_openings_forget LaterOpeningsForget => a_store_can_be_opened_again_and_again;
    /// Flushes all torrents but the last.
    flush_misses_a_torrent FlushMissesOne => a_flush_covers_all_torrents;
    /// Takes a capacity, does not declare it, and keeps to it.
    capacity_not_refused CapacityNotRefused => a_capacity_that_is_not_declared_is_refused;
    /// Does not tell what is free.
    free_not_told FreeNotTold => free_is_told_where_a_capacity_was_given;
    /// Ignores the capacity, and says that nothing is free.
    capacity_ignored CapacityIgnored => a_capacity_is_kept;
    /// Looks whether there is room, lets go of the lock, and writes.
    capacity_in_two_steps CapacityInTwoSteps => a_capacity_is_kept_by_racing_writes;
    /// Writes as much as there is room for, and says that it is full.
    full_half_done FullHalfDone => a_write_without_room_changes_nothing;
    /// Leaves a torrent behind for which there was no room.
    create_half_done CreateHalfDone => a_create_without_room_leaves_nothing;
    /// Needs room for a mark, and has set none aside.
    full_refuses_marks FullRefusesMarks => a_full_store_reads_marks_and_flushes;
    /// Never uses again what a torrent took that is gone.
    delete_frees_nothing DeleteFreesNothing => room_that_was_freed_is_used_again;
    /// Is full for ever once it was.
    full_for_ever FullForEver => room_that_was_freed_is_used_again;
    /// Never uses again what a piece took that was marked incomplete.
    mark_incomplete_frees_nothing UnmarkFreesNothing => a_piece_marked_incomplete_can_be_written_in_a_full_store;
    /// Takes a capacity of next to nothing for none.
    small_capacity_is_none SmallCapacityIsNone => a_capacity_too_small_for_anything_is_full_at_once_or_when_written_to;
    /// Holds more in memory than it says.
    unwritten_beyond_the_limit UnwrittenBeyondLimit => unwritten_bytes_never_exceed_most_unwritten;
    /// Refuses a write that is larger than what it may hold in memory.
    large_write_refused LargeWriteRefused => a_write_larger_than_most_unwritten_goes_through;
    /// Counts a read for every buffer.
    buffers_counted_as_calls BuffersCountedAsCalls => statistics_count_calls_and_bytes;
    /// Counts the bytes of refused writes.
    refused_bytes_counted RefusedBytesCounted => statistics_count_calls_and_bytes;
    /// Counts torrents that are gone.
    deleted_torrents_counted DeletedTorrentsCounted => statistics_tell_how_many_torrents_there_are;
    /// Says that nothing is used.
    used_not_told UsedNotTold => used_rises_with_what_is_written_and_falls_with_what_is_deleted;
    /// Says that no write takes room.
    room_not_told RoomNotTold => room_is_told_that_is_enough_for_a_write;
    /// Says that the shorter a write is, the more room it takes.
    room_told_of_the_rest RoomToldOfRest => room_is_told_that_is_enough_for_a_write;
    /// Does not count flushes.
    flushes_not_counted FlushesNotCounted => statistics_count_flushes;
    /// Tells places of bytes that the torrent does not have.
    places_beyond_the_end PlacesBeyondEnd => places_are_told_of_bytes_of_the_torrent_alone;
    /// Reads a sector, lets go of the lock, and writes it back with the bytes changed.
    neighbours_lost_in_a_race SectorsInTwoSteps => disjoint_writes_at_once_all_arrive;
    /// The same with pages.
    bytes_of_neither_change PagesInTwoSteps => of_overlapping_writes_each_byte_is_that_of_one;
    /// Looks whether a torrent is there, lets go of the lock, and creates it.
    racing_creates_both_win CreateInTwoSteps => of_racing_creates_one_wins;
    /// Looks whether a torrent is there, lets go of the lock, and deletes it.
    racing_deletes_both_win DeleteInTwoSteps => of_racing_deletes_one_answers_true;
    /// Looks whether a piece is complete, lets go of the lock, and marks it.
    racing_marks_both_win MarkInTwoSteps => of_racing_marks_one_answers_true;
    /// Looks whether a piece is complete, lets go of the lock, and writes.
    write_after_the_mark WriteInTwoSteps => a_complete_piece_never_changes_whatever_is_written_at_once;
    /// Clears the bytes of a piece, lets go of the lock, and marks it incomplete.
    mark_incomplete_in_two_steps UnmarkInTwoSteps => reads_racing_mark_incomplete_see_what_was_written;
    /// Looks whether a torrent is there, lets go of the lock, and writes to whichever has its info hash then.
    write_after_the_delete WriteAfterDelete => calls_racing_a_delete_are_done_or_answer_deleted;
    /// Collects what is to be flushed, lets go of the lock, and makes it durable whatever has come meanwhile.
    flush_in_two_steps FlushInTwoSteps => a_flush_races_with_everything;
    /// Reads the second half of what it was asked for from whichever torrent has the info hash then.
    read_in_two_steps ReadInTwoSteps => readers_never_see_bytes_of_another_torrent;
    /// Lists by position, and lets go of the lock after each torrent.
    list_by_position ListByPosition => list_shows_what_stays_while_torrents_come_and_go;
    /// Loses a write on a rare occasion: of three buffers and more, across two pieces, of a length that 7
    /// divides.
    loss_on_a_rare_occasion RareLoss => a_long_random_story_goes_as_with_the_model;
}

/// The model with a fault.
pub struct Broken {
    model: Model,
    fault: Fault,
    capacity: Option<u64>,
    notes: Arc<Mutex<Notes>>,
}

/// What faults remember.
#[derive(Default)]
struct Notes {
    /// Chunks of torrents that are gone.
    room: BTreeMap<u64, Vec<Option<u8>>>,
    deleted: BTreeMap<InfoHash, Torrent>,
    /// The write that is to be carried out yet.
    late: Option<(u64, Vec<u8>)>,
    /// The bytes of pieces when they were complete before.
    earlier: BTreeMap<(InfoHash, u32), Vec<u8>>,
    ever_complete: BTreeSet<u32>,
    was_full: bool,
    /// By how much a count is wrong.
    drift: u64,
}

/// Gives the other threads of a race their chance.
fn let_others_in() {
    thread::sleep(Duration::from_micros(50));
}

impl Broken {
    /// Opens a store with one fault.
    ///
    /// # Errors
    /// Those of the model.
    pub fn open(fault: Fault, config: &ContentConfig) -> Result<Self> {
        let without = matches!(
            (fault, config.most()),
            (Fault::CapacityIgnored, _) | (Fault::SmallCapacityIsNone, Some(0 | 1))
        );
        let inner = if without { &ContentConfig::new(config.folder()) } else { config };
        let model = Model::open(inner)?;
        if fault == Fault::LaterOpeningsForget {
            let count = config.folder().join("openings");
            let before = fs::read(&count).map_or(0, |bytes| bytes.len());
            fs::write(count, vec![0; before + 1]).map_err(Error::io("counting"))?;
            if before == 7 {
                let mut state = model.state();
                for torrent in state.torrents.values_mut() {
                    torrent.complete.pop_first();
                }
            }
        }
        Ok(Self { model, fault, capacity: config.most(), notes: Arc::default() })
    }

    fn is(&self, fault: Fault) -> bool {
        self.fault == fault
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.model.state()
    }

    fn known_as(&self, info_hash: &InfoHash) -> InfoHash {
        let mut bytes = *info_hash.as_bytes();
        if self.is(Fault::IdentityByFirstBytes) {
            bytes[8..].fill(0);
        }
        InfoHash::new(bytes)
    }

    fn handle(&self, info_hash: InfoHash) -> Result<Arc<dyn Content>> {
        let handle = self.model.handle(&self.state(), info_hash).ok_or(Error::NotFound(info_hash))?;
        let (model, notes) = (Model { shared: Arc::clone(&self.model.shared) }, Arc::clone(&self.notes));
        let pieces = handle.pieces().unwrap_or_else(|_| PieceBits::none(handle.geometry().pieces()));
        Ok(Arc::new(BrokenContent { handle, model, fault: self.fault, notes, pieces }))
    }
}

impl Drop for Broken {
    fn drop(&mut self) {
        if self.is(Fault::FlushedWhenClosed) {
            self.state().flush().expect("a folder that is there");
        }
    }
}

impl fmt::Debug for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} with {:?}", self.model, self.fault)
    }
}

impl ContentRepository for Broken {
    fn create(&self, torrent: &NewTorrent) -> Result<Arc<dyn Content>> {
        let torrent = &NewTorrent { info_hash: self.known_as(&torrent.info_hash), ..torrent.clone() };
        let info_hash = torrent.info_hash;
        match self.fault {
            Fault::CreateInTwoSteps => {
                if self.state().torrents.contains_key(&info_hash) {
                    return Err(Error::Exists(info_hash));
                }
                let_others_in();
                let mut state = self.state();
                state.delete(&info_hash);
                state.create(torrent);
            }
            Fault::CreateNotDurable => {
                let mut state = self.state();
                let log = state.log.take();
                drop(state);
                let created = self.model.create(torrent);
                self.state().log = log;
                created?;
            }
            _ => {
                let created = self.model.create(torrent);
                let mut state = self.state();
                match (self.fault, &created) {
                    (Fault::CreateEmpties, Err(Error::Exists(_))) => {
                        let held = state.torrents.get_mut(&info_hash).expect("it exists");
                        held.chunks.clear();
                        held.complete.clear();
                    }
                    (Fault::CreateHalfDone, Err(Error::Full { .. })) => state.create(torrent),
                    (Fault::CreateRevives, Ok(_)) => {
                        if let Some(old) = self.notes.lock().deleted.remove(&info_hash) {
                            let created = state.torrents.get_mut(&info_hash).expect("it was just created");
                            created.chunks = old.chunks;
                            let all = 0..created.geometry.len();
                            let written = created.written(&all);
                            state.used += written;
                        }
                    }
                    _ => {}
                }
                drop(state);
                created?;
            }
        }
        self.handle(info_hash)
    }

    fn open(&self, info_hash: &InfoHash) -> Result<Arc<dyn Content>> {
        let opened = self.handle(self.known_as(info_hash));
        if self.is(Fault::OpenCreates) && opened.is_err() {
            self.model.create(&NewTorrent::new(*info_hash, 1000, 100)?)?;
        }
        opened
    }

    fn list(&self) -> Result<Vec<Summary>> {
        if self.is(Fault::ListByPosition) {
            let nth = |n: usize| {
                let found = self.model.list().map(|list| list.get(n).copied());
                let_others_in();
                found.transpose()
            };
            return (0..).map_while(nth).collect();
        }
        let mut list = self.model.list()?;
        match self.fault {
            Fault::ListUnsorted => list.reverse(),
            Fault::ListTwice => list.extend(list.first().copied()),
            Fault::ListMisses => drop(list.pop()),
            Fault::ListEndsEarly => list.truncate(512),
            Fault::ListCountsWritten => {
                let state = self.state();
                for summary in &mut list {
                    let Some(torrent) = state.torrents.get(&summary.info_hash) else { continue };
                    let geometry = torrent.geometry;
                    let ranges = (0..geometry.pieces()).filter_map(|piece| geometry.piece(piece).ok());
                    summary.complete = ranges.filter(|range| torrent.read(range).is_ok()).count() as u32;
                }
            }
            _ => {}
        }
        Ok(list)
    }

    fn delete(&self, info_hash: &InfoHash) -> Result<bool> {
        let info_hash = &self.known_as(info_hash);
        match self.fault {
            Fault::DeleteInTwoSteps => {
                if !self.state().torrents.contains_key(info_hash) {
                    return Ok(false);
                }
                let_others_in();
                self.state().delete(info_hash);
                return Ok(true);
            }
            Fault::DeleteNotDurable => return Ok(self.state().delete(info_hash).is_some()),
            _ => {}
        }
        let mut state = self.state();
        let used = state.used;
        if let Some(torrent) = state.torrents.get(info_hash) {
            let mut notes = self.notes.lock();
            notes.drift += 1;
            notes.deleted.insert(*info_hash, torrent.clone());
            for (&chunk, bytes) in &torrent.chunks {
                notes.room.insert(chunk, bytes.clone());
            }
        }
        drop(state);
        let deleted = self.model.delete(info_hash)?;
        state = self.state();
        match self.fault {
            Fault::DeleteFreesNothing if deleted => state.used = used,
            Fault::DeleteTakesTwo => {
                let next = state.torrents.range(*info_hash..).next().map(|(&next, _)| next);
                next.map(|next| state.delete(&next));
            }
            _ => {}
        }
        Ok(deleted || self.is(Fault::DeleteAlwaysTrue))
    }

    fn flush(&self) -> Result<()> {
        match self.fault {
            Fault::FlushDoesNothing | Fault::FlushedWhenClosed => return Ok(()),
            Fault::FlushesNotCounted => return self.state().flush(),
            Fault::FlushMissesOne => {
                let mut state = self.state();
                if let Some(mut last) = state.torrents.last_entry() {
                    let torrent = last.get_mut();
                    torrent.durable = torrent.complete.clone();
                }
            }
            Fault::WrittenIsComplete => {
                let mut state = self.state();
                let mut written = Vec::new();
                for (&info_hash, torrent) in &state.torrents {
                    for piece in 0..torrent.geometry.pieces() {
                        if let Ok(bytes) = torrent.read(&torrent.geometry.piece(piece)?) {
                            written.push((info_hash, piece, bytes));
                        }
                    }
                }
                for (info_hash, piece, bytes) in written {
                    state.log(info_hash, &Event::Complete(piece, &bytes))?;
                }
            }
            Fault::OldBytesFlushed => {
                let mut state = self.state();
                state.flush()?;
                for ((info_hash, piece), bytes) in &self.notes.lock().earlier {
                    if state.torrents.get(info_hash).is_some_and(|torrent| torrent.complete.contains(piece)) {
                        state.log(*info_hash, &Event::Complete(*piece, bytes))?;
                    }
                }
            }
            Fault::FlushInTwoSteps => {
                let mut marked = Vec::new();
                for (&info_hash, torrent) in &self.state().torrents {
                    for &piece in torrent.complete.difference(&torrent.durable) {
                        marked.push((info_hash, piece, torrent.read(&torrent.geometry.piece(piece)?)?));
                    }
                }
                let_others_in();
                let mut state = self.state();
                for (info_hash, piece, bytes) in marked {
                    if state.torrents.contains_key(&info_hash) {
                        state.log(info_hash, &Event::Complete(piece, &bytes))?;
                        state.torrents.get_mut(&info_hash).expect("it is there").durable.insert(piece);
                    }
                }
                return Ok(());
            }
            _ => {}
        }
        self.model.flush()
    }

    fn statistics(&self) -> Statistics {
        let mut told = self.model.statistics();
        match self.fault {
            Fault::FreeNotTold => told.free = None,
            Fault::CapacityIgnored => told.free = self.capacity.map(|most| most.saturating_sub(told.used)),
            Fault::UnwrittenBeyondLimit => told.unwritten += MOST_UNWRITTEN / 2,
            Fault::BuffersCountedAsCalls => told.reads += self.notes.lock().drift,
            Fault::RefusedBytesCounted => told.bytes_written += self.notes.lock().drift,
            Fault::DeletedTorrentsCounted => told.torrents += self.notes.lock().drift,
            Fault::UsedNotTold => told.used = 0,
            _ => {}
        }
        told
    }

    fn capabilities(&self) -> Capabilities {
        let mut declared = self.model.capabilities();
        match self.fault {
            Fault::OddStripe => declared.stripe = 100_000,
            Fault::DurableNotDeclared => declared.durable = false,
            Fault::CapacityNotRefused => declared.bounded = false,
            _ => {}
        }
        declared
    }
}

/// A torrent of a store with a fault.
struct BrokenContent {
    handle: Handle,
    model: Model,
    fault: Fault,
    notes: Arc<Mutex<Notes>>,
    /// Those that were complete when it was opened.
    pieces: PieceBits,
}

impl fmt::Debug for BrokenContent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} with {:?}", self.handle, self.fault)
    }
}

impl BrokenContent {
    /// Whichever torrent has the info hash of this one now, if any.
    fn current(&self) -> Handle {
        let state = self.model.state();
        self.model.handle(&state, self.handle.info_hash).unwrap_or_else(|| self.handle.clone())
    }

    /// Works on the torrent whatever the rules say.
    fn with<T>(&self, work: impl FnOnce(&mut Torrent) -> T) -> Result<T> {
        Ok(work(self.handle.torrent(&mut self.handle.state())?))
    }

    /// Writes bytes with no look at complete pieces or at room.
    fn force(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let mut state = self.handle.state();
        let new = self.handle.torrent(&mut state)?.write(offset, bytes);
        state.used += new;
        Ok(())
    }

    /// Reads the whole units that a write touches, lets others in, and writes them back with its bytes in
    /// them.
    fn write_units(&self, offset: u64, bytes: &[u8], unit: u64) -> Result<()> {
        let range = offset..offset + bytes.len() as u64;
        let (start, end) =
            (offset / unit * unit, range.end.next_multiple_of(unit).min(self.handle.geometry.len()));
        let old = self.with(|torrent| {
            (start..end).map(|at| torrent.read(&(at..at + 1)).ok().map(|byte| byte[0])).collect::<Vec<_>>()
        })?;
        let_others_in();
        for (at, byte) in (start..end).zip(old) {
            if range.contains(&at) {
                self.force(at, &[bytes[(at - offset) as usize]])?;
            } else if self.with(|torrent| torrent.written(&(at..at + 1)))? == 1 {
                // What was not written when it was read was zero on the medium.
                self.force(at, &[byte.unwrap_or(0)])?;
            }
        }
        Ok(())
    }

    fn complete_piece_of(&self, range: &Range<u64>) -> Result<Option<u32>> {
        self.with(|torrent| torrent.first_complete(range))
    }
}

impl Content for BrokenContent {
    fn geometry(&self) -> Geometry {
        self.handle.geometry()
    }

    fn write_at(&self, offset: u64, buffers: &[IoSlice<'_>]) -> Result<()> {
        let mut bytes: Vec<u8> = buffers.iter().flat_map(|buffer| buffer.iter().copied()).collect();
        let (length, len) = (self.handle.geometry.len(), bytes.len() as u64);
        if self.fault == Fault::OffsetsWrap && offset.wrapping_add(len) <= length {
            return if offset <= length { self.handle.write(offset, &bytes) } else { Ok(()) };
        }
        let range = match self.handle.geometry.range(offset, len) {
            Ok(range) => range,
            Err(error) => {
                if self.fault == Fault::OutOfRangeWritesWhatFits && offset < length {
                    self.handle.write(offset, &bytes[..(length - offset) as usize])?;
                }
                return Err(error);
            }
        };
        match self.fault {
            Fault::OffsetsOf32Bits => return self.handle.write(offset & 0xffff_ffff, &bytes),
            Fault::WritesLag => {
                let late = self.notes.lock().late.replace((offset, bytes));
                return late.map_or(Ok(()), |(offset, bytes)| self.handle.write(offset, &bytes));
            }
            Fault::FirstBufferWritten => bytes.truncate(buffers.first().map_or(0, |first| first.len())),
            Fault::EmptyBufferEnds => {
                let until = buffers.iter().take_while(|buffer| !buffer.is_empty());
                bytes.truncate(until.map(|buffer| buffer.len()).sum());
            }
            Fault::BuffersBeyond1024 => {
                bytes.truncate(buffers.iter().take(1024).map(|buffer| buffer.len()).sum());
            }
            Fault::OffsetsRounded => return self.handle.write(offset & !511, &bytes),
            Fault::WritesEndWithStripe => {
                let left = (1 << 16) - offset % (1 << 16);
                bytes.truncate(left as usize);
            }
            Fault::PiecesRounded => {
                let piece = u64::from(self.handle.geometry.piece_length());
                if len == piece && offset.is_multiple_of(piece) {
                    return self.handle.write(offset & !511, &bytes);
                }
            }
            Fault::LongWritesCut => bytes.truncate(1 << 18),
            Fault::FirstWriteWins => {
                for (at, byte) in range.clone().zip(&bytes) {
                    if self.with(|torrent| torrent.written(&(at..at + 1)))? == 0 {
                        self.force(at, &[*byte])?;
                    }
                }
                return Ok(());
            }
            Fault::NeighboursZeroed if len > 0 => {
                let (start, end) = (offset & !511, range.end.next_multiple_of(512).min(length));
                self.force(start, &vec![0; (offset - start) as usize])?;
                self.force(range.end, &vec![0; (end - range.end) as usize])?;
            }
            Fault::EmptyWriteRefused if len == 0 && offset < length => {
                if let Some(piece) = self.complete_piece_of(&(offset..offset + 1))? {
                    return Err(Error::Complete { piece });
                }
            }
            Fault::EmptyWriteWrites
                if len == 0
                    && offset < length
                    && self.complete_piece_of(&(offset..offset + 1))?.is_none() =>
            {
                return self.handle.write(offset, &[0]);
            }
            Fault::WriteIntoComplete => return self.force(offset, &bytes),
            Fault::HalfOfRefused => {
                if let Some(piece) = self.complete_piece_of(&range)? {
                    let before = self.handle.geometry.piece(piece)?.start.saturating_sub(offset);
                    self.force(offset, &bytes[..before as usize])?;
                }
            }
            Fault::FirstPieceChecked
                if len > 0 && self.complete_piece_of(&(offset..offset + 1))?.is_none() =>
            {
                return self.force(offset, &bytes);
            }
            Fault::WrittenByPage if len > 0 => {
                for page in (offset & !4095..range.end).step_by(4096) {
                    let page = page..(page + 4096).min(length);
                    if self.with(|torrent| torrent.written(&page))? == 0 {
                        self.force(page.start, &vec![0; (page.end - page.start) as usize])?;
                    }
                }
            }
            Fault::OldRoomShown => {
                let notes = self.notes.lock();
                for (&chunk, old) in notes.room.range(offset / 4096..range.end.div_ceil(4096)) {
                    self.with(|torrent| {
                        torrent.chunks.entry(chunk).or_insert_with(|| old.clone());
                    })?;
                }
                drop(notes);
                return self.force(offset, &bytes);
            }
            Fault::CompleteForEver => {
                let pieces = self.handle.geometry.pieces_of(&range);
                if let Some(&piece) = self.notes.lock().ever_complete.range(pieces).next() {
                    return Err(Error::Complete { piece });
                }
            }
            Fault::HandleSurvives => {
                return match self.handle.write(offset, &bytes) {
                    Err(Error::Deleted) => Ok(()),
                    other => other,
                };
            }
            Fault::HandleReachesNew => return self.current().write(offset, &bytes),
            Fault::CapacityInTwoSteps => {
                self.model.shared.check_room(&self.model.state(), len)?;
                let_others_in();
                return self.force(offset, &bytes);
            }
            Fault::FullHalfDone => {
                let result = self.handle.write(offset, &bytes);
                if matches!(result, Err(Error::Full { .. })) {
                    let free = self.model.statistics().free.unwrap_or(0);
                    self.force(offset, &bytes[..free.min(len) as usize])?;
                }
                return result;
            }
            Fault::FullForEver => {
                let mut notes = self.notes.lock();
                let result = self.handle.write(offset, &bytes);
                notes.was_full |= matches!(result, Err(Error::Full { .. }));
                return if notes.was_full { Err(Error::Full { what: "for ever" }) } else { result };
            }
            Fault::LargeWriteRefused if len > MOST_UNWRITTEN => {
                return Err(Error::Full { what: "memory for what is written" });
            }
            Fault::RefusedBytesCounted => {
                let result = self.handle.write(offset, &bytes);
                self.notes.lock().drift += if result.is_err() { len } else { 0 };
                return result;
            }
            Fault::SectorsInTwoSteps => return self.write_units(offset, &bytes, 512),
            Fault::PagesInTwoSteps => return self.write_units(offset, &bytes, 4096),
            Fault::WriteInTwoSteps => {
                if let Some(piece) = self.complete_piece_of(&range)? {
                    return Err(Error::Complete { piece });
                }
                let_others_in();
                return self.force(offset, &bytes);
            }
            Fault::WriteAfterDelete => {
                self.handle.pieces()?;
                let_others_in();
                return self.current().write(offset, &bytes);
            }
            Fault::RareLoss
                if buffers.len() > 2
                    && len > 0
                    && len.is_multiple_of(7)
                    && self.handle.geometry.pieces_of(&range).len() == 2
                    && self.complete_piece_of(&range)?.is_none() =>
            {
                return Ok(());
            }
            _ => {}
        }
        self.handle.write(offset, &bytes)
    }

    fn read_at(&self, offset: u64, buffers: &mut [IoSliceMut<'_>]) -> Result<()> {
        let length = self.handle.geometry.len();
        let len = buffers.iter().map(|buffer| buffer.len() as u64).sum::<u64>();
        match self.fault {
            Fault::OffsetsOf32Bits => return self.handle.read_at(offset & 0xffff_ffff, buffers),
            Fault::LengthRoundedUp
                if offset + len > length && offset + len <= length.next_multiple_of(512) =>
            {
                return Ok(());
            }
            Fault::FirstBufferFilled => return self.handle.read_at(offset, &mut buffers[..1]),
            Fault::ReadsRounded => return self.handle.read_at(offset.min(offset & !511), buffers),
            Fault::ZeroesForUnwritten => {
                let result = self.handle.read_at(offset, buffers);
                if matches!(result, Err(Error::NotWritten { .. })) {
                    buffers.iter_mut().for_each(|buffer| buffer.fill(0));
                    return Ok(());
                }
                return result;
            }
            Fault::NamesStartOfRead | Fault::NamesByteOfBuffer => {
                return self.handle.read_at(offset, buffers).map_err(|error| match error {
                    Error::NotWritten { .. } if self.fault == Fault::NamesStartOfRead => {
                        Error::NotWritten { at: offset }
                    }
                    Error::NotWritten { at } => {
                        let starts = buffers.iter().scan(offset, |start, buffer| {
                            *start += buffer.len() as u64;
                            Some(*start)
                        });
                        let start = starts.take_while(|&start| start <= at).last();
                        Error::NotWritten { at: at - start.unwrap_or(0) }
                    }
                    other => other,
                });
            }
            Fault::ReadsClamped if offset.checked_add(len).is_none_or(|end| end > length) => return Ok(()),
            Fault::EmptyReadRefused if len == 0 && offset < length => {
                self.handle.read(offset, &mut [0])?;
            }
            Fault::OldRoomInBuffers => {
                let result = self.handle.read_at(offset, buffers);
                if let (Err(Error::NotWritten { .. }), [buffer, ..]) = (&result, buffers) {
                    let notes = self.notes.lock();
                    for (byte, at) in buffer.iter_mut().zip(offset..) {
                        let old = notes.room.get(&(at / 4096)).and_then(|chunk| chunk[(at % 4096) as usize]);
                        *byte = old.unwrap_or(*byte);
                    }
                }
                return result;
            }
            Fault::HandleReachesNew => return self.current().read_at(offset, buffers),
            Fault::BuffersCountedAsCalls => {
                self.notes.lock().drift += (buffers.len() as u64).saturating_sub(1);
            }
            Fault::ReadInTwoSteps => {
                let mut bytes = vec![0; len as usize];
                let (first, second) = bytes.split_at_mut((len / 2) as usize);
                self.handle.read(offset, first)?;
                let_others_in();
                self.current().read(offset + len / 2, second)?;
                let mut rest = &bytes[..];
                for buffer in buffers {
                    let (now, later) = rest.split_at(buffer.len());
                    buffer.copy_from_slice(now);
                    rest = later;
                }
                return Ok(());
            }
            _ => {}
        }
        self.handle.read_at(offset, buffers)
    }

    fn mark_complete(&self, piece: u32) -> Result<bool> {
        let geometry = self.handle.geometry;
        match (self.fault, geometry.piece(piece)) {
            (Fault::AnyPieceExists, Err(_)) => return Ok(false),
            (Fault::MarkUnverified, Ok(_)) => return self.with(|torrent| torrent.complete.insert(piece)),
            (Fault::MarkLooksAtEnds, Ok(range)) => {
                for at in [range.start, range.end - 1] {
                    self.handle.read(at, &mut [0])?;
                }
                return self.with(|torrent| torrent.complete.insert(piece));
            }
            (Fault::LastPieceWhole, Ok(range))
                if range.end - range.start < geometry.piece_length().into() =>
            {
                return Err(Error::NotWritten { at: range.end });
            }
            (Fault::RepeatedMarkNew, Ok(_)) => return self.handle.mark_complete(piece).map(|_| true),
            (Fault::CompleteForEver, Ok(_)) => drop(self.notes.lock().ever_complete.insert(piece)),
            (Fault::HandleReachesNew, _) => return self.current().mark_complete(piece),
            (Fault::MarksBeforeBytes, Ok(range)) => {
                let marked = self.handle.mark_complete(piece)?;
                let zeroes = vec![0; (range.end - range.start) as usize];
                self.handle.state().log(self.handle.info_hash, &Event::Complete(piece, &zeroes))?;
                return Ok(marked);
            }
            (Fault::FullRefusesMarks, Ok(_)) => {
                self.model.shared.check_room(&self.model.state(), 64 * HEAD)?;
            }
            (Fault::MarkInTwoSteps, Ok(_)) => {
                let was = self.handle.pieces()?.contains(piece);
                let_others_in();
                self.handle.mark_complete(piece)?;
                return Ok(!was);
            }
            _ => {}
        }
        self.handle.mark_complete(piece)
    }

    fn mark_incomplete(&self, piece: u32) -> Result<bool> {
        let (geometry, info_hash) = (self.handle.geometry, self.handle.info_hash);
        let Ok(range) = geometry.piece(piece) else {
            let any = self.fault == Fault::AnyPieceExists;
            return if any { Ok(false) } else { self.handle.mark_incomplete(piece) };
        };
        let is_complete = self.handle.pieces()?.contains(piece);
        match self.fault {
            Fault::MarksShared => {
                let mut state = self.handle.state();
                for torrent in state.torrents.values_mut() {
                    if torrent.complete.remove(&piece) {
                        torrent.forget(&range);
                    }
                }
                return Ok(is_complete);
            }
            Fault::UnmarkKeepsBytes => return self.with(|torrent| torrent.complete.remove(&piece)),
            Fault::UnmarkForgetsNeighbours if is_complete => {
                let neighbours = range.end..range.end.next_multiple_of(512).min(geometry.len());
                self.with(|torrent| torrent.forget(&neighbours))?;
            }
            Fault::UnmarkForgetsIncomplete if !is_complete => {
                self.with(|torrent| torrent.forget(&range))?;
            }
            Fault::UnmarkNotDurable => {
                return self.with(|torrent| {
                    torrent.forget(&range);
                    torrent.durable.remove(&piece);
                    torrent.complete.remove(&piece)
                });
            }
            Fault::OldBytesFlushed if is_complete => {
                let bytes = self.with(|torrent| torrent.read(&range))??;
                self.notes.lock().earlier.insert((info_hash, piece), bytes);
            }
            Fault::UnmarkFreesNothing => {
                let used = self.handle.state().used;
                let marked = self.handle.mark_incomplete(piece);
                self.handle.state().used = used;
                return marked;
            }
            Fault::HandleReachesNew => return self.current().mark_incomplete(piece),
            Fault::UnmarkInTwoSteps if is_complete => {
                self.force(range.start, &vec![0; (range.end - range.start) as usize])?;
                let_others_in();
            }
            _ => {}
        }
        self.handle.mark_incomplete(piece)
    }

    fn pieces(&self) -> Result<PieceBits> {
        let mut pieces = match self.fault {
            Fault::HandleKeepsPieces => self.pieces.clone(),
            Fault::HandleReachesNew => self.current().pieces()?,
            _ => self.handle.pieces()?,
        };
        if self.fault == Fault::LastPieceNotShown {
            pieces.remove(pieces.pieces() - 1);
        }
        Ok(pieces)
    }

    fn place(&self, offset: u64) -> Option<u64> {
        (self.fault == Fault::PlacesBeyondEnd).then_some(offset)
    }

    fn room_for(&self, range: Range<u64>) -> u64 {
        match self.fault {
            Fault::RoomNotTold => 0,
            Fault::RoomToldOfRest => (1 << 40) - (range.end - range.start),
            _ => self.handle.room_for(range),
        }
    }
}
