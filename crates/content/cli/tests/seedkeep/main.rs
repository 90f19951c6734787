//! The program `seedkeep`, as people use it.

#[path = "../common/mod.rs"]
mod common;
mod create;
mod news;
mod peers;
mod store;

use std::{
    cell::Cell,
    collections::BTreeMap,
    ffi::OsStr,
    fs::{self, File},
    io::{BufRead, BufReader, Read, Write},
    net::TcpListener,
    os::unix::{ffi::OsStrExt, fs::PermissionsExt},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant, SystemTime},
};

use common::{Ended, FORMATS, Folder, done, ended, put, random_bytes, read, scratch, seedkeep};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;
use swarmkeep_content_tests::scratch_folder;
use swarmkeep_metainfo::Magnet;
