//! The parts that the authors of stores need besides the trait.
//!
//! There are three ways to a store of your own, from the least work to the most control:
//!
//! - **A map that finds swarms.** Implement the four methods of [`map::SlotMap`] for a map; the library adds
//!   the swarms, their locks, limits, sweeps and listings. The example below is complete.
//! - **A wrapper.** [`forward_repository!`](forward_repository) forwards to an inner store the methods that
//!   you do not write.
//! - **All of [`TorrentRepository`](crate::TorrentRepository).** Twelve methods are required. [`RecordSwarm`]
//!   implements a swarm, and [`Pass`] lets several threads share one sweep. A store with swarms of its own
//!   uses [`Transition`] for the effect of an announce on its peer, and
//!   [`PeerBuffer::share`](crate::PeerBuffer::share) to divide a selection between IPv4 and IPv6.
//!
//! The package `swarmkeep-conformance` tests the result with one line.
//!
//! ```no_run
#![doc = include_str!("../../examples/hash_map.rs")]
//! ```

mod forward;
pub mod lock;
pub mod map;
mod pass;
mod swarm;

pub use pass::{Claim, Next, Pass, VISITS_PER_HOLD};
pub use swarm::{RecordSwarm, Updated};

#[doc(hidden)]
pub use crate::__forward_asynchronous as forward_asynchronous;
#[doc(inline)]
pub use crate::__forward_repository as forward_repository;
pub use crate::{
    announce::{SectionExt, Transition},
    report::{CursorExt, NotRestored},
    sweep::Expired,
    totals::Population,
};
