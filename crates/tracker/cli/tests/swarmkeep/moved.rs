//! Commands that were this program's.

use std::process::Command;

#[test]
fn a_command_that_is_another_programs_now_says_which() {
    for (old, new) in
        [("fetch", "seedkeep fetch"), ("store", "seedkeep store"), ("shootout", "cargo shootout")]
    {
        let output =
            Command::new(env!("CARGO_BIN_EXE_swarmkeep")).args([old, "--help"]).output().expect("it starts");
        assert_eq!(output.status.code(), Some(2), "{old}");
        let message = String::from_utf8(output.stderr).expect("text");
        assert!(message.contains(&format!("`swarmkeep {old}` is `{new}` now")), "{message}");
    }
}
