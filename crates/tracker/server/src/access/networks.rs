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
