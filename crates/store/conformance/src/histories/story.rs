//! Histories as text.

use std::fmt::{Debug, Write as _};

use swarmkeep::SwarmStats;

use super::{Call, Done, History};

/// Returns a line for each call and each return, in their order, with a column for each thread, and for each
/// call without an answer.
pub(super) fn of(history: &History) -> String {
    const COLUMN: usize = 24;
    let mut events: Vec<(u64, usize, String)> = Vec::new();
    for (list, calls) in history.iter().enumerate() {
        for call in calls.iter().filter(|call| call.earlier_of.is_none()) {
            let (asked, answered) = call.text();
            events.push((call.start, list, asked));
            events.push((call.end, list, if call.is_lost() { "= unavailable".into() } else { answered }));
        }
    }
    events.sort_by_key(|&(time, list, _)| (time, list));
    let mut story = String::new();
    for (_, list, text) in events {
        let _ = writeln!(story, "{:indent$}{text}", "", indent = list * COLUMN);
    }
    story
}

impl Call {
    /// The call, and its answer.
    fn text(&self) -> (String, String) {
        match &self.done {
            Done::Announced(announce, answer) => {
                let role = if announce.left == 0 { "seeder" } else { "leecher" };
                let seeders = if announce.seeders_too { " and seeders" } else { "" };
                (
                    format!(
                        "{role} {}: {}, wants {} of {:?}{seeders}",
                        announce.endpoint, announce.event, announce.want, announce.families
                    ),
                    format!("= {} {:?} {:?}", counts(&answer.stats), answer.changes, answer.peers),
                )
            }
            Done::Scraped(stats) => ("scrape".into(), format!("= {}", counts(stats))),
            Done::Listed(peers) | Done::Shown(peers) => ("peers".into(), format!("= {}", some(peers))),
            Done::Seen(..) => unreachable!("only the search makes sightings"),
            Done::Removed(stats) => ("remove".into(), format!("= {:?}", stats.as_ref().map(counts))),
            Done::Swept(retention) => (format!("sweep, {retention:?}"), "= swept".into()),
            Done::Restored(swarm, peers, restored) => {
                let peers: Vec<_> = peers.iter().map(|peer| (peer.endpoint, peer.role)).collect();
                let downloads = swarm.stats.downloaded;
                (format!("restore {downloads} downloads, {}", some(&peers)), format!("= {restored:?}"))
            }
            Done::Added(count, added) => (format!("add {count} downloads"), format!("= {added}")),
        }
    }
}

fn counts(stats: &SwarmStats) -> String {
    format!("{}/{}/{}", stats.complete, stats.incomplete, stats.downloaded)
}

fn some<T: Debug>(all: &[T]) -> String {
    const SHOWN: usize = 8;
    match all.len().checked_sub(SHOWN) {
        None | Some(0) => format!("{all:?}"),
        Some(more) => format!("{:?} and {more} more", &all[..SHOWN]),
    }
}
