//! The tracker over UDP (BEP 15): each thread has sockets of its own, and takes and answers requests in
//! batches.

mod batch;
mod connection;
mod frames;
mod front;
mod handler;
mod later;
mod packet;
mod socket;
mod waiting;
mod worker;

pub use batch::{AnswerBuffer, Batch, LONGEST_ANSWER_V4, LONGEST_ANSWER_V6};
pub use connection::{ConnectionIds, ConnectionKey, IdsAt};
pub(crate) use frames::FrameFront;
pub(crate) use front::{Front, Listener};
pub use handler::Handler;
pub(crate) use later::StoreQueue;
pub(crate) use socket::{adopt, bind};
pub(crate) use worker::{AnswerMode, Worker};
