//! Former commands of this program.

use std::process::Command;

#[test]
fn a_command_that_is_another_programs_now_says_which() {
    for (old, new) in [
        ("create", "seedkeep create"),
        ("fetch", "seedkeep fetch"),
        ("seed", "seedkeep seed"),
        ("store", "seedkeep store"),
        ("store bench", "cargo store-bench"),
        ("load --report", "cargo load-report"),
        ("load --report=charts", "cargo load-report"),
        ("shootout", "cargo shootout"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_swarmkeep"));
        let output = command.args(old.split(' ')).arg("--help").output().expect("it starts");
        assert_eq!(output.status.code(), Some(2), "{old}");
        let message = String::from_utf8(output.stderr).expect("text");
        assert!(message.contains(&format!("is `{new}` now")), "{message}");
    }
}
