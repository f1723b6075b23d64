//! External changes in a served file system, as the kernel reports them (fanotify(7)). With them, the cached facts
//! about a file are believed until the file changes.
//!
//! The kernel queues a notification before the call that made the change returns. A thread that reads the queue first
//! and then answers from memory therefore includes every change that anyone has seen done. The exception are pages that
//! a program has mapped: writes to them are reported when the program closes the file.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use forebay_common::lock::Mutex;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::sys::{KernelHandle, check};

/// Events of files: changes of contents, attributes, links and names. A change of a directory's entries shows in its
/// change time; a change of the directory's own name does not.
const EVENTS: u64 = libc::FAN_ONDIR
    | libc::FAN_MODIFY
    | libc::FAN_ATTRIB
    | libc::FAN_CLOSE_WRITE
    | libc::FAN_MOVE_SELF
    | libc::FAN_DELETE_SELF;

/// Events of changes that the server itself makes by name. An external change may have put another file under that
/// name, unknown to the server.
const BY_NAME: u64 = libc::FAN_ATTRIB | libc::FAN_MOVE_SELF | libc::FAN_DELETE_SELF;

/// Events of contents. A file that is closed may have been written to through pages that a program had mapped.
const CONTENTS: u64 = libc::FAN_MODIFY | libc::FAN_CLOSE_WRITE;

/// Bytes of notifications read at once.
const BUFFER: usize = 16 << 10;
/// The number of buffers that a thread reads which wants to answer a request.
const BUFFERS: usize = 8;
/// A multiple of [`BUFFERS`]: the buffers that a thread reads which has no request to answer.
const IN_A_ROW: usize = 64;
/// The time between two readings of the queue if no request asks.
const PAUSE: Duration = Duration::from_millis(50);

/// Bytes before an event's records: `struct fanotify_event_metadata`.
const HEAD: usize = 24;
/// Bytes of a record before its file handle: header and file system id.
const RECORD: usize = 12;

/// The queue of a file system's notifications.
#[derive(Debug)]
pub struct HostWatch {
    queue: OwnedFd,
    reading: Mutex<()>,
    /// The number of notifications of external changes, raised before the server acts on them.
    noticed: AtomicU64,
    server: i32,
}

/// The content of a notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notice {
    /// The server itself did it, to a file that it had open.
    Own,
    /// A change of a file, with `contents` perhaps of the contents. An `own` one was made by the server, by name.
    Changed { kernel: KernelHandle, contents: bool, own: bool },
    /// Notifications were lost, or cannot be told apart.
    Anything,
}

impl HostWatch {
    /// Watches the file system that `path` is on. `None` where the kernel, the file system or the want of CAP_SYS_ADMIN
    /// does not allow it, and after any other error, which is logged.
    pub fn open(path: &Path) -> Option<Self> {
        Self::with_queue(path, Self::directory(path).and_then(|directory| Self::queue(directory.as_fd())))
    }

