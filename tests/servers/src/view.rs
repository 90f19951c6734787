//! The nodes of a Cluster as one of them sees them: the reply to `CLUSTER NODES`.

use std::ops::RangeInclusive;

/// A node as another one sees it, or itself.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) id: String,
    pub(crate) is_myself: bool,
    pub(crate) is_master: bool,
    /// The id of its master, if it is a replica.
    pub(crate) master: Option<String>,
    /// If two nodes claim a slot, the node with the higher epoch is right.
    pub(crate) epoch: u64,
    /// Whether its bus is connected, and it is neither in its handshake nor suspected to have failed.
    pub(crate) is_fine: bool,
    slots: Vec<RangeInclusive<u16>>,
}

impl Node {
    /// `None` if the line has another form than Redis documents.
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let id = words.next()?.to_owned();
        let _address = words.next()?;
        let flags: Vec<_> = words.next()?.split(',').collect();
        let master = words.next().filter(|master| *master != "-").map(str::to_owned);
        let epoch = words.nth(2)?.parse().ok()?;
        let link = words.next()?;
        let is = |flag: &str| flags.contains(&flag);
        Some(Self {
            id,
            is_myself: is("myself"),
            is_master: is("master"),
            master,
            epoch,
            is_fine: link == "connected"
                && !["fail", "fail?", "handshake", "noaddr"].iter().any(|flag| is(flag)),
            slots: words.filter(|word| !word.starts_with('[')).map(parse_slots).collect::<Option<_>>()?,
        })
    }

    pub(crate) fn has(&self, slot: u16) -> bool {
        self.slots().any(|own| own == slot)
    }

    pub(crate) fn slots(&self) -> impl Iterator<Item = u16> {
        self.slots.iter().cloned().flatten()
    }
}

/// `None` if a line has another form than Redis documents.
pub(crate) fn parse(text: &str) -> Option<Vec<Node>> {
    text.lines().map(Node::parse).collect()
}

fn parse_slots(word: &str) -> Option<RangeInclusive<u16>> {
    let (first, last) = word.split_once('-').unwrap_or((word, word));
    Some(first.parse().ok()?..=last.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From the documentation of `CLUSTER NODES`, with a slot that moves.
    const LINES: &str = "\
07c37d 127.0.0.1:30004@31004,hostname4 slave e7d1ee 0 1426238317239 4 connected
67ed2d 127.0.0.1:30002@31002,hostname2 master,fail? - 0 1426238316232 2 disconnected 5461-10922
e7d1ee 127.0.0.1:30001@31001,hostname1 myself,master - 0 0 1 connected 0-3 7 [8->-67ed2d]
";

    #[test]
    fn nodes_are_parsed() {
        let nodes = parse(LINES).unwrap();
        assert_eq!(nodes[0].master.as_deref(), Some("e7d1ee"));
        assert!(nodes[0].is_fine && !nodes[0].is_master);
        assert!(nodes[1].is_master && !nodes[1].is_fine && nodes[1].has(10922));
        assert!(nodes[2].is_myself);
        assert_eq!(nodes[2].slots().collect::<Vec<_>>(), [0, 1, 2, 3, 7]);
        assert_eq!(nodes.iter().map(|node| node.epoch).collect::<Vec<_>>(), [4, 2, 1]);
        assert_eq!(parse("nonsense"), None);
    }
}
