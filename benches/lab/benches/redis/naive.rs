//! The design that most trackers on Redis have: two hashes per swarm, and every announce reads one of them
//! whole.
//!
//! Its model is the store on Redis of chihaya, a tracker in Go: a hash for the seeders of a swarm and one for
//! its leechers, with a peer's id, address and port as the field and the time of its announce as the value; a
//! hash for each family that names the hashes of its swarms; numbers of seeders, leechers and hashes beside.
//! To select peers, `HKEYS` fetches a whole hash, and the client takes as many as it wants.
//!
//! [`as_published`](Naive::as_published) sends the commands of the original, one after another. In
//! [`announce`](Naive::announce) everything is cheaper that can be without another design:
//! - Commands that do not depend on an answer are one pipeline and one round trip: the changes, the counts
//!   (`HLEN` of both, a scrape) and the first `HKEYS`. The original takes a round trip for each.
//! - The second `HKEYS`, of leechers for a leecher, is sent only if there are too few seeders; the original
//!   always reads both.
//! - Without `MULTI` and `EXEC`, with which the original keeps the two changes together.
//! - Numbers beside are changed together with the second read.
//!
//! With `random`, it takes `HRANDFIELD` in place of `HKEYS`, so that a hash is not read whole: the cheapest
//! that plain commands can do, which no tracker is known to have.
//!
//! In all, keys have the info hash in 20 bytes rather than 40 digits, times are seconds rather than
//! nanoseconds, peers are decoded until there are enough, calls of all callers share connections and their
//! packets, and nothing is ever swept.

use std::time::Duration;

use futures_util::future::try_join_all;
use redis::{
    AsyncConnectionConfig, Client, Cmd, FromRedisValue as _, Pipeline, Value, aio::MultiplexedConnection,
};
use swarmkeep::{
    Announce, AnnounceEvent, Family, InfoHash, PeerBuffer, SwarmStats, Timestamp, implement::SectionExt as _,
};

use crate::Result;

/// Announces of one pipeline while a store is filled.
const FILLED: usize = 256;

/// Such a store, over the same number of connections as ours.
pub(crate) struct Naive {
    connections: Vec<MultiplexedConnection>,
}

impl Naive {
    pub(crate) async fn connect(url: &str, connections: usize) -> Result<Self> {
        let client = Client::open(url)?;
        // Patient, as in our own settings: the machine is busy.
        let patient = AsyncConnectionConfig::new().set_response_timeout(Some(Duration::from_secs(60)));
        let connecting =
            (0..connections).map(|_| client.get_multiplexed_async_connection_with_config(&patient));
        Ok(Self { connections: try_join_all(connecting).await? })
    }

    /// An announce through the connection `via`, which reads a hash whole, or `random` fields of it. No store
    /// of this design counts downloads.
    pub(crate) async fn announce(
        &self,
        via: usize,
        random: bool,
        announce: &Announce,
        now: Timestamp,
        peers: &mut PeerBuffer<'_>,
    ) -> Result<SwarmStats> {
        // The announcer may be among them.
        let read = |pipeline: &mut Pipeline, key: &[u8]| match random {
            true => _ = pipeline.cmd("HRANDFIELD").arg(key).arg(announce.want + 1),
            false => _ = pipeline.cmd("HKEYS").arg(key),
        };
        peers.clear();
        let swarm = Swarm::of(announce);
        let (member, seeder) = (member(announce), announce.left == 0);
        let stopped = announce.event == AnnounceEvent::Stopped;
        let graduates = announce.event == AnnounceEvent::Completed;
        let mut pipeline = Pipeline::new();
        if stopped || graduates {
            pipeline.cmd("HDEL").arg(&swarm.leechers).arg(&member);
        }
        if stopped {
            pipeline.cmd("HDEL").arg(&swarm.seeders).arg(&member);
        } else {
            swarm.put(&mut pipeline, seeder || graduates, &member, now);
        }
        pipeline.cmd("HLEN").arg(&swarm.seeders).cmd("HLEN").arg(&swarm.leechers);
        let selects = !stopped && announce.want > 0;
        let [first, second] = if seeder {
            [Some(&swarm.leechers), None]
        } else {
            [Some(&swarm.seeders), Some(&swarm.leechers)]
        };
        if let (true, Some(first)) = (selects, first) {
            read(&mut pipeline, first);
        }

        let mut answers = self.ask(via, &pipeline).await?.into_iter();
        let mut number = || answers.next().map_or_else(|| Err("an answer is missing".into()), number);
        let mut pipeline = Pipeline::new();
        if (stopped || graduates) && number()? == 1 {
            pipeline.cmd("DECR").arg(swarm.count("L"));
        }
        if stopped {
            if number()? == 1 {
                pipeline.cmd("DECR").arg(swarm.count("S"));
            }
        } else {
            if number()? == 1 {
                pipeline.cmd("INCR").arg(swarm.count(if seeder || graduates { "S" } else { "L" }));
            }
            if number()? == 1 {
                pipeline.cmd("INCR").arg(swarm.count("infohash"));
            }
        }
        let stats = SwarmStats { complete: number()?, incomplete: number()?, downloaded: 0 };
        if selects {
            select(answers.next(), &member, announce.want, peers)?;
        }
        let second = second.filter(|_| selects && peers.len() < announce.want);
        if let Some(second) = second {
            read(&mut pipeline, second);
        }
        if !pipeline.is_empty() {
            let answer = self.ask(via, &pipeline).await?.pop();
            if second.is_some() {
                select(answer, &member, announce.want, peers)?;
            }
        }
        Ok(stats)
    }

