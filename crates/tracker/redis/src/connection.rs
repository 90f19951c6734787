//! A connection to a server: it is made when it is needed, and made again when it is lost.

use std::{future::Future, io, pin::pin, sync::Arc, time::Duration};

use futures_util::{
    FutureExt as _,
    future::{Either, select},
};
use parking_lot::Mutex;
use redis::{AsyncConnectionConfig, Pipeline, RedisError, Value, aio::MultiplexedConnection};
use swarmkeep::bittorrent::in_words;
use tokio::{
    sync::watch,
    task::{JoinSet, unconstrained},
    time::{Instant, timeout_at},
};

use crate::{
    bounded::{Allowance, Bounded},
    node::{GREETING, Node},
};

/// The pause before a connection is tried again. It doubles each time, from the first value to the second.
const RECONNECT: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// A connection that is made when it is needed.
#[derive(Default)]
pub(crate) struct Connection {
    open: Mutex<Option<OpenConnection>>,
    /// Held by the call that connects.
    connecting: tokio::sync::Mutex<Attempts>,
}

/// A connection that was made.
#[derive(Clone)]
pub(crate) struct OpenConnection {
    made: u64,
    commands: MultiplexedConnection,
    allowance: Arc<Allowance>,
    /// Fails once the driver has ended.
    running: watch::Receiver<()>,
    /// The task that writes and reads. It ends with the last clone of this value.
    _driver: Arc<JoinSet<()>>,
}

#[derive(Debug, Default)]
struct Attempts {
    made: u64,
    next: Option<(Instant, Duration)>,
    reason: String,
}

impl Connection {
    pub(crate) fn is_open(&self) -> bool {
        self.open.lock().is_some()
    }

    /// The open connection, or a new one. During the pause after a failure, the error of that failure.
    pub(crate) async fn get(&self, node: &Node, deadline: Instant) -> Result<OpenConnection, String> {
        if let Some(open) = &*self.open.lock() {
            return Ok(open.clone());
        }
        let late = || format!("{} was not reached in time", node.address);
        let mut attempts = timeout_at(deadline, self.connecting.lock()).await.map_err(|_| late())?;
        if let Some(open) = &*self.open.lock() {
            return Ok(open.clone());
        }
        if let Some((next, _)) = attempts.next
            && Instant::now() < next
        {
            // A call during the pause gets the error of the last attempt.
            return Err(attempts.reason.clone());
        }
        let connecting = OpenConnection::connect(node, attempts.made + 1);
        let reason = match timeout_at(deadline.min(Instant::now() + GREETING), connecting).await {
            Ok(Ok(open)) => {
                attempts.made = open.made;
                attempts.next = None;
                *self.open.lock() = Some(open.clone());
                return Ok(open);
            }
            Ok(Err(reason)) => format!("{} was not reached: {reason}", node.address),
            Err(_) => late(),
        };
        let pause = attempts.next.map_or(RECONNECT.0, |(_, pause)| (pause * 2).min(RECONNECT.1));
        attempts.next = Some((Instant::now() + pause, pause));
        attempts.reason.clone_from(&reason);
        Err(reason)
    }

    /// Sends commands with replies of at most `most` bytes, and waits for their answers.
    pub(crate) async fn ask(
        &self,
        node: &Node,
        open: &mut OpenConnection,
        (pipeline, most): (&Pipeline, usize),
        deadline: Instant,
    ) -> Result<Vec<Value>, String> {
        open.allowance.grant(most);
        let address = &node.address;
        match timeout_at(deadline, open.answers(pipeline)).await {
            Ok(Ok(values)) => {
                open.allowance.settle(most, &values);
                Ok(values)
            }
            Ok(Err(error)) => {
                let is_cut = is_cut(&error);
                if is_cut {
                    self.forget(open.made);
                }
                Err(match open.allowance.exceeded() {
                    Some(reason) => format!("the connection to {address} was ended: {reason}"),
                    None if is_cut => format!("the connection to {address} was lost: {}", in_words(&error)),
                    None => format!("{address}: {}", in_words(&error)),
                })
            }
            Err(_) => {
                // No call waits for a later answer.
                self.forget(open.made);
                Err(format!("{address} has not answered in time"))
            }
        }
    }

