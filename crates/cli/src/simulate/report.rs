//! What a simulation found: as JSON, and as Markdown.

use std::fmt::Write;

use serde::Serialize;
use swarmkeep_load::tables::{grouped, markdown, significant};

use super::{
    costs::{Costs, SOURCES},
    lives::SECOND,
    sizing::{Limit, Machine, Needs, Traffic},
    swarm::{STEP, Tally},
};

/// All that was found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Report {
    pub(crate) version: &'static str,
    pub(crate) seed: u64,
    /// How it was simulated.
    pub(crate) method: String,
    pub(crate) simulated_peers: u64,
    pub(crate) population: Described,
    pub(crate) traffic: Traffic,
    pub(crate) costs: Costs,
    pub(crate) machine: Machine,
    pub(crate) needs: [Needs; 3],
    pub(crate) limits: [Limit; 3],
    /// The largest key of a store on Redis, in bytes.
    pub(crate) largest_key_bytes: f64,
    pub(crate) imbalance: Vec<Imbalance>,
    pub(crate) failures: Vec<Failed>,
    pub(crate) growth: Vec<Grown>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) check: Option<Vec<Checked>>,
}

/// Who is there.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Described {
    pub(crate) torrents: u64,
    pub(crate) peers: u64,
    pub(crate) stored_peers: f64,
    pub(crate) largest_swarm: u64,
    pub(crate) swarms_of_one: u64,
    pub(crate) peers_in_large_percent: f64,
    pub(crate) announces_a_second: f64,
    pub(crate) joined_a_second: f64,
    pub(crate) left_a_second: f64,
    pub(crate) mean_session_minutes: f64,
    /// Of the peers that are known, those that have gone.
    pub(crate) gone_percent: f64,
}

/// How unequal machines are.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Imbalance {
    pub(crate) machines: u32,
    pub(crate) trackers: f64,
    pub(crate) masters: f64,
}

/// What is needed for so many peers.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Grown {
    pub(crate) peers: f64,
    pub(crate) torrents: u64,
    pub(crate) needs: [Needs; 3],
}

/// What a failure did.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Failed {
    pub(crate) key: &'static str,
    pub(crate) arrangement: &'static str,
    pub(crate) what: String,
    /// Share of all peers whose swarms it hit.
    pub(crate) hit_percent: f64,
    /// Announces that nobody answered, and what share they are of an hour's announces of those hit.
    pub(crate) unanswered: f64,
    pub(crate) unanswered_percent: f64,
    /// Of those hit, the most peers that could not be handed out after machines answered again.
    pub(crate) lost_percent: f64,
    /// Seconds until half, 90 % and 99 % of those can be, and all that were not lost.
    pub(crate) back_seconds: [f64; 3],
    /// Of the answers within the hour to peers of swarms that were hit, those that had fewer peers than usual, and how much they had less on
    /// average over all answers.
    pub(crate) poor_percent: f64,
    pub(crate) missing_percent: f64,
    /// The most announces of a second in terms of an ordinary one, of those hit.
    pub(crate) peak: f64,
    pub(crate) step_seconds: f64,
    /// Share of the peers hit that can be handed out, over time.
    pub(crate) reached_percent: Vec<f64>,
    /// Announces of each second, of those hit, in terms of an ordinary one.
    pub(crate) attempts_relative: Vec<f64>,
}

/// A number by sample and by single peers.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Checked {
    pub(crate) what: String,
    pub(crate) sample: f64,
    pub(crate) exact: f64,
}

/// Less than that share is not lost but has just come.
const NOISE: f64 = 0.05;

