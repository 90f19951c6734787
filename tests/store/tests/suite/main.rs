//! The suite on every row of the catalog, on stores that are broken on purpose, and sweeps that give way.

mod broken;
mod conformance;
mod giving_way;
mod list;
