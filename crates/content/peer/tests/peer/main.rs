//! What peers ask each other for: hashes, and what a link does not tell.

mod hashes;
mod metadata;
