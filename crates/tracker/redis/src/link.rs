//! The link to the servers: it renews connections, sends each call to the right server, and ends it within
//! bounded time.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use futures_util::future::join_all;
use parking_lot::{Mutex, RwLock};
use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo as _, Value};
use swarmkeep::{Answer, Unavailable, bittorrent::in_words};
use tokio::{
    runtime::Handle,
    time::{Instant, sleep, timeout_at},
};
use tracing::{debug, warn};

use crate::{
    Error, RedisConfig,
    access::Access,
    address::{Address, SlotRange},
    config::without_password,
    node::{GREETING, Node, Outcome, SlotCall, Try},
    place::{Engine, SLOTS},
    reply::Unconfirmed,
    rights,
    topology::Topology,
};

/// Why a call has no answer.
#[derive(Debug)]
pub(crate) enum Failure {
    Unavailable(String),
    /// It was not done, because of the layout of its shard.
    Unconfirmed(Unconfirmed),
    /// A confirmed call that had to wait, with the reason: its layout may have changed meanwhile.
    Stale(String),
}

impl From<Failure> for Unavailable {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Unavailable(reason) | Failure::Stale(reason) => Self::new(reason),
            Failure::Unconfirmed(why) => Self::new(why.to_string()),
        }
    }
}

/// The pause before a call is tried again. It doubles each time, from the first value to the second.
pub(crate) const PAUSE: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(200));

/// The servers, and the limits of calls to them.
#[derive(Debug)]
pub(crate) struct Link {
    /// The servers of the given URLs.
    seeds: Vec<Arc<Node>>,
    /// The servers that other servers have named. The next look at the slots removes servers without slots.
    others: Mutex<Vec<Arc<Node>>>,
    /// The longest time for which a call is tried.
    pub(crate) patience: Duration,
    topology: RwLock<Arc<Topology>>,
    /// Held by the call that reads the slots of the servers.
    asking: tokio::sync::Mutex<()>,
    /// Whether an answer was lost: the server may have lost its data too.
    pub(crate) lost: AtomicBool,
    in_flight: AtomicUsize,
    most_in_flight: usize,
    runtime: Handle,
}

impl Link {
    pub(crate) async fn connect(config: &RedisConfig) -> Result<Self, Error> {
        let seeds: Vec<_> = config.urls.iter().map(|url| seed(url)).collect::<Result<_, _>>()?;
        let wrong = |reason| Error::Url {
            url: config.urls.iter().map(|url| without_password(url)).collect::<Vec<_>>().join(", "),
            reason,
        };
        let access = Arc::new(Access::new(config, &seeds).map_err(wrong)?);
        let link = Self {
            seeds: seeds.into_iter().map(|seed| Arc::new(Node::new(seed, Arc::clone(&access)))).collect(),
            others: Mutex::default(),
            patience: config.patience,
            topology: RwLock::default(),
            asking: tokio::sync::Mutex::new(()),
            lost: AtomicBool::new(false),
            in_flight: AtomicUsize::new(0),
            most_in_flight: config.in_flight.max(1),
            runtime: Handle::current(),
        };
        link.find_servers(None, GREETING).await.map_err(Error::Unreachable)?;
        let topology = Arc::clone(&link.topology.read());
        if let Some(reason) = topology.kept_out.first() {
            return Err(Error::Stranger(reason.clone()));
        }
        join_all(topology.nodes.iter().map(|node| warn_of_memory(node))).await;
        Ok(link)
    }

    /// Polls a future within the runtime in which the link was made. Connections and timers need a runtime,
    /// and the caller may have none.
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