    /// Drops the open connection, if its number is `made`.
    fn forget(&self, made: u64) {
        self.open.lock().take_if(|open| open.made == made);
    }
}

impl OpenConnection {
    async fn connect(node: &Node, made: u64) -> Result<Self, String> {
        if let Some(reason) = node.kept_out() {
            return Err(reason);
        }
        let config = AsyncConnectionConfig::new()
            .set_response_timeout(None)
            .set_pipeline_buffer_size(1024)
            .set_write_backpressure_boundary(1 << 18);
        let greeting = node.access.greeting(&node.info).await?;
        let stream = node.access.open(node.info.addr()).await.map_err(|error| in_words(&error))?;
        let allowance = Arc::new(Allowance::new());
        let stream = Bounded::new(stream, Arc::clone(&allowance));
        let (commands, driver) = MultiplexedConnection::new_with_config(&greeting, stream, config)
            .await
            .map_err(|error| in_words(&error))?;
        Ok(Self::new(made, commands, allowance, driver))
    }

    fn new(
        made: u64,
        commands: MultiplexedConnection,
        allowance: Arc<Allowance>,
        driver: impl Future<Output = ()> + Send + 'static,
    ) -> Self {
        let (ends, running) = watch::channel(());
        let mut task = JoinSet::new();
        task.spawn(driver.map(|()| drop(ends)));
        Self { made, commands, allowance, running, _driver: Arc::new(task) }
    }

    /// Sends commands, and waits for their answers or for the end of the driver. Commands that are queued
    /// while the driver ends may stay in its queue until the last handle of the connection is dropped
    /// (<https://github.com/tokio-rs/tokio/issues/7714>).
    async fn answers(&mut self, pipeline: &Pipeline) -> Result<Vec<Value>, RedisError> {
        let sent = self.commands.send_packed_commands(pipeline, 0, pipeline.len());
        answer_or_end(sent, self.running.changed()).await
    }
}

/// The answer, if it has come by the end of the driver.
async fn answer_or_end<T>(
    answer: impl Future<Output = Result<T, RedisError>>,
    end: impl Future,
) -> Result<T, RedisError> {
    match select(pin!(answer), pin!(end)).await {
        Either::Left((answer, _)) => answer,
        Either::Right((_, answer)) => {
            let cut = || Err(io::Error::from(io::ErrorKind::BrokenPipe).into());
            unconstrained(answer).now_or_never().unwrap_or_else(cut)
        }
    }
}

/// Whether the connection is broken.
fn is_cut(error: &RedisError) -> bool {
    error.is_io_error() || error.is_connection_dropped() || error.is_unrecoverable_error()
}

#[cfg(test)]
mod tests {
    use std::{future::poll_fn, task::Poll};

    use redis::RedisConnectionInfo;

    use super::*;

    #[tokio::test]
    async fn an_answer_that_comes_with_the_end_of_the_driver_counts() {
        let mut polls = 0;
        let answer = poll_fn(|_| {
            polls += 1;
            if polls == 1 { Poll::Pending } else { Poll::Ready(Ok(7)) }
        });
        assert_eq!(answer_or_end(answer, async {}).await.ok(), Some(7));
    }

    #[tokio::test]
    async fn commands_left_in_the_queue_of_a_driver_that_has_ended_fail_at_once() {
        let greeting = RedisConnectionInfo::default().set_skip_set_lib_name();
        let (stream, _server) = tokio::io::duplex(64);
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let made = MultiplexedConnection::new_with_config(&greeting, stream, config).await;
        let (commands, _driver) = made.expect("there is no greeting");
        let mut open = OpenConnection::new(1, commands, Arc::new(Allowance::new()), async {});
        let mut pipeline = Pipeline::new();
        pipeline.cmd("PING");
        let answered = tokio::time::timeout(Duration::from_secs(20), open.answers(&pipeline)).await;
        let error = answered.expect("at once").expect_err("no task reads the queue");
        assert!(is_cut(&error), "{error}");
    }
}
