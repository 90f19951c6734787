//! The networks from which requests are refused.

use std::{fmt, net::IpAddr, path::Path};

use ipnet::IpNet;
use swarmkeep::bittorrent::counted;

use super::{AccessError, lines::Lines, list::shown};

/// An immutable set of addresses, with 32 bytes per range of them.
#[derive(Clone, Default)]
pub struct Networks(pub(crate) Box<[(u128, u128)]>);

impl Networks {
    /// Reads a text file with [one entry per line](crate::access): a network (`192.0.2.0/24`), an address, or
    /// two addresses with all between them (`192.0.2.5-192.0.2.9`). Blocks on the disk.
    ///
    /// # Errors
    /// [`AccessError`] names the invalid line and the expected form.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, AccessError> {
        let path = path.as_ref();
        let (mut lines, mut ranges) = (Lines::open(path)?, Vec::new());
        while let Some(line) = lines.next()? {
            let wrong =
                || AccessError::Network { path: path.to_owned(), line: line.number, text: shown(line.entry) };
            if !line.entry.is_empty() {
                ranges.push(range(line.entry).ok_or_else(wrong)?);
            }
        }
        ranges.sort_unstable();
        ranges.dedup_by(|(first, last), (_, before)| {
            let touches = *first <= before.saturating_add(1);
            if touches {
                *before = (*before).max(*last);
            }
            touches
        });
        Ok(Self(ranges.into()))
    }

    /// Whether an address is in the set. It costs O(log n).
    pub fn contains(&self, ip: IpAddr) -> bool {
        let ip = bits(ip);
        let after = self.0.partition_point(|(first, _)| *first <= ip);
        after > 0 && ip <= self.0[after - 1].1
    }
}

/// Prints the number of ranges.
impl fmt::Debug for Networks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Networks({})", counted(self.0.len(), "range"))
    }
}

/// IPv4 addresses in their place among those of IPv6.
fn bits(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().to_bits(),
        IpAddr::V6(ip) => ip.to_bits(),
    }
}

fn range(entry: &str) -> Option<(u128, u128)> {
    let ip = |text: &str| text.trim().parse::<IpAddr>().ok();
    if let Some((first, last)) = entry.split_once('-') {
        let (first, last) = (ip(first)?, ip(last)?);
        let range = (bits(first), bits(last));
        return (first.is_ipv4() == last.is_ipv4() && range.0 <= range.1).then_some(range);
    }
    let network: IpNet = entry.parse().ok().or_else(|| ip(entry).map(IpNet::from))?;
    Some((bits(network.network()), bits(network.broadcast())))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn load(text: &str) -> Result<Networks, AccessError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("networks");
        fs::write(&path, text).unwrap();
        Networks::load(&path)
    }

    #[test]
    fn an_address_is_in_a_network_a_range_or_by_itself() {
        let text = "192.0.2.0/25 # all\n\n192.0.2.128/25\n198.51.100.7\n203.0.113.5 - 203.0.113.9\n2001:db8::/32\n::1";
        let networks = load(text).unwrap();
        assert_eq!(networks.0.len(), 5, "neighbours are one range");
        for (ip, expected) in [
            ("192.0.1.255", false),
            ("192.0.2.0", true),
            ("192.0.2.255", true),
            ("192.0.3.0", false),
            ("::ffff:192.0.2.3", true),
            ("198.51.100.7", true),
            ("198.51.100.8", false),
            ("203.0.113.4", false),
            ("203.0.113.9", true),
            ("203.0.113.10", false),
            ("2001:db8:ffff::1", true),
            ("2001:db9::", false),
            ("::1", true),
            ("::", false),
        ] {
            assert_eq!(networks.contains(ip.parse().unwrap()), expected, "{ip}");
        }
        assert!(!load("").unwrap().contains(IpAddr::from([0; 4])));
        let all = load("::/0\n0.0.0.0/0\n").unwrap();
        assert!(all.0.len() == 1 && all.contains(IpAddr::from([255; 16])));
    }

    #[test]
    fn other_lines_are_named() {
        for wrong in ["192.0.2.0/33", "192.0.2", "example.org", "192.0.2.9-192.0.2.5", "192.0.2.1-::1", "-"] {
            let error = load(&format!("::1\n{wrong}\n")).unwrap_err().to_string();
            assert!(error.contains(&format!("line 2: \"{wrong}\" is not a network")), "{error}");
        }
    }
}
