//! Servers that form a Cluster.

use std::thread;

use crate::{
    Error, Result, Server,
    view::{self, Node},
    wait_until,
};

/// A Cluster of servers on loopback ports, all killed when it is dropped.
///
/// Each node has a number, which never changes. The first masters come first, followed by the replicas of the
/// first master, of the second master, and so on.
#[derive(Debug)]
pub struct Cluster {
    servers: Vec<Server>,
    /// The id of each node.
    ids: Vec<String>,
    /// The configuration of each node.
    directives: Vec<(String, String)>,
}

impl Cluster {
    const SLOTS: u16 = 16384;

    /// Starts a Cluster whose slots are spread evenly over `masters`, each with `replicas_each` replicas. A
    /// node counts as failed after a second of silence. When this returns, after 2.05 s, all nodes agree and
    /// all replicas are connected: a new master refuses to serve for two seconds.
    ///
    /// With less than three masters, a failed master is not replaced, because more than half of them must
    /// agree.
    pub fn start(masters: usize, replicas_each: usize) -> Result<Self> {
        Self::start_with(masters, replicas_each, &[])
    }

    /// As [`start`](Self::start), with these lines in the configuration of each node, as for
    /// [`Server::start_with`]. `cluster-node-timeout` is in milliseconds. `requirepass` needs `masterauth`.
    pub fn start_with(masters: usize, replicas_each: usize, directives: &[(&str, &str)]) -> Result<Self> {
        assert!((1..=usize::from(Self::SLOTS)).contains(&masters), "a Cluster has 1 to 16384 masters");
        let directives = [&CONFIGURATION, directives].concat();
        let owned = directives.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
        let servers = thread::scope(|scope| {
            let start = || Server::start_with(&directives);
            let starting: Vec<_> = (0..masters * (1 + replicas_each)).map(|_| scope.spawn(start)).collect();
            starting.into_iter().map(|thread| thread.join().expect("no panic")).collect::<Result<Vec<_>>>()
        })?;
        let ids = servers.iter().map(|server| server.query(&["CLUSTER", "MYID"])).collect::<Result<_>>()?;
        let cluster = Self { servers, ids, directives: owned };
        cluster.form(masters, replicas_each)?;
        Ok(cluster)
    }

    /// Starts one more node, a master without slots, and returns its number, which is the highest. All nodes
    /// know it when this returns.
    pub fn add_master(&mut self) -> Result<usize> {
        let directives: Vec<_> =
            self.directives.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let (new, server) = (self.servers.len(), Server::start_with(&directives)?);
        for (_, other) in self.live() {
            server.command(&["CLUSTER", "MEET", "127.0.0.1", &other.port().to_string()])?;
        }
        self.ids.push(server.query(&["CLUSTER", "MYID"])?);
        self.servers.push(server);
        wait_until("joining a Cluster", || {
            let all = self.live().count();
            for (node, server) in self.live() {
                let fine = view_of(server)?.iter().filter(|seen| seen.is_fine).count();
                if fine < all {
                    return Err(format!("node {node} is connected to {fine} of {all} nodes"));
                }
                is_ok(server)?;
            }
            Ok(new)
        })
    }

    /// The URLs of all nodes.
    #[must_use]
    pub fn urls(&self) -> Vec<String> {
        self.servers.iter().map(Server::url).collect()
    }

    /// All nodes, including dead ones.
    #[must_use]
    pub fn servers(&self) -> &[Server] {
        &self.servers
    }

    /// A node by its number.
    #[must_use]
    pub fn server(&self, node: usize) -> &Server {
        &self.servers[node]
    }

    /// The live nodes that serve slots now, in ascending order.
    #[must_use]
    pub fn masters(&self) -> Vec<usize> {
        let mut masters: Vec<_> = self.masters_of_slots().into_iter().flatten().collect();
        masters.sort_unstable();
        masters.dedup();
        masters
    }

    /// The slot of a key.
    pub fn slot_of(&self, key: impl AsRef<[u8]>) -> Result<u16> {
        let server = self.live().next().map_or(&self.servers[0], |(_, server)| server);
        server.query(&[b"CLUSTER", b"KEYSLOT" as &[u8], key.as_ref()])
    }

