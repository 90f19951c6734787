//! Real block devices for tests.

use std::{
    fs::File,
    io,
    path::{Path, PathBuf},
    process::Command,
};

use flate2::read::GzDecoder;
use tempfile::TempDir;

/// A block device over a file. Dropping it detaches the device.
pub struct LoopDevice(PathBuf);

impl LoopDevice {
    /// `None` if this user may not make one.
    fn over(image: &Path) -> Option<Self> {
        let made =
            Command::new("losetup").args(["--find", "--show", "--direct-io=on"]).arg(image).output().ok()?;
        let path = PathBuf::from(String::from_utf8(made.stdout).ok()?.trim());
        // Not `then_some`: a device that was not made would be dropped, and so detached.
        (made.status.success() && path.exists()).then(|| Self(path))
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let detached = Command::new("losetup").arg("--detach").arg(&self.0).status();
        assert!(detached.is_ok_and(|status| status.success()), "{} stays attached", self.0.display());
    }
}

/// The place of a test: a loop device of `bytes` bytes, or a file if none can be made.
pub fn device_of(folder: &Path, bytes: u64) -> (Option<LoopDevice>, PathBuf) {
    let image = folder.join("device");
    File::create(&image).and_then(|file| file.set_len(bytes)).expect("the folder takes a file");
    let device = LoopDevice::over(&image);
    let path = device.as_ref().map_or(image, |device| device.0.clone());
    if device.is_none() {
        println!(
            "NO LOOP DEVICE COULD BE MADE HERE (that takes root and losetup): a plain file is used instead"
        );
    }
    (device, path)
}

/// A folder in memory where possible: the kernel keeps the writes of a killed process, and a thousand kills
/// need many flushes.
pub fn scratch_folder() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a folder can be made")
}

/// The image of a version of the block store's format that is a fixture: `vN.img` in a folder.
pub fn image_of_version(version: u8, folder: &Path) -> PathBuf {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/block-store");
    let path = folder.join(format!("v{version}.img"));
    let zipped = File::open(fixtures.join(format!("v{version}.img.gz"))).expect("it is a fixture");
    let mut image = File::create(&path).expect("the folder takes a file");
    io::copy(&mut GzDecoder::new(zipped), &mut image).expect("it is whole");
    path
}