    /// Opens a directory for [`HostWatch::queue`].
    ///
    /// # Errors
    /// Those of open(2).
    pub fn directory(path: &Path) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::open(path, flags, Mode::empty())
    }

    /// Opens a queue for the changes in the file system of a directory. The process needs CAP_SYS_ADMIN.
    ///
    /// # Errors
    /// Those of fanotify_init(2) and fanotify_mark(2).
    pub fn queue(directory: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
        let flags = libc::FAN_CLASS_NOTIF | libc::FAN_CLOEXEC | libc::FAN_NONBLOCK | libc::FAN_REPORT_FID;
        // SAFETY: plain integers.
        let queue = check(unsafe { libc::fanotify_init(flags, libc::O_RDONLY as u32) }.into())? as i32;
        // SAFETY: the call just returned this descriptor, and nothing else owns it.
        let queue = unsafe { OwnedFd::from_raw_fd(queue) };
        let mark = libc::FAN_MARK_ADD | libc::FAN_MARK_FILESYSTEM;
        let at = directory.as_raw_fd();
        // SAFETY: live descriptors and plain integers; no path stands for the directory itself.
        let marked = unsafe { libc::fanotify_mark(queue.as_raw_fd(), mark, EVENTS, at, std::ptr::null()) };
        check(marked.into())?;
        Ok(queue)
    }

    /// Watches the file system that `path` is on with a queue, which a helper of this process may have opened. `None`
    /// if there is no queue. An error that does not mean the want of notifications is logged.
    pub fn with_queue(path: &Path, queue: Result<OwnedFd, Errno>) -> Option<Self> {
        let server = i32::try_from(std::process::id()).map_err(|_| Errno::INVAL);
        match queue.and_then(|queue| Ok((queue, server?))) {
            Ok((queue, server)) => {
                Some(HostWatch { queue, reading: Mutex::default(), noticed: AtomicU64::new(0), server })
            }
            Err(errno) => {
                if !is_absent(errno) {
                    tracing::warn!(
                        "the kernel does not tell of changes in {} (fanotify: {errno}): fewer answers come from memory; see fanotify(7) \
                         for its limits",
                        path.display()
                    );
                }
                None
            }
        }
    }

    /// Returns the number of notifications of external changes that were read.
    pub(crate) fn notices(&self) -> u64 {
        self.noticed.load(Ordering::Acquire)
    }

    /// Calls `act` with every external change that happened before the call; false: there were too many of them.
    pub(crate) fn catch_up(&self, act: impl Fn(Notice)) -> bool {
        // A thread that waits for the lock must not answer before the thread inside has acted on the notifications that
        // it read.
        let _one = self.reading.lock();
        let mut buffer = [0; BUFFER];
        for _ in 0..BUFFERS {
            match rustix::io::read(&self.queue, &mut buffer) {
                Err(Errno::AGAIN) => return true,
                Err(Errno::INTR) => {}
                Ok(0) | Err(_) => {
                    self.noticed.fetch_add(1, Ordering::AcqRel);
                    act(Notice::Anything);
                    return false;
                }
                Ok(len) => each_notice(&buffer[..len], self.server, |notice| match notice {
                    Notice::Own => {}
                    external => {
                        self.noticed.fetch_add(1, Ordering::AcqRel);
                        act(external);
                    }
                }),
            }
        }
        false
    }
}

/// Returns true if an error means that there are no such notifications. PERM: no CAP_SYS_ADMIN (a filter that forbids
/// the call is reported elsewhere). NOSYS and INVAL: the kernel does not know them. OPNOTSUPP, XDEV and NODEV: the file
/// system has no ids.
fn is_absent(errno: Errno) -> bool {
    let known =
        [Errno::PERM, Errno::NOSYS, Errno::INVAL, Errno::OPNOTSUPP, Errno::XDEV, Errno::NODEV, Errno::NOENT];
    known.contains(&errno)
}

fn field<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

/// Calls `tell` for each notification in `bytes`.
fn each_notice(mut bytes: &[u8], server: i32, mut tell: impl FnMut(Notice)) {
    while !bytes.is_empty() {
        let len = field(bytes, 0).map_or(0, u32::from_ne_bytes) as usize;
        if len < HEAD || len > bytes.len() {
            return tell(Notice::Anything);
        }
        tell(notice(&bytes[..len], server).unwrap_or(Notice::Anything));
        bytes = &bytes[len..];
    }
}

/// Returns the content of a notification. Returns `None` if it does not say which file changed.
fn notice(event: &[u8], server: i32) -> Option<Notice> {
    let mask = u64::from_ne_bytes(field(event, 8)?);
    if mask & libc::FAN_Q_OVERFLOW != 0 {
        return None;
    }
    let own = i32::from_ne_bytes(field(event, 20)?) == server;
    if own && mask & BY_NAME == 0 {
        return Some(Notice::Own);
    }
    let record = event.get(usize::from(u16::from_ne_bytes(field(event, 6)?))..)?;
    if *record.first()? != libc::FAN_EVENT_INFO_TYPE_FID {
        return None;
    }
    let len = u32::from_ne_bytes(field(record, RECORD)?) as usize;
    let kind = i32::from_ne_bytes(field(record, RECORD + 4)?);
    let handle = record.get(RECORD + 8..)?.get(..len)?;
    let kernel = KernelHandle::new(kind, handle)?;
    Some(Notice::Changed { kernel, contents: !own && mask & CONTENTS != 0, own })
}

