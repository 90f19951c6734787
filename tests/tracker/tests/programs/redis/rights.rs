//! The rights of a user: a missing one is named before a store is written.

use swarmkeep_redis::{Engine, Error, RedisRepository};
use swarmkeep_servers::{Cluster, Server};
use swarmkeep_store_tests::{
    programs::{REDIS, Trial},
    tests,
};

use crate::redis::stores::{RUNTIME, config, keys, server_with_module, settings, started};

pub(crate) fn tests() -> Vec<Trial> {
    tests! {
        [REDIS]:
            redis_right_that_a_user_lacks_is_named_before_a_store_is_written,
            redis_command_that_a_server_does_not_know_is_named_before_a_store_is_written,
    }
}

/// A tracker starts without these: it warns, or leaves old functions, or its server is in no Cluster.
const OPTIONAL: [&str; 4] = ["+info", "+function|list", "+function|delete", "+asking"];

/// The server has the module, which a store of functions does not need, nor rights on it.
fn redis_right_that_a_user_lacks_is_named_before_a_store_is_written() {
    let server = server_with_module(&[]);
    let url = format!("redis://tracker:given@127.0.0.1:{}", server.port());
    for (engine, document) in [
        (None, include_str!("../../../../../docs/operate/module.md")),
        (Some(Engine::Functions), include_str!("../../../../../docs/operate/two-trackers.md")),
    ] {
        let rule = document.lines().find_map(|line| line.strip_prefix("user tracker on >PASSWORD "));
        let rights: Vec<_> = rule.expect("there is one").split(' ').collect();
        let mut settings = settings([url.clone()]);
        (settings.prefix, settings.engine) = ("swarmkeep:".into(), engine);
        for lacked in rights.iter().filter(|right| !OPTIONAL.contains(right)) {
            let others = rights.iter().filter(|right| right != &lacked).copied();
            let words = ["ACL", "SETUSER", "tracker", "reset", "on", ">given"].into_iter().chain(others);
            server.command(&words.collect::<Vec<_>>()).expect("it is understood");
            let refused = RUNTIME.block_on(RedisRepository::connect(&settings, &config()));
            match refused.expect_err(lacked) {
                Error::Rights { missing, .. } => assert_eq!(missing, *lacked),
                // Without this one, it does not learn of the servers.
                Error::Unreachable(reason) if *lacked == "+cluster|slots" => {
                    assert!(reason.contains("cluster|slots"), "{reason}");
                }
                other => panic!("{lacked}: {other}"),
            }
            assert_eq!(keys(&server, "*"), [""; 0], "nothing is written without {lacked}");
        }
    }
}

/// As on Redis 6, which has no functions.
fn redis_command_that_a_server_does_not_know_is_named_before_a_store_is_written() {
    for (renamed, named) in [("FCALL", "FCALL"), ("FUNCTION", "FUNCTION LOAD"), ("PEXPIRE", "PEXPIRE")] {
        let server = started(Server::start_with(&[("rename-command", &format!("{renamed} \"\""))]));
        let mut settings = settings([server.url()]);
        settings.engine = Some(Engine::Functions);
        match RUNTIME.block_on(RedisRepository::connect(&settings, &config())).expect_err(renamed) {
            Error::Command { command, .. } => assert_eq!(command, named),
            other => panic!("{renamed}: {other}"),
        }
        assert_eq!(keys(&server, "*"), [""; 0], "nothing is written without {renamed}");
    }
    // Like behind a proxy, which follows redirections itself.
    let cluster = started(Cluster::start_with(1, 0, &[("rename-command", "ASKING \"\"")]));
    let store = RUNTIME.block_on(RedisRepository::connect(&settings(cluster.urls()), &config()));
    store.expect("ASKING is not needed");
}
