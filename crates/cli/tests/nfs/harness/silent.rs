//! A file system that does not answer, or no longer answers: a FUSE mount of an empty directory. A thread that waits
//! for this file system can be killed, unlike a thread that waits for a disk.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

/// Bytes of the headers of a request and of its reply (include/uapi/linux/fuse.h).
const IN_HEADER: usize = 40;
const OUT_HEADER: usize = 16;
/// The kernel's requests, by number.
const GETATTR: u32 = 3;
const STATFS: u32 = 17;
const INIT: u32 = 26;
const OPENDIR: u32 = 27;
const READDIR: u32 = 28;
const RELEASEDIR: u32 = 29;
const LOOKUP: u32 = 1;
/// Requests that take no reply: FORGET, INTERRUPT, BATCH_FORGET.
const NO_REPLY: [u32; 3] = [2, 36, 42];

/// The mount, which is removed with the value. Every request then fails.
pub(crate) struct Silent {
    /// The mount point.
    pub(crate) at: PathBuf,
    /// The connection to the kernel, kept open: the file system ends with it.
    _requests: Arc<File>,
    silent: Arc<AtomicBool>,
    /// True once a program waits for an answer that does not come.
    awaited: Arc<AtomicBool>,
}

impl Silent {
    /// Mounts a file system below `home` that never answers. On a machine that lacks root or FUSE, prints that and
    /// returns `None`; under CI that fails the test.
    pub(crate) fn mount(home: &Path) -> Option<Self> {
        let at = home.join("silent");
        std::fs::create_dir(&at).unwrap();
        let mounted = OpenOptions::new().read(true).write(true).open("/dev/fuse").and_then(|requests| {
            let options =
                format!("fd={},rootmode=40755,user_id=0,group_id=0,allow_other", requests.as_raw_fd());
            let options = std::ffi::CString::new(options).unwrap();
            let flags = MountFlags::NODEV | MountFlags::NOSUID;
            mount("forebay-silent", &at, "fuse.forebay-silent", flags, options.as_c_str())?;
            Ok(requests)
        });
        match mounted {
            Ok(requests) => Some(Silent {
                at,
                _requests: Arc::new(requests),
                silent: Arc::default(),
                awaited: Arc::default(),
            }),
            Err(error) => {
                assert!(std::env::var_os("CI").is_none(), "CI has to have FUSE: {error}");
                eprintln!("not run: no FUSE on this machine: {error}");
                None
            }
        }
    }

    /// Mounts a file system that answers until [`Silent::fall_silent`].
    pub(crate) fn mount_answering(home: &Path) -> Option<Self> {
        let mounted = Self::mount(home)?;
        let (requests, silent) = (mounted._requests.clone(), mounted.silent.clone());
        let awaited = mounted.awaited.clone();
        std::thread::spawn(move || {
            let mut request = vec![0; 1 << 20];
            // The loop runs until the file system is unmounted. A request that was read could not be killed any more.
            loop {
                let mut polled = [PollFd::new(&*requests, PollFlags::IN)];
                poll(&mut polled, None).unwrap();
                if silent.load(Ordering::SeqCst) {
                    awaited.store(true, Ordering::SeqCst);
                    return;
                }
                let Ok(len) = (&*requests).read(&mut request) else { return };
                let word = |at: usize| u32::from_ne_bytes(request[at..at + 4].try_into().unwrap());
                let opcode = word(4);
                assert!(len >= IN_HEADER);
                if NO_REPLY.contains(&opcode) {
                    continue;
                }
                let (error, body) = answer(opcode);
                let mut reply = Vec::with_capacity(OUT_HEADER + body.len());
                reply.extend(((OUT_HEADER + body.len()) as u32).to_ne_bytes());
                reply.extend((-error).to_ne_bytes());
                reply.extend(&request[8..16]);
                reply.extend(body);
                // The request may have been interrupted.
                let _ = (&*requests).write(&reply);
            }
        });
        Some(mounted)
    }

    /// Stops answering. The kernel still answers from its caches, such as attributes.
    pub(crate) fn fall_silent(&self) {
        self.silent.store(true, Ordering::SeqCst);
    }

    /// Returns true if a program waits for an answer.
    pub(crate) fn is_awaited(&self) -> bool {
        self.awaited.load(Ordering::SeqCst)
    }
}

/// Returns the error, or 0, and the body of the answer to a request of this kind.
fn answer(opcode: u32) -> (i32, Vec<u8>) {
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<u8>>();
    let longs = |longs: &[u64]| longs.iter().flat_map(|long| long.to_ne_bytes()).collect::<Vec<u8>>();
    // Attributes are valid permanently.
    let valid = [u64::from(u32::MAX), 0];
    match opcode {
        INIT => {
            let mut out = words(&[7, 31, 1 << 16, 0, 0, 1 << 16, 1]);
            out.resize(64, 0);
            (0, out)
        }
        GETATTR => {
            let attributes = [1, 0, 0, 0, 0, 0];
            let rest = [0, 0, 0, libc::S_IFDIR | 0o755, 2, 0, 0, 0, 4096, 0];
            (0, [longs(&valid), longs(&attributes), words(&rest)].concat())
        }
        STATFS => {
            let rest = [4096, 255, 4096, 0, 0, 0, 0, 0, 0, 0];
            (0, [longs(&[1 << 20, 1 << 19, 1 << 19, 1000, 500]), words(&rest)].concat())
        }
        OPENDIR => (0, longs(&[1, 0])),
        READDIR | RELEASEDIR => (0, Vec::new()),
        LOOKUP => (libc::ENOENT, Vec::new()),
        _ => (libc::ENOSYS, Vec::new()),
    }
}

impl Drop for Silent {
    fn drop(&mut self) {
        // The waiting threads get an error.
        let _ = unmount(&self.at, UnmountFlags::FORCE | UnmountFlags::DETACH);
    }
}
