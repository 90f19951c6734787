//! One server: the calls to it, and the meaning of its answers.

use std::{fmt, ops, str::FromStr, sync::Arc, time::Duration};

use redis::{Cmd, ConnectionAddr, ConnectionInfo, ErrorKind, Pipeline, RedisError, ServerErrorKind, Value};
use tokio::time::Instant;
use tracing::{info, warn};

use crate::{
    access::Access,
    address::{Address, SlotRange},
    calls::Caller,
    connection::{Connection, OpenConnection},
    library::{LIBRARY, Operation},
    place::{Engine, SLOTS},
    reply::{self, Reader, Unconfirmed},
    rights::Right,
};

/// The most calls that are sent to one server at once. Further calls wait for the answers.
const PIPELINE: usize = 256;

/// The most announces in one call. More would save little, and other clients of the server would wait longer.
const BUNDLE: usize = 32;

/// The time that a server has to accept a connection, or to answer `CLUSTER SLOTS`.
pub(crate) const GREETING: Duration = Duration::from_millis(1000);

/// The memory of a short reply: numbers, or an error.
pub(crate) const SHORT_REPLY: usize = 4096;
/// The memory of a reply to `INFO` of a section.
const INFO_REPLY: usize = 64 << 10;
/// The memory of a list of the slots, of which each may have another master, with some replicas.
const SLOTS_REPLY: usize = SLOTS as usize * 1024;

/// A command, and the slot of its key.
#[derive(Debug)]
pub(crate) struct SlotCall {
    pub(crate) slot: u16,
    pub(crate) kind: CallKind,
    /// The memory of the longest reply.
    pub(crate) most: usize,
    /// Whether doing it twice has the same effect as once. Then it is sent again if its answer was lost.
    pub(crate) repeatable: bool,
    /// Whether it says that its layout was just confirmed. Then it is not sent again after a pause.
    pub(crate) confirmed: bool,
}

#[derive(Debug)]
pub(crate) enum CallKind {
    Command(Cmd),
    /// Several announces may be sent as one call.
    Announce {
        key: Arc<[u8]>,
        request: Vec<u8>,
        caller: Caller,
        /// Whether the peer leaves. A server without free memory still accepts that.
        leaves: bool,
    },
}

/// The index of a call, and the server to ask this once, if a redirection has named one.
#[derive(Debug, Clone)]
pub(crate) struct Try {
    pub(crate) call: usize,
    pub(crate) ask: Option<Address>,
}

impl SlotCall {
    /// A repeatable command with a short reply.
    pub(crate) const fn new(slot: u16, cmd: Cmd) -> Self {
        Self { slot, kind: CallKind::Command(cmd), most: SHORT_REPLY, repeatable: true, confirmed: false }
    }

    const fn announces(&self) -> bool {
        matches!(self.kind, CallKind::Announce { .. })
    }

    /// Whether a server without free memory accepts it, if it is not bundled with other calls.
    const fn leaves(&self) -> bool {
        matches!(self.kind, CallKind::Announce { leaves: true, .. })
    }
}

/// Calls that are sent as one: consecutive announces. In a Cluster they have one key, because a server
/// refuses calls with several keys of a slot that is moving.
struct Bundle(ops::Range<usize>);

