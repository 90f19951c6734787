//! UDP past the sockets of the system.

use clap::ArgAction;
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};
use swarmkeep_tracker::XdpMode;

use super::schema::LISTENING;
use crate::{settings::Contradiction, units::named};

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Xdp {
    /// Network interface from which datagrams bypass the system's sockets (AF_XDP), for less CPU time.
    /// Firewall and tcpdump do not see them any more. It takes root or three capabilities at the start; where
    /// it does not work, the tracker says so and goes on with sockets.
    #[arg(long, value_name = "INTERFACE", help_heading = LISTENING)]
    xdp: Option<String>,

    /// Mode that `xdp` tries first, and then those below it: the driver shares its memory (`zero-copy`), runs
    /// the program and copies (`native`), or does neither (`generic`).
    #[arg(long, value_name = "MODE", default_value = "zero-copy", value_parser = named(XdpMode::ALL, XdpMode::name), help_heading = LISTENING)]
    xdp_mode: XdpMode,

    /// Let the program at the interface answer connects. Default: true, except in native mode at an interface
    /// without hardware, where such answers may be lost.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set, help_heading = LISTENING)]
    xdp_connects: Option<bool>,
}

impl Xdp {
    /// The configuration for the server.
    pub(crate) fn settings(&self, is_udp: bool) -> Result<Option<swarmkeep_tracker::Xdp>, Contradiction> {
        let Some(interface) = &self.xdp else { return Ok(None) };
        if !is_udp {
            return Err(Contradiction("xdp is given and udp is off: leave one of them out".into()));
        }
        let mut xdp = swarmkeep_tracker::Xdp::at(interface);
        (xdp.mode, xdp.connects) = (self.xdp_mode, self.xdp_connects);
        Ok(Some(xdp))
    }

    /// Gives up the capabilities that only attaching needs. Call it before threads start: each thread has its
    /// own.
    pub(crate) fn give_up_privileges(&self) -> Result<(), rustix::io::Errno> {
        if self.xdp.is_none() {
            return Ok(());
        }
        let given_up = CapabilitySet::NET_ADMIN | CapabilitySet::NET_RAW | CapabilitySet::BPF;
        let CapabilitySets { effective, permitted, inheritable } = capabilities(None)?;
        if !(effective | permitted | inheritable).intersects(given_up) {
            // A filter of system calls may allow no change where there is nothing to give up.
            return Ok(());
        }
        let [effective, permitted, inheritable] =
            [effective, permitted, inheritable].map(|capabilities| capabilities - given_up);
        set_capabilities(None, CapabilitySets { effective, permitted, inheritable })
    }
}
