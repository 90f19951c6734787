//! The rights that the user of a store needs, each with a command that needs it and changes nothing.

use redis::Cmd;

use crate::place::Engine;

/// `KEY` stands for a key of the store. A command without this right is refused before its arguments are
/// read.
const OF_ALL: &str = "GET KEY|SET KEY x NX XX|PEXPIRE KEY x|HGET KEY m|TIME";
const OF_FUNCTIONS: &str = "HMGET KEY m|HSET KEY m x x|HDEL KEY x|FCALL swarmkeep_none 1 KEY|FUNCTION LOAD x";
const OF_MODULE: &str = "swarmkeep.announce x KEY|swarmkeep.leave x KEY|swarmkeep.remove x KEY|\
    swarmkeep.sweep x KEY|swarmkeep.scrape x KEY|swarmkeep.walk x KEY|swarmkeep.page x KEY|\
    swarmkeep.peers x KEY|swarmkeep.meta x KEY";

/// A right as a rule of an ACL, and a command.
pub(crate) struct Right {
    pub(crate) rule: String,
    pub(crate) command: Cmd,
}

/// The rights on a store that `engine` keeps; without one, those on any store.
pub(crate) fn needed(prefix: &str, engine: Option<Engine>, is_cluster: bool) -> Vec<Right> {
    let commands = match engine {
        None => OF_ALL,
        Some(Engine::Functions) => OF_FUNCTIONS,
        Some(Engine::Module) => OF_MODULE,
    };
    let right = |text: &str| {
        let (name, rest) = text.split_once(' ').unwrap_or((text, ""));
        let mut command = Cmd::new();
        command.arg(name);
        for word in rest.split_terminator(' ') {
            command.arg(if word == "KEY" { format!("{prefix}store") } else { word.to_owned() });
        }
        let rule = match text {
            "FUNCTION LOAD x" => "+function|load".to_owned(),
            _ => format!("+{}", name.to_lowercase()),
        };
        Right { rule, command }
    };
    // It concerns the command after it, so it is no last one.
    is_cluster.then_some("ASKING").into_iter().chain(commands.split('|')).map(right).collect()
}
