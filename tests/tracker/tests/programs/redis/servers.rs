//! Servers of tests leave nothing behind, and say why they did not start.

use std::{
    env, fs,
    io::{BufRead as _, BufReader},
    net::TcpStream,
    process::{self, Command, Stdio},
    thread,
    time::Duration,
};

use swarmkeep_servers::{Error, PROGRAM_VARIABLE, Server};
use swarmkeep_store_tests::{
    programs::{REDIS, Trial, again},
    tests, until,
};

pub(crate) fn tests() -> Vec<Trial> {
    tests! {
        [REDIS]:
            a_redis_server_dies_with_its_process,
            a_redis_server_with_a_wrong_directive_names_it;
        []: a_redis_server_that_is_not_installed_says_how_to_install_it
    }
}

fn a_redis_server_with_a_wrong_directive_names_it() {
    let error = Server::start_with(&[("no-such-directive", "yes")]).unwrap_err();
    assert!(
        matches!(error, Error::Exited { .. }) && error.to_string().contains("no-such-directive"),
        "{error}"
    );
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

/// This test once more, in a process of its own.
fn itself() -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(again());
    command
}
