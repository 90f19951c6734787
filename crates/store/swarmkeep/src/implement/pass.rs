//! The position of a sweep that several callers share.

use std::{mem, sync::PoisonError};

use crate::sync::{Mutex, MutexGuard};

/// The number of peers or swarms visited while one lock is held: about 25 µs, at 100 ns per visit outside the
/// caches.
pub const VISITS_PER_HOLD: usize = 256;

/// The position of a sweep, shared by all callers. Each caller claims the next few places to visit. A pass is
/// complete when all its claims are finished. The lock of this struct is held to claim and to finish a claim,
/// never while places are visited.
///
/// `P` is a position from which to look for places, `V` is a place to visit.
#[derive(Debug)]
pub struct Pass<P, V> {
    start: P,
    state: Mutex<PassState<P, V>>,
}

#[derive(Debug)]
struct PassState<P, V> {
    /// `None` after the last place.
    next: Option<P>,
    /// Places of claims that ran out of budget, or were dropped before their end.
    unfinished: Vec<V>,
    claims: usize,
}

impl<P: Copy + PartialEq, V> Pass<P, V> {
    /// Returns a pass that begins at `start`. Each later pass begins there too.
    pub const fn new(start: P) -> Self {
        Self { start, state: Mutex::new(PassState { next: Some(start), unfinished: Vec::new(), claims: 0 }) }
    }

    /// Returns the next action of the caller: visit the places that another caller left, look for more
    /// places, or leave the rest of the pass to the callers that claimed it.
    pub fn next(&self) -> Next<'_, P, V> {
        let mut state = self.state();
        if !state.unfinished.is_empty() {
            state.claims += 1;
            return Next::Visit(Claim { pass: self, visits: mem::take(&mut state.unfinished), open: true });
        }
        state.next.map_or(Next::Leave, Next::LookFrom)
    }

    /// Claims the places that a look from `from` on has found, in order. Returns `None` if another caller
    /// claimed them first. `next` is the position after the places; `None` at the end of the pass.
    pub fn claim(
        &self,
        from: P,
        found: impl DoubleEndedIterator<Item = V>,
        next: Option<P>,
    ) -> Option<Claim<'_, P, V>> {
        let mut state = self.state();
        if state.next != Some(from) {
            return None;
        }
        state.next = next;
        state.claims += 1;
        // The visits are taken from the end of the vector, in the order in which they were found.
        Some(Claim { pass: self, visits: found.rev().collect(), open: true })
    }

    fn state(&self) -> MutexGuard<'_, PassState<P, V>> {
        // Nothing that can panic runs under this lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The next action of a caller of a pass.
#[derive(Debug)]
pub enum Next<'a, P: Copy + PartialEq, V> {
    /// Visit these places.
    Visit(Claim<'a, P, V>),
    /// Find the places from this position on, and claim them.
    LookFrom(P),
    /// Stop: other callers have claimed the rest of the pass.
    Leave,
}

/// The places that one caller has claimed. Places that it has not visited return to the pass when the claim
/// is dropped.
#[derive(Debug)]
pub struct Claim<'a, P: Copy + PartialEq, V> {
    pass: &'a Pass<P, V>,
    visits: Vec<V>,
    open: bool,
}

impl<P: Copy + PartialEq, V> Claim<'_, P, V> {
    /// Returns the place to visit now; `None` if all are visited.
    pub fn current(&mut self) -> Option<&mut V> {
        self.visits.last_mut()
    }

    /// Marks the current place as completely visited.
    pub fn done(&mut self) {
        self.visits.pop();
    }

    /// Makes another place the current one, so that callers that wait for the lock of this one get it.
    /// Returns false if the claim has no other.
    pub fn turn(&mut self) -> bool {
        let last = self.visits.len().saturating_sub(1);
        if last > 0 {
            self.visits.swap(0, last);
        }
        last > 0
    }

    /// Returns the places that were not visited to the pass; returns whether the pass is complete.
    pub fn finish(mut self) -> bool {
        self.give_back()
    }

    fn give_back(&mut self) -> bool {
        self.open = false;
        let mut state = self.pass.state();
        state.unfinished.append(&mut self.visits);
        state.claims -= 1;
        let complete = state.claims == 0 && state.unfinished.is_empty() && state.next.is_none();
        if complete {
            state.next = Some(self.pass.start);
        }
        complete
    }
}

impl<P: Copy + PartialEq, V> Drop for Claim<'_, P, V> {
    fn drop(&mut self) {
        if self.open {
            self.give_back();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLAIM: usize = 64;

    fn claim(pass: &Pass<usize, usize>, end: usize) -> Option<Claim<'_, usize, usize>> {
        match pass.next() {
            Next::Visit(claim) => Some(claim),
            Next::Leave => None,
            Next::LookFrom(from) => {
                let to = end.min(from + CLAIM);
                pass.claim(from, from..to, (to < end).then_some(to))
            }
        }
    }

    fn visit(mut claim: Claim<'_, usize, usize>, count: usize) -> (Vec<usize>, bool) {
        let mut seen = Vec::new();
        while seen.len() < count {
            let Some(&mut visit) = claim.current() else { break };
            seen.push(visit);
            claim.done();
        }
        (seen, claim.finish())
    }

    fn all(end: usize) -> Vec<usize> {
        (0..end).collect()
    }

    #[test]
    fn claims_of_two_callers_cover_everything_once_and_complete_with_the_last() {
        let pass = Pass::new(0);
        let (first, second) = (claim(&pass, 100).unwrap(), claim(&pass, 100).unwrap());
        assert!(claim(&pass, 100).is_none(), "the rest is in other hands");
        let (late, complete) = visit(second, 1000);
        assert!(!complete, "the first claim is still out");
        let (early, complete) = visit(first, 1000);
        assert!(complete);
        assert_eq!([early, late].concat(), all(100));
    }

    #[test]
    fn only_one_of_two_callers_claims_the_same_places() {
        let pass = Pass::new(0);
        let first = pass.claim(0, 0..3, None).unwrap();
        assert!(pass.claim(0, 0..3, None).is_none());
        assert_eq!(visit(first, 1000), (all(3), true));
    }

    #[test]
    fn a_claim_turns_to_another_place_if_it_has_one() {
        let pass = Pass::new(0);
        let mut first = claim(&pass, 2).unwrap();
        assert!(first.turn());
        assert_eq!(first.current(), Some(&mut 1));
        first.done();
        assert!(!first.turn());
        assert_eq!(visit(first, 1000), (vec![0], true));
    }

    #[test]
    fn the_places_that_a_step_leaves_or_drops_go_to_the_next() {
        let pass = Pass::new(0);
        let (seen, complete) = visit(claim(&pass, 10).unwrap(), 4);
        assert!(!complete);
        drop(claim(&pass, 10).unwrap());
        let (rest, complete) = visit(claim(&pass, 10).unwrap(), 1000);
        assert!(complete);
        assert_eq!([seen, rest].concat(), all(10));
    }
}
