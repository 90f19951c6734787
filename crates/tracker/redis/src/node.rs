//! One server: its connections, what is sent to it, and what its answers mean.

use std::{fmt, ops, time::Duration};

use parking_lot::Mutex;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo, ErrorKind, Pipeline, RedisError,
    ServerErrorKind, Value, aio::MultiplexedConnection,
};
use tokio::time::{Instant, timeout_at};
use tracing::{info, warn};

use crate::{
    address::{Address, SlotRange},
    library::LIBRARY,
    reply,
};

/// Calls that are sent to one server at once; more wait for their answers.
const PIPELINE: usize = 256;

/// Announces that are sent as one: what is saved with each more is little then, and nobody else waits for
/// long.
const BUNDLE: usize = 32;

/// How long to wait before a connection is tried again: twice as long each time, from the first to the
/// second.
const RECONNECT: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// How long a server may take to accept a connection, or to tell which slots there are.
pub(crate) const GREETING: Duration = Duration::from_millis(1000);

/// One command about a key, and where that is.
#[derive(Debug)]
pub(crate) struct SlotCall {
    pub(crate) slot: u16,
    pub(crate) what: What,
    /// Done twice it is as if done once: it is sent again when nobody knows whether it was done.
    pub(crate) repeatable: bool,
}

#[derive(Debug)]
pub(crate) enum What {
    Command(Cmd),
    /// Several of these may be sent as one.
    Announce {
        key: Vec<u8>,
        request: Vec<u8>,
        /// Whoever leaves may do so where memory is full.
        leaves: bool,
    },
}

/// A call, and whom to ask about it where a redirection has said so.
#[derive(Debug, Clone)]
pub(crate) struct Try {
    pub(crate) call: usize,
    pub(crate) ask: Option<Address>,
}

impl SlotCall {
    /// Whether memory that is full is no reason against it, where the others are not in the way.
    const fn leaves(&self) -> bool {
        matches!(self.what, What::Announce { leaves: true, .. })
    }
}

/// Calls that are sent as one: announces behind each other. In a Cluster they have one key, or a slot on its
/// way would hold them up until it has arrived.
struct Bundle(ops::Range<usize>);

impl Bundle {
    fn all(calls: &[SlotCall], part: &[Try], one_key: bool) -> Vec<Self> {
        let mut bundles: Vec<Self> = Vec::with_capacity(part.len() / 4 + 1);
        for (at, tried) in part.iter().enumerate() {
            let joins = bundles.last().is_some_and(|Self(bundle)| {
                let last = &part[bundle.end - 1];
                bundle.len() < BUNDLE
                    && last.ask == tried.ask
                    && match (&calls[last.call].what, &calls[tried.call].what) {
                        (What::Announce { key: last, .. }, What::Announce { key, .. }) => {
                            !one_key || last == key
                        }
                        _ => false,
                    }
            });
            match bundles.last_mut() {
                Some(last) if joins => last.0.end = at + 1,
                _ => bundles.push(Self(at..at + 1)),
            }
        }
        bundles
    }

    fn asks(&self, part: &[Try]) -> bool {
        part[self.0.start].ask.is_some()
    }

    fn command(&self, calls: &[SlotCall], part: &[Try]) -> Cmd {
        let bundle = part[self.0.clone()].iter().map(|tried| &calls[tried.call]);
        let announces = || {
            bundle.clone().filter_map(|call| match &call.what {
                What::Announce { key, request, .. } => Some((key.as_slice(), request.as_slice())),
                What::Command(_) => None,
            })
        };
        match &calls[part[self.0.start].call].what {
            What::Command(cmd) => cmd.clone(),
            What::Announce { .. } => {
                let leave = bundle.clone().all(SlotCall::leaves);
                let function = if leave { &LIBRARY.leave } else { &LIBRARY.announce };
                let bytes = announces().fold(0, |bytes, (key, request)| bytes + key.len() + request.len());
                let mut cmd = Cmd::with_capacity(3 + 2 * self.0.len(), function.len() + bytes + 16);
                cmd.arg("FCALL").arg(function).arg(self.0.len());
                announces().for_each(|(key, _)| {
                    cmd.arg(key);
                });
                announces().for_each(|(_, request)| {
                    cmd.arg(request);
                });
                cmd
            }
        }
    }
}

