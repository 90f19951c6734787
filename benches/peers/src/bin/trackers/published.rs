//! Trackers of other projects: as published, and on swarmkeep's packed store by a patch.

use std::{
    error::Error,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;

use crate::run;

/// A tracker on crates.io, and the patch that puts it on swarmkeep's packed store.
pub(crate) struct Published {
    package: &'static str,
    version: &'static str,
    features: &'static [&'static str],
    patch: &'static str,
    /// Its own tests that ask for data that the packed store does not keep.
    #[cfg(test)]
    skipped: &'static [&'static str],
}

pub(crate) const AQUATIC: Published = Published {
    package: "aquatic_udp",
    version: "0.9.0",
    // Without its default feature `prometheus`: that version of `metrics` does not compile any more.
    features: &["--no-default-features", "--features", "mimalloc,io-uring"],
    patch: include_str!("../../../patches/aquatic_udp.patch"),
    #[cfg(test)]
    skipped: &[],
};

pub(crate) const AQUATIC_HTTP: Published = Published {
    package: "aquatic_http",
    version: "0.9.0",
    features: &["--no-default-features", "--features", "mimalloc"],
    patch: "",
    #[cfg(test)]
    skipped: &[],
};

pub(crate) const TORRUST: Published = Published {
    package: "torrust-tracker",
    version: "3.0.0",
    features: &[],
    patch: include_str!("../../../patches/torrust-tracker.patch"),
    #[cfg(test)]
    skipped: &[
        // Answers and the API show peer ids, byte counts and events, which are not kept.
        "core::tests::the_tracker::it_should_return_the_peers_for_a_given_torrent",
        "core::tests::the_tracker::for_all_config_modes::handling_an_announce_request::it_should_return_the_announce_data_with_the_previously_announced_peers",
        "core::services::torrent::tests::getting_a_torrent_info::should_return_the_torrent_info_if_the_tracker_has_the_torrent",
        "servers::http::v1::responses::announce::tests::non_compact_announce_response_can_be_bencoded",
        "servers::udp::handlers::tests::announce_request::using_ipv4::an_announced_peer_should_be_added_to_the_tracker",
        "servers::udp::handlers::tests::announce_request::using_ipv6::an_announced_peer_should_be_added_to_the_tracker",
        "servers::udp::handlers::tests::announce_request::using_ipv4::from_a_loopback_ip::the_peer_ip_should_be_changed_to_the_external_ip_in_the_tracker_configuration_if_defined",
        "servers::http::v1::contract::for_all_config_modes::receiving_an_announce_request::should_return_the_list_of_previously_announced_peers",
        "servers::http::v1::contract::for_all_config_modes::receiving_an_announce_request::should_return_the_list_of_previously_announced_peers_including_peers_using_ipv4_and_ipv6",
        "servers::api::v1::contract::context::torrent::should_allow_getting_a_torrent_info",
        // The test takes peers of one peer id for one; the store goes by address.
        "core::tests::the_tracker::for_all_config_modes::handling_a_scrape_request::it_should_return_the_swarm_metadata_for_the_requested_file_if_the_tracker_has_that_torrent",
        "servers::http::v1::contract::for_all_config_modes::receiving_an_announce_request::should_consider_two_peers_to_be_the_same_when_they_have_the_same_peer_id_even_if_the_ip_is_different",
    ],
};

impl Published {
    /// Its program, built once.
    pub(crate) fn install(&self) -> Result<PathBuf, Box<dyn Error>> {
        let root = here("trackers");
        let program = root.join("bin").join(self.package);
        if !program.exists() {
            let mut command = self.cargo("install");
            command.args(["--locked", "--bin", self.package, &format!("{}@{}", self.package, self.version)]);
            run(command.arg("--root").arg(root))?;
        }
        Ok(program)
    }

    /// Its program on the packed store.
    pub(crate) fn patch(&self) -> Result<PathBuf, Box<dyn Error>> {
        run(self.on_patched("build")?.args(["--release", "--bin", self.package]))?;
        Ok(here("patched/target/release").join(self.package))
    }

    /// Runs its own tests on the packed store.
    #[cfg(test)]
    pub(crate) fn test(&self) -> Result<(), Box<dyn Error>> {
        let mut command = self.on_patched("test")?;
        command.envs([("CARGO_PROFILE_DEV_DEBUG", "0"), ("CARGO_PROFILE_DEV_LTO", "off")]);
        command.args(["--lib", "--test", "*", "--", "--exact"]);
        run(command.args(self.skipped.iter().flat_map(|&name| ["--skip", name])))
    }

    /// Cargo on a patched copy of its source, which is made unless it was made before.
    fn on_patched(&self, does: &str) -> Result<Command, Box<dyn Error>> {
        let patched = here("patched").join(self.package);
        // Cargo builds rewritten files again.
        let done = patched.join("applied.patch");
        if fs::read_to_string(&done).is_ok_and(|applied| applied == self.patch) {
            eprintln!("{} is patched already, in {}", self.package, patched.display());
        } else {
            let published = self.source(&here("patched/published").join(self.package))?;
            if patched.exists() {
                fs::remove_dir_all(&patched)?;
            }
            run(Command::new("cp").arg("-r").args([&published, &patched]))?;
            let patch = here("../patches").join(format!("{}.patch", self.package));
            run(Command::new("patch").args(["-p1", "--fuzz=0", "-i"]).arg(patch).current_dir(&patched))?;
            fs::write(done, self.patch)?;
        }
        let swarmkeep = here("../../../crates/store/swarmkeep").canonicalize()?;
        let mut command = self.cargo(does);
        command.arg("--config").arg(format!("patch.crates-io.swarmkeep.path={swarmkeep:?}"));
        command.arg("--manifest-path").arg(patched.join("Cargo.toml"));
        Ok(command)
    }

    /// The same for all: in one folder, since they share most of their dependencies, and without the settings
    /// for Cargo of torrust's source.
    fn cargo(&self, does: &str) -> Command {
        let mut command = Command::new("cargo");
        // Where io_uring is built in, tests need a kernel that has it.
        let besides = if does == "test" { ",io-uring" } else { "" };
        let features = self.features.iter().map(|&feature| feature.strip_suffix(besides).unwrap_or(feature));
        command.arg(does).args(features).arg("--target-dir").arg(here("patched/target"));
        command.env("CARGO_INCREMENTAL", "0").current_dir(env!("CARGO_MANIFEST_DIR"));
        command
    }

    /// Where Cargo keeps the published source: `cargo metadata` of a package that depends only on it.
    fn source(&self, asking: &Path) -> Result<PathBuf, Box<dyn Error>> {
        let Self { package, version, .. } = self;
        fs::create_dir_all(asking.join("src"))?;
        fs::write(asking.join("src/lib.rs"), "")?;
        let manifest = format!(
            "[package]\nname = \"asking\"\nedition = \"2024\"\n[dependencies]\n{package} = \"={version}\"\n"
        );
        fs::write(asking.join("Cargo.toml"), manifest)?;
        let mut command = Command::new("cargo");
        let output = command.args(["metadata", "--format-version", "1"]).current_dir(asking).output()?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into());
        }
        let metadata: Value = serde_json::from_slice(&output.stdout)?;
        let packages = metadata["packages"].as_array().ok_or("no packages")?;
        let manifest = packages.iter().find(|found| found["name"] == *package);
        let manifest = manifest.and_then(|found| found["manifest_path"].as_str()).ok_or("no such package")?;
        Ok(PathBuf::from(manifest).parent().ok_or("a manifest in no folder")?.to_owned())
    }
}

/// A path in the folder of the builds of this package.
fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("target").join(path)
}
