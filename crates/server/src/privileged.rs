//! The helper with privileges that the server gets from the service manager (`packaging/forebay-privileged.socket`).
//!
//! Some requests to the kernel need CAP_SYS_ADMIN or CAP_SYS_RAWIO. A server that starts with these capabilities makes
//! the requests itself or in processes of its own. The shipped unit has neither capability. There the server connects
//! to a Unix socket that only root can use, and the service manager starts a helper for each connection. The first byte
//! on the connection says what the helper is for.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use forebay_vfs::HostWatch;
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

use crate::health::answer_health;
use crate::privileges::serve_devices_of_host;
use crate::sandbox;
use crate::ublk_control::control_ublk;

/// The hidden verb of the `forebay` command that runs [`answer_server`].
pub const PRIVILEGED_VERB: &str = "answer-server";

/// The socket of the service manager.
const SOCKET: &str = "/run/forebay-privileged";

/// The time for one answer about notifications. The service manager may still be starting the helper.
const PATIENCE: Duration = Duration::from_secs(30);

/// The work of a helper, as the first byte on its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Work {
    /// Ask disks for their health.
    Health = b'h',
    /// Give commands to the ublk driver.
    Ublk = b'u',
    /// Open queues of fanotify(7). Each further byte comes with a directory.
    Watch = b'w',
}

/// Connects to a new helper.
///
/// # Errors
/// The service manager has no such socket, or this process may not use it.
pub(crate) fn helper(work: Work) -> io::Result<UnixStream> {
    let line = UnixStream::connect(SOCKET)?;
    send(line.as_fd(), work as u8, None)?;
    Ok(line)
}

/// Returns true if this process has a capability.
pub(crate) fn holds(capability: CapabilitySet) -> bool {
    capabilities(None).is_ok_and(|held| held.effective.contains(capability))
}

/// The opener of watches: a helper if this process lacks the privilege and there is one, else this process.
pub(crate) struct Watcher(Option<UnixStream>);

impl Watcher {
    /// Returns an opener, and connects to a helper if this process needs one.
    pub(crate) fn new() -> Self {
        if holds(CapabilitySet::SYS_ADMIN) {
            return Watcher(None);
        }
        let line = helper(Work::Watch);
        Watcher(line.and_then(|line| line.set_read_timeout(Some(PATIENCE)).map(|()| line)).ok())
    }

    /// Watches the file system that `path` is on, as [`HostWatch::open`] does.
    pub(crate) fn open(&self, path: &Path) -> Option<HostWatch> {
        let Some(line) = &self.0 else { return HostWatch::open(path) };
        let queue = HostWatch::directory(path).and_then(|directory| asked(line, directory.as_fd()));
        HostWatch::with_queue(path, queue)
    }
}

/// Has the helper open a queue for the file system of a directory. After a failure of the connection it is not used any
/// more: a late answer would be taken for that of the next directory.
fn asked(line: &UnixStream, directory: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let sent = send(line.as_fd(), Work::Watch as u8, Some(directory));
    match sent.and_then(|()| receive(line.as_fd())) {
        Ok(Some((0, Some(queue)))) => Ok(queue),
        Ok(Some((errno @ 1.., _))) => Err(Errno::from_raw_os_error(errno.into())),
        failed => {
            let _ = line.shutdown(Shutdown::Both);
            Err(failed.err().unwrap_or(Errno::PIPE))
        }
    }
}

/// Does the work that the server asks for on standard input, which is a socket, until the socket is closed.
///
/// # Errors
/// The connection, or a first byte that names no work.
pub fn answer_server() -> io::Result<()> {
    let line = rustix::io::dup(io::stdin())?;
    match receive(line.as_fd())? {
        Some((work, None)) if work == Work::Health as u8 => answer_health(),
        Some((work, None)) if work == Work::Ublk as u8 => {
            serve_devices_of_host();
            control_ublk()
        }
        Some((work, None)) if work == Work::Watch as u8 => {
            let kept =
                capabilities(None)?.permitted & (CapabilitySet::SYS_ADMIN | CapabilitySet::DAC_READ_SEARCH);
            let sets =
                CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
            set_capabilities(None, sets)?;
            sandbox::confine()?;
            open_queues(line.as_fd(), HostWatch::queue)
        }
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Opens a queue for each directory that arrives, and answers with it, or with the number of the kernel's error.
fn open_queues(
    line: BorrowedFd<'_>,
    open: impl Fn(BorrowedFd<'_>) -> Result<OwnedFd, Errno>,
) -> io::Result<()> {
    while let Some((_, directory)) = receive(line)? {
        let opened = directory.ok_or(Errno::BADF).and_then(|directory| open(directory.as_fd()));
        match opened {
            Ok(queue) => send(line, 0, Some(queue.as_fd()))?,
            // The kernel's errors of files are below 256, but for those of the network.
            Err(errno) => send(line, u8::try_from(errno.raw_os_error()).unwrap_or(u8::MAX), None)?,
        }
    }
    Ok(())
}

/// Sends a byte, perhaps with a descriptor.
fn send(line: BorrowedFd<'_>, byte: u8, descriptor: Option<BorrowedFd<'_>>) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors: Vec<_> = descriptor.into_iter().collect();
    if !descriptors.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(&descriptors));
    }
    let bytes = [byte];
    rustix::io::retry_on_intr(|| sendmsg(line, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL))?;
    Ok(())
}

