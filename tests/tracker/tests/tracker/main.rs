//! The tracker over real sockets.

mod admin;
mod captured;
mod floods;
mod https;
mod rules;
mod serve;
mod serve_http;