    /// The node that serves a slot now.
    pub fn master_of_slot(&self, slot: u16) -> Result<usize> {
        let masters = self.masters_of_slots();
        masters.get(usize::from(slot)).copied().flatten().ok_or(Error::NoMaster { slot })
    }

    /// The live replicas of a node that are connected to it and that all live nodes know: the replicas that
    /// can replace it.
    #[must_use]
    pub fn replicas_of(&self, master: usize) -> Vec<usize> {
        let views: Vec<_> = self.live().filter_map(|(_, server)| view_of(server).ok()).collect();
        let is_replica = |id: &str, view: &Vec<Node>| {
            let seen = view.iter().find(|seen| seen.id == id);
            seen.is_some_and(|seen| seen.is_fine && seen.master.as_ref() == Some(&self.ids[master]))
        };
        let known =
            self.live().filter(|(node, _)| views.iter().all(|view| is_replica(&self.ids[*node], view)));
        known.filter(|(_, server)| replicates(server).is_ok()).map(|(node, _)| node).collect()
    }

    /// Kills the node that serves a slot, and returns its number.
    pub fn kill_master_of(&self, slot: u16) -> Result<usize> {
        let master = self.master_of_slot(slot)?;
        self.servers[master].kill();
        Ok(master)
    }

    /// Waits until another node than `before` serves a slot and all live nodes agree, and returns its number.
    /// After a master was killed this takes two to three seconds.
    ///
    /// Do not let a node be elected twice within four times `cluster-node-timeout`. Redis 7.0.15 counts the
    /// old votes of a replica that was elected, lost its place, and is asked again within that time. It then
    /// considers itself the master of an old epoch, the other nodes disagree, and this does not change
    /// (valkey-io/valkey#1711).
    pub fn wait_for_failover(&self, slot: u16, before: usize) -> Result<usize> {
        wait_until(&format!("the fail-over of slot {slot}"), || {
            let master = self.master_of_slot(slot).map_err(|error| error.to_string())?;
            if master == before {
                return Err(format!("node {before} still serves it"));
            }
            self.agree_on(slot, master)?;
            Ok(master)
        })
    }

    /// Lets a replica replace the master of a slot, which becomes a replica, and returns the number of the
    /// new master. No data is lost. It takes 50 ms, and longer if the replica is new.
    pub fn failover(&self, slot: u16) -> Result<usize> {
        let before = self.master_of_slot(slot)?;
        let follows = |own: &Node| own.master.as_ref() == Some(&self.ids[before]);
        if !self.live().filter_map(|(_, server)| own_line(server)).any(|own| follows(&own)) {
            return Err(Error::NoReplica { slot });
        }
        // A node that does not know it as a replica silently ignores its requests.
        let replica = wait_until(&format!("readiness to fail over slot {slot}"), || {
            let ready = self.replicas_of(before).first().copied();
            ready.ok_or_else(|| format!("no replica of node {before} is connected and known to all nodes"))
        })?;
        self.servers[replica].command(&["CLUSTER", "FAILOVER"])?;
        self.wait_for_failover(slot, before)
    }

    /// The id of a node in the Cluster: 40 hexadecimal digits.
    #[must_use]
    pub fn id(&self, node: usize) -> &str {
        &self.ids[node]
    }

    pub(crate) fn live(&self) -> impl Iterator<Item = (usize, &Server)> {
        self.servers.iter().enumerate().filter(|(_, server)| server.is_live())
    }

    /// `Err` names a node that sees it otherwise.
    pub(crate) fn agree_on(&self, slot: u16, master: usize) -> Result<(), String> {
        for (node, server) in self.live() {
            let view = view_of(server)?;
            if !view.iter().any(|seen| seen.id == self.ids[master] && seen.has(slot)) {
                return Err(format!("node {node} has not heard that node {master} serves slot {slot}"));
            }
            is_ok(server)?;
        }
        Ok(())
    }

    /// Each live node is asked for its own slots. A restarted node claims its former slots until it hears of
    /// a higher epoch.
    fn masters_of_slots(&self) -> Vec<Option<usize>> {
        let mut claims: Vec<_> =
            self.live().filter_map(|(node, server)| Some((node, own_line(server)?))).collect();
        claims.sort_by_key(|(_, own)| own.epoch);
        let mut masters = vec![None; usize::from(Self::SLOTS)];
        for (node, own) in claims.iter().filter(|(_, own)| own.is_master) {
            for slot in own.slots() {
                masters[usize::from(slot)] = Some(*node);
            }
        }
        masters
    }