/// Receives a byte, perhaps with a descriptor; `None` at the end of the connection.
fn receive(line: BorrowedFd<'_>) -> Result<Option<(u8, Option<OwnedFd>)>, Errno> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::io::retry_on_intr(|| {
        recvmsg(line, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC)
    })?;
    let descriptors = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    let descriptor = descriptors.flatten().next();
    Ok((received.bytes == 1).then_some((byte[0], descriptor)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs `open_queues` on a thread, and calls `ask` with its line.
    fn with_opener(
        open: impl Fn(BorrowedFd<'_>) -> Result<OwnedFd, Errno> + Send + 'static,
        ask: impl FnOnce(&UnixStream),
    ) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let opening = std::thread::spawn(move || open_queues(theirs.as_fd(), open));
        ask(&ours);
        drop(ours);
        opening.join().unwrap().unwrap();
    }

    #[test]
    fn the_helper_returns_a_descriptor_or_the_kernel_s_error() {
        let dir = tempfile::tempdir().unwrap();
        let directory = HostWatch::directory(dir.path()).unwrap();
        let inode = rustix::fs::fstat(&directory).unwrap().st_ino;
        with_opener(
            |directory| rustix::io::dup(directory),
            |line| {
                for _ in 0..2 {
                    let returned = asked(line, directory.as_fd()).unwrap();
                    assert_eq!(rustix::fs::fstat(returned).unwrap().st_ino, inode);
                }
            },
        );
        with_opener(
            |_| Err(Errno::XDEV),
            |line| {
                assert_eq!(asked(line, directory.as_fd()).unwrap_err(), Errno::XDEV);
            },
        );
    }

    #[test]
    fn a_helper_that_has_ended_is_an_error_and_no_wait() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(theirs);
        let dir = tempfile::tempdir().unwrap();
        let directory = HostWatch::directory(dir.path()).unwrap();
        assert_eq!(asked(&ours, directory.as_fd()).unwrap_err(), Errno::PIPE);
    }

    #[test]
    fn a_late_answer_is_not_taken_for_that_of_another_directory() {
        let (go, gone) = std::sync::mpsc::channel::<()>();
        let (ours, theirs) = UnixStream::pair().unwrap();
        let opening = std::thread::spawn(move || {
            open_queues(theirs.as_fd(), |directory| {
                let _ = gone.recv();
                rustix::io::dup(directory)
            })
        });
        let dir = tempfile::tempdir().unwrap();
        let directory = HostWatch::directory(dir.path()).unwrap();
        ours.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
        assert_eq!(asked(&ours, directory.as_fd()).unwrap_err(), Errno::AGAIN);
        drop(go);
        assert_eq!(asked(&ours, directory.as_fd()).unwrap_err(), Errno::PIPE);
        // The helper may end without an error, or find its answer unwanted.
        let _ = opening.join().unwrap();
    }

    #[test]
    fn a_watch_of_the_helper_is_told_of_changes() {
        if !holds(CapabilitySet::SYS_ADMIN) {
            eprintln!("not run: it needs CAP_SYS_ADMIN");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let directory = HostWatch::directory(dir.path()).unwrap();
        let by_path = HostWatch::open(dir.path()).is_some();
        with_opener(HostWatch::queue, |line| {
            let queue = asked(line, directory.as_fd());
            assert_eq!(queue.is_ok(), by_path);
            let Ok(queue) = queue else { return };
            std::fs::write(dir.path().join("file"), "changed").unwrap();
            let mut events = [0; 4096];
            assert!(rustix::io::read(&queue, &mut events).unwrap() > 0);
        });
    }
}