impl Bundle {
    fn all(calls: &[SlotCall], part: &[Try], one_key: bool) -> Vec<Self> {
        let mut bundles: Vec<Self> = Vec::with_capacity(part.len() / 4 + 1);
        for (at, tried) in part.iter().enumerate() {
            let joins = bundles.last().is_some_and(|Self(bundle)| {
                let last = &part[bundle.end - 1];
                bundle.len() < BUNDLE
                    && last.ask == tried.ask
                    && match (&calls[last.call].kind, &calls[tried.call].kind) {
                        (
                            CallKind::Announce { key: last, caller: before, .. },
                            CallKind::Announce { key, caller, .. },
                        ) => (!one_key || last == key) && before == caller,
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
            bundle.clone().filter_map(|call| match &call.kind {
                CallKind::Announce { key, request, .. } => Some((&**key, request.as_slice())),
                CallKind::Command(_) => None,
            })
        };
        match &calls[part[self.0.start].call].kind {
            CallKind::Command(cmd) => cmd.clone(),
            CallKind::Announce { caller, .. } => {
                let leave = bundle.clone().all(SlotCall::leaves);
                let operation = if leave { Operation::Leave } else { Operation::Announce };
                let name = operation.name(caller.engine);
                let bytes = announces().fold(0, |bytes, (key, request)| bytes + key.len() + request.len());
                let mut cmd = Cmd::with_capacity(4 + 2 * self.0.len(), name.len() + bytes + 36);
                match caller.engine {
                    Engine::Functions => {
                        cmd.arg("FCALL").arg(name).arg(self.0.len());
                        announces().for_each(|(key, _)| {
                            cmd.arg(key);
                        });
                        announces().for_each(|(_, request)| {
                            cmd.arg(request);
                        });
                        cmd.arg(caller.as_bytes());
                    }
                    Engine::Module => {
                        cmd.arg(name).arg(caller.as_bytes());
                        announces().for_each(|(key, request)| {
                            cmd.arg(key).arg(request);
                        });
                    }
                }
                cmd
            }
        }
    }
}

/// The result of sending a call once.
#[derive(Debug)]
pub(crate) enum Outcome {
    Answered(Value),
    /// It will not be done.
    Refused(String),
    /// It was not done, because of the layout of its shard.
    Unconfirmed(Unconfirmed),
    /// It was not done, because the server lacked the functions. They are loaded before it is sent again.
    Again(String),
    /// It was not done, because of the other calls in its bundle. It is sent again without them.
    Apart(String),
    /// It was not done: another server serves the slot from now on, this one if it was named.
    Elsewhere(Option<Address>, String),
    /// It was not done: send it to this server, this once.
    Ask(Address),
    /// It was not done, but may be done later.
    Later(String),
    /// It is not known whether it was done.
    Lost(String),
}

impl Outcome {
    const fn is_final(&self) -> bool {
        matches!(self, Self::Answered(_) | Self::Refused(_) | Self::Unconfirmed(_))
    }
}

pub(crate) struct Node {
    pub(crate) address: Address,
    pub(crate) info: ConnectionInfo,
    pub(crate) access: Arc<Access>,
    pub(crate) connections: Vec<Connection>,
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the password.
        write!(f, "Node({})", self.address)
    }
}

impl Node {
    pub(crate) fn new(info: ConnectionInfo, access: Arc<Access>) -> Self {
        let address = match info.addr() {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
                Address { host: host.clone(), port: *port }
            }
            other => Address { host: other.to_string(), port: 0 },
        };
        let connections = (0..access.connections).map(|_| Connection::default()).collect();
        Self { address, info, access, connections }
    }

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
        Self::new(self.info.clone().set_addr(addr), Arc::clone(&self.access))
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.connections.iter().any(|connection| connection.is_open())
    }

    /// Why it must not receive the password; `None` if it may.
    pub(crate) fn kept_out(&self) -> Option<String> {
        self.access.refuses(&self.info)
    }

    /// The slots of a Cluster's servers; `None` if this server is in no Cluster.
    pub(crate) async fn slots(&self, within: Duration) -> Result<Option<Vec<SlotRange>>, String> {
        match self.answer(&["CLUSTER", "SLOTS"], SLOTS_REPLY, within).await? {
            Ok(answer) => Ok(Some(SlotRange::all(&answer, &self.address))),
            Err(error) if error.to_string().contains("cluster support disabled") => Ok(None),
            Err(error) => Err(format!("{}: {}", self.address, swarmkeep::bittorrent::in_words(&error))),
        }
    }

    /// The server's `maxmemory` and `maxmemory-policy`.
    pub(crate) async fn memory_limit(&self, within: Duration) -> Result<(u64, String), String> {
        let text = self.info("memory", within).await?;
        Ok((field(&text, "maxmemory:")?, field(&text, "maxmemory_policy:")?))
    }

    /// The number of keys that the server has evicted since its start.
    pub(crate) async fn evicted_keys(&self, within: Duration) -> Result<u64, String> {
        field(&self.info("stats", within).await?, "evicted_keys:")
    }

    async fn info(&self, section: &str, within: Duration) -> Result<String, String> {
        let answer = self.answer(&["INFO", section], INFO_REPLY, within).await?;
        match answer.map_err(|error| error.to_string())? {
            Value::BulkString(text) => Ok(String::from_utf8_lossy(&text).into_owned()),
            _ => Err("INFO is no text".to_owned()),
        }
    }

    /// Whether it has the module `swarmkeep`. Asks by a command about `key`, which may be another server's.
    pub(crate) async fn has_module(&self, key: &str, within: Duration) -> Result<bool, String> {
        match self.answer(&["swarmkeep.meta", "", key], SHORT_REPLY, within).await? {
            Err(error) if is_of_no_module(&error.to_string()) => Ok(false),
            // The error of a program between, for example.
            Err(error) if error.code() == Some("ERR") => Err(format!("{}: {error}", self.address)),
            // A server refuses a command for a key or a user only if it knows the command.
            _ => Ok(true),
        }
    }

