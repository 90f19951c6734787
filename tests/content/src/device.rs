//! Real block devices for tests.

use std::{
    fs::File,
    io,
    path::{Path, PathBuf},
    process::Command,
};

use flate2::read::GzDecoder;
use tempfile::TempDir;

/// A block device of the given number of bytes over a file. Dropping it detaches the device.
pub struct LoopDevice {
    path: PathBuf,
    image: PathBuf,
}

impl LoopDevice {
    /// `None` if this user may not make one: then the caller uses the file itself, and prints that.
    pub fn new(image: &Path, bytes: u64) -> Option<Self> {
        File::create(image).and_then(|file| file.set_len(bytes)).expect("the folder takes a file");
        let made =
            Command::new("losetup").args(["--find", "--show", "--direct-io=on"]).arg(image).output().ok()?;
        let path = PathBuf::from(String::from_utf8(made.stdout).ok()?.trim());
        (made.status.success() && path.exists()).then(|| Self { path, image: image.to_owned() })
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let detached = Command::new("losetup").arg("--detach").arg(&self.path).status();
        assert!(
            detached.is_ok_and(|status| status.success()),
            "{} stays attached to {}",
            self.path.display(),
            self.image.display()
        );
    }
}

/// The place of a test: a loop device, or a file if none can be made.
pub fn device_of(folder: &Path, bytes: u64) -> (Option<LoopDevice>, PathBuf) {
    let image = folder.join("device");
    let device = LoopDevice::new(&image, bytes);
    let path = device.as_ref().map_or(image, |device| device.path.clone());
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
