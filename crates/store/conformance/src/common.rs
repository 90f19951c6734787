//! The common parts of the suites of this project: for swarm stores, and for stores of content.

use std::{
    panic::{self, AssertUnwindSafe},
    sync::{
        atomic::{AtomicBool, Ordering::SeqCst},
        mpsc,
    },
    thread,
    time::Duration,
};

use swarmkeep::{InfoHash, Random, SplitMix64};

/// Defines `Fault` from rows, and a macro `$export` that calls another macro with all of them.
#[doc(hidden)]
#[macro_export]
macro_rules! faults {
    (
        $(#[doc = $about:literal])+
        $export:ident:
        $($(#[doc = $doc:literal])* $test:ident $fault:ident => $case:ident;)*
    ) => {
        $(#[doc = $about])+
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum Fault {
            $($(#[doc = $doc])* $fault,)*
        }

        impl Fault {
            /// All faults.
            pub const ALL: &[Self] = &[$(Self::$fault,)*];

            /// Returns the name of the case that rejects the fault.
            pub const fn case(self) -> &'static str {
                match self {
                    $(Self::$fault => stringify!($case),)*
                }
            }
        }

        $crate::faults! { @export ($) $export $($test $fault)* }
    };
    (@export ($d:tt) $export:ident $($test:ident $fault:ident)*) => {
        /// Calls a macro with the faults, each in snake case and as the variant of `Fault`.
        #[doc(hidden)]
        #[macro_export]
        macro_rules! $export {
            ($d callback:ident) => { $d callback! { $($test $fault)* } };
        }
    };
}

/// Defines the list of the cases of a suite, and a macro that makes a test of each case.
///
/// The first rows are the list with the trait of its subjects, and the macro with the path, from `$crate`, of
/// the module that contains `Case` and a function `subject`, which makes a subject of the last argument of
/// the macro. The rules of a case are there if `Case` has a field for them.
#[doc(hidden)]
#[macro_export]
macro_rules! cases {
    (
        $(#[doc = $about:literal])+
        $list:ident of $subject:ident;
        $(#[doc = $about_suite:literal])+
        $suite:ident in $d:tt $($path:ident)::+;
        $($chapter:ident { $($name:ident $([$($rule:literal)*])?)* })*
    ) => {
        $(#[doc = $about])+
        pub const $list: &[Case] = &[$($(Case {
            name: stringify!($name),
            $(rules: &[$($rule),*],)?
            run: $chapter::$name,
        },)*)*];

        impl Case {
            /// Runs the case on a store.
            ///
            /// # Panics
            /// If the store violates the sentence.
            pub fn run(&self, subject: &dyn $subject) {
                (self.run)(subject);
            }

            /// Returns the case called `name`.
            pub fn find(name: &str) -> Option<&'static Self> {
                $list.iter().find(|case| case.name == name)
            }

            /// Runs the case called `name` on a store.
            #[doc(hidden)]
            pub fn check(name: &str, subject: &dyn $subject) {
                Self::find(name).expect("the macro and the list are made of the same names").run(subject);
            }
        }

        $(#[doc = $about_suite])+
        #[macro_export]
        macro_rules! $suite {
            ($d module:ident, $d subject:expr $d(,)?) => {
                mod $d module {
                    #[allow(unused_imports, reason = "the subject may need nothing from around it")]
                    use super::*;

                    fn check_subject_of_this_suite(case: &str) {
                        $d $($path)::+::Case::check(case, &$d $($path)::+::subject($d subject));
                    }

                    $($(
                        #[test]
                        fn $name() {
                            check_subject_of_this_suite(stringify!($name));
                        }
                    )*)*
                }
            };
        }
    };
}

/// Runs `work`, which must end within `limit`. A lock that is never released, or an endless loop, fails the
/// case instead of blocking it.
pub fn within<T: Send + 'static>(
    limit: Duration,
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> T {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let result = panic::catch_unwind(AssertUnwindSafe(work));
        // Sending fails only if the receiver has timed out.
        let _ = sender.send(result);
    });
    match receiver.recv_timeout(limit) {
        Ok(Ok(result)) => result,
        Ok(Err(panicked)) => panic::resume_unwind(panicked),
        Err(_) => panic!("{name}: not done after {limit:?}"),
    }
}

/// Sets a flag when it is dropped, also by a panic, so that no thread waits for it for ever.
#[derive(Debug)]
pub struct SetOnDrop<'a>(pub &'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// Returns info hash number `n`, which has no structure.
pub fn hash(n: u64) -> InfoHash {
    let mut rng = SplitMix64::new(n ^ 0x5eed);
    let mut bytes = [0; 20];
    for chunk in bytes.chunks_mut(8) {
        chunk.copy_from_slice(&rng.next_u64().to_le_bytes()[..chunk.len()]);
    }
    InfoHash::new(bytes)
}
