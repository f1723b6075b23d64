//! News of mounts and unmounts over the exports' paths.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use forebay_common::lock::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::error::Result;
use crate::export::Export;
use crate::export::vfs::Vfs;
use crate::identity::export_identity::{ExportIdentity, open_root};
use crate::question::Question;

/// Called with an export whose path leads elsewhere, and a description of that place. `None` says that the path leads
/// to the served directory again.
type Tell = Box<dyn Fn(&Export, Option<&str>) + Send>;

/// Checks after every mount and unmount whether the exports' paths still lead to the served directories. Service is not
/// affected, since it has its directories open.
#[derive(Debug)]
pub struct MountWatch {
    /// Descriptions of the directories found instead, by export id.
    elsewhere: Arc<Mutex<BTreeMap<u32, String>>>,
}

impl MountWatch {
    /// Begins to look, in a thread that ends some seconds after `vfs` is gone.
    ///
    /// # Errors
    /// The system refuses the thread, or /proc is not there.
    pub fn start(vfs: &Arc<Vfs>, tell: Tell) -> std::io::Result<Self> {
        let elsewhere = Arc::<Mutex<BTreeMap<u32, String>>>::default();
        let (weak, known) = (Arc::downgrade(vfs), elsewhere.clone());
        let mounts = std::fs::File::open("/proc/self/mountinfo")?;
        let mut asked = Paths::new();
        let watch = move || while look(&weak, &mut asked, &known, &tell) && wait(&mounts) {};
        std::thread::Builder::new().name("forebay-mounts".into()).spawn(watch)?;
        Ok(MountWatch { elsewhere })
    }

    /// Describes the directory at the path of an export, if it is not the served one.
    pub fn elsewhere(&self, export: &Export) -> Option<String> {
        self.elsewhere.lock().get(&export.id).cloned()
    }
}

/// Waits until something was mounted or unmounted, some seconds at most. False if that cannot be told.
fn wait(mounts: &std::fs::File) -> bool {
    let mut polled = [PollFd::new(mounts, PollFlags::PRI)];
    let limit = Timespec { tv_sec: 10, tv_nsec: 0 };
    !poll(&mut polled, Some(&limit)).is_err_and(|errno| errno != rustix::io::Errno::INTR)
}

/// Questions about the directories at the paths, by export id. Each is asked in a thread of its own.
type Paths = BTreeMap<u32, Arc<Question<Result<Option<String>>>>>;

/// The time to wait for the directory behind a path. A file system that does not answer holds up no other.
const PATIENCE: Duration = Duration::from_secs(1);

/// Checks the paths of all exports. Returns false once there are no exports any more.
fn look(vfs: &Weak<Vfs>, asked: &mut Paths, elsewhere: &Mutex<BTreeMap<u32, String>>, tell: &Tell) -> bool {
    let Some(vfs) = vfs.upgrade() else { return false };
    for export in vfs.exports() {
        let (question, asked) = (export.clone(), asked.entry(export.id).or_default());
        // A path without an answer is checked again later.
        let there = match asked.anew(PATIENCE, move || leads_to(&question)) {
            None => continue,
            Some(Ok(there)) => there,
            Some(Err(error)) => Some(format!("nothing that can be opened ({error})")),
        };
        let before = match &there {
            Some(there) => elsewhere.lock().insert(export.id, there.clone()),
            None => elsewhere.lock().remove(&export.id),
        };
        if before != there {
            tell(export, there.as_deref());
        }
    }
    true
}

/// Describes the directory at the path of an export, if it is not the served one.
fn leads_to(export: &Export) -> Result<Option<String>> {
    let there = open_root(&export.path)?;
    let [now, served] = [rustix::fs::fstat(&there)?, rustix::fs::fstat(export.root.path())?];
    if (now.st_dev, now.st_ino) == (served.st_dev, served.st_ino) {
        return Ok(None);
    }
    Ok(Some(ExportIdentity::of(&there)?.to_string()))
}
