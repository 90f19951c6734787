//! `swarmkeep token`: a line for the file of `serve --admin-tokens`.

use std::error::Error;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use swarmkeep_tracker::{Scope, Token};

use crate::say;

const DETAILS: &str = "\
  (umask 077; swarmkeep token >> tokens)     adds one to a file that others cannot read
  swarmkeep serve --admin-tokens tokens
  curl -H 'Authorization: Bearer SECRET' http://127.0.0.1:6970/api/v1/stats";

/// Print a new token for the admin address: its secret and its rights, as a line for `--admin-tokens`.
#[derive(Debug, clap::Args)]
#[command(after_help = DETAILS)]
pub(crate) struct Args {
    /// The rights of the token: to read, to change the tracker, to see the addresses of peers.
    #[arg(value_delimiter = ',', default_value = "read,write", value_parser = scopes())]
    rights: Vec<Scope>,
}

fn scopes() -> impl TypedValueParser<Value = Scope> {
    PossibleValuesParser::new(Scope::ALL.map(Scope::name))
        .map(|name| Scope::ALL.into_iter().find(|scope| scope.name() == name).expect("an allowed one"))
}

pub(crate) fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    let (_, secret) = Token::draw(&args.rights)?;
    let rights: Vec<_> = args.rights.iter().map(|scope| scope.name()).collect();
    say!("{secret} {}", rights.join(","));
    Ok(())
}
