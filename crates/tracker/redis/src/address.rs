//! The addresses of servers, and the hash slots of each in a reply to `CLUSTER SLOTS`.

use std::fmt;

use redis::Value;

use crate::place::SLOTS;

/// The address of a server.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Address {
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl Address {
    /// Parses the address in a redirection, such as `192.0.2.1:6379`. A server that does not know its own
    /// host leaves it out: then it is the host of `requested`.
    pub(crate) fn of_redirection(text: &str, requested: &Self) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        let host = if host.is_empty() { &requested.host } else { host };
        Some(Self { host: host.to_owned(), port: port.parse().ok()? })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// Slots that one master serves, both ends included.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SlotRange {
    pub(crate) first: u16,
    pub(crate) last: u16,
    pub(crate) master: Address,
    pub(crate) replicas: Vec<Address>,
}

impl SlotRange {
    /// All ranges in an answer to `CLUSTER SLOTS`. Invalid ones are left out.
    pub(crate) fn all(answer: &Value, requested: &Address) -> Vec<Self> {
        let Value::Array(ranges) = answer else { return Vec::new() };
        ranges.iter().filter_map(|range| Self::read(range, requested)).collect()
    }

    fn read(range: &Value, requested: &Address) -> Option<Self> {
        let Value::Array(range) = range else { return None };
        let [Value::Int(first), Value::Int(last), master, replicas @ ..] = range.as_slice() else {
            return None;
        };
        let slot = |slot: i64| u16::try_from(slot).ok().filter(|slot| *slot < SLOTS);
        let (first, last) = (slot(*first)?, slot(*last)?);
        (first <= last).then_some(Self {
            first,
            last,
            master: Self::server(master, requested)?,
            replicas: replicas.iter().filter_map(|replica| Self::server(replica, requested)).collect(),
        })
    }

    fn server(server: &Value, requested: &Address) -> Option<Address> {
        let Value::Array(server) = server else { return None };
        let [host, Value::Int(port), ..] = server.as_slice() else { return None };
        let host = match host {
            Value::BulkString(host) if !host.is_empty() && host != b"?" => {
                String::from_utf8(host.clone()).ok()?
            }
            Value::SimpleString(host) if !host.is_empty() => host.clone(),
            // The server does not know its own host.
            _ => requested.host.clone(),
        };
        Some(Address { host, port: u16::try_from(*port).ok()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requested() -> Address {
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
    fn ranges_name_masters_and_invalid_ranges_are_left_out() {
        let named = Value::BulkString(b"192.0.2.1".to_vec());
        let answer = Value::Array(vec![
            range(0, 99, named.clone(), 7001),
            range(100, 16_383, Value::Nil, 7002),
            range(5, 16_384, named.clone(), 7003),
            range(9, 8, named.clone(), 7003),
            range(0, 1, named, 70_000),
            Value::Nil,
        ]);
        let ranges = SlotRange::all(&answer, &requested());
        let masters: Vec<_> = ranges.iter().map(|range| range.master.to_string()).collect();
        assert_eq!(masters, ["192.0.2.1:7001", "192.0.2.9:7002"]);
    }

    #[test]
    fn redirections_name_servers() {
        let address = |text| Address::of_redirection(text, &requested()).map(|address| address.to_string());
        assert_eq!(address("192.0.2.1:7001").as_deref(), Some("192.0.2.1:7001"));
        assert_eq!(address("2001:db8::1:7001").as_deref(), Some("2001:db8::1:7001"));
        assert_eq!(address(":7001").as_deref(), Some("192.0.2.9:7001"));
        assert_eq!(address("192.0.2.1"), None);
        assert_eq!(address("192.0.2.1:x"), None);
    }
}
