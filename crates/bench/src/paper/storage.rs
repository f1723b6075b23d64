//! The slow storage: an emulated array that this program makes, or a directory on a real array.

use std::fs;
use std::os::linux::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use forebay_array::model::Model;
use forebay_array::{Fault, FileSystem, power};
use serde::{Deserialize, Serialize};

const STATES: &str = "/run/forebay-array";
const NAME: &str = "paper";
/// Size of the emulated block device in bytes.
const SIZE: u64 = 8 << 30;
const SAMPLE: Duration = Duration::from_millis(250);

/// The place of the test data.
pub(crate) struct Storage {
    root: PathBuf,
    emulated: bool,
}

/// Returns the report's description of a directory, or of an emulated array if there is no directory.
pub(crate) fn describe(dir: Option<&Path>, model: &str) -> Result<String> {
    Ok(match dir {
        Some(dir) => format!("the directory {}", dir.display()),
        None => {
            let model = Model::load(model)?;
            format!("emulated array {}: {}", model.name, model.description)
        }
    })
}

impl Storage {
    /// Uses a directory on a real array. Without one, makes an emulated array or uses that of an interrupted run.
    pub(crate) fn prepare(dir: Option<&Path>, model: &str, work: &Path, daemon: &[&str]) -> Result<Self> {
        match dir {
            Some(dir) => Self::directory(dir),
            // The mount point is not below /run, because nfs-ganesha gets a private /run.
            None => Self::emulated(model, work.join("array"), daemon),
        }
    }

    /// Uses a directory on a real array. All data go to `forebay-paper` in that directory.
    fn directory(dir: &Path) -> Result<Self> {
        let what = || format!("the directory {} cannot be used", dir.display());
        let root = dir.join("forebay-paper");
        fs::create_dir_all(&root).with_context(what)?;
        let root = root.canonicalize().with_context(what)?;
        Ok(Self { root, emulated: false })
    }

    /// Makes an emulated array of this model with an XFS on it. Its image is in memory, so that the host's disks do
    /// not matter.
    fn emulated(model: &str, mount: PathBuf, daemon: &[&str]) -> Result<Self> {
        let plan = power::Plan {
            base: STATES.into(),
            name: NAME.to_owned(),
            model: Model::load(model)?,
            size: SIZE,
            image_dir: "/dev/shm".into(),
            fs: FileSystem::Xfs,
            mount: Some(mount),
        };
        let state = power::up(&plan, daemon)?;
        Ok(Self { root: state.mount, emulated: true })
    }

    /// Returns the path of a directory on the storage, and makes the directory if it is missing.
    pub(crate) fn dir(&self, name: &str) -> Result<PathBuf> {
        let dir = self.root.join(name);
        fs::create_dir_all(&dir).with_context(|| format!("{} cannot be made", dir.display()))?;
        Ok(dir)
    }

    /// Removes a directory on the storage; succeeds if it does not exist.
    pub(crate) fn remove(&self, name: &str) -> Result<()> {
        let dir = self.root.join(name);
        match fs::remove_dir_all(&dir) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(error).with_context(|| format!("{} cannot be removed", dir.display()))
            }
            _ => Ok(()),
        }
    }

    /// Does work that is not measured. If the disks are emulated, the work runs without their delays.
    pub(crate) fn without_pace<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        if !self.emulated {
            return work();
        }
        power::inject(Path::new(STATES), NAME, Fault::Instant)?;
        let result = work();
        // Data still on its way to the disks would disturb the next measurement.
        rustix::fs::sync();
        power::inject(Path::new(STATES), NAME, Fault::Clear)?;
        result
    }

    /// Removes all data, and the emulated array.
    pub(crate) fn down(self) -> Result<()> {
        if self.emulated {
            power::down(Path::new(STATES), NAME, true)?;
            return Ok(());
        }
        let root = self.root;
        fs::remove_dir_all(&root).with_context(|| format!("{} cannot be removed", root.display()))
    }

    /// Starts to record the activity of the block device under the storage.
    pub(crate) fn watch(&self) -> Watch {
        let device = fs::metadata(&self.root).map(|found| found.st_dev()).unwrap_or_default();
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        let path = format!("/sys/dev/block/{major}:{minor}/stat");
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = thread::spawn(move || {
            let mut samples = Vec::new();
            while !stopped.load(Ordering::Relaxed) {
                samples.extend(sample(&path));
                thread::sleep(SAMPLE);
            }
            samples.extend(sample(&path));
            samples
        });
        Watch { stop, thread }
    }
}

/// The activity of a block device up to one moment.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct DiskSample {
    /// Time in seconds since 1970.
    pub(crate) time: f64,
    /// Reads and writes completed since the device was created.
    pub(crate) requests: u64,
}

/// Reads the fields of Documentation/block/stat.rst: completed reads are the first, completed writes the fifth.
fn sample(path: &str) -> Option<DiskSample> {
    let text = fs::read_to_string(path).ok()?;
    let fields: Vec<u64> = text.split_ascii_whitespace().filter_map(|field| field.parse().ok()).collect();
    let time = SystemTime::now().duration_since(UNIX_EPOCH).ok()?.as_secs_f64();
    Some(DiskSample { time, requests: fields.first()? + fields.get(4)? })
}

/// A thread that samples the activity of a block device every 250 ms.
pub(crate) struct Watch {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Vec<DiskSample>>,
}

impl Watch {
    /// Stops the thread and returns its samples; none if there is no such device.
    pub(crate) fn samples(self) -> Vec<DiskSample> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_default()
    }
}