/// What came of sending a call once.
#[derive(Debug)]
pub(crate) enum Outcome {
    Answered(Value),
    /// It will not be done.
    Refused(String),
    /// It was not done; as soon as the functions are there it will be.
    Again(String),
    /// It was not done because of what it was sent with.
    Apart(String),
    /// It was not done; another server does it from now on, this one if it was named.
    Elsewhere(Option<Address>, String),
    /// It was not done; this server does it this time.
    Ask(Address),
    /// It was not done; later it may be.
    Later(String),
    /// Nobody knows.
    Lost(String),
}

impl Outcome {
    const fn is_final(&self) -> bool {
        matches!(self, Self::Answered(_) | Self::Refused(_))
    }
}

/// A server.
pub(crate) struct Node {
    pub(crate) address: Address,
    info: ConnectionInfo,
    pub(crate) connections: Vec<Connection>,
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Nothing of the password.
        write!(f, "Node({})", self.address)
    }
}

impl Node {
    pub(crate) fn new(info: ConnectionInfo, connections: usize) -> Self {
        let address = match info.addr() {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
                Address { host: host.clone(), port: *port }
            }
            other => Address { host: other.to_string(), port: 0 },
        };
        Self { address, info, connections: (0..connections).map(|_| Connection::default()).collect() }
    }

    /// Another server, reached as this one is.
    pub(crate) fn at(&self, address: Address) -> Self {
        let addr = match self.info.addr() {
            ConnectionAddr::TcpTls { insecure, tls_params, .. } => ConnectionAddr::TcpTls {
                host: address.host.clone(),
                port: address.port,
                insecure: *insecure,
                tls_params: tls_params.clone(),
            },
            _ => ConnectionAddr::Tcp(address.host.clone(), address.port),
        };
        Self::new(self.info.clone().set_addr(addr), self.connections.len())
    }

    /// Whether it has answered lately, as far as is known.
    pub(crate) fn answers(&self) -> bool {
        self.connections.iter().any(|connection| connection.open.lock().is_some())
    }

    /// What a Cluster's servers serve; `None` of a server that is none of a Cluster.
    pub(crate) async fn slots(&self, within: Duration) -> Result<Option<Vec<SlotRange>>, String> {
        let deadline = Instant::now() + within;
        let (made, mut connection) = self.connections[0].get(self, deadline).await?;
        let mut cmd = Cmd::new();
        cmd.arg("CLUSTER").arg("SLOTS");
        match timeout_at(deadline, connection.send_packed_command(&cmd)).await {
            Ok(answer) => match answer.and_then(Value::extract_error) {
                Ok(answer) => Ok(Some(SlotRange::all(&answer, &self.address))),
                Err(error) if error.to_string().contains("cluster support disabled") => Ok(None),
                Err(error) => {
                    if is_cut(&error) {
                        self.connections[0].forget(made);
                    }
                    Err(error.to_string())
                }
            },
            Err(_) => {
                self.connections[0].forget(made);
                Err(format!("no answer within {within:?}"))
            }
        }
    }

    /// Sends some calls in order, and waits for their answers.
    pub(crate) async fn send(
        &self,
        connection: usize,
        calls: &[SlotCall],
        group: &[Try],
        one_key: bool,
        deadline: Instant,
    ) -> Vec<(Try, Outcome)> {
        let mut outcomes: Vec<(Try, Outcome)> = Vec::with_capacity(group.len());
        for part in group.chunks(PIPELINE) {
            // What comes behind does not overtake what is tried again.
            let behind = outcomes.last().is_some_and(|(_, outcome)| !outcome.is_final());
            let answered = if behind {
                let reason = || format!("{} has not answered what came before", self.address);
                part.iter().map(|_| Outcome::Later(reason())).collect()
            } else {
                self.send_part(&self.connections[connection], calls, part, one_key, deadline).await
            };
            outcomes.extend(part.iter().cloned().zip(answered));
        }
        outcomes
    }

    async fn send_part(
        &self,
        on: &Connection,
        calls: &[SlotCall],
        part: &[Try],
        one_key: bool,
        deadline: Instant,
    ) -> Vec<Outcome> {
        let (made, mut connection) = match on.get(self, deadline).await {
            Ok(connection) => connection,
            Err(reason) => return part.iter().map(|_| Outcome::Later(reason.clone())).collect(),
        };
        let bundles = Bundle::all(calls, part, one_key);
        let mut pipeline = Pipeline::with_capacity(bundles.len());
        pipeline.ignore_errors();
        for bundle in &bundles {
            if bundle.asks(part) {
                pipeline.cmd("ASKING").ignore();
            }
            pipeline.add_command(bundle.command(calls, part));
        }
        let count = pipeline.len();
        let sent = timeout_at(deadline, connection.send_packed_commands(&pipeline, 0, count)).await;
        let reason = match sent {
            Ok(Ok(values)) => {
                let mut values = values.into_iter();
                let mut outcomes = Vec::with_capacity(part.len());
                for bundle in &bundles {
                    if bundle.asks(part) {
                        values.next();
                    }
                    self.unpack(calls, &part[bundle.0.clone()], values.next(), &mut outcomes);
                }
                let misses = |outcome: &Outcome| matches!(outcome, Outcome::Again(_));
                if outcomes.iter().any(misses) && !self.load(&mut connection, deadline).await {
                    for outcome in outcomes.iter_mut().filter(|outcome| misses(outcome)) {
                        let reason = format!("{} has not taken the functions", self.address);
                        *outcome = Outcome::Later(reason);
                    }
                }
                return outcomes;
            }
            Ok(Err(error)) if !is_cut(&error) => format!("{}: {error}", self.address),
            Ok(Err(error)) => {
                on.forget(made);
                format!("the connection to {} was lost: {error}", self.address)
            }
            Err(_) => {
                // Whatever it answers later is for nobody.
                on.forget(made);
                format!("{} has not answered in time", self.address)
            }
        };
        part.iter().map(|_| Outcome::Lost(reason.clone())).collect()
    }

    /// What an answer means for each of the calls that were sent as one.
    fn unpack(&self, calls: &[SlotCall], bundle: &[Try], answer: Option<Value>, outcomes: &mut Vec<Outcome>) {
        let little = || Outcome::Lost(format!("{} has answered less than it was asked", self.address));
        match answer {
            None => outcomes.extend(bundle.iter().map(|_| little())),
            Some(Value::ServerError(error)) => {
                let error = error.into();
                let can_leave = bundle.iter().any(|tried| !calls[tried.call].leaves());
                outcomes.extend(bundle.iter().map(|tried| match self.refused(&error) {
                    Outcome::Refused(reason) if can_leave && calls[tried.call].leaves() => {
                        Outcome::Apart(reason)
                    }
                    outcome => outcome,
                }));
            }
            Some(Value::Array(pieces)) if bundle.len() > 1 => {
                let mut pieces = pieces.into_iter();
                outcomes.extend(bundle.iter().map(|_| match reply::pieces(&mut pieces) {
                    Some(answer) => Outcome::Answered(Value::Array(answer)),
                    None => little(),
                }));
            }
            Some(_) if bundle.len() > 1 => outcomes.extend(bundle.iter().map(|_| little())),
            Some(value) => outcomes.push(Outcome::Answered(value)),
        }
    }

    /// What an error of the server means for the call.
    fn refused(&self, error: &RedisError) -> Outcome {
        let reason = format!("{}: {error}", self.address);
        let target = || error.redirect_node().and_then(|(to, _)| Address::of_redirection(to, &self.address));
        match (error.kind(), error.code()) {
            (ErrorKind::Server(ServerErrorKind::Ask), _) => match target() {
                Some(address) => Outcome::Ask(address),
                None => Outcome::Later(reason),
            },
            (ErrorKind::Server(ServerErrorKind::Moved), _) => Outcome::Elsewhere(target(), reason),
            (
                ErrorKind::Server(
                    ServerErrorKind::TryAgain
                    | ServerErrorKind::ClusterDown
                    | ServerErrorKind::MasterDown
                    | ServerErrorKind::BusyLoading
                    | ServerErrorKind::ReadOnly,
                ),
                _,
            )
            | (_, Some("BUSY" | "NOREPLICAS")) => Outcome::Later(reason),
            _ if reason.contains("Function not found") => Outcome::Again(reason),
            _ => Outcome::Refused(reason),
        }
    }

    /// Loads the functions, if it can: the server is new, or has lost them.
    async fn load(&self, connection: &mut MultiplexedConnection, deadline: Instant) -> bool {
        let mut cmd = Cmd::new();
        cmd.arg("FUNCTION").arg("LOAD").arg("REPLACE").arg(&LIBRARY.code);
        let loaded = timeout_at(deadline, connection.send_packed_command(&cmd)).await;
        let loaded = loaded.map(|answer| answer.and_then(Value::extract_error));
        match &loaded {
            Ok(Ok(_)) => info!(server = %self.address, "functions loaded"),
            Ok(Err(error)) => warn!(server = %self.address, %error, "the functions were not loaded"),
            Err(_) => {}
        }
        matches!(loaded, Ok(Ok(_)))
    }
}