impl Failed {
    /// Of tallies of a failure, and of all peers when nothing happens. Nobody can be handed out while nobody answers: `down`, since the failure.
    pub(crate) fn new(
        failure: &super::failures::Failure,
        tally: &Tally,
        nothing: &Tally,
        down: std::ops::Range<i32>,
    ) -> Self {
        let unreachable = if failure.happening.peers < 1.0 { 0..0 } else { down };
        let steps = tally.live.len();
        let reached = (0..steps).map(|step| {
            let (begin, live) = (step as i32 * STEP, tally.live[step]);
            let share = if live > 0.0 { tally.reached[step] / live } else { 1.0 };
            if unreachable.contains(&begin) { 0.0 } else { (share * 100.0).min(100.0) }
        });
        let reached: Vec<_> = reached.collect();
        let again = unreachable.end.max(0);
        let first = (again / STEP) as usize + usize::from(again % STEP > 0);
        let lost = reached[first.min(steps)..].iter().map(|share| 100.0 - share).fold(0.0, f64::max);
        let back = |share: f64| {
            let most = if lost > NOISE { lost * (1.0 - share) } else { NOISE };
            let last = reached.iter().rposition(|reached| 100.0 - reached > most);
            last.map_or(0.0, |last| (last + 1) as f64 * f64::from(STEP / SECOND))
        };
        let answered: f64 = tally.answered.iter().sum();
        let of_answers = |number: f64| if answered > 0.0 { 100.0 * number / answered } else { 0.0 };
        let seconds = tally.attempts.len() as f64;
        let relative = tally.attempts.iter().map(|attempts| attempts / (tally.usual / seconds).max(1e-9));
        let relative: Vec<_> = relative.collect();
        Self {
            key: failure.key,
            arrangement: failure.arrangement.name(),
            what: failure.what.clone(),
            hit_percent: 100.0 * failure.happening.peers * tally.live[0] / nothing.live[0],
            unanswered: tally.failed.iter().sum(),
            unanswered_percent: 100.0 * tally.failed.iter().sum::<f64>() / tally.usual.max(1e-9),
            lost_percent: lost,
            back_seconds: [0.5, 0.9, 0.99].map(back),
            poor_percent: of_answers(tally.poor),
            missing_percent: of_answers(tally.missing),
            peak: relative.iter().copied().fold(0.0, f64::max),
            step_seconds: f64::from(STEP / SECOND),
            reached_percent: reached,
            attempts_relative: relative,
        }
    }
}

impl Report {
    /// For people.
    pub(crate) fn markdown(&self) -> String {
        let mut text = String::new();
        for (title, body) in [
            ("Population", self.described()),
            ("What each arrangement needs", self.needed()),
            ("Where one machine ends", self.ends()),
            ("How unequal machines are", self.unequal()),
            ("What failures do", self.failed()),
            ("How needs grow", self.grown()),
            ("Check of the sample", self.checked()),
            ("Costs", self.costs()),
        ] {
            if !body.is_empty() {
                let _ = write!(text, "{}## {title}\n\n{body}", if text.is_empty() { "" } else { "\n" });
            }
        }
        text
    }

    fn described(&self) -> String {
        let Described { torrents, peers, stored_peers, largest_swarm, swarms_of_one, .. } = &self.population;
        let population = &self.population;
        let rows = [
            ("torrents", grouped(*torrents)),
            ("peers that are there", grouped(*peers)),
            ("peers that are known", significant(*stored_peers)),
            ("of those, gone without a word, %", significant(population.gone_percent)),
            ("peers of the largest swarm", grouped(*largest_swarm)),
            ("swarms of one peer", grouped(*swarms_of_one)),
            ("peers in swarms of more than 50, %", significant(population.peers_in_large_percent)),
            ("mean session, minutes", significant(population.mean_session_minutes)),
            (
                "announces a second, `started` and `stopped` included",
                significant(population.announces_a_second),
            ),
            ("peers that come, a second", significant(population.joined_a_second)),
            ("peers that go, a second", significant(population.left_a_second)),
            ("peers handed out over IPv4", significant(self.traffic.handed_out[0])),
            ("peers handed out over IPv6", significant(self.traffic.handed_out[1])),
        ];
        let columns = [
            ["".to_owned()].into_iter().chain(rows.iter().map(|(name, _)| (*name).to_owned())).collect(),
            [self.method.clone()].into_iter().chain(rows.into_iter().map(|(_, number)| number)).collect(),
        ];
        markdown(&columns)
    }

    fn needed(&self) -> String {
        let Machine { cores, memory_bytes, network_bits, busy } = self.machine;
        type Cell = fn(&Needs) -> String;
        let each: [(&str, Cell); 13] = [
            ("machines", |needs| needs.machines.map_or("not enough".to_owned(), |n| n.to_string())),
            ("trackers", |needs| needs.trackers.to_string()),
            ("Redis masters", |needs| needs.masters.map_or("none is enough".to_owned(), |n| n.to_string())),
            ("cores kept busy", |needs| significant(needs.cores)),
            ("memory, GB", |needs| significant(needs.memory_bytes / 1e9)),
            ("Gbit/s in", |needs| significant(needs.network_in / 1e9)),
            ("Gbit/s out", |needs| significant(needs.network_out / 1e9)),
            ("Gbit/s to Redis", |needs| significant(needs.network_redis / 1e9)),
            ("round trips a second", |needs| significant(needs.round_trips)),
            ("busiest ÷ mean", |needs| significant(needs.imbalance)),
            ("busiest, % of its cores", |needs| significant(needs.busiest * 100.0)),
            ("µs at the busiest, mean", |needs| waits(needs, 0)),
            ("µs, 99 %", |needs| waits(needs, 1)),
        ];
        let mut columns = vec![vec![String::new()]];
        columns[0].extend(each.iter().map(|(name, _)| (*name).to_owned()));
        for needs in &self.needs {
            let numbers = each.iter().map(|(_, number)| number(needs));
            columns.push([needs.arrangement.to_owned()].into_iter().chain(numbers).collect());
        }
        format!(
            "Machines of {cores} cores, {} GB and {} Gbit/s, of each of which {} % may be used. The largest key of the store on Redis \
             has {} MB.\n\n{}",
            significant(memory_bytes / 1e9),
            significant(network_bits / 1e9),
            significant(busy * 100.0),
            significant(self.largest_key_bytes / 1e6),
            markdown(&columns)
        )
    }

