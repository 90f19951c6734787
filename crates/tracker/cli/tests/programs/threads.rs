//! The threads of the program.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::common::Serve;

/// Every thread, as folders of /proc.
pub(crate) fn tasks(serve: &Serve) -> impl Iterator<Item = PathBuf> {
    let tasks = Path::new("/proc").join(serve.pid().to_string()).join("task");
    fs::read_dir(tasks).expect("it lives").map(|task| task.expect("it lives").path())
}
