//! The tracker over HTTP: [`HttpHandler`] turns the path and query of a request into the body of its answer
//! and needs no socket, [`serve`] gives it connections, [`Connections`](connections::Connections) bounds
//! those.

pub(crate) mod accept;
mod client;
pub(crate) mod connections;
mod handler;
mod serve;

pub use handler::{HttpHandler, HttpRequest};
pub(crate) use serve::{adopt, listen, serve};
