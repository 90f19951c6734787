//! Locks as type parameters: the trait of a lock of a map-backed store, and the locks that implement it.
//!
//! To take a lock is a future, so that the same code serves locks that block the thread and locks that must
//! be awaited. The future of a blocking lock is ready when it is first polled ([`Blocks`]); stores with such
//! locks implement the synchronous trait. A critical section is a plain closure. Nothing is awaited while a
//! lock is held, so if the future of a section is dropped, the section has run completely or not at all.

use std::{future::Future, sync::PoisonError};

/// A value that one thread at a time may change.
pub trait Lock<T>: Send + Sync {
    /// Returns a lock around `value`.
    fn new(value: T) -> Self;

    /// Runs `section` on the value. A read-write lock runs several `read` sections at the same time.
    fn read<R: Send>(&self, section: impl FnOnce(&T) -> R + Send) -> impl Future<Output = R> + Send;

    /// Runs `section` on the value exclusively. If `section` panics, the lock is released and the value stays
    /// as `section` left it.
    fn write<R: Send>(&self, section: impl FnOnce(&mut T) -> R + Send) -> impl Future<Output = R> + Send;
}

/// A kind of lock, for values of any type.
pub trait LockFamily: Send + Sync + 'static {
    /// The lock around a `T`.
    type Lock<T: Send + Sync>: Lock<T>;
}

/// Families of locks that block the thread, so that their futures are ready when they are first polled.
pub trait Blocks: LockFamily {}

macro_rules! lock_family {
    (
        $(#[$doc:meta])* $family:ident = $lock:ident in $module:path;
        read |$read:ident| $take_read:expr;
        write |$write:ident| $take_write:expr;
    ) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub enum $family {}

        const _: () = {
            use $module as module;

            impl LockFamily for $family {
                type Lock<T: Send + Sync> = module::$lock<T>;
            }

            impl<T: Send + Sync> Lock<T> for module::$lock<T> {
                fn new(value: T) -> Self {
                    Self::new(value)
                }

                async fn read<R: Send>(&self, section: impl FnOnce(&T) -> R + Send) -> R {
                    let $read = self;
                    section(&*$take_read)
                }

                async fn write<R: Send>(&self, section: impl FnOnce(&mut T) -> R + Send) -> R {
                    let $write = self;
                    section(&mut *$take_write)
                }
            }
        };
    };
}

lock_family! {
    /// [`std::sync::Mutex`]. Poison is ignored: the sections leave the value consistent even if the
    /// randomness of the caller panics.
    StdMutex = Mutex in std::sync;
    read |lock| lock.lock().unwrap_or_else(PoisonError::into_inner);
    write |lock| lock.lock().unwrap_or_else(PoisonError::into_inner);
}

lock_family! {
    /// [`std::sync::RwLock`]. Poison is ignored, as in [`StdMutex`].
    StdRwLock = RwLock in std::sync;
    read |lock| lock.read().unwrap_or_else(PoisonError::into_inner);
    write |lock| lock.write().unwrap_or_else(PoisonError::into_inner);
}

#[cfg(feature = "parking_lot")]
lock_family! {
    /// [`parking_lot::Mutex`].
    ParkingLotMutex = Mutex in parking_lot;
    read |lock| lock.lock();
    write |lock| lock.lock();
}

#[cfg(feature = "parking_lot")]
lock_family! {
    /// [`parking_lot::RwLock`].
    ParkingLotRwLock = RwLock in parking_lot;
    read |lock| lock.read();
    write |lock| lock.write();
}

impl Blocks for StdMutex {}
impl Blocks for StdRwLock {}
#[cfg(feature = "parking_lot")]
impl Blocks for ParkingLotMutex {}
#[cfg(feature = "parking_lot")]
impl Blocks for ParkingLotRwLock {}

#[cfg(feature = "tokio")]
lock_family! {
    /// [`tokio::sync::Mutex`].
    TokioMutex = Mutex in tokio::sync;
    read |lock| lock.lock().await;
    write |lock| lock.lock().await;
}

#[cfg(feature = "tokio")]
lock_family! {
    /// [`tokio::sync::RwLock`].
    TokioRwLock = RwLock in tokio::sync;
    read |lock| lock.read().await;
    write |lock| lock.write().await;
}
