//! The packed store inside Valkey and Redis: a loadable module with one data type, a shard of a swarm store,
//! and the commands on it.
//!
//! `docs/formats/module.md` of the repository describes keys, commands and replies; `swarmkeep-redis` is the
//! client.
//!
//! - `server` is the interface to the server, and all unsafe code.
//! - `commands` reads arguments, and writes replies.
//! - `shard` is the value of a key: a [`Packed`](swarmkeep::Packed), and the settings of its callers.
//! - `request` and `stored` are the bytes of requests, and of a shard in a file.

mod commands;
mod request;
mod server;
mod shard;
mod stored;
