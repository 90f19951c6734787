//! What was found: goals, tables, JSON, and the document with all of it.

use std::{fmt::Write as _, fs};

use serde::Serialize;
use serde_json::Value;
use swarmkeep_lab::Date;
use swarmkeep_servers::Server;
use swarmkeep_workload::{
    Machine,
    tables::{grouped, markdown, significant},
};

use crate::Result;

/// Everything.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    version: &'static str,
    date: String,
    server: String,
    machine: Machine,
    /// The load average of the minute before: what else the machine has to do takes from what is reached end
    /// to end.
    load_before: Option<f64>,
    seconds: f64,
    turns: usize,
    pub(crate) sections: Vec<Section>,
}

/// What one part of the bench found.
#[derive(Debug, Serialize)]
pub(crate) struct Section {
    pub(crate) name: &'static str,
    pub(crate) rows: Vec<Value>,
    pub(crate) goals: Vec<Goal>,
    /// Title, tables and what they say.
    #[serde(skip)]
    pub(crate) text: String,
}

impl Section {
    pub(crate) fn new<R: Serialize>(name: &'static str, rows: &[R], text: String) -> Result<Self> {
        let rows = rows.iter().map(serde_json::to_value).collect::<Result<_, _>>()?;
        Ok(Self { name, rows, goals: Vec::new(), text })
    }
}

/// Something to reach.
#[derive(Debug, Serialize)]
pub(crate) struct Goal {
    what: String,
    measured: f64,
    goal: f64,
    at_most: bool,
    reached: bool,
}

impl Goal {
    pub(crate) const fn is_measured(&self) -> bool {
        !self.measured.is_nan()
    }

    pub(crate) fn at_least(goal: f64, what: impl Into<String>, measured: f64) -> Self {
        Self { what: what.into(), measured, goal, at_most: false, reached: measured >= goal }
    }

    pub(crate) fn at_most(goal: f64, what: impl Into<String>, measured: f64) -> Self {
        Self { what: what.into(), measured, goal, at_most: true, reached: measured <= goal }
    }
}

impl Report {
    pub(crate) fn new(seconds: f64, turns: usize) -> Result<Self> {
        let info = Server::start()?.info("all")?;
        let field = |name: &str| info.get(name).map_or("?", String::as_str);
        let program = if info.contains_key("valkey_version") { "Valkey" } else { "Redis" };
        let version = info.get("valkey_version").map_or_else(|| field("redis_version"), String::as_str);
        Ok(Self {
            version: env!("CARGO_PKG_VERSION"),
            date: Date::today().to_string(),
            server: format!("{program} {version} with {}", field("mem_allocator")),
            machine: Machine::this(),
            load_before: fs::read_to_string("/proc/loadavg")
                .ok()
                .and_then(|text| text.split(' ').next()?.parse().ok()),
            seconds,
            turns,
            sections: Vec::new(),
        })
    }

    /// What is to be reached, and what was; nothing where there are no numbers for any of it.
    pub(crate) fn goals(&self) -> String {
        let goals: Vec<_> = self.sections.iter().flat_map(|section| &section.goals).collect();
        if goals.is_empty() {
            return String::new();
        }
        let table = table(
            &goals,
            &[
                ("goal", &|goal| goal.what.clone()),
                ("measured", &|goal| significant(goal.measured)),
                ("to reach", &|goal| {
                    format!("{} {}", if goal.at_most { "≤" } else { "≥" }, significant(goal.goal))
                }),
                ("reached", &|goal| if goal.reached { "yes" } else { "no" }.to_owned()),
            ],
        );
        format!("## Goals\n\n{table}")
    }

    /// The whole document.
    pub(crate) fn markdown(&self, command: &str) -> String {
        let mut text = format!(
            "# What the store on Redis costs\n\n\
             {}; {};\n\
             default configuration except for snapshots; swarmkeep {}; {}.\n\n\
             This command wrote the report. It starts the server on the loopback of this machine:\n\n\
             ```console\n$ {command}\n```\n\n\
             {BEGINNING}\n\n\
             Each run lasts {} s. Compared runs take turns, {} of them, and the numbers are medians.{}\n",
            self.machine,
            self.server,
            self.version,
            self.date,
            self.seconds,
            self.turns,
            self.load_before.map_or_else(String::new, |load| format!(
                "\nThe load average of the machine was {load} before the start. If it is not about 0, other programs affect all\n\
                 numbers except processor time and bytes."
            ))
        );
        let goals = self.goals();
        if !goals.is_empty() {
            let _ = write!(text, "\n{goals}");
        }
        for section in &self.sections {
            let _ = write!(text, "\n{}", section.text);
        }
        text
    }
}

/// A title, and what stands below it in the row of an `R`.
type Column<'a, R> = (&'a str, &'a dyn Fn(&R) -> String);

/// A table with a row for each of `rows`.
pub(crate) fn table<R>(rows: &[R], columns: &[Column<'_, R>]) -> String {
    let columns = columns.iter().map(|(title, cell)| {
        [(*title).to_owned()].into_iter().chain(rows.iter().map(cell)).collect::<Vec<_>>()
    });
    markdown(&columns.collect::<Vec<_>>())
}

/// A rate, without the digits that mean nothing.
pub(crate) fn whole(number: f64) -> String {
    grouped(number.round() as u64)
}

const BEGINNING: &str = "\
**Server µs** is the processor time of the server's main thread per announce (`INFO cpu`). **Client µs** is
the processor time of all threads of the client. **Bytes** are the bytes on the server's connections (`INFO
stats`). The server has one core, and the client all others. If that is one core, the slower of the two limits
the end-to-end rate. **If the server were alone** is a million divided by the server µs: the rate with
clients on other machines.";