    fn ends(&self) -> String {
        let column = |title: &str, cell: fn(&Limit) -> String| {
            [title.to_owned()].into_iter().chain(self.limits.iter().map(cell)).collect()
        };
        markdown(&[
            column("", |limit| match limit.unit {
                "" => limit.what.to_owned(),
                unit => format!("{}, {unit}", limit.what),
            }),
            column("used", |limit| significant(limit.used)),
            column("may be used", |limit| significant(limit.there_is)),
            column("all of it at, peers", |limit| significant(limit.peers)),
        ])
    }

    fn unequal(&self) -> String {
        let column = |title: &str, cell: fn(&Imbalance) -> String| {
            [title.to_owned()].into_iter().chain(self.imbalance.iter().map(cell)).collect()
        };
        markdown(&[
            column("machines", |row| row.machines.to_string()),
            column("trackers, sharded: busiest ÷ mean", |row| significant(row.trackers)),
            column("Redis masters: busiest ÷ mean", |row| significant(row.masters)),
        ])
    }

    fn failed(&self) -> String {
        let column = |title: &str, cell: &dyn Fn(&Failed) -> String| {
            [title.to_owned()].into_iter().chain(self.failures.iter().map(cell)).collect()
        };
        let back = |n: usize| move |failed: &Failed| significant(failed.back_seconds[n]);
        markdown(&[
            column("", &|failed| format!("`{}`", failed.key)),
            column("hit, % of peers", &|failed| significant(failed.hit_percent)),
            column("unanswered, % of an hour's announces", &|failed| significant(failed.unanswered_percent)),
            column("lost, % of those hit", &|failed| significant(failed.lost_percent)),
            column("s till 50 % back", &back(0)),
            column("90 %", &back(1)),
            column("99 %", &back(2)),
            column("answers with fewer peers, %", &|failed| significant(failed.poor_percent)),
            column("peers missing, %", &|failed| significant(failed.missing_percent)),
            column("peak ÷ usual", &|failed| significant(failed.peak)),
        ]) + "\n"
            + &self
                .failures
                .iter()
                .map(|failed| format!("- `{}`: {}, {}.\n", failed.key, failed.arrangement, failed.what))
                .collect::<String>()
    }

    fn grown(&self) -> String {
        let column = |title: &str, cell: &dyn Fn(&Grown) -> String| {
            [title.to_owned()].into_iter().chain(self.growth.iter().map(cell)).collect::<Vec<_>>()
        };
        let mut columns = vec![column("peers", &|grown| grouped(grown.peers as u64))];
        for (n, needs) in self.needs.iter().enumerate() {
            let name = needs.arrangement;
            columns.push(column(&format!("{name}: machines"), &|grown| {
                grown.needs[n].machines.map_or("not enough".to_owned(), |machines| machines.to_string())
            }));
            columns.push(column("cores", &|grown| significant(grown.needs[n].cores)));
            columns.push(column("GB", &|grown| significant(grown.needs[n].memory_bytes / 1e9)));
        }
        markdown(&columns)
    }

    fn checked(&self) -> String {
        let Some(check) = &self.check else { return String::new() };
        let column = |title: &str, cell: fn(&Checked) -> String| {
            [title.to_owned()].into_iter().chain(check.iter().map(cell)).collect()
        };
        markdown(&[
            column("", |row| row.what.clone()),
            column("sample", |row| significant(row.sample)),
            column("every peer", |row| significant(row.exact)),
            column("difference", |row| format!("{:+.3}", row.sample - row.exact)),
        ])
    }

    fn costs(&self) -> String {
        let costs = serde_json::to_value(self.costs).unwrap_or_default();
        let number = |name: &str| costs[name.replace('-', "_")].as_f64().map_or(String::new(), significant);
        let column = |title: &str, cell: &dyn Fn(&(&str, &str)) -> String| {
            [title.to_owned()].into_iter().chain(SOURCES.iter().map(cell)).collect()
        };
        markdown(&[
            column("option", &|(name, _)| format!("`--{name}`")),
            column("used", &|(name, _)| number(name)),
            column("default is from", &|(_, source)| (*source).to_owned()),
        ])
    }
}

fn waits(needs: &Needs, n: usize) -> String {
    needs.waits.map_or("for ever".to_owned(), |waits| significant(waits[n]))
}