/// Starts the thread that calls `catch_up` as long as the watched file system is in use: the kernel holds only so much,
/// and forgets the rest.
pub(crate) fn start<T: Send + Sync + 'static>(
    watched: &Arc<T>,
    catch_up: fn(&T) -> bool,
) -> std::io::Result<()> {
    let watched = Arc::downgrade(watched);
    let thread = std::thread::Builder::new().name("forebay-watch".into());
    thread.spawn(move || keep_up(&watched, catch_up)).map(drop)
}

/// Takes news of changes over in short intervals, until `watched` is gone.
fn keep_up<T>(watched: &Weak<T>, catch_up: fn(&T) -> bool) {
    loop {
        std::thread::sleep(PAUSE);
        let Some(watched) = watched.upgrade() else { return };
        let _ = (0..IN_A_ROW).any(|_| catch_up(&watched));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::KERNEL_HANDLE_MAX;

    const SERVER: i32 = 4242;

    fn event(mask: u64, pid: i32, handle: &[u8]) -> Vec<u8> {
        let padded = handle.len().next_multiple_of(4);
        let mut bytes = vec![0; HEAD + RECORD + 8 + padded];
        let len = bytes.len() as u32;
        bytes[..4].copy_from_slice(&len.to_ne_bytes());
        bytes[6..8].copy_from_slice(&(HEAD as u16).to_ne_bytes());
        bytes[8..16].copy_from_slice(&mask.to_ne_bytes());
        bytes[20..24].copy_from_slice(&pid.to_ne_bytes());
        bytes[HEAD] = libc::FAN_EVENT_INFO_TYPE_FID;
        bytes[HEAD + 12..HEAD + 16].copy_from_slice(&(handle.len() as u32).to_ne_bytes());
        bytes[HEAD + 16..HEAD + 20].copy_from_slice(&1i32.to_ne_bytes());
        bytes[HEAD + 20..HEAD + 20 + handle.len()].copy_from_slice(handle);
        bytes
    }

    fn told(bytes: &[u8]) -> Vec<Notice> {
        let mut told = Vec::new();
        each_notice(bytes, SERVER, |notice| told.push(notice));
        told
    }

    #[test]
    fn what_others_did_is_told_and_what_cannot_be_told_may_be_anything() {
        let kernel = KernelHandle::new(1, b"inodegen").unwrap();
        let change = |contents, own| Notice::Changed { kernel, contents, own };
        let [changed, renamed] = [true, false].map(|contents| change(contents, false));
        let two = [event(libc::FAN_MODIFY, 7, b"inodegen"), event(libc::FAN_MODIFY, SERVER, b"inodegen")];
        assert_eq!(told(&two.concat()), [changed, Notice::Own]);
        let removed = event(libc::FAN_ATTRIB | libc::FAN_CLOSE_WRITE, SERVER, b"inodegen");
        assert_eq!(told(&removed), [change(false, true)], "perhaps not the file that it meant");
        assert_eq!(told(&event(libc::FAN_ATTRIB, 7, b"inodegen")), [renamed], "not its contents");
        assert_eq!(told(&event(libc::FAN_CLOSE_WRITE, 7, b"inodegen")), [changed], "perhaps it was mapped");
        assert_eq!(told(&event(libc::FAN_Q_OVERFLOW, 0, b"")), [Notice::Anything]);
        assert_eq!(told(&event(libc::FAN_MODIFY, 0, b"inodegen")), [changed], "no process: not the server");
        assert_eq!(told(&event(libc::FAN_MODIFY, 7, &[1; KERNEL_HANDLE_MAX + 4])), [Notice::Anything]);
        let whole = &two[0];
        for len in 1..whole.len() {
            assert_eq!(told(&whole[..len]), [Notice::Anything], "{len} bytes of it");
        }
    }
}