    /// The same in the original's way: each step waits for the one before, and both hashes are read whole.
    pub(crate) async fn as_published(
        &self,
        via: usize,
        announce: &Announce,
        now: Timestamp,
        peers: &mut PeerBuffer<'_>,
    ) -> Result<SwarmStats> {
        peers.clear();
        let swarm = Swarm::of(announce);
        let (member, seeder) = (member(announce), announce.left == 0);
        if announce.event == AnnounceEvent::Stopped {
            for (key, count) in [(&swarm.seeders, "S"), (&swarm.leechers, "L")] {
                if number(self.ask_one(via, Cmd::hdel(key, &member)).await?)? == 1 {
                    self.ask_one(via, Cmd::decr(swarm.count(count), 1)).await?;
                }
            }
        } else {
            let graduates = announce.event == AnnounceEvent::Completed;
            let mut transaction = Pipeline::new();
            transaction.cmd("MULTI");
            if graduates {
                transaction.cmd("HDEL").arg(&swarm.leechers).arg(&member);
            }
            swarm.put(&mut transaction, seeder || graduates, &member, now);
            transaction.cmd("EXEC");
            let Some(Value::Array(done)) = self.ask(via, &transaction).await?.pop() else {
                return Err("a transaction has answers".into());
            };
            let mut done = done.into_iter().map(number);
            let mut is_one = || done.next().transpose().map(|done| done == Some(1));
            if graduates && is_one()? {
                self.ask_one(via, Cmd::decr(swarm.count("L"), 1)).await?;
            }
            if is_one()? {
                let role = if seeder || graduates { "S" } else { "L" };
                self.ask_one(via, Cmd::incr(swarm.count(role), 1)).await?;
            }
            if is_one()? {
                self.ask_one(via, Cmd::incr(swarm.count("infohash"), 1)).await?;
            }
        }
        let complete = number(self.ask_one(via, Cmd::hlen(&swarm.seeders)).await?)?;
        let incomplete = number(self.ask_one(via, Cmd::hlen(&swarm.leechers)).await?)?;
        if announce.event != AnnounceEvent::Stopped && announce.want > 0 {
            let leechers = self.ask_one(via, Cmd::hkeys(&swarm.leechers)).await?;
            let seeders = self.ask_one(via, Cmd::hkeys(&swarm.seeders)).await?;
            if !seeder {
                select(Some(seeders), &member, announce.want, peers)?;
            }
            select(Some(leechers), &member, announce.want, peers)?;
        }
        Ok(SwarmStats { complete, incomplete, downloaded: 0 })
    }

