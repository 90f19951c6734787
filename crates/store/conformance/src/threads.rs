//! Races of real threads. Loops are limited by work and not by time, and threads meet again and again at the
//! critical places.

use std::{
    iter, panic,
    sync::{
        Barrier,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst},
    },
    thread::{self, ScopedJoinHandle},
    time::{Duration, Instant},
};

pub use crate::common::SetOnDrop;

/// The work of a race. It goes on until the other side has had its turns too, however threads are scheduled.
pub(crate) struct Rounds<'a> {
    background: &'a AtomicU64,
    least: u32,
}

impl Rounds<'_> {
    /// The number of turns of the background after which a race counts.
    const BACKGROUND: u64 = 3000;
    /// The time that the work may wait for them.
    const PATIENCE: Duration = Duration::from_millis(500);

    /// Returns the numbers of the rounds: at least `least`, and more if the background needs them.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> {
        let start = Instant::now();
        let racing =
            move || self.background.load(SeqCst) < Self::BACKGROUND && start.elapsed() < Self::PATIENCE;
        (0..1 << 20).take_while(move |&round| round < self.least || racing())
    }
}

/// Runs `foreground` in `threads` threads, with the number of the thread and at least `least` rounds, and
/// `background` again and again until they end.
pub(crate) fn against(
    threads: u32,
    least: u32,
    foreground: impl Fn(u32, Rounds<'_>) + Sync,
    background: impl Fn(u64) + Sync,
) {
    let (start, done, turns) =
        (Barrier::new(threads as usize + 1), AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let (start, done, turns) = (&start, &done, &turns);
        let (foreground, background) = (&foreground, &background);
        scope.spawn(move || {
            start.wait();
            while !done.load(SeqCst) {
                background(turns.fetch_add(1, SeqCst));
            }
        });
        let workers: Vec<_> = (0..threads)
            .map(|n| {
                scope.spawn(move || {
                    start.wait();
                    foreground(n, Rounds { background: turns, least });
                })
            })
            .collect();
        let _set = SetOnDrop(done);
        workers.into_iter().for_each(result_of);
    });
}

/// Runs `work` in two threads, with the number of the thread and of each round. Both threads begin a round at
/// about the same time.
pub fn in_step(rounds: usize, work: impl Fn(u32, usize) + Sync) {
    let arrived = AtomicUsize::new(0);
    thread::scope(|scope| {
        let (arrived, work) = (&arrived, &work);
        let workers = [0, 1].map(|me| {
            scope.spawn(move || {
                let mut gate = Gate::new(arrived, 2);
                for round in 0..rounds {
                    gate.meet();
                    work(me, round);
                }
            })
        });
        workers.into_iter().for_each(result_of);
    });
}

/// Waits for a thread, and returns its result, or panics as it did.
pub(crate) fn result_of<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panicked| panic::resume_unwind(panicked))
}

/// The place where threads meet again and again.
pub(crate) struct Gate<'a> {
    arrived: &'a AtomicUsize,
    threads: usize,
    turns: usize,
}

impl<'a> Gate<'a> {
    /// The arrivals of a thread that has ended.
    const ENDED: usize = usize::MAX / 8;

    pub(crate) const fn new(arrived: &'a AtomicUsize, threads: usize) -> Self {
        Self { arrived, threads, turns: 0 }
    }

    /// Waits for the other threads. Returns false if one has ended, by a panic for example.
    pub(crate) fn meet(&mut self) -> bool {
        self.turns += 1;
        self.arrived.fetch_add(1, SeqCst);
        let mut spins = 0;
        while self.arrived.load(SeqCst) < self.turns * self.threads {
            spins += 1;
            match spins {
                0..=200 => {}
                201..=2000 => thread::yield_now(),
                // Another waits for something else, perhaps for long.
                _ => thread::sleep(Duration::from_micros(100)),
            }
        }
        self.arrived.load(SeqCst) < Self::ENDED
    }
}

impl Drop for Gate<'_> {
    fn drop(&mut self) {
        self.arrived.fetch_add(Self::ENDED, SeqCst);
    }
}

/// Sleeps for a moment, so that another thread that waits for the lock gets it.
pub(crate) fn let_others_in() {
    thread::sleep(Duration::from_micros(1));
}

/// Sleeps until `is_done`, for half a second at most: on a busy machine, each other thread waits for its
/// turn. Returns whether it is.
pub(crate) fn let_others_in_until(is_done: impl Fn() -> bool) -> bool {
    // For short times first, so that the others do not get much further than `is_done`.
    let short = iter::repeat_n(Duration::from_micros(1), 500);
    short.chain(iter::repeat_n(Duration::from_millis(10), 50)).any(|pause| {
        thread::sleep(pause);
        is_done()
    })
}
