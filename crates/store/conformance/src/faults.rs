//! Lists of what stores can be broken by.

/// Makes `Fault` of some rows, and the macro of that name that goes through them.
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
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$fault,)*];

            /// The name of the case that is meant to reject it.
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