    /// Puts peers into their swarms, each once, without selecting any.
    pub(crate) async fn fill(
        &self,
        via: usize,
        announces: impl Iterator<Item = Announce>,
        now: Timestamp,
    ) -> Result<()> {
        let mut announces = announces.peekable();
        while let Some(first) = announces.peek() {
            let (mut pipeline, mut counts) = (Pipeline::new(), Pipeline::new());
            let swarm = Swarm::of(first);
            let names = [swarm.count("S"), swarm.count("L"), swarm.count("infohash")];
            let mut added = [0_u32; 3];
            let mut roles = Vec::with_capacity(FILLED);
            for announce in announces.by_ref().take(FILLED) {
                let seeder = announce.left == 0;
                Swarm::of(&announce).put(&mut pipeline, seeder, &member(&announce), now);
                roles.push(usize::from(!seeder));
            }
            for (pair, role) in self.ask(via, &pipeline).await?.chunks(2).zip(roles) {
                added[role] += u32::from(pair[0] == Value::Int(1));
                added[2] += u32::from(pair[1] == Value::Int(1));
            }
            for (name, added) in names.iter().zip(added) {
                counts.cmd("INCRBY").arg(name).arg(added);
            }
            self.ask(via, &counts).await?;
        }
        Ok(())
    }

    /// The number of all peers, by the numbers beside.
    pub(crate) async fn peers(&self) -> Result<u64> {
        let mut pipeline = Pipeline::new();
        for count in ["IPv4_S_count", "IPv4_L_count", "IPv6_S_count", "IPv6_L_count"] {
            pipeline.cmd("GET").arg(count);
        }
        let counts = self.ask(0, &pipeline).await?;
        let counts = counts.into_iter().map(Option::<u64>::from_redis_value);
        Ok(counts.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().sum())
    }

    async fn ask_one(&self, via: usize, command: Cmd) -> Result<Value> {
        let mut connection = self.connections[via % self.connections.len()].clone();
        Ok(connection.send_packed_command(&command).await?)
    }

    async fn ask(&self, via: usize, pipeline: &Pipeline) -> Result<Vec<Value>> {
        let mut connection = self.connections[via % self.connections.len()].clone();
        Ok(connection.send_packed_commands(pipeline, 0, pipeline.len()).await?)
    }
}

/// The keys of a swarm and its family.
pub(crate) struct Swarm {
    pub(crate) seeders: Vec<u8>,
    pub(crate) leechers: Vec<u8>,
    pub(crate) family: &'static str,
}

impl Swarm {
    pub(crate) fn of(announce: &Announce) -> Self {
        let family = match announce.endpoint.family() {
            Family::V4 => "IPv4",
            Family::V6 => "IPv6",
        };
        let key = |role: &str, info_hash: &InfoHash| {
            [family.as_bytes(), role.as_bytes(), info_hash.as_bytes()].concat()
        };
        Self { seeders: key("_S_", &announce.info_hash), leechers: key("_L_", &announce.info_hash), family }
    }

    fn put(&self, pipeline: &mut Pipeline, seeder: bool, member: &[u8], now: Timestamp) {
        let own = if seeder { &self.seeders } else { &self.leechers };
        pipeline.cmd("HSET").arg(own).arg(member).arg(now.as_secs());
        pipeline.cmd("HSET").arg(self.family).arg(own).arg(now.as_secs());
    }

    fn count(&self, of: &str) -> String {
        format!("{}_{of}_count", self.family)
    }
}

/// A peer as a field.
fn member(announce: &Announce) -> Vec<u8> {
    [announce.peer_id.as_bytes().as_slice(), announce.endpoint.as_bytes()].concat()
}

/// Decodes up to `want` of the fields, without the announcer.
fn select(answer: Option<Value>, announcer: &[u8], want: usize, peers: &mut PeerBuffer<'_>) -> Result<()> {
    const ID: usize = 20;
    let Some(Value::Array(fields)) = answer else { return Err("a hash is expected".into()) };
    for field in fields {
        let Value::BulkString(field) = field else { return Err("a field is expected".into()) };
        if peers.len() >= want {
            break;
        }
        if field == announcer {
            continue;
        }
        match field.get(ID..) {
            Some(compact) if compact.len() == 6 && peers.v4.room() > 0 => peers.v4.push(compact.try_into()?),
            Some(compact) if compact.len() == 18 && peers.v6.room() > 0 => peers.v6.push(compact.try_into()?),
            _ => {}
        }
    }
    Ok(())
}

fn number(answer: Value) -> Result<u32> {
    match answer {
        Value::Int(number) => Ok(number.try_into()?),
        other => Err(format!("{other:?} is no number").into()),
    }
}
