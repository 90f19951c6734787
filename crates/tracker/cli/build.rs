//! The version that `--version` prints: with the commit, if this is a checkout.

use std::{path::Path, process::Command};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    for file in ["HEAD", "logs/HEAD"] {
        // For a file that does not exist, cargo would build everything again each time.
        let path = git(&["rev-parse", "--git-path", file]).filter(|path| Path::new(path).exists());
        path.inspect(|path| println!("cargo::rerun-if-changed={path}"));
    }
    // In the checkout of another project, this file is unknown.
    let is_ours = git(&["ls-files", "--error-unmatch", "build.rs"]).is_some();
    let commit = is_ours.then(|| git(&["rev-parse", "--short=10", "HEAD"])).flatten();
    let commit = commit.map_or_else(String::new, |commit| format!(" ({commit})"));
    println!("cargo::rustc-env=VERSION={}{commit}", env!("CARGO_PKG_VERSION"));
}

fn git(arguments: &[&str]) -> Option<String> {
    let output =
        Command::new("git").args(arguments).output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim_end().to_owned())
}