    /// The rights among `needed` that the user lacks here, as rules of an ACL, and the first command that the
    /// server does not know.
    pub(crate) async fn lacks(
        &self,
        needed: Vec<Right>,
        prefix: &str,
        within: Duration,
    ) -> Result<(Vec<String>, Option<String>), String> {
        let (rules, commands): (Vec<_>, Vec<_>) =
            needed.into_iter().map(|Right { rule, command }| (rule, command)).unzip();
        let (mut missing, mut unknown) = (Vec::new(), None);
        for (rule, answer) in rules.into_iter().zip(self.answers(commands, SHORT_REPLY, within).await?) {
            let Err(error) = answer else { continue };
            let reason = error.to_string();
            // A proxy may not know ASKING: it redirects no call.
            if reason.contains("unknown command") && rule != "+asking" {
                unknown.get_or_insert(rule[1..].replace('|', " ").to_uppercase());
            } else if error.code() == Some("NOPERM") {
                let is_of_key = reason.contains("permissions to access");
                missing.push(if is_of_key { format!("~{prefix}*") } else { rule });
            }
        }
        missing.dedup();
        Ok((missing, unknown))
    }

    /// Sends a command that concerns no slot, and returns its answer.
    async fn answer(
        &self,
        words: &[&str],
        most: usize,
        within: Duration,
    ) -> Result<Result<Value, RedisError>, String> {
        let mut command = Cmd::new();
        words.iter().for_each(|word| _ = command.arg(word));
        Ok(self.answers(vec![command], most, within).await?.remove(0))
    }

    /// The same for several commands, each of which has an answer of at most `most` bytes.
    async fn answers(
        &self,
        commands: Vec<Cmd>,
        most: usize,
        within: Duration,
    ) -> Result<Vec<Result<Value, RedisError>>, String> {
        let deadline = Instant::now() + within;
        let on = &self.connections[0];
        let mut open = on.get(self, deadline).await?;
        let count = commands.len();
        let mut pipeline = Pipeline::with_capacity(count);
        pipeline.ignore_errors();
        commands.into_iter().for_each(|command| _ = pipeline.add_command(command));
        let answers = on.ask(self, &mut open, (&pipeline, count * most), deadline).await?;
        if answers.len() < count {
            return Err(format!("{} has not answered", self.address));
        }
        Ok(answers.into_iter().map(Value::extract_error).collect())
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
            // If the last call is to be tried again, the calls after it must not overtake it.
            let behind = outcomes.last().is_some_and(|(_, outcome)| !outcome.is_final());
            let answered = if behind {
                let reason = || format!("{} has not answered earlier calls", self.address);
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
        let mut open = match on.get(self, deadline).await {
            Ok(open) => open,
            Err(reason) => return part.iter().map(|_| Outcome::Later(reason.clone())).collect(),
        };
        let bundles = Bundle::all(calls, part, one_key);
        let mut pipeline = Pipeline::with_capacity(bundles.len());
        pipeline.ignore_errors();
        let mut most = part.iter().map(|tried| calls[tried.call].most).sum();
        for bundle in &bundles {
            if bundle.asks(part) {
                pipeline.cmd("ASKING").ignore();
                most += SHORT_REPLY;
            }
            pipeline.add_command(bundle.command(calls, part));
        }
        let values = match on.ask(self, &mut open, (&pipeline, most), deadline).await {
            Ok(values) => values,
            Err(reason) => return part.iter().map(|_| Outcome::Lost(reason.clone())).collect(),
        };
        let mut values = values.into_iter();
        let mut outcomes = Vec::with_capacity(part.len());
        for bundle in &bundles {
            if bundle.asks(part) {
                values.next();
            }
            self.unpack(calls, &part[bundle.0.clone()], values.next(), &mut outcomes);
        }
        let misses = |outcome: &Outcome| matches!(outcome, Outcome::Again(_));
        if outcomes.iter().any(misses) && !self.load(on, &mut open, deadline).await {
            for outcome in outcomes.iter_mut().filter(|outcome| misses(outcome)) {
                let reason = format!("{} has not loaded the functions", self.address);
                *outcome = Outcome::Later(reason);
            }
        }
        outcomes
    }

    /// The outcome of each call of a bundle, from the answer to the bundle.
    fn unpack(&self, calls: &[SlotCall], bundle: &[Try], answer: Option<Value>, outcomes: &mut Vec<Outcome>) {
        let little = || Outcome::Lost(format!("{} has sent fewer answers than calls", self.address));
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
            Some(Value::BulkString(bytes)) if bundle.iter().all(|tried| calls[tried.call].announces()) => {
                let mut rest = Reader(&bytes);
                outcomes.extend(bundle.iter().map(|_| match reply::announce_of_module(&mut rest) {
                    Ok(answer) => announced_by_module(answer),
                    Err(_) => little(),
                }));
            }
            Some(Value::Array(pieces)) if bundle.len() > 1 => {
                let mut pieces = pieces.into_iter();
                outcomes.extend(bundle.iter().map(|_| match reply::pieces(&mut pieces) {
                    Some(answer) => announced(answer),
                    None => little(),
                }));
            }
            Some(_) if bundle.len() > 1 => outcomes.extend(bundle.iter().map(|_| little())),
            Some(Value::Array(pieces)) if bundle.iter().all(|tried| calls[tried.call].announces()) => {
                outcomes.push(announced(pieces));
            }
            Some(value) => outcomes.push(Outcome::Answered(value)),
        }
    }

