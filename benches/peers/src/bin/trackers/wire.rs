//! A veth pair between two network namespaces: the tracker at one end, the load generator at the other.

use std::{error::Error, net::Ipv4Addr, process::Command};

use crate::run;

/// The tracker's address.
pub(crate) const TRACKER: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
/// The interface of the load generator.
pub(crate) const LOAD: &str = "wire-load";
/// The interface of the tracker.
pub(crate) const SERVER: &str = "wire-server";

/// The namespaces, which end with this. They have the names of their interfaces.
pub(crate) struct Wire(());

impl Wire {
    pub(crate) fn new() -> Result<Self, Box<dyn Error>> {
        for namespace in [SERVER, LOAD] {
            ip(&format!("netns add {namespace}"))?;
        }
        let wire = Self(());
        ip(&format!("-n {SERVER} link add {SERVER} type veth peer name {LOAD} netns {LOAD}"))?;
        for (n, namespace) in [SERVER, LOAD].into_iter().enumerate() {
            ip(&format!("-n {namespace} address add 10.9.0.{}/24 dev {namespace}", n + 1))?;
            ip(&format!("-n {namespace} link set {namespace} up"))?;
        }
        Ok(wire)
    }

    /// A command that runs another in a namespace, and is replaced by it.
    pub(crate) fn at(namespace: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", namespace]);
        command
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        for namespace in [SERVER, LOAD] {
            if let Err(error) = ip(&format!("netns delete {namespace}")) {
                eprintln!("{error}");
            }
        }
    }
}

fn ip(arguments: &str) -> Result<(), Box<dyn Error>> {
    run(Command::new("ip").args(arguments.split(' ')))
}
