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
}

pub(crate) const AQUATIC: Published = Published {
    package: "aquatic_udp",
    version: "0.9.0",
    // Without its default feature `prometheus`: that version of `metrics` does not compile any more.
    features: &["--no-default-features", "--features", "mimalloc,io-uring"],
    patch: include_str!("../../../patches/aquatic_udp.patch"),
};

pub(crate) const AQUATIC_HTTP: Published = Published {
    package: "aquatic_http",
    version: "0.9.0",
    features: &["--no-default-features", "--features", "mimalloc"],
    patch: "",
};

pub(crate) const TORRUST: Published = Published {
    package: "torrust-tracker",
    version: "3.0.0",
    features: &[],
    patch: include_str!("../../../patches/torrust-tracker.patch"),
};

impl Published {
    /// Its program, built once.
    pub(crate) fn install(&self) -> Result<PathBuf, Box<dyn Error>> {
        let root = here("trackers");
        let program = root.join("bin").join(self.package);
        if !program.exists() {
            let mut command = Command::new("cargo");
            command.args(["install", "--locked", &format!("{}@{}", self.package, self.version), "--root"]);
            self.build(command.arg(root))?;
        }
        Ok(program)
    }

    /// Patches a copy of its source, unless that was done before, and builds it.
    pub(crate) fn patch(&self) -> Result<PathBuf, Box<dyn Error>> {
        let patched = here("patched").join(self.package);
        // Cargo builds rewritten files again.
        let done = patched.join("applied.patch");
        if fs::read_to_string(&done).is_ok_and(|applied| applied == self.patch) {
            eprintln!("{} is patched already, in {}", self.package, patched.display());
        } else {
            let published = self.source(&here("patched/published"))?;
            if patched.exists() {
                fs::remove_dir_all(&patched)?;
            }
            run(Command::new("cp").arg("-r").args([&published, &patched]))?;
            let patch = here("../patches").join(format!("{}.patch", self.package));
            run(Command::new("patch").args(["-p1", "--fuzz=0", "-i"]).arg(patch).current_dir(&patched))?;
            fs::write(done, self.patch)?;
        }
        let swarmkeep = here("../../../crates/store/swarmkeep").canonicalize()?;
        let mut command = Command::new("cargo");
        command.args(["build", "--release", "--config"]);
        command.arg(format!("patch.crates-io.swarmkeep.path={swarmkeep:?}"));
        self.build(command.arg("--manifest-path").arg(patched.join("Cargo.toml")))?;
        Ok(here("patched/target/release").join(self.package))
    }

    /// The same for both: in one folder, since they share most of their dependencies, and without the
    /// settings for Cargo of torrust's source.
    fn build(&self, command: &mut Command) -> Result<(), Box<dyn Error>> {
        command.args(self.features).args(["--bin", self.package, "--target-dir"]).arg(here("patched/target"));
        run(command.env("CARGO_INCREMENTAL", "0").current_dir(env!("CARGO_MANIFEST_DIR")))
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
