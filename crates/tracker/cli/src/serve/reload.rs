//! SIGHUP: the settings are read again. Live settings change, and the log names them, and the settings that
//! need a restart.

use std::{convert::Infallible, error::Error};

use clap::{Args, Command};
use swarmkeep_tracker::Control;
use tokio::{signal::unix::Signal, task::spawn_blocking};
use tracing::{error, info, warn};

use super::{
    log::Log,
    manager,
    read::ReadSettings,
    schema::{Fixed, Live, RunState, Settings},
};
use crate::settings::Setting;

/// A running tracker, with its settings.
pub(super) struct Reload {
    pub(super) fixed: Fixed,
    pub(super) running: Vec<Setting>,
    pub(super) kept: RunState,
    pub(super) log: Log,
    pub(super) control: Control,
}

impl Reload {
    /// Reads the settings anew at each signal.
    pub(super) async fn on(mut self, mut signals: Signal) -> Infallible {
        while signals.recv().await.is_some() {
            manager::reloading();
            // Long lists take seconds.
            let reloaded = spawn_blocking(move || {
                if let Err(error) = self.reload() {
                    error!(error = %swarmkeep_bittorrent::in_words(&error), "the settings stay as they were");
                }
                self
            });
            self = reloaded.await.expect("reading settings does not panic");
            manager::ready();
        }
        std::future::pending().await
    }

    fn reload(&mut self) -> Result<(), Box<dyn Error>> {
        let ReadSettings { effective, settings } = ReadSettings::now()?;
        let Self { kept, control, .. } = self;
        let (level, limiter) = (settings.live.log, kept.limiter.clone());
        let renewed = control.rules.renew(|now| {
            let rules = settings.judge(kept, Some(now))?.server.rules;
            // Live settings beside those that need a restart.
            let settings = Settings { fixed: self.fixed.clone(), ..settings };
            let wrong = |error| format!("lifetime needs a restart; until then, {error}");
            settings.times().map_err(wrong)?;
            settings.renew_certificate(kept)?;
            Ok::<_, Box<dyn Error>>(rules)
        });
        if renewed.is_err() {
            kept.limiter = limiter;
        }
        renewed?;
        self.log.set_level(level);
        let (live, fixed) = changes(&self.running, &effective.settings);
        for Change { name, from, to } in &live {
            info!(setting = name, from, to, "changed");
        }
        for Change { name, from, to } in &fixed {
            warn!(setting = name, from, to, "not changed: this needs a restart");
        }
        info!(changed = live.len(), need_restart = fixed.len(), "settings read again");
        for (running, read) in self.running.iter_mut().zip(effective.settings) {
            // Changes that need a restart are logged at each signal.
            if live.iter().any(|change| change.name == read.name) {
                *running = read;
            }
        }
        Ok(())
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Change {
    name: String,
    from: String,
    to: String,
}

/// The changes to live settings, and the changes to other settings.
fn changes(before: &[Setting], after: &[Setting]) -> (Vec<Change>, Vec<Change>) {
    let live = Live::augment_args(Command::new("live"));
    let is_live =
        |change: &Change| live.get_arguments().any(|option| option.get_long() == Some(&change.name));
    let differ = before.iter().zip(after).filter(|(before, after)| before.values != after.values);
    differ
        .map(|(before, after)| Change {
            name: after.name.clone(),
            from: before.shown().join(", "),
            to: after.shown().join(", "),
        })
        .partition(is_live)
}
