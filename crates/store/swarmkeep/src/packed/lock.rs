//! The lock of a shard, and of the arena.
//!
//! It is usually held for less than a microsecond, so a thread that finds it in use looks again rather than
//! sleeps. The lock of `parking_lot` soon yields and then sleeps: with this one, two threads that announce to
//! one swarm of 2 million peers in batches take 450 ns instead of 750–900, on two cores. Elsewhere it saves a
//! twentieth: an unlock is a store, where `parking_lot` compares and swaps.
#![expect(unsafe_code, reason = "a lock is a promise that the compiler cannot check; the gain is above")]

use std::time::Duration;

use lock_api::{GuardSend, RawRwLock, RawRwLockDowngrade, RawRwLockFair};

use crate::sync::{
    atomic::{
        AtomicU32,
        Ordering::{Acquire, Relaxed, Release},
    },
    sleep, spin_loop, yield_now,
};

pub(super) type Lock<T> = lock_api::RwLock<RawLock, T>;
pub(super) type SharedGuard<'a, T> = lock_api::RwLockReadGuard<'a, RawLock, T>;
pub(super) type ExclusiveGuard<'a, T> = lock_api::RwLockWriteGuard<'a, RawLock, T>;

/// [`EXCLUSIVE`] if one thread has the lock alone; else the number of threads that share it, times [`ONE`].
#[derive(Debug)]
pub(super) struct RawLock(AtomicU32);

const EXCLUSIVE: u32 = 1;
/// A thread wants the lock alone: no other thread should begin to share it. A hint, which an unlock may
/// remove.
const WANTED: u32 = 2;
const ONE: u32 = 4;

// SAFETY: `EXCLUSIVE` replaces no threads that share, and none begins to share while it is there.
unsafe impl RawRwLock for RawLock {
    const INIT: Self = Self(AtomicU32::new(0));

    type GuardMarker = GuardSend;

    #[inline]
    fn lock_shared(&self) {
        let mut wait = Wait::default();
        while !self.share(wait.is_long()) {
            wait.a_little();
        }
    }

    #[inline]
    fn try_lock_shared(&self) -> bool {
        self.share(false)
    }

    #[inline]
    unsafe fn unlock_shared(&self) {
        self.0.fetch_sub(ONE, Release);
    }

    #[inline]
    fn lock_exclusive(&self) {
        if !self.try_lock_exclusive() {
            self.wait_exclusive();
        }
    }

    #[inline]
    fn try_lock_exclusive(&self) -> bool {
        let take = |free| self.0.compare_exchange(free, EXCLUSIVE, Acquire, Relaxed);
        // The thread that has set `WANTED` may not be running. It sets it again later.
        take(0).or_else(|state| if state == WANTED { take(WANTED) } else { Err(state) }).is_ok()
    }

    #[inline]
    unsafe fn unlock_exclusive(&self) {
        // A thread that still wants the lock says so again.
        self.0.store(0, Release);
    }

    fn is_locked(&self) -> bool {
        self.0.load(Relaxed) & !WANTED != 0
    }

    fn is_locked_exclusive(&self) -> bool {
        self.0.load(Relaxed) & EXCLUSIVE != 0
    }
}

// SAFETY: no thread gets the lock while another still has it.
unsafe impl RawRwLockFair for RawLock {
    unsafe fn unlock_shared_fair(&self) {
        // SAFETY: the caller has the lock.
        unsafe { self.unlock_shared() };
    }

    unsafe fn unlock_exclusive_fair(&self) {
        // SAFETY: the caller has the lock.
        unsafe { self.unlock_exclusive() };
    }

    #[inline]
    unsafe fn bump_shared(&self) {
        if self.0.load(Relaxed) & WANTED != 0 {
            // SAFETY: the caller has the lock.
            unsafe { self.unlock_shared() };
            self.lock_shared();
        }
    }
}

// SAFETY: no thread shares the lock while another has it alone, so that one becomes the only one.
unsafe impl RawRwLockDowngrade for RawLock {
    #[inline]
    unsafe fn downgrade(&self) {
        self.0.store(ONE, Release);
    }
}

impl RawLock {
    /// Shares the lock, if no thread has it alone. A thread that has waited for long goes before threads that
    /// want it alone.
    #[inline]
    fn share(&self, waited: bool) -> bool {
        let state = self.0.load(Relaxed);
        let is_free = state & EXCLUSIVE == 0 && (waited || state & WANTED == 0);
        let Some(shared) = state.checked_add(ONE).filter(|_| is_free) else { return false };
        self.0.compare_exchange(state, shared, Acquire, Relaxed).is_ok()
    }

    #[cold]
    fn wait_exclusive(&self) {
        let mut wait = Wait::default();
        loop {
            let state = self.0.load(Relaxed);
            let next = if state & !WANTED == 0 { EXCLUSIVE } else { state | WANTED };
            // A thread that has it alone would not see that it is wanted.
            if state & EXCLUSIVE == 0
                && next != state
                && self.0.compare_exchange_weak(state, next, Acquire, Relaxed).is_ok()
                && next == EXCLUSIVE
            {
                return;
            }
            wait.a_little();
        }
    }
}

