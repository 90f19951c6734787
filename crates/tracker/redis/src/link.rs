//! The way to the servers: connections that come back, calls that find the right server, and an end to each
//! within bounded time.

use std::{
    fmt,
    future::{Future, poll_fn},
    ops,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use futures_util::future::join_all;
use parking_lot::{Mutex, RwLock};
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo, ErrorKind, IntoConnectionInfo as _,
    Pipeline, RedisError, ServerErrorKind, Value, aio::MultiplexedConnection,
};
use swarmkeep::{Answer, Unavailable};
use tokio::{
    runtime::Handle,
    time::{Instant, sleep, timeout_at},
};
use tracing::{debug, info, warn};

use crate::{
    Error, RedisConfig,
    config::without_password,
    library::LIBRARY,
    reply,
    topology::{Address, Range, Topology},
};

/// Calls that are sent to one server at once; more wait for their answers.
const PIPELINE: usize = 256;

/// Announces that are sent as one: what is saved with each more is little then, and nobody else waits for
/// long.
const BUNDLE: usize = 32;

/// How long to wait before a call is tried again, and before a connection is: twice as long each time, from
/// the first to the second.
const PAUSE: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(200));
const RECONNECT: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// How long a server may take to accept a connection, or to tell which slots there are.
const GREETING: Duration = Duration::from_millis(1000);

/// One command about a key, and where that is.
#[derive(Debug)]
pub(crate) struct Call {
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

/// The servers, and how patient to be with them.
#[derive(Debug)]
pub(crate) struct Link {
    /// The servers that were named by those who want to reach them,
    seeds: Vec<Arc<Node>>,
    /// and those that were named by others: they are kept for as long as they serve something, or until it is
    /// asked again who does.
    others: Mutex<Vec<Arc<Node>>>,
    patience: Duration,
    topology: RwLock<Arc<Topology>>,
    /// Whoever holds it asks which server serves what.
    asking: tokio::sync::Mutex<()>,
    in_flight: AtomicUsize,
    most_in_flight: usize,
    runtime: Handle,
}

impl Link {
    pub(crate) async fn connect(config: &RedisConfig) -> Result<Self, Error> {
        let node = |url: &String| Ok(Arc::new(Node::new(seed(url, config)?, config.connections.max(1))));
        let link = Self {
            seeds: config.urls.iter().map(node).collect::<Result<_, Error>>()?,
            others: Mutex::default(),
            patience: config.patience,
            topology: RwLock::new(Arc::new(Topology::unknown())),
            asking: tokio::sync::Mutex::new(()),
            in_flight: AtomicUsize::new(0),
            most_in_flight: config.in_flight.max(1),
            runtime: Handle::current(),
        };
        link.find_servers(None, GREETING).await.map_err(Error::Unreachable)?;
        Ok(link)
    }

