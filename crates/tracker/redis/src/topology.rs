//! Which server serves which hash slot.

use std::{fmt, sync::Arc};

use redis::Value;

use crate::{link::Node, place::SLOTS};

/// Where a server is reached.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Address {
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl Address {
    /// From a redirection, as `192.0.2.1:6379`. A server that does not know its own name leaves the host out:
    /// it is the one asked.
    pub(crate) fn of_redirection(text: &str, asked: &Self) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        let host = if host.is_empty() { &asked.host } else { host };
        Some(Self { host: host.to_owned(), port: port.parse().ok()? })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// The servers, and the one that is master of each slot.
#[derive(Debug)]
pub(crate) struct Topology {
    pub(crate) nodes: Vec<Arc<Node>>,
    /// Which of them, for each slot; `None` where nobody is.
    slots: Option<Box<[Option<u16>]>>,
}

impl Topology {
    /// Before any server was asked.
    pub(crate) const fn unknown() -> Self {
        Self { nodes: Vec::new(), slots: None }
    }

    /// One server for all.
    pub(crate) fn single(node: Arc<Node>) -> Self {
        Self { nodes: vec![node], slots: None }
    }

    /// From the ranges of a Cluster.
    pub(crate) fn cluster(ranges: &[Range], mut node: impl FnMut(&Address) -> Arc<Node>) -> Self {
        let mut nodes: Vec<Arc<Node>> = Vec::new();
        let mut slots = vec![None; SLOTS.into()].into_boxed_slice();
        for range in ranges {
            let known = nodes.iter().position(|node| node.address == range.master);
            let index = known.unwrap_or_else(|| {
                nodes.push(node(&range.master));
                nodes.len() - 1
            });
            slots[usize::from(range.first)..=usize::from(range.last)].fill(Some(index as u16));
        }
        Self { nodes, slots: Some(slots) }
    }

    pub(crate) const fn is_cluster(&self) -> bool {
        self.slots.is_some()
    }

    pub(crate) fn master_of(&self, slot: u16) -> Option<&Arc<Node>> {
        match &self.slots {
            None => self.nodes.first(),
            Some(slots) => slots[usize::from(slot)].map(|index| &self.nodes[usize::from(index)]),
        }
    }
}

/// Slots that one master serves, both ends included.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Range {
    first: u16,
    last: u16,
    master: Address,
}

impl Range {
    /// All that an answer to `CLUSTER SLOTS` names; what is not as it should be is left out.
    pub(crate) fn all(answer: &Value, asked: &Address) -> Vec<Self> {
        let Value::Array(ranges) = answer else { return Vec::new() };
        ranges.iter().filter_map(|range| Self::read(range, asked)).collect()
    }

    fn read(range: &Value, asked: &Address) -> Option<Self> {
        let Value::Array(range) = range else { return None };
        let [Value::Int(first), Value::Int(last), Value::Array(master), ..] = range.as_slice() else {
            return None;
        };
        let [host, Value::Int(port), ..] = master.as_slice() else { return None };
        let host = match host {
            Value::BulkString(host) if !host.is_empty() && host != b"?" => {
                String::from_utf8(host.clone()).ok()?
            }
            Value::SimpleString(host) if !host.is_empty() => host.clone(),
            // It does not know its own name.
            _ => asked.host.clone(),
        };
        let slot = |slot: i64| u16::try_from(slot).ok().filter(|slot| *slot < SLOTS);
        let (first, last) = (slot(*first)?, slot(*last)?);
        (first <= last).then_some(Self {
            first,
            last,
            master: Address { host, port: u16::try_from(*port).ok()? },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked() -> Address {
        Address { host: "192.0.2.9".to_owned(), port: 7000 }
    }

    fn range(first: i64, last: i64, host: Value, port: i64) -> Value {
        Value::Array(vec![
            Value::Int(first),
            Value::Int(last),
            Value::Array(vec![host, Value::Int(port), Value::BulkString(b"id".to_vec())]),
        ])
    }

    #[test]
    fn ranges_name_masters_and_what_is_wrong_is_left_out() {
        let named = Value::BulkString(b"192.0.2.1".to_vec());
        let answer = Value::Array(vec![
            range(0, 99, named.clone(), 7001),
            range(100, 16_383, Value::Nil, 7002),
            range(5, 16_384, named.clone(), 7003),
            range(9, 8, named.clone(), 7003),
            range(0, 1, named, 70_000),
            Value::Nil,
        ]);
        let ranges = Range::all(&answer, &asked());
        let masters: Vec<_> = ranges.iter().map(|range| range.master.to_string()).collect();
        assert_eq!(masters, ["192.0.2.1:7001", "192.0.2.9:7002"]);
    }

    #[test]
    fn redirections_name_servers() {
        let address = |text| Address::of_redirection(text, &asked()).map(|address| address.to_string());
        assert_eq!(address("192.0.2.1:7001").as_deref(), Some("192.0.2.1:7001"));
        assert_eq!(address("2001:db8::1:7001").as_deref(), Some("2001:db8::1:7001"));
        assert_eq!(address(":7001").as_deref(), Some("192.0.2.9:7001"));
        assert_eq!(address("192.0.2.1"), None);
        assert_eq!(address("192.0.2.1:x"), None);
    }
}
