//! The cases: plain functions over a store, one per sentence. [`CASES`](crate::CASES) lists them.

pub(crate) mod announcing;
pub(crate) mod batches;
pub(crate) mod bounds;
pub(crate) mod endpoints;
pub(crate) mod exporting;
pub(crate) mod fairness;
pub(crate) mod floods;
pub(crate) mod forgetting;
pub(crate) mod hostile;
pub(crate) mod races;
pub(crate) mod reading;
pub(crate) mod restoring;
pub(crate) mod selecting;
pub(crate) mod stories;