    /// Polls within the runtime in which the link was made: connections and timers need one, and whoever
    /// waits may be outside.
    pub(crate) fn inside<'a, T>(
        &'a self,
        future: impl Future<Output = Result<T, Unavailable>> + Send + 'a,
    ) -> Answer<'a, T> {
        Box::pin(async move {
            let mut future = pin!(future);
            poll_fn(|context| {
                let _inside = self.runtime.enter();
                future.as_mut().poll(context)
            })
            .await
        })
    }

    /// Runs by itself.
    pub(crate) fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) {
        self.runtime.spawn(future);
    }

    /// For how long a call may try.
    pub(crate) const fn patience(&self) -> Duration {
        self.patience
    }

    /// One call, and its answer.
    pub(crate) async fn call(&self, call: Call) -> Result<Value, Unavailable> {
        let mut answers = self.call_all(std::slice::from_ref(&call)).await;
        answers.pop().expect("an answer for each call")
    }

    /// Calls and their answers; those about one slot are done in order.
    pub(crate) async fn call_all(&self, calls: &[Call]) -> Vec<Result<Value, Unavailable>> {
        let Some(_place) = Place::take(self, calls.len()) else {
            let busy = || Unavailable::new(format!("{} calls are waiting already", self.most_in_flight));
            return calls.iter().map(|_| Err(busy())).collect();
        };
        self.call_those(calls).await
    }

    /// The same for calls whose number is bounded elsewhere.
    pub(crate) async fn call_those(&self, calls: &[Call]) -> Vec<Result<Value, Unavailable>> {
        let deadline = Instant::now() + self.patience;
        let mut answers: Vec<Option<Result<Value, Unavailable>>> = calls.iter().map(|_| None).collect();
        let mut waiting: Vec<Try> = (0..calls.len()).map(|call| Try { call, ask: None }).collect();
        let (mut pause, mut has_looked) = (PAUSE.0, false);
        loop {
            let mut again = Vec::new();
            let mut before = Before::default();
            for (tried, outcome) in self.once(calls, &waiting, deadline).await {
                match outcome {
                    Outcome::Answered(value) => answers[tried.call] = Some(Ok(value)),
                    Outcome::Refused(reason) => answers[tried.call] = Some(Err(Unavailable::new(reason))),
                    Outcome::Lost(reason) if !calls[tried.call].repeatable => {
                        let reason = format!("{reason}; whether it was done is not known");
                        answers[tried.call] = Some(Err(Unavailable::new(reason)));
                    }
                    Outcome::Lost(reason) | Outcome::Later(reason) => {
                        before.wait = true;
                        before.look = true;
                        again.push((Try { call: tried.call, ask: None }, reason));
                    }
                    Outcome::Elsewhere(address, reason) => {
                        // After a look the servers have not agreed yet.
                        before.wait |= has_looked;
                        before.look = true;
                        before.named = address;
                        again.push((Try { call: tried.call, ask: None }, reason));
                    }
                    Outcome::Ask(address) => {
                        let reason = format!("{address} was to be asked");
                        again.push((Try { call: tried.call, ask: Some(address) }, reason));
                    }
                    Outcome::Again(reason) | Outcome::Apart(reason) => {
                        again.push((Try { call: tried.call, ask: None }, reason));
                    }
                }
            }
            if again.is_empty() {
                break;
            }
            has_looked |= before.look;
            let wakes = Instant::now() + if before.wait { pause } else { Duration::ZERO };
            if wakes >= deadline {
                for (tried, reason) in again {
                    let reason = format!("{reason}; tried for {:?}", self.patience);
                    answers[tried.call] = Some(Err(Unavailable::new(reason)));
                }
                break;
            }
            if before.wait {
                sleep(pause).await;
                pause = (pause * 2).min(PAUSE.1);
            }
            if before.look {
                self.look_again(before.named.as_ref(), deadline).await;
            }
            waiting = again.into_iter().map(|(tried, _)| tried).collect();
            waiting.sort_unstable_by_key(|tried| tried.call);
        }
        answers.into_iter().map(|answer| answer.expect("each was answered or given up")).collect()
    }

    /// Sends each call to the server that it is for, once.
    async fn once(&self, calls: &[Call], waiting: &[Try], deadline: Instant) -> Vec<(Try, Outcome)> {
        let topology = Arc::clone(&self.topology.read());
        // Calls of one server and connection, in order.
        let mut groups: Vec<(Arc<Node>, usize, Vec<Try>)> = Vec::new();
        let mut outcomes = Vec::with_capacity(waiting.len());
        for tried in waiting {
            let slot = calls[tried.call].slot;
            let node = match &tried.ask {
                Some(address) => Some(self.node(address)),
                None => topology.master_of(slot).cloned(),
            };
            let Some(node) = node else {
                outcomes.push((tried.clone(), Outcome::Later(format!("nobody serves slot {slot}"))));
                continue;
            };
            let connection = usize::from(slot) % node.connections.len();
            let same = |(other, at, _): &&mut (Arc<Node>, usize, Vec<Try>)| {
                Arc::ptr_eq(other, &node) && *at == connection
            };
            match groups.iter_mut().find(same) {
                Some((_, _, group)) => group.push(tried.clone()),
                None => groups.push((node, connection, vec![tried.clone()])),
            }
        }
        let one_key = topology.is_cluster();
        if one_key {
            // What can be sent as one stands together then, in order still.
            groups.iter_mut().for_each(|(_, _, group)| group.sort_by_key(|tried| calls[tried.call].slot));
        }
        if let [(node, connection, group)] = groups.as_slice() {
            // What nearly every call does.
            outcomes.extend(node.send(*connection, calls, group, one_key, deadline).await);
        } else {
            let sent = groups
                .iter()
                .map(|(node, connection, group)| node.send(*connection, calls, group, one_key, deadline));
            outcomes.extend(join_all(sent).await.into_iter().flatten());
        }
        outcomes
    }

    /// The server at this address.
    fn node(&self, address: &Address) -> Arc<Node> {
        let mut others = self.others.lock();
        let known = self.seeds.iter().chain(&*others).find(|node| node.address == *address);
        known.cloned().unwrap_or_else(|| {
            let node = Arc::new(self.seeds[0].at(address.clone()));
            others.push(Arc::clone(&node));
            node
        })
    }

    /// Asks which server serves what, unless somebody else has just done so: the one that was named by
    /// another first.
    async fn look_again(&self, named: Option<&Address>, deadline: Instant) {
        let before = Arc::clone(&self.topology.read());
        if !before.is_cluster() {
            return;
        }
        let Ok(_asking) = timeout_at(deadline, self.asking.lock()).await else { return };
        if !Arc::ptr_eq(&before, &self.topology.read()) {
            return;
        }
        // One that is silent leaves time for another.
        let each = GREETING.min(self.patience / 2);
        if let Ok(Err(reason)) = timeout_at(deadline, self.find_servers(named, each)).await {
            debug!(%reason, "no server tells of the others");
        }
    }

    /// Asks one server after the other until one tells who serves what: the one that was named, those that
    /// answer, and the others. Each has so long.
    async fn find_servers(&self, named: Option<&Address>, each: Duration) -> Result<(), String> {
        let named = named.map(|address| self.node(address));
        let is_named = |node: &Arc<Node>| named.as_ref().is_some_and(|named| Arc::ptr_eq(named, node));
        let mut nodes: Vec<_> = self.others.lock().iter().chain(&self.seeds).cloned().collect();
        nodes.sort_by_cached_key(|node| (!is_named(node), !node.answers()));
        let mut reasons = Vec::new();
        for node in nodes {
            match self.topology_of(&node, each).await {
                Ok(topology) => {
                    let serves =
                        |node: &Arc<Node>| topology.nodes.iter().any(|other| Arc::ptr_eq(node, other));
                    self.others.lock().retain(serves);
                    *self.topology.write() = Arc::new(topology);
                    return Ok(());
                }
                Err(reason) => reasons.push(format!("{}: {reason}", node.address)),
            }
        }
        Err(reasons.join("; "))
    }

    /// Who serves what, as this server sees it.
    async fn topology_of(&self, node: &Arc<Node>, within: Duration) -> Result<Topology, String> {
        match node.slots(within).await? {
            None => Ok(Topology::single(Arc::clone(node))),
            Some(ranges) if ranges.is_empty() => Err("it serves no slots".to_owned()),
            Some(ranges) => Ok(Topology::cluster(&ranges, |address| self.node(address))),
        }
    }
}

