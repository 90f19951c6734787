//! The tracker over real sockets.

mod admin;
mod captured;
mod https;
mod rules;
mod serve;
mod serve_http;
