//! The connection to the kernel's FUSE: mounting, receiving, replying.

use super::abi;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use std::ffi::CString;
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};

/// The result of [`Channel::receive`].
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Received {
    /// A request of this length in bytes.
    Request(usize),
    /// No request waits at this moment.
    Empty,
    /// The file system has been unmounted.
    Gone,
}

/// A mounted FUSE file system with one file. It is unmounted when this value is dropped.
#[derive(Debug)]
pub(super) struct Channel {
    device: OwnedFd,
    at: PathBuf,
}

impl Channel {
    /// Mounts the file system at `at`, an existing directory. Needs root.
    pub(super) fn mount(at: &Path) -> io::Result<Self> {
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let device = rustix::fs::open("/dev/fuse", flags, Mode::empty())?;
        let options = format!(
            "fd={},rootmode=40000,user_id=0,group_id=0,allow_other,max_read={}",
            device.as_raw_fd(),
            abi::MAX_TRANSFER
        );
        let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        let options = CString::new(options).map_err(io::Error::other)?;
        rustix::mount::mount("forebay-array", at, "fuse.forebay-array", flags, options.as_c_str())?;
        Ok(Self { device, at: at.to_owned() })
    }

    /// Returns the descriptor that becomes readable when a request waits.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }

    /// Receives one request into `buffer`, without waiting.
    pub(super) fn receive(&self, buffer: &mut [u8]) -> io::Result<Received> {
        loop {
            return match rustix::io::read(&self.device, &mut *buffer) {
                Ok(length) => Ok(Received::Request(length)),
                Err(Errno::AGAIN) => Ok(Received::Empty),
                Err(Errno::NODEV) => Ok(Received::Gone),
                // ENOENT means that the request was withdrawn while it was being read.
                Err(Errno::INTR | Errno::NOENT) => continue,
                Err(e) => Err(e.into()),
            };
        }
    }

    /// Replies with `body`.
    pub(super) fn reply(&self, unique: u64, body: &[u8]) -> io::Result<()> {
        let header = abi::header(unique, 0, body.len());
        self.send(&[IoSlice::new(&header), IoSlice::new(body)])
    }

    /// Replies with an error number.
    pub(super) fn fail(&self, unique: u64, error: i32) -> io::Result<()> {
        self.send(&[IoSlice::new(&abi::header(unique, error, 0))])
    }

    /// Sends a whole reply. The first part is the header.
    pub(super) fn send(&self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        match rustix::io::writev(&self.device, parts) {
            // ENOENT means that the caller is gone. ENODEV means unmounted, which `receive` reports.
            Ok(_) | Err(Errno::NOENT | Errno::NODEV) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // The unmount is lazy, because the loop device may still hold the file. An error is ignored, because the file
        // system may be unmounted already.
        _ = rustix::mount::unmount(&self.at, UnmountFlags::DETACH);
    }
}
