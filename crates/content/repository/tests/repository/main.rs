//! Every content store: what it keeps, what it refuses, what it costs.

mod block;
mod files;
mod hostile;
mod library;
mod stripe_cache;
mod stripe_cache_suite;
