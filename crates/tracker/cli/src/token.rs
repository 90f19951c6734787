//! `swarmkeep token`: a line for the file of `serve --admin-tokens`.

use std::error::Error;

use swarmkeep_bittorrent::say;
use swarmkeep_tracker::{Scope, Token};

use crate::units::named;

const DETAILS: &str = "\
  (umask 077; swarmkeep token >> tokens)     adds one to a file that others cannot read
  swarmkeep serve --admin-tokens tokens
  curl -H 'Authorization: Bearer SECRET' http://127.0.0.1:6970/api/v1/stats";

/// Print a new token for the admin address: its secret and its rights, as a line for `--admin-tokens`.
#[derive(Debug, clap::Args)]
#[command(after_help = DETAILS)]
pub(crate) struct Args {
    /// The rights of the token: to read, to change the tracker, to see the addresses of peers, to see and
    /// change the passkeys of members.
    #[arg(value_delimiter = ',', default_value = "read,write", value_parser = named(Scope::ALL, Scope::name))]
    rights: Vec<Scope>,
}

pub(crate) fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    let (_, secret) = Token::draw(&args.rights)?;
    let rights: Vec<_> = args.rights.iter().map(|scope| scope.name()).collect();
    say!("{secret} {}", rights.join(","));
    Ok(())
}
