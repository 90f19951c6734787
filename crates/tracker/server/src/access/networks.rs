//! The networks from which requests are refused.

use std::{fmt, net::IpAddr, path::Path};

use ipnet::IpNet;
use swarmkeep::bittorrent::counted;

use super::{AccessError, lines::Lines, list::shown};

/// An immutable set of addresses, with 32 bytes per range of them.
#[derive(Clone, Default)]
pub struct Networks {
    v4: Box<[AddressRange]>,
    v6: Box<[AddressRange]>,
}

/// The first address and the last.
type AddressRange = (u128, u128);

impl Networks {
    /// Reads a text file with [one entry per line](crate::access): a network (`192.0.2.0/24`), an address, or
    /// two addresses with all between them (`192.0.2.5-192.0.2.9`). Blocks on the disk.
    ///
    /// # Errors
    /// [`AccessError`] names the invalid line and the expected form.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, AccessError> {
        let path = path.as_ref();
        let (mut lines, mut v4, mut v6) = (Lines::open(path)?, Vec::new(), Vec::new());
        while let Some(line) = lines.next()? {
            let wrong =
                || AccessError::Network { path: path.to_owned(), line: line.number, text: shown(line.entry) };
            if !line.entry.is_empty() {
                let (first, last) = range(line.entry).ok_or_else(wrong)?;
                let ranges = if first.is_ipv4() { &mut v4 } else { &mut v6 };
                ranges.push((bits(first), bits(last)));
            }
        }
        Ok(Self { v4: merged(v4), v6: merged(v6) })
    }

    /// Whether an address is in the set. It costs O(log n).
    pub fn contains(&self, ip: IpAddr) -> bool {
        let ip = ip.to_canonical();
        let (ranges, ip) = (if ip.is_ipv4() { &self.v4 } else { &self.v6 }, bits(ip));
        let after = ranges.partition_point(|(first, _)| *first <= ip);
        after > 0 && ip <= ranges[after - 1].1
    }

    /// The number of ranges.
    pub(crate) fn len(&self) -> usize {
        self.v4.len() + self.v6.len()
    }
}

/// Prints the number of ranges.
impl fmt::Debug for Networks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Networks({})", counted(self.len(), "range"))
    }
}

/// The ranges in order. Those that touch each other are one.
fn merged(mut ranges: Vec<AddressRange>) -> Box<[AddressRange]> {
    ranges.sort_unstable();
    ranges.dedup_by(|(first, last), (_, before)| {
        let touches = *first <= before.saturating_add(1);
        if touches {
            *before = (*before).max(*last);
        }
        touches
    });
    ranges.into()
}

fn bits(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => ip.to_bits().into(),
        IpAddr::V6(ip) => ip.to_bits(),
    }
}

fn range(entry: &str) -> Option<(IpAddr, IpAddr)> {
    let ip = |text: &str| Some(text.trim().parse::<IpAddr>().ok()?.to_canonical());
    if let Some((first, last)) = entry.split_once('-') {
        let (first, last) = (ip(first)?, ip(last)?);
        return (first.is_ipv4() == last.is_ipv4() && first <= last).then_some((first, last));
    }
    let network: IpNet = entry.parse().ok().or_else(|| ip(entry).map(IpNet::from))?;
    let [first, last] = [network.network(), network.broadcast()].map(|ip| ip.to_canonical());
    (first.is_ipv4() == last.is_ipv4()).then_some((first, last))
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
        let text = "192.0.2.0/25 # all\n\n::ffff:192.0.2.128/121\n198.51.100.7\n203.0.113.5 - 203.0.113.9\n2001:db8::/32\n::1";
        let networks = load(text).unwrap();
        assert_eq!(networks.len(), 5, "neighbours are one range");
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
        let [v4, v6] = ["0.0.0.0/0", "::/0"].map(|all| load(all).unwrap());
        for ip in ["192.0.2.1", "::ffff:192.0.2.1", "2001:db8::1"].map(|ip| ip.parse::<IpAddr>().unwrap()) {
            assert_eq!(
                [v4.contains(ip), v6.contains(ip)].map(|it| it == ip.to_canonical().is_ipv4()),
                [true, false]
            );
        }
    }

    #[test]
    fn other_lines_are_named() {
        let wrong = "192.0.2.0/33 192.0.2 example.org 192.0.2.9-192.0.2.5 192.0.2.1-::1 - ::fffe:0:0/95";
        for wrong in wrong.split(' ') {
            let error = load(&format!("::1\n{wrong}\n")).unwrap_err().to_string();
            assert!(error.contains(&format!("line 2: \"{wrong}\" is not a network")), "{error}");
        }
    }
}
