//! `swarmkeep serve --state` on a full disk.

use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::Command,
};

use swarmkeep::AnnounceEvent;
use swarmkeep_store_tests::{
    programs::{MOUNT, Trial},
    tests,
};
use swarmkeep_tracker_protocol::udp::ScrapeStats;

use crate::common::{
    Folder, Serve,
    state::{Tracker, command, metric, metrics_show},
    until,
};

/// The tests of this module.
pub(crate) fn tests() -> Vec<Trial> {
    tests! {
        [MOUNT]:
            a_full_disk_is_logged_once_while_the_tracker_goes_on_and_refused_writes_are_caught_up_with,
            a_file_system_that_is_read_only_ends_the_tracker_and_can_be_looked_at
    }
}

fn a_full_disk_is_logged_once_while_the_tracker_goes_on_and_refused_writes_are_caught_up_with() {
    let disk = Disk::mount("8m");
    let state = disk.path().join("state");
    let (mut tracker, _) = Tracker::start(&state, &["--snapshot-every=1s", "--admin=127.0.0.1:0"]);
    let admin = tracker.admin();
    (0..1_000).for_each(|swarm| drop(tracker.starts(swarm, 1, 1)));
    tracker.serve.printed_until("snapshot taken");
    metrics_show(admin, &["swarmkeep_snapshot_refused 0", "swarmkeep_downloads_refused 0"]);
    for name in ["snapshots_total", "snapshot_bytes", "snapshot_timestamp_seconds", "downloads_commits_total"]
    {
        metrics_show(admin, &[&format!("\nswarmkeep_{name} ")]);
    }

    let filler = disk.fill();
    for swarm in 0..1_000 {
        tracker.completes(swarm, 1);
        tracker.elsewhere(swarm, 1, AnnounceEvent::Completed);
    }
    metrics_show(admin, &["swarmkeep_snapshot_refused 1", "swarmkeep_downloads_refused 1"]);
    // Several times.
    let refused = |name: &str| metric(admin, &format!("swarmkeep_{name}_total"));
    until("three failures of each", || {
        tracker.starts(1_001, 2, 1);
        refused("failed_snapshots") >= 3 && refused("downloads_refusals") >= 3
    });
    assert_eq!(tracker.scrape(7), ScrapeStats { seeders: 2, completed: 2, leechers: 0 });

    fs::remove_file(filler).expect("ours");
    metrics_show(
        admin,
        &["swarmkeep_snapshot_refused 0", "swarmkeep_downloads_refused 0", "swarmkeep_unsaved_downloads 0"],
    );
    let said = tracker.serve.kill();
    for line in [
        "no snapshot could be taken; the tracker goes on, the latest one stays, and it is tried again",
        "snapshots are being taken again",
        "download counts are not being saved; the tracker goes on, and tries again",
        "download counts are being saved again",
    ] {
        assert_eq!(said.matches(line).count(), 1, "{line}: {said}");
    }
    assert!(said.contains("No space left on device"), "{said}");

    let (mut tracker, said) = Tracker::start(&state, &[]);
    assert!(!said.contains("ERROR"), "{said}");
    for swarm in 0..1_000 {
        tracker.has_downloads(swarm, 2);
    }
    assert_eq!(tracker.scrape(7), ScrapeStats { seeders: 2, completed: 2, leechers: 0 });
    tracker.stop();

    // It also starts on a full disk, and at the end reports that it could not save its state.
    disk.fill();
    let (mut tracker, said) = Tracker::start(&state, &[]);
    assert!(!said.contains("ERROR"), "{said}");
    assert_eq!(tracker.scrape(7), ScrapeStats { seeders: 2, completed: 2, leechers: 0 });
    let (code, said) = tracker.serve.stop("TERM");
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("swarmkeep: writing ") && said.contains("No space left on device"), "{said}");
}

fn a_file_system_that_is_read_only_ends_the_tracker_and_can_be_looked_at() {
    let disk = Disk::mount("8m");
    let state = disk.path().join("state");
    Tracker::start(&state, &[]).0.stop();
    let mut mount = Command::new("mount");
    let mounted = mount.args(["-o", "remount,ro"]).arg(disk.path()).status();
    assert!(mounted.is_ok_and(|status| status.success()), "a need of this test");
    let (code, said) = Serve::refused(command(&state, &[]));
    assert_eq!(code, Some(1), "{said}");
    for text in ["Read-only file system", "mount its file system to be written to, or name another folder"] {
        assert!(said.contains(text), "{said}");
    }
    let looked = Command::new(env!("CARGO_BIN_EXE_swarmkeep")).arg("state").arg(&state).output();
    let looked = looked.expect("it starts");
    assert!(looked.status.success(), "{}", String::from_utf8_lossy(&looked.stderr));
}

/// A small disk, until this is dropped.
struct Disk(Folder);

impl Disk {
    fn mount(size: &str) -> Self {
        let folder = Folder::empty();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={size}"), "swarmkeep-test"]).arg(folder.path());
        assert!(mount.status().is_ok_and(|status| status.success()), "a need of this test");
        Self(folder)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// Leaves no byte free until the returned file is removed.
    fn fill(&self) -> PathBuf {
        let path = self.path().join("filler");
        let mut file = fs::File::create(&path).expect("room");
        while file.write_all(&[1; 4096]).is_ok() {}
        path
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Lazily: after a failed test a tracker may still run.
        let unmounted = Command::new("umount").arg("-l").arg(self.path()).status();
        assert!(unmounted.is_ok_and(|status| status.success()), "{} stays mounted", self.path().display());
    }
}
