//! Where file systems are mounted, and word of what is mounted and unmounted.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, Weak};
use std::time::Duration;

use forebay_common::lock::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::ExportIdentity;
use crate::backing::question::Question;
use crate::error::Result;
use crate::export::filesystem::open_root;
use crate::export::{Export, Vfs};

/// A mount.
#[derive(Default)]
pub(super) struct Mounted {
    /// What is mounted, such as "/dev/sdb1".
    pub(super) source: String,
    /// Where.
    pub(super) at: String,
}

/// The mount that an open object is on; `None` if /proc does not tell.
pub(super) fn of(fd: impl AsFd) -> Option<Mounted> {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_fd().as_raw_fd())).ok()?;
    let id = info.lines().find_map(|line| line.strip_prefix("mnt_id:"))?.trim().to_owned();
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    mounts.lines().find(|line| line.split(' ').next() == Some(&id)).and_then(parse)
}

/// A line of proc_pid_mountinfo(5).
fn parse(line: &str) -> Option<Mounted> {
    let (before, after) = line.split_once(" - ")?;
    Some(Mounted { source: unescaped(after.split(' ').nth(1)?), at: unescaped(before.split(' ').nth(4)?) })
}

/// Spaces, tabs, line feeds and backslashes are written as three octal digits.
fn unescaped(text: &str) -> String {
    let escapes = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    escapes.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
}

/// Told of an export whose path leads elsewhere, and where; or (`None`) that it leads to what is served again.
type Tell = Box<dyn Fn(&Export, Option<&str>) + Send>;

/// Looks after every mount and unmount whether the exports' paths still lead to what is served. Service is not concerned: it
/// has its directories open.
#[derive(Debug)]
pub struct MountWatch {
    /// What is there instead, by the exports' ids.
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
        let asked: Vec<_> = vfs.exports().iter().map(|_| Arc::default()).collect();
        let watch = move || while look(&weak, &asked, &known, &tell) && wait(&mounts) {};
        std::thread::Builder::new().name("forebay-mounts".into()).spawn(watch)?;
        Ok(MountWatch { elsewhere })
    }

    /// What is at the path of an export now, if that is not what is served.
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

/// What a path leads to, each asked for in a thread of its own.
type Paths = [Arc<Question<Result<Option<String>>>>];

/// How long it is waited for what a path leads to: that of a file system that does not answer holds up no other.
const PATIENCE: Duration = Duration::from_secs(1);

/// False once there is nothing to look at any more.
fn look(vfs: &Weak<Vfs>, asked: &Paths, elsewhere: &Mutex<BTreeMap<u32, String>>, tell: &Tell) -> bool {
    let Some(vfs) = vfs.upgrade() else { return false };
    for (export, asked) in vfs.exports().iter().zip(asked) {
        let question = export.clone();
        // One that does not answer is looked at again later.
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

/// What the path of an export leads to, if that is not what is served.
fn leads_to(export: &Export) -> Result<Option<String>> {
    let there = open_root(&export.path)?;
    let [now, served] = [rustix::fs::fstat(&there)?, rustix::fs::fstat(export.root.path())?];
    if (now.st_dev, now.st_ino) == (served.st_dev, served.st_ino) {
        return Ok(None);
    }
    Ok(Some(ExportIdentity::of(&there)?.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_mountinfo_tells_what_is_mounted_where() {
        let line = "36 35 98:0 / /mnt\\040two rw,noatime master:1 - ext3 /dev/root rw,errors=continue";
        let Mounted { source, at } = parse(line).unwrap();
        assert_eq!((&*source, &*at), ("/dev/root", "/mnt two"));
        assert!(parse("36 35 98:0 / /mnt").is_none());
    }
}
