//! Forgetting in bounded steps: what a step is given, what it says, and the position that all callers share.

use std::{
    mem,
    ops::AddAssign,
    sync::{Mutex, MutexGuard, PoisonError},
};

use crate::{Cursor, InfoHash, SwarmSummary};

/// How much one step may do, counted in peers visited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget(usize);

impl Budget {
    /// About `peers` visits, at least one. A swarm counts as one more, so that empty ones are not free.
    pub const fn peers(peers: usize) -> Self {
        Self(if peers == 0 { 1 } else { peers })
    }

    /// The number of visits.
    pub const fn get(self) -> usize {
        self.0
    }
}

/// What becomes of a swarm without peers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Retention {
    /// It goes with the next sweep that passes it.
    #[default]
    DropEmpty,
    /// It stays for its download count; one that nobody has finished goes.
    KeepDownloaded,
}

/// What one step of a sweep did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Swept {
    /// Peers looked at, one more for each swarm.
    pub visited: u64,
    /// Peers removed because they had outlived their lifetime.
    pub expired: u64,
    /// Swarms removed because nobody was left in them.
    pub swarms_removed: u64,
    /// Whether this step completed a pass over all swarms.
    pub pass_complete: bool,
}

impl AddAssign for Swept {
    fn add_assign(&mut self, other: Self) {
        self.visited += other.visited;
        self.expired += other.expired;
        self.swarms_removed += other.swarms_removed;
        self.pass_complete |= other.pass_complete;
    }
}

/// What one step of a removal did.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Removed {
    /// The swarms that went, with the counts they had.
    pub removed: Vec<SwarmSummary>,
    /// Where to go on.
    pub next: Cursor,
}

impl Removed {
    /// A step that removed `removed` and goes on at `next`.
    pub const fn new(removed: Vec<SwarmSummary>, next: Cursor) -> Self {
        Self { removed, next }
    }
}

/// The position of a sweep, shared by everyone who sweeps: each caller claims the next few swarms, and a pass is complete
/// when all claims of it are done. The lock is held to claim and to give back, never while swarms are visited.
#[derive(Debug)]
pub(crate) struct Pass(Mutex<State>);

#[derive(Debug)]
struct State {
    next: Cursor,
    /// Claimed by a step whose budget ran out, or that was dropped half-way.
    unfinished: Vec<Visit>,
    claims: usize,
}

/// A swarm to visit, from this peer on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Visit {
    pub(crate) info_hash: InfoHash,
    pub(crate) from: Cursor,
}

impl Pass {
    /// How many swarms a caller claims at once: enough to share the cost of finding them, few enough that a step dropped
    /// half-way gives little back.
    pub(crate) const CLAIM: usize = 64;

    pub(crate) const fn new() -> Self {
        Self(Mutex::new(State { next: Cursor::START, unfinished: Vec::new(), claims: 0 }))
    }

    /// What to do next: visit what somebody left, look for more, or leave the rest of the pass to those who hold it.
    pub(crate) fn next(&self) -> Next<'_> {
        let mut state = self.state();
        if !state.unfinished.is_empty() {
            state.claims += 1;
            return Next::Visit(Claim { pass: self, visits: mem::take(&mut state.unfinished), open: true });
        }
        if state.next.is_end() { Next::Leave } else { Next::LookFrom(state.next) }
    }

    /// Claims the swarms that a look from `from` on has found, in order; nothing if somebody else was faster. `more` says
    /// whether there may be others behind them.
    pub(crate) fn claim(&self, from: Cursor, found: &[InfoHash], more: bool) -> Option<Claim<'_>> {
        let mut state = self.state();
        if state.next != from {
            return None;
        }
        state.next = match found.last() {
            Some(last) if more => Cursor::after(last.as_bytes()),
            _ => Cursor::END,
        };
        state.claims += 1;
        // Visited from the back, in the order found.
        let visits = found.iter().rev().map(|&info_hash| Visit { info_hash, from: Cursor::START }).collect();
        Some(Claim { pass: self, visits, open: true })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing that can panic runs under this lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a caller of a pass does next.