/// What comes before calls are sent again.
#[derive(Debug, Default)]
struct Before {
    wait: bool,
    /// Asking which server serves what,
    look: bool,
    /// first the one that was named as serving something.
    named: Option<Address>,
}

/// The room of some calls among those that may wait at once.
struct Place<'a>(&'a Link, usize);

impl<'a> Place<'a> {
    fn take(link: &'a Link, calls: usize) -> Option<Self> {
        let before = link.in_flight.fetch_add(calls, Relaxed);
        let place = Self(link, calls);
        // One large batch is let in when there is nobody else.
        (before == 0 || before + calls <= link.most_in_flight).then_some(place)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(self.1, Relaxed);
    }
}

/// A call, and whom to ask about it where a redirection has said so.
#[derive(Debug, Clone)]
struct Try {
    call: usize,
    ask: Option<Address>,
}

impl Call {
    /// Whether memory that is full is no reason against it, where the others are not in the way.
    const fn leaves(&self) -> bool {
        matches!(self.what, What::Announce { leaves: true, .. })
    }
}

/// Calls that are sent as one: announces behind each other. In a Cluster they have one key, or a slot on its
/// way would hold them up until it has arrived.
struct Bundle(ops::Range<usize>);

impl Bundle {
    fn all(calls: &[Call], part: &[Try], one_key: bool) -> Vec<Self> {
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

    fn command(&self, calls: &[Call], part: &[Try]) -> Cmd {
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
                let leave = bundle.clone().all(Call::leaves);
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
enum Outcome {
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
    connections: Vec<Connection>,
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Nothing of the password.
        write!(f, "Node({})", self.address)
    }
}

impl Node {
    fn new(info: ConnectionInfo, connections: usize) -> Self {
        let address = match info.addr() {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
                Address { host: host.clone(), port: *port }
            }
            other => Address { host: other.to_string(), port: 0 },
        };
        Self { address, info, connections: (0..connections).map(|_| Connection::default()).collect() }
    }

    /// Another server, reached as this one is.
    fn at(&self, address: Address) -> Self {
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
    fn answers(&self) -> bool {
        self.connections.iter().any(|connection| connection.open.lock().is_some())
    }

    /// What a Cluster's servers serve; `None` of a server that is none of a Cluster.
    async fn slots(&self, within: Duration) -> Result<Option<Vec<Range>>, String> {
        let deadline = Instant::now() + within;
        let (made, mut connection) = self.connections[0].get(self, deadline).await?;
        let mut cmd = Cmd::new();
        cmd.arg("CLUSTER").arg("SLOTS");
        match timeout_at(deadline, connection.send_packed_command(&cmd)).await {
            Ok(answer) => match answer.and_then(Value::extract_error) {
                Ok(answer) => Ok(Some(Range::all(&answer, &self.address))),
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
    async fn send(
        &self,
        connection: usize,
        calls: &[Call],
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
        calls: &[Call],
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
    fn unpack(&self, calls: &[Call], bundle: &[Try], answer: Option<Value>, outcomes: &mut Vec<Outcome>) {
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
struct Connection {
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

/// Where one URL leads.
fn seed(url: &str, config: &RedisConfig) -> Result<ConnectionInfo, Error> {
    let refused = |error: RedisError| Error::Url { url: without_password(url), reason: error.to_string() };
    let info = url.into_connection_info().map_err(refused)?;
    match &config.root_certificate {
        None => Ok(info),
        Some(certificate) => {
            let certificates =
                redis::TlsCertificates { client_tls: None, root_cert: Some(certificate.clone()) };
            let client = Client::build_with_tls(info, certificates).map_err(refused)?;
            Ok(client.get_connection_info().clone())
        }
    }
}
