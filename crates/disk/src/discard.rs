//! Requests that only block devices have.

use std::fs::File;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use forebay_runtime::{Completion, Fault, Slot, Target};
use rustix::io::Errno;
use rustix::ioctl::{Getter, Setter, ioctl, opcode};

const BLKDISCARD: rustix::ioctl::Opcode = opcode::none(0x12, 119);
const BLKGETSIZE64: rustix::ioctl::Opcode = opcode::read::<usize>(0x12, 114);

/// Returns the bytes of an open block device now. An unplugged device has fewer than before, or returns an error.
pub(crate) fn block_device_size(file: &File) -> Result<u64, Errno> {
    // SAFETY: BLKGETSIZE64 stores a u64.
    unsafe { ioctl(file, Getter::<BLKGETSIZE64, u64>::new()) }
}

struct Job {
    offset: u64,
    len: u64,
    slot: Arc<Slot<Result<(), Fault>>>,
}

/// A thread that discards: BLKDISCARD blocks, on some devices for long, and io_uring has it only since Linux 6.12.
pub(crate) struct Discarder {
    name: String,
    target: Arc<Target>,
    worker: OnceLock<Option<Worker>>,
}

struct Worker {
    jobs: Sender<Job>,
    thread: JoinHandle<()>,
}

impl Discarder {
    pub(crate) fn new(name: String, target: Arc<Target>) -> Self {
        Discarder { name, target, worker: OnceLock::new() }
    }

    /// Begins to discard. Succeeds without effect if the device has no discard.
    pub(crate) fn start(&self, offset: u64, len: u64) -> Completion<Result<(), Fault>> {
        let slot = Slot::new();
        let job = Job { offset, len, slot: slot.clone() };
        let worker = self.worker.get_or_init(|| self.spawn());
        match worker.as_ref().map(|worker| worker.jobs.send(job)) {
            Some(Ok(())) => Completion::Waiting(slot),
            // Without a thread nothing is discarded: a discard is only advice.
            _ => Completion::ready(Ok(())),
        }
    }

    /// Starts the thread that discards, since the kernel makes each caller wait. Returns `None` if the system has no
    /// thread left: then nothing is discarded.
    fn spawn(&self) -> Option<Worker> {
        let (jobs, receiver) = channel();
        let target = self.target.clone();
        match std::thread::Builder::new().name("discard".into()).spawn(move || run(&target, &receiver)) {
            Ok(thread) => Some(Worker { jobs, thread }),
            Err(error) => {
                tracing::warn!(
                    "{}: no thread for discards: {error}; the SSD is not told of free space",
                    self.name
                );
                None
            }
        }
    }
}

impl Drop for Discarder {
    /// Waits for the thread, which holds the device open.
    fn drop(&mut self) {
        if let Some(Some(Worker { jobs, thread })) = self.worker.take() {
            drop(jobs);
            let _ = thread.join();
        }
    }
}

/// Runs the jobs until the device is closed.
fn run(target: &Target, jobs: &Receiver<Job>) {
    let mut supported = true;
    for Job { offset, len, slot } in jobs {
        let result = if supported { discard(&target.file, offset, len) } else { Ok(()) };
        supported &= result != Err(Errno::OPNOTSUPP);
        slot.complete(match result {
            Ok(()) | Err(Errno::OPNOTSUPP) => Ok(()),
            Err(errno) => Err(Fault::Errno(errno)),
        });
    }
}

/// Discards a range of a block device. Waits until the drive has taken the command.
fn discard(file: &File, offset: u64, len: u64) -> Result<(), Errno> {
    if len == 0 {
        return Ok(());
    }
    // SAFETY: BLKDISCARD reads two u64: where, and how many bytes.
    unsafe { ioctl(file, Setter::<BLKDISCARD, [u64; 2]>::new([offset, len])) }
}
