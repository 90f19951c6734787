//! Requests between peers: hashes, and the metadata of magnet links.

mod hashes;
mod metadata;