    pub(crate) fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) {
        self.runtime.spawn(future);
    }

    /// Sends one call of the store's own maintenance, which is not counted, and returns its answer.
    pub(crate) async fn call(&self, call: SlotCall) -> Result<Value, Failure> {
        let mut answers = self.call_all(std::slice::from_ref(&call)).await;
        answers.pop().expect("an answer for each call")
    }

    /// Reserves room for `calls` among the calls that may wait at once. The error says that there are too
    /// many.
    pub(crate) fn let_in(&self, calls: usize) -> Result<InFlightCalls<'_>, String> {
        let before = self.in_flight.fetch_add(calls, Relaxed);
        let place = InFlightCalls(self, calls);
        // One large batch is let in when there is no other.
        let is_in = before == 0 || before + calls <= self.most_in_flight;
        is_in.then_some(place).ok_or_else(|| format!("{} calls are waiting already", self.most_in_flight))
    }

    /// Sends calls, and returns their answers. The caller has bounded their number. Calls for one slot are
    /// done in order.
    pub(crate) async fn call_all(&self, calls: &[SlotCall]) -> Vec<Result<Value, Failure>> {
        let deadline = Instant::now() + self.patience;
        let mut answers: Vec<Option<Result<Value, Failure>>> = calls.iter().map(|_| None).collect();
        let mut waiting: Vec<Try> = (0..calls.len()).map(|call| Try { call, ask: None }).collect();
        let (mut pause, mut has_looked) = (PAUSE.0, false);
        loop {
            let mut again = Vec::new();
            let mut before = RetrySteps::default();
            for (tried, outcome) in self.once(calls, &waiting, deadline).await {
                if matches!(outcome, Outcome::Lost(_)) {
                    self.lost.store(true, Relaxed);
                }
                match outcome {
                    Outcome::Answered(value) => answers[tried.call] = Some(Ok(value)),
                    Outcome::Refused(reason) => {
                        answers[tried.call] = Some(Err(Failure::Unavailable(reason)));
                    }
                    Outcome::Unconfirmed(why) => answers[tried.call] = Some(Err(Failure::Unconfirmed(why))),
                    Outcome::Lost(reason) if !calls[tried.call].repeatable => {
                        let reason = format!("{reason}; whether it was done is not known");
                        answers[tried.call] = Some(Err(Failure::Unavailable(reason)));
                    }
                    Outcome::Lost(reason) | Outcome::Later(reason) => {
                        before.wait = true;
                        before.look = true;
                        again.push((Try { call: tried.call, ask: None }, reason));
                    }
                    Outcome::Elsewhere(address, reason) => {
                        // The slots were read already, and the servers do not agree yet.
                        before.wait |= has_looked;
                        before.look = true;
                        before.named = address;
                        again.push((Try { call: tried.call, ask: None }, reason));
                    }
                    Outcome::Ask(address) => {
                        let reason = format!("another server redirected the call to {address}");
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
                    answers[tried.call] = Some(Err(Failure::Unavailable(reason)));
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
            waiting.clear();
            for (tried, reason) in again {
                // The store may have been emptied and created again meanwhile.
                if before.wait && calls[tried.call].confirmed {
                    answers[tried.call] = Some(Err(Failure::Stale(reason)));
                } else {
                    waiting.push(tried);
                }
            }
            if waiting.is_empty() {
                break;
            }
            waiting.sort_unstable_by_key(|tried| tried.call);
        }
        answers.into_iter().map(|answer| answer.expect("each was answered or given up")).collect()
    }

    /// The number of keys that the servers have evicted since their starts; `None` if one does not say.
    pub(crate) async fn evicted_keys(&self) -> Option<u64> {
        let nodes = self.topology.read().nodes.clone();
        let counts = join_all(nodes.iter().map(|node| node.evicted_keys(GREETING))).await;
        counts.into_iter().sum::<Result<u64, _>>().ok()
    }

    /// A slot of each server that serves any.
    pub(crate) fn slot_of_each_server(&self) -> Vec<u16> {
        let topology = Arc::clone(&self.topology.read());
        let serves = |node: &Arc<Node>, slot: u16| {
            topology.master_of(slot).is_some_and(|master| Arc::ptr_eq(master, node))
        };
        topology.nodes.iter().filter_map(|node| (0..SLOTS).find(|&slot| serves(node, slot))).collect()
    }

    /// Whether some server has the module `swarmkeep`, and the servers without it. With `all`, each server
    /// must answer.
    pub(crate) async fn module(&self, key: &str, all: bool) -> Result<(bool, Vec<String>), Error> {
        let nodes = self.topology.read().nodes.clone();
        let asked = join_all(nodes.iter().map(|node| node.has_module(key, GREETING))).await;
        let (mut some, mut without) = (false, Vec::new());
        for (node, has) in nodes.iter().zip(asked) {
            match has {
                Ok(true) => some = true,
                Ok(false) => without.push(node.address.to_string()),
                Err(reason) if all => return Err(Error::Unreachable(reason)),
                Err(_) => {}
            }
        }
        Ok((some, without))
    }

    /// Fails if a server does not know a command, or if the user lacks a right there. With `all`, each server
    /// must answer.
    pub(crate) async fn require(&self, prefix: &str, engine: Option<Engine>, all: bool) -> Result<(), Error> {
        let topology = Arc::clone(&self.topology.read());
        let tried = topology.nodes.iter().map(|node| {
            let needed = rights::needed(prefix, engine, topology.is_cluster());
            node.lacks(needed, prefix, GREETING)
        });
        for (node, lacks) in topology.nodes.iter().zip(join_all(tried).await) {
            match lacks {
                Ok((_, Some(command))) => {
                    return Err(Error::Command { server: node.address.to_string(), command });
                }
                Ok((missing, None)) if missing.is_empty() => {}
                Ok((missing, None)) => {
                    let (server, missing) = (node.address.to_string(), missing.join(" "));
                    return Err(Error::Rights { prefix: prefix.to_owned(), server, missing });
                }
                Err(reason) if all => return Err(Error::Unreachable(reason)),
                Err(_) => {}
            }
        }
        Ok(())
    }

    /// Sends each call to the server that it is for, once.
    async fn once(&self, calls: &[SlotCall], waiting: &[Try], deadline: Instant) -> Vec<(Try, Outcome)> {
        let topology = Arc::clone(&self.topology.read());
        // The calls for each server and connection, in order.
        let mut groups: Vec<(Arc<Node>, usize, Vec<Try>)> = Vec::new();
        let mut outcomes = Vec::with_capacity(waiting.len());
        for tried in waiting {
            let slot = calls[tried.call].slot;
            let node = match &tried.ask {
                Some(address) => Some(self.node(address)),
                None => topology.master_of(slot).cloned(),
            };
            let Some(node) = node else {
                outcomes.push((tried.clone(), Outcome::Later(format!("no server serves slot {slot}"))));
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
            // Calls that can be bundled are then next to each other, and still in order.
            groups.iter_mut().for_each(|(_, _, group)| group.sort_by_key(|tried| calls[tried.call].slot));
        }
        if let [(node, connection, group)] = groups.as_slice() {
            // Nearly every call goes to one server.
            outcomes.extend(node.send(*connection, calls, group, one_key, deadline).await);
        } else {
            let sent = groups
                .iter()
                .map(|(node, connection, group)| node.send(*connection, calls, group, one_key, deadline));
            outcomes.extend(join_all(sent).await.into_iter().flatten());
        }
        outcomes
    }

    fn node(&self, address: &Address) -> Arc<Node> {
        let mut others = self.others.lock();
        let known = self.seeds.iter().chain(&*others).find(|node| node.address == *address);
        known.cloned().unwrap_or_else(|| {
            let node = Arc::new(self.node_at(address));
            others.push(Arc::clone(&node));
            node
        })
    }

    /// A new server, reached in the same way as the first URL's server.
    fn node_at(&self, address: &Address) -> Node {
        self.seeds[0].at(address.clone())
    }

    /// Reads the slots of the servers, unless another call has just done so. Tries the server `named` first.
    async fn look_again(&self, named: Option<&Address>, deadline: Instant) {
        let before = Arc::clone(&self.topology.read());
        if !before.is_cluster() {
            return;
        }
        let Ok(_asking) = timeout_at(deadline, self.asking.lock()).await else { return };
        if !Arc::ptr_eq(&before, &self.topology.read()) {
            return;
        }
        // A silent server must leave time to ask another.
        let each = GREETING.min(self.patience / 2);
        if let Ok(Err(reason)) = timeout_at(deadline, self.find_servers(named, each)).await {
            debug!(%reason, "no server tells of the others");
        }
    }

    /// Asks one server after another for the slots until one answers: first the server `named`, then those
    /// with open connections, then the others. Each has the time `each`.
    async fn find_servers(&self, named: Option<&Address>, each: Duration) -> Result<(), String> {
        let named = named.map(|address| self.node(address));
        let is_named = |node: &Arc<Node>| named.as_ref().is_some_and(|named| Arc::ptr_eq(named, node));
        let mut nodes: Vec<_> = self.others.lock().iter().chain(&self.seeds).cloned().collect();
        nodes.sort_by_cached_key(|node| (!is_named(node), !node.is_connected()));
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
                Err(reason) => reasons.push(reason),
            }
        }
        Err(reasons.join("; "))
    }

    /// The servers and their slots, as this server sees them.
    async fn topology_of(&self, node: &Arc<Node>, within: Duration) -> Result<Topology, String> {
        match node.slots(within).await? {
            None => Ok(Topology::single(Arc::clone(node))),
            Some(ranges) if ranges.is_empty() => Err(format!("{} serves no slots", node.address)),
            Some(ranges) => {
                let mut topology = Topology::cluster(&ranges, |address| self.node(address));
                topology.kept_out = self.kept_out(&ranges);
                Ok(topology)
            }
        }
    }

    /// The reasons why servers of these ranges must not receive the password. Replicas count too, since they
    /// may become masters.
    fn kept_out(&self, ranges: &[SlotRange]) -> Vec<String> {
        let mut named: Vec<_> =
            ranges.iter().flat_map(|range| std::iter::once(&range.master).chain(&range.replicas)).collect();
        named.sort_unstable();
        named.dedup();
        named.into_iter().filter_map(|address| self.node_at(address).kept_out()).collect()
    }
}

/// Warns of a server that evicts keys: with each key it silently loses a shard. A policy that evicts only
/// keys with an expiry keeps the shards, which have none. Warns also of a server that takes any amount of
/// memory.
async fn warn_of_memory(node: &Node) {
    let problem = match node.memory_limit(GREETING).await {
        Ok((_, policy)) if policy.starts_with("allkeys-") => format!(
            "the server evicts keys ({policy}) when its memory is full, and loses a shard of the store with each: \
             set maxmemory-policy noeviction there"
        ),
        Ok((0, _)) => {
            "the server has no limit of its memory, and clients can make up torrents until it is full: \
            set maxmemory there, and maxmemory-policy noeviction"
                .to_owned()
        }
        Ok(_) => return,
        Err(error) => format!(
            "whether the server evicts keys is not known: set maxmemory-policy noeviction there, and allow the user \
             +info ({error})"
        ),
    };
    warn!(server = %node.address, "{problem}");
}

/// The steps before calls are sent again.
#[derive(Debug, Default)]
struct RetrySteps {
    wait: bool,
    /// Whether to ask which server serves which slot.
    look: bool,
    /// The server to ask first, which a redirection has named.
    named: Option<Address>,
}

/// Room for some of the calls that may wait at once. It is given back on drop.
#[must_use = "the room is given back when it is dropped"]
pub(crate) struct InFlightCalls<'a>(&'a Link, usize);

impl Drop for InFlightCalls<'_> {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(self.1, Relaxed);
    }
}

fn seed(url: &str) -> Result<ConnectionInfo, Error> {
    let refused = |reason: String| Error::Url { url: without_password(url), reason };
    let info = url.into_connection_info().map_err(|error| refused(in_words(&error)))?;
    match info.addr() {
        ConnectionAddr::TcpTls { insecure: true, .. } => {
            Err(refused("certificates are always verified: leave #insecure out".to_owned()))
        }
        _ => Ok(info),
    }
}
