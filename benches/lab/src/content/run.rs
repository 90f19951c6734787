//! A run: every row in each round, then what is measured once.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::content::{
    Error, Options, Pictures, Plan, Report, Result, Row, Seeded, What, libtorrent, row, seeding, volume,
};

/// What measuring a plan gave.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Outcome {
    /// A row, and what is needed to draw it.
    Row(Box<Row>, Option<Box<Pictures>>),
    /// Peers of several localities.
    Seeding(Vec<Seeded>),
}

/// Measures a plan, and tells how much of it is done, from 0 to 1: [`measure`](fn@measure), or
/// [`child::ask`](crate::content::child::ask).
pub type Measure<'a> = dyn FnMut(&Plan, &mut dyn FnMut(f64)) -> Result<Outcome> + 'a;

/// How far a run is.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Progress<'a> {
    /// What is being measured.
    pub plan: &'a Plan,
    /// How many plans were measured before.
    pub done: usize,
    /// How many there are, over all rounds.
    pub of: usize,
    /// How much of this one is done, from 0 to 1.
    pub share: f64,
}

/// Measures one plan in this process, which should have done nothing else before. `progress` is told how much
/// of it is done, from 0 to 1.
///
/// # Errors
/// What a store or the system says, and pieces that were lost or altered.
pub fn measure(plan: &Plan, progress: &mut dyn FnMut(f64)) -> Result<Outcome> {
    match plan.what {
        What::Download(way) => {
            let (row, pictures) = row::measure(&plan.options, way, progress)?;
            Ok(Outcome::Row(Box::new(row), pictures.map(Box::new)))
        }
        What::Seeding => {
            let options = plan.options.seeding.unwrap_or_default();
            Ok(Outcome::Seeding(seeding::measure(&plan.options, options, progress)?))
        }
    }
}

/// Measures everything that `options` ask for with `measure`, round after round, so that whatever else the
/// machine does falls on all rows alike.
///
/// # Errors
/// [`Error::Options`], [`Error::Room`], and those of [`measure`](fn@measure).
pub fn run(
    options: &Options,
    measure: &mut Measure<'_>,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<Report> {
    if let Some(fault) = options.fault() {
        return Err(Error::Options(fault));
    }
    let mut options = options.clone();
    let (plans, _) = options.plans();
    if !plans.is_empty() {
        check_room(&options.folder, options.room())?;
    }
    let mut untraced = None;
    if options.traced
        && let Err(why) = volume::probe(&options.folder)
    {
        (options.traced, untraced) = (false, Some(why.to_string()));
    }
    options.libtorrent &= libtorrent::is_there();
    let content = u64::from(options.torrents) * options.size;
    options.shares.retain(|share| content / share < volume::free_memory() / 4 * 3);
    let (plans, once) = options.plans();
    let of = plans.len() * options.rounds as usize + once.len();
    let mut done = 0;
    let mut next = |plan: &Plan| {
        let told = &mut |share| progress(Progress { plan, done, of, share });
        told(0.0);
        let outcome = measure(plan, told);
        done += 1;
        outcome
    };
    let mut rows = vec![Vec::new(); plans.len()];
    let mut pictures = vec![None; plans.len()];
    for round in 0..options.rounds {
        for (n, plan) in plans.iter().enumerate() {
            let mut plan = plan.clone();
            // They are of the first round.
            plan.options.pictures &= round == 0;
            if let Outcome::Row(row, drawn) = next(&plan)? {
                rows[n].push(*row);
                pictures[n] = pictures[n].take().or(drawn);
            }
        }
    }
    let mut seeded = Vec::new();
    let mut by_memory = Vec::new();
    for plan in &once {
        match next(plan)? {
            Outcome::Row(row, _) => by_memory.push(*row),
            Outcome::Seeding(served) => seeded.extend(served),
        }
    }
    let medians = rows.iter().filter_map(|rows| Row::median(rows)).collect();
    let mut report = Report::new(options, medians, pictures, seeded);
    (report.by_memory, report.untraced) = (by_memory, untraced);
    Ok(report)
}

impl Options {
    /// Bytes that the largest store takes: the torrents, a tenth of free blocks and some metadata, and a
    /// sector of each block of what was there before.
    pub fn room(&self) -> u64 {
        let content = u64::from(self.torrents) * self.size.next_multiple_of(self.block.into());
        content
            + content / 10
            + 4 * (content / u64::from(self.block)) * 4096
            + 64 * u64::from(self.block)
            + (64 << 20)
    }
}

fn check_room(folder: &Path, needed: u64) -> Result<()> {
    let system = rustix::fs::statvfs(folder).map_err(std::io::Error::from)?;
    let free = system.f_bavail * system.f_frsize;
    if free < needed {
        return Err(Error::Room { folder: folder.to_owned(), needed, free });
    }
    Ok(())
}