/// Whether nothing more comes through the connection.
fn is_cut(error: &RedisError) -> bool {
    error.is_io_error() || error.is_connection_dropped() || error.is_unrecoverable_error()
}

/// A connection that is made when it is needed.
#[derive(Default)]
pub(crate) struct Connection {
    open: Mutex<Option<(u64, MultiplexedConnection)>>,
    /// Whoever holds it connects; when to try again, and how long to wait after that.
    connecting: tokio::sync::Mutex<Attempts>,
}

#[derive(Debug, Default)]
struct Attempts {
    made: u64,
    next: Option<(Instant, Duration)>,
    reason: String,
}

impl Connection {
    /// The connection, or a new one as soon as there may be one.
    async fn get(&self, node: &Node, deadline: Instant) -> Result<(u64, MultiplexedConnection), String> {
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
            // Who has come in between learns what the last attempt has shown.
            return Err(attempts.reason.clone());
        }
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(GREETING))
            .set_response_timeout(None)
            .set_pipeline_buffer_size(1024)
            .set_write_backpressure_boundary(1 << 18);
        let connect = async {
            let client = Client::open(node.info.clone())?;
            client.get_multiplexed_async_connection_with_config(&config).await
        };
        let made = match timeout_at(deadline.min(Instant::now() + GREETING), connect).await {
            Ok(Ok(connection)) => Ok(connection),
            Ok(Err(error)) => Err(format!("{} was not reached: {error}", node.address)),
            Err(_) => Err(late()),
        };
        match made {
            Ok(connection) => {
                attempts.made += 1;
                attempts.next = None;
                let open = (attempts.made, connection);
                *self.open.lock() = Some(open.clone());
                Ok(open)
            }
            Err(reason) => {
                let pause = attempts.next.map_or(RECONNECT.0, |(_, pause)| (pause * 2).min(RECONNECT.1));
                attempts.next = Some((Instant::now() + pause, pause));
                attempts.reason.clone_from(&reason);
                Err(reason)
            }
        }
    }

    /// Nothing comes any more through the connection that was made as this one.
    fn forget(&self, made: u64) {
        self.open.lock().take_if(|open| open.0 == made);
    }
}