#[derive(Debug)]
pub(crate) enum Next<'a> {
    /// Visit these.
    Visit(Claim<'a>),
    /// Find the swarms from here on, and claim them.
    LookFrom(Cursor),
    /// All that is left is in the hands of others.
    Leave,
}

/// Swarms that one caller has claimed; those not visited go back to the pass when it is dropped.
#[derive(Debug)]
pub(crate) struct Claim<'a> {
    pass: &'a Pass,
    visits: Vec<Visit>,
    open: bool,
}

impl Claim<'_> {
    /// The swarm to visit now.
    pub(crate) fn current(&mut self) -> Option<&mut Visit> {
        self.visits.last_mut()
    }

    /// Marks the current swarm as visited to its end.
    pub(crate) fn done(&mut self) {
        self.visits.pop();
    }

    /// Gives back what was not visited; whether that completed the pass.
    pub(crate) fn finish(mut self) -> bool {
        self.give_back()
    }

    fn give_back(&mut self) -> bool {
        self.open = false;
        let mut state = self.pass.state();
        state.unfinished.append(&mut self.visits);
        state.claims -= 1;
        let complete = state.claims == 0 && state.unfinished.is_empty() && state.next.is_end();
        if complete {
            state.next = Cursor::START;
        }
        complete
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        if self.open {
            self.give_back();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hashes(count: u8) -> Vec<InfoHash> {
        (0..count).map(|n| InfoHash::new([n; 20])).collect()
    }

    fn claim<'a>(pass: &'a Pass, all: &[InfoHash]) -> Option<Claim<'a>> {
        match pass.next() {
            Next::Visit(claim) => Some(claim),
            Next::Leave => None,
            Next::LookFrom(from) => {
                let start = from.bytes().map_or(0, |bytes| usize::from(bytes[0]) + 1);
                let end = all.len().min(start + Pass::CLAIM);
                pass.claim(from, &all[start..end], end < all.len())
            }
        }
    }

    fn visit(mut claim: Claim<'_>, count: usize) -> (Vec<InfoHash>, bool) {
        let mut seen = Vec::new();
        while seen.len() < count
            && let Some(visit) = claim.current()
        {
            seen.push(visit.info_hash);
            claim.done();
        }
        (seen, claim.finish())
    }

    #[test]
    fn claims_of_two_callers_cover_everything_once_and_complete_with_the_last() {
        let (pass, all) = (Pass::new(), hashes(100));
        let (first, second) = (claim(&pass, &all).unwrap(), claim(&pass, &all).unwrap());
        assert!(claim(&pass, &all).is_none(), "the rest is in other hands");
        let (late, complete) = visit(second, 1000);
        assert!(!complete, "the first claim is still out");
        let (early, complete) = visit(first, 1000);
        assert!(complete);
        assert_eq!([early, late].concat(), all);
    }

    #[test]
    fn of_two_callers_who_found_the_same_swarms_one_claims_them() {
        let (pass, all) = (Pass::new(), hashes(3));
        let first = pass.claim(Cursor::START, &all, false).unwrap();
        assert!(pass.claim(Cursor::START, &all, false).is_none());
        assert_eq!(visit(first, 1000), (all, true));
    }

    #[test]
    fn what_a_step_leaves_or_drops_is_given_to_the_next() {
        let (pass, all) = (Pass::new(), hashes(10));
        let (seen, complete) = visit(claim(&pass, &all).unwrap(), 4);
        assert!(!complete);
        drop(claim(&pass, &all).unwrap());
        let (rest, complete) = visit(claim(&pass, &all).unwrap(), 1000);
        assert!(complete);
        assert_eq!([seen, rest].concat(), all);
    }
}
