//! Servers and clusters of tests obey their configuration, and leave nothing behind.

use std::{
    env, fs,
    io::{BufRead as _, BufReader},
    net::TcpStream,
    process::{self, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use swarmkeep_servers::{Cluster, Error, PROGRAM_VARIABLE, Server, Value};
use swarmkeep_store_tests::{
    A_MINUTE,
    programs::{REDIS, Trial, again, note},
    tests, until,
};

pub(crate) fn tests() -> Vec<Trial> {
    tests! {
        [REDIS]:
            a_redis_server_starts_answers_is_killed_and_restarts,
            a_redis_server_obeys_its_directives,
            a_paused_redis_server_answers_when_it_is_resumed,
            connections_to_a_redis_server_are_cut,
            a_redis_server_dies_with_its_process,
            a_redis_cluster_survives_its_master,
            a_slot_of_a_redis_cluster_moves_in_steps,
            a_redis_cluster_that_did_not_fail_over_names_the_node_that_still_serves;
        []: a_redis_server_that_is_not_installed_says_how_to_install_it
    }
}

const FAILOVER: Duration = A_MINUTE;

fn a_redis_server_starts_answers_is_killed_and_restarts() {
    let server = Server::start().unwrap();
    server.command(&["SET", "key", "value"]).unwrap();
    assert_eq!(server.query::<String>(&["GET", "key"]).unwrap(), "value");
    assert_eq!(server.url(), format!("redis://127.0.0.1:{}", server.port()));
    assert!(server.used_memory().unwrap() > 100_000);
    assert!(server.cpu().unwrap() > Duration::ZERO);
    let (port, folder) = (server.port(), server.folder().to_owned());

    server.kill();
    assert!(!server.is_live());
    assert!(matches!(server.command(&["PING"]), Err(Error::Unreachable { .. })));
    assert!(matches!(server.pause(), Err(Error::NotRunning { .. })));

    server.restart().unwrap();
    assert_eq!((server.port(), server.folder()), (port, folder.as_path()));
    assert_eq!(server.command(&["GET", "key"]).unwrap(), Value::Nil, "nothing is kept on disk");

    drop(server);
    assert!(TcpStream::connect(("127.0.0.1", port)).is_err());
    assert!(!folder.exists());
}

fn a_redis_server_obeys_its_directives() {
    let server = Server::start_with(&[
        ("requirepass", "secret"),
        ("maxmemory", "8mb"),
        ("appendonly", "yes"),
        ("appendfsync", "always"),
        ("client-output-buffer-limit", "normal 1mb 0 0"),
    ])
    .unwrap();
    assert_eq!(server.url(), format!("redis://:secret@127.0.0.1:{}", server.port()));
    assert_eq!(server.info("memory").unwrap()["maxmemory"], "8388608");
    server.command(&["SET", "key", "value"]).unwrap();
    server.restart().unwrap();
    assert_eq!(server.query::<String>(&["GET", "key"]).unwrap(), "value");

    let error = server.command(&["SET", "key"]).unwrap_err();
    assert!(error.to_string().contains("refused SET: ERR wrong number of arguments"), "{error}");
    let error = Server::start_with(&[("no-such-directive", "yes")]).unwrap_err();
    assert!(
        matches!(error, Error::Exited { .. }) && error.to_string().contains("no-such-directive"),
        "{error}"
    );
}

fn a_paused_redis_server_answers_when_it_is_resumed() {
    let server = Server::start().unwrap();
    let mut connection = server.connect().unwrap();
    server.pause().unwrap();
    assert!(!server.is_live());
    thread::scope(|scope| {
        let answer = scope.spawn(|| (connection.query::<String>(&["PING"]), Instant::now()));
        thread::sleep(Duration::from_millis(200));
        let resumed = Instant::now();
        server.resume().unwrap();
        let (answer, answered) = answer.join().unwrap();
        assert_eq!(answer.unwrap(), "PONG");
        assert!(answered >= resumed);
    });
    assert!(server.is_live());
    // One that stands still is killed all the same.
    server.pause().unwrap();
    drop(server);
}

fn connections_to_a_redis_server_are_cut() {
    let server = Server::start().unwrap();
    let mut connections = [server.connect().unwrap(), server.connect().unwrap()];
    for connection in &mut connections {
        connection.command(&["PING"]).unwrap();
    }
    // The server may not have noticed yet that earlier connections of single commands are closed.
    assert!(server.client_kill_all().unwrap() >= 2);
    for connection in &mut connections {
        assert!(matches!(connection.command(&["PING"]), Err(Error::Unreachable { .. })));
    }
    server.command(&["PING"]).unwrap();
}

fn a_redis_server_dies_with_its_process() {
    const PART: &str = "SWARMKEEP_TEST_ABORTS";
    if env::var_os(PART).is_some() {
        // From a thread that ends: the server must not end with it.
        let server = thread::spawn(|| Server::start().unwrap()).join().unwrap();
        thread::sleep(Duration::from_millis(100));
        server.command(&["PING"]).unwrap();
        println!("\nport {} {}", server.port(), server.folder().display());
        process::abort();
    }
    let part = itself().env(PART, "1").stdout(Stdio::piped()).spawn();
    let mut part = part.unwrap();
    let mut lines = BufReader::new(part.stdout.take().unwrap()).lines().map(Result::unwrap);
    let line = lines.find_map(|line| Some(line.strip_prefix("port ")?.to_owned())).unwrap();
    let (port, folder) = line.split_once(' ').unwrap();
    let port: u16 = port.parse().unwrap();
    assert!(!part.wait().unwrap().success());
    until("the server ends with the process that started it", || {
        TcpStream::connect(("127.0.0.1", port)).is_err()
    });
    fs::remove_dir_all(folder).unwrap();
}

fn a_redis_server_that_is_not_installed_says_how_to_install_it() {
    if env::var_os(PROGRAM_VARIABLE).is_some_and(|program| program == "no-such-server") {
        Server::start().unwrap();
    }
    let mut part = itself();
    let part = part.env(PROGRAM_VARIABLE, "no-such-server").output().unwrap();
    assert!(!part.status.success());
    let text = String::from_utf8_lossy(&part.stdout) + String::from_utf8_lossy(&part.stderr);
    let said = "no-such-server is needed, but not installed: `apt-get install redis-server`";
    assert!(text.contains(said), "{text}");
}

fn a_redis_cluster_survives_its_master() {
    let started = Instant::now();
    let cluster = Cluster::start(3, 1).unwrap();
    note(format_args!("3 masters and 3 replicas in {:?}", started.elapsed()));
    assert_eq!(cluster.masters(), [0, 1, 2]);
    assert_eq!((cluster.replicas_of(0), cluster.urls().len()), (vec![3], 6));

    let slot = cluster.slot_of("key").unwrap();
    let master = cluster.master_of_slot(slot).unwrap();
    let mut connection = cluster.server(master).connect().unwrap();
    connection.command(&["SET", "key", "value"]).unwrap();
    assert_eq!(connection.query::<u64>(&["WAIT", "1", "5000"]).unwrap(), 1);

    let killed = Instant::now();
    assert_eq!(cluster.kill_master_of(slot).unwrap(), master);
    assert!(!cluster.masters().contains(&master));
    assert!(matches!(cluster.master_of_slot(slot), Err(Error::NoMaster { .. })));
    let new = cluster.wait_for_failover(slot, master, FAILOVER).unwrap();
    note(format_args!("a replica took over in {:?}", killed.elapsed()));
    assert_eq!(new, master + 3);
    assert_eq!(cluster.server(new).query::<String>(&["GET", "key"]).unwrap(), "value");

    // The old master comes back as a replica and can be put in its place again.
    cluster.server(master).restart().unwrap();
    until("it is so", || cluster.replicas_of(new) == [master]);
    let asked = Instant::now();
    assert_eq!(cluster.failover(slot).unwrap(), master);
    note(format_args!("a planned fail-over took {:?}", asked.elapsed()));
    assert_eq!(cluster.server(master).query::<String>(&["GET", "key"]).unwrap(), "value");
    assert_eq!(cluster.masters(), [0, 1, 2]);

    // A master that stands still loses its place too. Another one: see `wait_for_failover`.
    let other = (master + 1) % 3;
    let slot = (0..16384).find(|slot| cluster.master_of_slot(*slot).unwrap() == other).unwrap();
    cluster.server(other).pause().unwrap();
    assert_eq!(cluster.wait_for_failover(slot, other, FAILOVER).unwrap(), other + 3);
    cluster.server(other).resume().unwrap();
    until("it is so", || cluster.replicas_of(other + 3) == [other]);
}

fn a_slot_of_a_redis_cluster_moves_in_steps() {
    let cluster = Cluster::start_with(3, 0, &[("requirepass", "secret"), ("masterauth", "secret")]).unwrap();
    let slot = cluster.slot_of("{swarm}").unwrap();
    let from = cluster.master_of_slot(slot).unwrap();
    let to = (from + 1) % 3;
    let key = |number: usize| [b"{swarm}\xff\0" as &[u8], number.to_string().as_bytes()].concat();
    for number in 0..200 {
        cluster.server(from).command(&[b"SET", key(number).as_slice(), b"value"]).unwrap();
    }

    let mut migration = cluster.begin_migration(slot, to).unwrap();
    assert_eq!(migration.from(), from);
    assert_eq!(migration.move_keys(50).unwrap(), 50);
    let at = |node: usize| cluster.server(node).query::<u64>(&["DBSIZE"]).unwrap();
    assert_eq!((at(from), at(to)), (150, 50));
    let absent = cluster.server(from).command(&["GET", "{swarm}absent"]).unwrap_err();
    let ask = format!("ASK {slot} 127.0.0.1:{}", cluster.server(to).port());
    assert!(absent.to_string().ends_with(&ask), "{absent}");
    assert_eq!(cluster.master_of_slot(slot).unwrap(), from);
    assert_eq!(migration.finish().unwrap(), 200);

    assert_eq!(cluster.master_of_slot(slot).unwrap(), to);
    assert_eq!((at(from), at(to)), (0, 200));
    let moved = cluster.server((from + 2) % 3).command(&["GET", "{swarm}"]).unwrap_err();
    assert!(
        moved.to_string().contains(&format!("MOVED {slot} 127.0.0.1:{}", cluster.server(to).port())),
        "{moved}"
    );
    let asked = Instant::now();
    assert_eq!(cluster.migrate_slot(slot, from).unwrap(), 200);
    note(format_args!("a slot of 200 keys moved in {:?}", asked.elapsed()));
    let error = cluster.failover(slot).unwrap_err();
    assert!(matches!(error, Error::NoReplica { .. }), "{error}");
}

fn a_redis_cluster_that_did_not_fail_over_names_the_node_that_still_serves() {
    let cluster = Cluster::start(1, 1).unwrap();
    let error = cluster.wait_for_failover(7, 0, Duration::from_millis(100)).unwrap_err();
    assert!(error.to_string().ends_with("still missing: node 0 still serves it"), "{error}");
}

/// This test once more, in a process of its own.
fn itself() -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(again());
    command
}
