//! A store that cannot be reached.

use std::sync::Arc;

use swarmkeep::{Capabilities, LongestHold, Unavailable, catalog::Repository};

#[derive(Debug)]
struct OutOfReach;

macro_rules! unavailable {
    (@plain $this:ident, capabilities) => { Capabilities::new(LongestHold::Visits(1)) };
    ($this:ident, $method:ident $(, $argument:ident)*) => {{
        $(let _ = $argument;)*
        Box::pin(std::future::ready(Err(Unavailable::new("the cable is cut"))))
    }};
}
swarmkeep::implement::async_repository! { [] OutOfReach, unavailable }

pub(crate) fn repository() -> Repository {
    Repository::Async(Arc::new(OutOfReach))
}
