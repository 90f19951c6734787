//! The tracker over HTTP. [`HttpHandler`] turns a request into the body of its answer, [`serve`] and
//! [`accept`](accept::accept) handle connections, and [`Connections`](connections::Connections) limits their
//! number.

pub(crate) mod accept;
mod client;
pub(crate) mod connections;
mod handler;
mod serve;

pub use client::ProxyHeader;
pub use handler::{HttpHandler, HttpRequest};
pub(crate) use serve::{adopt, listen, serve};
