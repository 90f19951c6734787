//! Tests of every content store: its content, its errors, its costs.

mod block;
mod files;
mod hostile;
mod library;
mod stripe_cache;
mod stripe_cache_suite;
