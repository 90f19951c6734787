//! For tests: stores that cannot be reached.

use swarmkeep::{Capabilities, LongestHold, Unavailable};

/// Never answers with anything but [`Unavailable`].
#[derive(Debug)]
pub(crate) struct OutOfReach;

macro_rules! unavailable {
    (@plain $this:ident, capabilities) => { Capabilities::new(LongestHold::Visits(1)) };
    ($this:ident, $method:ident $(, $argument:ident)*) => {{
        $(let _ = $argument;)*
        Box::pin(std::future::ready(Err(Unavailable::new("the cable is cut"))))
    }};
}
swarmkeep::implement::async_repository! { [] OutOfReach, unavailable }

/// Never answers at all.
#[derive(Debug)]
pub(crate) struct Silent;

macro_rules! silence {
    (@plain $this:ident, capabilities) => { Capabilities::new(LongestHold::Visits(1)) };
    ($this:ident, $method:ident $(, $argument:ident)*) => {{
        $(let _ = $argument;)*
        Box::pin(std::future::pending())
    }};
}
swarmkeep::implement::async_repository! { [] Silent, silence }
