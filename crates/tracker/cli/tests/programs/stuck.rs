//! A thread of the tracker that is stuck.

use std::{
    fs,
    path::PathBuf,
    process::Command,
    time::{Duration, Instant},
};

use nix::{
    libc,
    sys::{
        ptrace::{self, Options},
        wait::{WaitPidFlag, waitpid},
    },
    unistd::{Pid, Uid},
};
use swarmkeep_store_tests::{
    found,
    programs::{Need, Trial},
    tests,
};

use crate::common::{A_MINUTE, manager::Manager};

/// The tests of this module.
pub(crate) fn tests() -> Vec<Trial> {
    tests! { [TRACING]: a_thread_that_is_stuck_ends_the_pings_until_it_goes_on }
}

const TRACING: Need = Need::other("the right to trace a process", "allow ptrace", |_| {
    let mut child = Command::new("sleep").arg("60").spawn().expect("`sleep` is there");
    let may = ptrace::seize(Pid::from_raw(child.id().cast_signed()), Options::empty()).is_ok();
    let tells = fs::read_to_string(format!("/proc/{}/syscall", child.id())).is_ok();
    let _ = child.kill();
    let _ = child.wait();
    // The tracker has secrets, so only root may trace it.
    may && tells && Uid::effective().is_root()
});

fn a_thread_that_is_stuck_ends_the_pings_until_it_goes_on() {
    let manager = Manager::new();
    let mut serve = manager.run(&["--udp=127.0.0.1:0", "--workers=2"], Duration::from_secs(1));
    assert_eq!(manager.next(), "READY=1\n");
    // Only a thread that waits for datagrams is stopped, as by a debugger.
    let waits = |task: &PathBuf| {
        let call = fs::read_to_string(task.join("syscall")).unwrap_or_default();
        call.split(' ').next() == Some(&libc::SYS_ppoll.to_string())
    };
    let waiting = || serve.tasks().find(waits)?.file_name()?.to_str()?.parse().ok();
    let stuck = Pid::from_raw(found("a thread waits for datagrams", waiting));
    ptrace::seize(stuck, Options::empty()).expect("a need of this test");
    let stuck = Stopped(stuck);
    ptrace::interrupt(stuck.0).expect("seized");
    waitpid(stuck.0, Some(WaitPidFlag::__WALL)).expect("it stops");
    let stopped = Instant::now();
    while manager.try_next(Duration::from_secs(2)).is_some() {
        assert!(stopped.elapsed() < A_MINUTE, "pings go on");
    }
    serve.printed_until("threads have not looked at their sockets for seconds");
    assert!(stopped.elapsed() > Duration::from_secs(3), "not for a short pause");
    drop(stuck);
    while manager.try_next(A_MINUTE).expect("a notification") != "WATCHDOG=1\n" {}
    assert_eq!(serve.stop("TERM").0, Some(0));
}

/// A thread of another process, stopped until this is dropped. The process cannot end before.
struct Stopped(Pid);

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = ptrace::detach(self.0, None);
    }
}
