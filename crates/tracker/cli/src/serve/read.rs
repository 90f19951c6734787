//! The settings of the command line, the environment and the file.

use std::{env, ffi::OsString};

use clap::FromArgMatches as _;

use super::schema::Settings;
use crate::settings::{self, Effective};

/// The current settings from all places.
pub(super) struct ReadSettings {
    pub(super) effective: Effective,
    pub(super) settings: Settings,
}

impl ReadSettings {
    pub(super) fn now() -> Result<Self, settings::Error> {
        let arguments: Vec<OsString> = env::args_os().collect();
        let effective = settings::read(&crate::command(), &Settings::schema(), &arguments, env::vars_os())?;
        let (_, matches) = effective.matches.subcommand().expect("`serve` or `config`");
        Ok(Self { settings: Settings::from_arg_matches(matches)?, effective })
    }

    /// Ends the program after an error, as clap does.
    pub(super) fn at_start() -> Self {
        match Self::now() {
            Ok(read) => read,
            Err(settings::Error::CommandLine(error)) => crate::plain(error).exit(),
            Err(error) => crate::refuse(error.to_string()),
        }
    }
}
