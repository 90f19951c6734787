//! Lists of the faults of broken stores.

/// Defines `Fault` from rows, and a macro `$export` that calls another macro with all of them.
macro_rules! faults {
    (
        $(#[doc = $about:literal])+
        $export:ident:
        $($(#[doc = $doc:literal])+ $test:ident $fault:ident => $case:ident;)*
    ) => {
        $(#[doc = $about])+
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum Fault {
            $($(#[doc = $doc])+ $fault,)*
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

        faults! { @export ($) $export $($test $fault)* }
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
