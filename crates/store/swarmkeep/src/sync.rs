//! Atomics, the mutex, and the ways to wait of code that also runs under the schedules of shuttle. There
//! (`.ci/long schedules`), they are those of shuttle, which lets another thread run before each access.

#[cfg(not(swarmkeep_shuttle))]
pub(crate) use std::{
    hint::spin_loop,
    sync::{Mutex, MutexGuard, atomic},
    thread::{sleep, yield_now},
};

#[cfg(swarmkeep_shuttle)]
pub(crate) use shuttle::{
    hint::spin_loop,
    sync::{Mutex, MutexGuard, atomic},
    thread::{sleep, yield_now},
};
