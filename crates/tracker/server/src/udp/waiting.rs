//! The requests of a batch that wait for the store.

use arrayvec::ArrayVec;
use swarmkeep::{Announced, Family, PeerBuffer, Request as StoreRequest};
use swarmkeep_tracker_protocol::udp::{AnnounceResponseHeader, Request, ScrapeRequest, TransactionId};

use super::{
    AnswerBuffer, Batch, LONGEST_ANSWER_V4, LONGEST_ANSWER_V6,
    batch::{Exchange, RequestState},
};

/// The announces of a batch for the store, which writes the peers directly into the answers.
pub(super) struct Announces<'a> {
    /// The position of each in the batch, and its transaction.
    places: ArrayVec<(usize, TransactionId), { Batch::MOST }>,
    pub(super) requests: ArrayVec<StoreRequest<'a>, { Batch::MOST }>,
}

/// The answer of the store to one announce, if there is one: the counts and the bytes of the peers.
pub(super) struct WrittenAnnounce {
    pub(super) place: usize,
    pub(super) transaction_id: TransactionId,
    pub(super) answered: Option<(Announced, usize)>,
}

pub(super) type Written = ArrayVec<WrittenAnnounce, { Batch::MOST }>;

impl<'a> Announces<'a> {
    pub(super) const fn new() -> Self {
        Self { places: ArrayVec::new_const(), requests: ArrayVec::new_const() }
    }

    pub(super) fn collect(&mut self, exchanges: &'a mut [Exchange<'_>]) {
        for (place, Exchange { state, answer, .. }) in exchanges.iter_mut().enumerate() {
            if let RequestState::Announce(transaction_id, announce) = state {
                let family = announce.endpoint.family();
                let longest = match family {
                    Family::V4 => LONGEST_ANSWER_V4,
                    Family::V6 => LONGEST_ANSWER_V6,
                };
                let room = &mut answer[AnnounceResponseHeader::LEN..longest];
                self.places.push((place, *transaction_id));
                self.requests.push(StoreRequest::new(*announce, PeerBuffer::of(family, room)));
            }
        }
    }

    pub(super) fn written(self) -> Written {
        let written = self.places.into_iter().zip(self.requests).map(|((place, transaction_id), request)| {
            let peers = request.peers.v4.as_bytes().len() + request.peers.v6.as_bytes().len();
            WrittenAnnounce { place, transaction_id, answered: request.answer.map(|answer| (answer, peers)) }
        });
        written.collect()
    }
}

/// A scrape that waits for the store.
pub(super) struct Scrape<'a> {
    pub(super) transaction_id: TransactionId,
    pub(super) request: ScrapeRequest<'a>,
    pub(super) answer: &'a mut AnswerBuffer,
    pub(super) state: &'a mut RequestState,
}

/// The scrapes of a batch that wait for the store.
pub(super) fn scrapes<'a>(exchanges: &'a mut [Exchange<'_>]) -> impl Iterator<Item = Scrape<'a>> {
    exchanges.iter_mut().filter_map(|Exchange { packet, answer, state, .. }| {
        let RequestState::Scrape(transaction_id) = **state else { return None };
        let Ok(Request::Scrape(request)) = Request::parse(packet) else { return None };
        Some(Scrape { transaction_id, request, answer, state })
    })
}
