//! The tracker over real sockets.

mod admin;
mod captured;
mod example;
mod floods;
mod https;
mod lists;
mod rules;
mod serve_http;
mod watch;
