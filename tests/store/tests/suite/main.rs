//! The suite on every row of the catalog, and on stores that are broken on purpose.

mod broken;
mod conformance;