    /// Does the same as `redis-cli --cluster create`, without its pauses: nodes with different epochs have no
    /// conflict to settle, and nodes that all meet each other need not wait for gossip.
    fn form(&self, masters: usize, replicas_each: usize) -> Result<()> {
        for (node, server) in self.servers.iter().enumerate() {
            server.command(&["CLUSTER", "SET-CONFIG-EPOCH", &(node + 1).to_string()])?;
            if node < masters {
                let first = usize::from(Self::SLOTS) * node / masters;
                let last = usize::from(Self::SLOTS) * (node + 1) / masters - 1;
                server.command(&["CLUSTER", "ADDSLOTSRANGE", &first.to_string(), &last.to_string()])?;
            }
            for other in &self.servers[..node] {
                server.command(&["CLUSTER", "MEET", "127.0.0.1", &other.port().to_string()])?;
            }
        }
        for (index, replica) in self.servers[masters..].iter().enumerate() {
            let master = &self.ids[index / replicas_each];
            // A replica must have met its master.
            wait_until("meeting in a Cluster", || {
                replica.command(&["CLUSTER", "REPLICATE", master]).map_err(|error| error.to_string())
            })?;
        }
        wait_until("forming a Cluster", || {
            let missing = self.servers.iter().enumerate().filter_map(|(node, server)| {
                let missing = self.is_formed(node, server, masters).err()?;
                Some(format!("node {node}: {missing}"))
            });
            let missing: Vec<_> = missing.collect();
            if missing.is_empty() { Ok(()) } else { Err(missing.join("; ")) }
        })
    }

    /// `Err` names the condition that this node does not meet.
    fn is_formed(&self, node: usize, server: &Server, masters: usize) -> Result<(), String> {
        let view = view_of(server)?;
        let all = self.servers.len();
        let fine = view.iter().filter(|seen| seen.is_fine).count();
        if fine != all {
            return Err(format!("it is connected to {fine} of {all} nodes"));
        }
        let replicas = view.iter().filter(|seen| seen.master.is_some()).count();
        if replicas != all - masters {
            return Err(format!("it knows of {replicas} replicas, not of {}", all - masters));
        }
        let slots: usize = view.iter().map(|seen| seen.slots().count()).sum();
        if slots != usize::from(Self::SLOTS) {
            return Err(format!("it knows the masters of {slots} slots, not of {}", Self::SLOTS));
        }
        is_ok(server)?;
        if node < masters { Ok(()) } else { replicates(server) }
    }
}

/// Settings that make tests of fail-over fast and repeatable. The caller's directives follow them.
const CONFIGURATION: [(&str, &str); 8] = [
    ("cluster-enabled", "yes"),
    ("cluster-config-file", "nodes.conf"),
    ("cluster-node-timeout", "1000"),
    ("cluster-require-full-coverage", "no"),
    ("cluster-announce-ip", "127.0.0.1"),
    // A replica may be elected, however long it was cut off from its master.
    ("cluster-replica-validity-factor", "0"),
    // No replica moves to a master that has lost all its replicas.
    ("cluster-allow-replica-migration", "no"),
    // The default is five seconds, in which more replicas may connect.
    ("repl-diskless-sync-delay", "0"),
];

fn view_of(server: &Server) -> Result<Vec<Node>, String> {
    let text: String = server.query(&["CLUSTER", "NODES"]).map_err(|error| error.to_string())?;
    view::parse(&text).ok_or_else(|| format!("CLUSTER NODES is not understood: {text}"))
}

fn own_line(server: &Server) -> Option<Node> {
    view_of(server).ok()?.into_iter().find(|node| node.is_myself)
}

fn is_ok(server: &Server) -> Result<(), String> {
    let info: String = server.query(&["CLUSTER", "INFO"]).map_err(|error| error.to_string())?;
    if info.lines().any(|line| line == "cluster_state:ok") {
        Ok(())
    } else {
        Err("cluster_state is not ok".to_owned())
    }
}

fn replicates(server: &Server) -> Result<(), String> {
    let info = server.info("replication").map_err(|error| error.to_string())?;
    match info.get("master_link_status").map(String::as_str) {
        Some("up") => Ok(()),
        status => Err(format!("master_link_status is {status:?}")),
    }
}
