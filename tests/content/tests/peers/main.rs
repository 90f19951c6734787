//! Peers at work: sessions with each other, and announces to trackers. Most of these tests wait.

mod sessions;
mod stripes;
mod trackers;
