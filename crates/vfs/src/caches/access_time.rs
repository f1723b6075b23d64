//! Access times of files that the cache reads. The kernel sees no read of such a file, so it does not move the time.
//!
//! A READ that the cache serves moves the access time where a mount with `relatime` does: if the time is not later than
//! the change time, or is a day old. Clients see the new time at once. A thread has the kernel move it in the file
//! system soon afterwards, by a read behind the end of the file: the kernel reads no data for that, and heeds the
//! options of the mount and the flags of the file. Nothing waits for the thread, and a crash may lose the new time.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use forebay_common::lock::Mutex;
use rustix::fs::{OFlags, StatVfsMountFlags};

use crate::attr::{Attr, Time};
use crate::caches::inode::Inode;

/// The time in seconds after which an access time moves in any case.
const DAY: i64 = 24 * 60 * 60;
/// Files whose access times the thread moves in a row.
const BATCH: usize = 64;
/// The pause of the thread after each batch, so that it takes little of a processor while clients read many files.
const PAUSE: Duration = Duration::from_millis(100);
/// Files that may wait for the thread. Each stays open meanwhile, beyond the limit on open files. The access times of
/// further files do not move.
const WAITING: usize = 64;

/// The access time of a file that clients see before the file system has it.
#[derive(Debug, Default)]
pub(crate) struct ShownAccess {
    /// Nanoseconds since 1970; 0 for none.
    time: AtomicI64,
}

impl ShownAccess {
    /// Returns the attributes that clients are to see instead of `attr`.
    pub(crate) fn over(&self, attr: Attr) -> Attr {
        let (sec, nsec) = match self.time.load(Ordering::Acquire) {
            0 => return attr,
            time => (time.div_euclid(SECOND), time.rem_euclid(SECOND) as u32),
        };
        Attr { atime: attr.atime.max(Time { sec, nsec }), ..attr }
    }

    /// Shows a time. Returns false if one is shown already.
    fn begin(&self, now: Time) -> bool {
        let time = now.sec.saturating_mul(SECOND).saturating_add(now.nsec.into());
        self.time.compare_exchange(0, time, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    fn end(&self) {
        self.time.store(0, Ordering::Release);
    }
}

const SECOND: i64 = 1_000_000_000;

/// A file whose access time the thread has to move, and an offset behind its end.
type Entry = (Arc<Inode>, u64);

/// The way to the thread that has access times moved.
pub(crate) struct AccessTimes {
    thread: Mutex<Option<(SyncSender<Entry>, JoinHandle<()>)>>,
    stops: Arc<AtomicBool>,
}

impl AccessTimes {
    /// Starts the thread.
    pub(crate) fn start() -> std::io::Result<Self> {
        let (send, receive) = sync_channel(WAITING);
        let stops = Arc::<AtomicBool>::default();
        let theirs = stops.clone();
        let thread = std::thread::Builder::new().name("forebay-atime".into());
        let thread = thread.spawn(move || move_all(&receive, &theirs))?;
        Ok(AccessTimes { thread: Mutex::new(Some((send, thread))), stops })
    }

    /// Moves the access time of a file that was just read, if it has to move. Then `attr`, its attributes, gets the new
    /// time. `beyond` is an offset behind the end of the file.
    pub(crate) fn read(&self, object: &Arc<Inode>, attr: &mut Attr, beyond: u64) {
        // The kernel takes access times from this clock.
        let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
        let now = Time { sec: now.tv_sec, nsec: now.tv_nsec as u32 };
        if !is_due(attr, now) || !object.link.access.begin(now) {
            return;
        }
        let sent = self.thread.lock().as_ref().map(|(send, _)| send.try_send((object.clone(), beyond)));
        match sent {
            Some(Ok(())) => attr.atime = now,
            _ => object.link.access.end(),
        }
    }

    /// Ends the thread. It has moved the access times that wait.
    pub(crate) fn stop(&self) {
        self.stops.store(true, Ordering::Release);
        if let Some((send, thread)) = self.thread.lock().take() {
            drop(send);
            // A panic there has said so itself.
            let _ = thread.join();
        }
    }
}

/// Returns true if the mount of a directory lets access times move.
pub(crate) fn moves_access_times(dir: BorrowedFd<'_>) -> bool {
    let still = StatVfsMountFlags::NOATIME | StatVfsMountFlags::RDONLY;
    rustix::fs::fstatvfs(dir).is_ok_and(|stat| !stat.f_flag.intersects(still))
}

/// Returns true if a read moves the access time, as with `relatime`. A change of the contents moves the change time.
fn is_due(attr: &Attr, now: Time) -> bool {
    attr.atime <= attr.backing_ctime || now.sec.saturating_sub(attr.atime.sec) >= DAY
}

/// Moves the access times of the received files in batches, until the sender is dropped.
fn move_all(files: &Receiver<Entry>, stops: &AtomicBool) {
    while let Ok(first) = files.recv() {
        for (object, beyond) in std::iter::once(first).chain(files.try_iter()).take(BATCH) {
            // A file that cannot be opened keeps its access time.
            let _ = touch(&object, beyond);
            object.forget_attributes();
            object.link.access.end();
        }
        if !stops.load(Ordering::Acquire) {
            std::thread::sleep(PAUSE);
        }
    }
}

/// Has the kernel see a read of a file.
fn touch(object: &Inode, beyond: u64) -> crate::error::Result<()> {
    let mut byte = [0; 1];
    match object.made_with() {
        Some(file) => rustix::io::pread(file, &mut byte, beyond)?,
        None => rustix::io::pread(object.reopen(OFlags::RDONLY)?, &mut byte, beyond)?,
    };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(sec: i64) -> Time {
        Time { sec, nsec: 5 }
    }

    fn attr(atime: i64, ctime: i64) -> Attr {
        let dir = tempfile::tempdir().unwrap();
        let stat = rustix::fs::stat(dir.path()).unwrap();
        Attr { atime: at(atime), backing_ctime: at(ctime), ..Attr::from(&stat) }
    }

    #[test]
    fn an_access_time_moves_as_with_relatime() {
        assert!(is_due(&attr(100, 100), at(101)), "as old as the change");
        assert!(is_due(&attr(100, 200), at(201)));
        assert!(!is_due(&attr(201, 200), at(202)), "read since the change");
        assert!(!is_due(&attr(201, 200), at(201 + DAY - 1)));
        assert!(is_due(&attr(201, 200), at(201 + DAY)));
        assert!(!is_due(&attr(201, 200), at(50)), "a clock that was set back");
    }

    #[test]
    fn a_shown_time_covers_an_older_one_until_its_end() {
        let shown = ShownAccess::default();
        assert_eq!(shown.over(attr(100, 100)).atime, at(100));
        assert!(shown.begin(at(300)));
        assert!(!shown.begin(at(301)), "one is shown already");
        assert_eq!(shown.over(attr(100, 100)).atime, at(300));
        assert_eq!(shown.over(attr(400, 100)).atime, at(400), "the file system has a later one");
        shown.end();
        assert_eq!(shown.over(attr(100, 100)).atime, at(100));
    }
}