    /// The outcome of a call to which the server replied with an error.
    fn refused(&self, error: &RedisError) -> Outcome {
        let reason = format!("{}: {}", self.address, swarmkeep::bittorrent::in_words(error));
        let target = || error.redirect_node().and_then(|(to, _)| Address::of_redirection(to, &self.address));
        match (error.kind(), error.code()) {
            (ErrorKind::Server(ServerErrorKind::Ask), _) => match target() {
                Some(address) => Outcome::Ask(address),
                None => Outcome::Later(reason),
            },
            (ErrorKind::Server(ServerErrorKind::Moved), _) => {
                let target = target();
                let kept_out = target.as_ref().and_then(|address| self.at(address.clone()).kept_out());
                Outcome::Elsewhere(target, kept_out.unwrap_or(reason))
            }
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
            (_, Some("MISSING")) => Outcome::Unconfirmed(Unconfirmed::Missing),
            (_, Some("ELSEWHERE")) => Outcome::Unconfirmed(Unconfirmed::Elsewhere),
            _ if reason.contains("Function not found") => Outcome::Again(reason),
            _ if is_of_no_module(&reason) => Outcome::Refused(format!(
                "{} lacks the module swarmkeep, with which this store was created: load it there",
                self.address
            )),
            _ => Outcome::Refused(reason),
        }
    }

    /// Loads the functions into a server that does not have them. Returns whether that worked.
    async fn load(&self, on: &Connection, open: &mut OpenConnection, deadline: Instant) -> bool {
        let mut pipeline = Pipeline::with_capacity(1);
        pipeline.ignore_errors().cmd("FUNCTION").arg("LOAD").arg("REPLACE").arg(&LIBRARY.code);
        let loaded = match on.ask(self, open, (&pipeline, SHORT_REPLY), deadline).await {
            Ok(answers) => answers.into_iter().try_for_each(|answer| answer.extract_error().map(drop)),
            Err(_) => return false,
        };
        match &loaded {
            Ok(()) => info!(server = %self.address, "functions loaded"),
            Err(error) => warn!(server = %self.address, %error, "the functions were not loaded"),
        }
        loaded.is_ok()
    }
}

fn field<T: FromStr>(info: &str, name: &str) -> Result<T, String> {
    let value = info.lines().find_map(|line| line.strip_prefix(name)?.parse().ok());
    value.ok_or_else(|| format!("INFO has no {name}"))
}

/// The outcome of an announce, from its answer.
fn announced(pieces: Vec<Value>) -> Outcome {
    match reply::unconfirmed(&pieces) {
        Some(why) => Outcome::Unconfirmed(why),
        None => Outcome::Answered(Value::Array(pieces)),
    }
}

/// The same, from the module's answer to one announce.
fn announced_by_module(answer: &[u8]) -> Outcome {
    match reply::refused_by_module(answer) {
        None => Outcome::Answered(Value::BulkString(answer.to_vec())),
        Some(Ok(why)) => Outcome::Unconfirmed(why),
        Some(Err(reason)) => Outcome::Refused(reason),
    }
}

/// Whether an error says that the server lacks the module.
fn is_of_no_module(error: &str) -> bool {
    error.contains("unknown command") && error.contains("swarmkeep.")
}
