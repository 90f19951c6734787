//! The cases, by topic.

pub(crate) mod bounds;
pub(crate) mod deleting;
pub(crate) mod lasting;
pub(crate) mod marking;
pub(crate) mod opening;
pub(crate) mod races;
pub(crate) mod reading;
pub(crate) mod stories;
pub(crate) mod telling;
pub(crate) mod writing;