/// A thread that waits.
#[derive(Default)]
struct Wait {
    looks: u32,
}

impl Wait {
    /// Some 20 to 50 µs, more than a shard is held for: the thread that holds the lock does not run then.
    const SPINS: u32 = 1000;
    /// Neither a spin nor a yield lets a holder of lower priority run, so every eighth of them is a nap.
    const YIELDS: u32 = 8;
    const NAP: Duration = Duration::from_micros(50);

    const fn is_long(&self) -> bool {
        self.looks > Self::SPINS
    }

    fn a_little(&mut self) {
        self.looks = self.looks.wrapping_add(1);
        match (self.looks % Self::SPINS, self.looks / Self::SPINS % Self::YIELDS) {
            (1.., _) => spin_loop(),
            (0, 0) => sleep(Self::NAP),
            (0, _) => yield_now(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        iter,
        sync::atomic::{AtomicBool, Ordering::SeqCst},
        thread,
    };

    use super::*;

    const TURNS: u64 = if cfg!(miri) { 50 } else { 20_000 };

    #[test]
    fn a_thread_that_shares_the_lock_sees_no_change_and_no_change_is_lost() {
        let lock = Lock::new([0; 2]);
        let change = || {
            (0..TURNS).for_each(|turn| {
                let mut alone = lock.write();
                alone.iter_mut().for_each(|count| *count += 1);
                if turn % 2 == 0 {
                    drop(ExclusiveGuard::downgrade(alone));
                }
            });
        };
        let look = || {
            (0..TURNS).for_each(|_| {
                let shared = lock.read();
                assert_eq!(shared[0], shared[1]);
            });
        };
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(change);
                scope.spawn(look);
            }
        });
        assert_eq!(*lock.read(), [2 * TURNS; 2]);
    }

    /// Two threads keep the lock in use, by `hold`, until another has had it a hundred times, by `want`.
    fn everybody_gets_in(hold: impl Fn(&Lock<()>) + Sync, want: impl Fn(&Lock<()>)) {
        let (lock, done) = (Lock::new(()), AtomicBool::new(false));
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| iter::repeat_with(|| hold(&lock)).find(|()| done.load(SeqCst)));
            }
            (0..TURNS / 50).for_each(|_| want(&lock));
            done.store(true, SeqCst);
        });
    }

    fn work() {
        (0..20).for_each(|_| spin_loop());
    }

    #[test]
    fn many_that_share_do_not_keep_out_a_thread_that_wants_the_lock_alone() {
        let share = |lock: &Lock<()>| {
            let _shared = lock.read();
            work();
        };
        everybody_gets_in(share, |lock| drop(lock.write()));
    }

    #[test]
    fn many_that_want_the_lock_alone_do_not_keep_out_a_thread_that_shares_it() {
        let take = |lock: &Lock<()>| {
            let _alone = lock.write();
            work();
        };
        everybody_gets_in(take, |lock| drop(lock.read()));
        everybody_gets_in(take, |lock| drop(lock.write()));
    }

    #[test]
    fn a_try_succeeds_exactly_when_the_lock_is_free() {
        let lock = Lock::new(());
        let shared = lock.try_read();
        assert!(shared.is_some() && lock.try_read().is_some() && lock.try_write().is_none());
        assert!(lock.is_locked() && !lock.is_locked_exclusive());
        drop(shared);
        let alone = lock.try_write();
        assert!(alone.is_some() && lock.try_read().is_none() && lock.try_write().is_none());
        assert!(lock.is_locked() && lock.is_locked_exclusive());
        drop(alone);
        assert!(!lock.is_locked());
        let shared = ExclusiveGuard::downgrade(lock.write());
        assert!(lock.try_read().is_some() && lock.try_write().is_none());
        drop(shared);
        assert!(!lock.is_locked());
    }

    #[test]
    fn a_waiting_thread_that_does_not_run_keeps_no_other_out() {
        let lock = RawLock(AtomicU32::new(WANTED));
        assert!(lock.try_lock_exclusive());
        assert!(lock.is_locked_exclusive());
    }

    #[test]
    fn a_thread_that_shares_the_lock_for_long_lets_others_have_it_in_turn() {
        let lock = Lock::new(0);
        thread::scope(|scope| {
            let mut shared = lock.read();
            scope.spawn(|| *lock.write() += 1);
            while *shared == 0 {
                SharedGuard::bump(&mut shared);
            }
        });
    }

    #[test]
    fn a_holder_that_does_not_run_is_waited_for() {
        let lock = Lock::new(0);
        thread::scope(|scope| {
            let mut alone = lock.write();
            for _ in 0..3 {
                scope.spawn(|| *lock.write() += 1);
            }
            thread::sleep(Duration::from_millis(20));
            *alone = 10;
            drop(alone);
        });
        assert_eq!(*lock.read(), 13);
    }
}
