//! The thread that carries out the requests of one device.
//!
//! The driver accepts the commands of a queue from one thread only. That thread is an event loop: it waits in the ring
//! for requests and for the bell of its futures ([`forebay_runtime::tasks`]), and answers all requests that are done
//! with the system call that waits for the next ones.

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use forebay_common::lock::Mutex;
use forebay_runtime::tasks;
use forebay_volume::disk::{Disk, DiskError, Stability};
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use memmap2::{MmapOptions, MmapRaw};
use rustix::io::Errno;

use super::control::Description;
use super::interface::{Descriptor, Form, Transfer, TransferCommand, command_bytes};
use super::request::{Operation, failed, refused};

/// `user_data` of the poll of the bell.
const BELL: u64 = u64::MAX;
/// The result of a command whose tag gets no further requests (`UBLK_IO_RES_ABORT`).
const ENDED: i32 = -Errno::NODEV.raw_os_error();

/// The buffer of a tag. The driver has its address while the tag waits for a request, so it must not be freed before
/// the thread of the queue has ended.
pub(super) type Buffer = Box<[u8]>;

/// The way to end a queue from another thread.
#[derive(Default)]
pub(super) struct Stop {
    wanted: AtomicBool,
    /// The time at which requests in progress are given up, for the next server.
    until: Mutex<Option<Instant>>,
    bell: Mutex<Option<Arc<OwnedFd>>>,
}

impl Stop {
    /// Has the queue end when its requests in progress have ended, at the latest after `patience`. The kernel keeps the
    /// device for its next server.
    pub(super) fn leave(&self, patience: Duration) {
        *self.until.lock() = Some(Instant::now() + patience);
        self.wanted.store(true, Ordering::SeqCst);
        if let Some(bell) = &*self.bell.lock() {
            // The write fails only when the counter is full, and then the bell is ringing.
            let _ = rustix::io::write(&**bell, &1_u64.to_ne_bytes());
        }
    }

    pub(super) fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::SeqCst)
    }
}

/// A request that was carried out: its tag, its buffer, and its result unless it is left to the next server.
struct Done {
    tag: u16,
    buffer: Buffer,
    result: Option<i32>,
}

/// The queue of a device, on its own thread.
pub(super) struct Queue {
    disk: Arc<dyn Disk>,
    stop: Arc<Stop>,
    ring: IoUring<squeue::Entry128, cqueue::Entry>,
    bell: Arc<OwnedFd>,
    file: File,
    form: Form,
    descriptors: MmapRaw,
    /// The buffer of each tag that waits for a request.
    buffers: Vec<Option<Buffer>>,
    done: Rc<RefCell<Vec<Done>>>,
    /// Requests in progress.
    running: usize,
    /// Tags that get no further requests.
    ended: usize,
}

impl Queue {
    /// Waits for the first request of every tag. Must be called on the thread that [runs](Queue::run) the queue.
    ///
    /// # Errors
    /// The driver refuses the device to this process, or there is no io_uring.
    pub(super) fn open(
        disk: Arc<dyn Disk>,
        file: File,
        device: &Description,
        stop: Arc<Stop>,
    ) -> io::Result<Self> {
        let depth = usize::from(device.depth);
        // One entry for each tag, and one for the bell.
        let entries = (depth as u32 + 1).next_power_of_two();
        let ring = IoUring::<squeue::Entry128, cqueue::Entry>::builder().build(entries)?;
        if !ring.params().is_feature_ext_arg() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let size = (depth * size_of::<Descriptor>()).next_multiple_of(rustix::param::page_size());
        let descriptors = MmapOptions::new().len(size).map_raw_read_only(&file)?;
        let bell = tasks::attach()?;
        *stop.bell.lock() = Some(bell.clone());
        let mut queue = Queue {
            disk,
            stop,
            ring,
            bell,
            file,
            form: if device.plain { Form::Plain } else { Form::Ioctl },
            descriptors,
            buffers: vec![None; depth],
            done: Rc::default(),
            running: 0,
            ended: 0,
        };
        queue.watch_bell();
        for tag in 0..device.depth {
            queue.transfer(Transfer::Fetch, tag, 0, vec![0; device.buffer as usize].into());
        }
        queue.ring.submit()?;
        // A request may be there already; so is a command that was refused.
        let refused = queue.ring.completion().map(|it| it.result()).find(|result| *result < 0);
        refused.map_or(Ok(queue), |result| Err(io::Error::from_raw_os_error(-result)))
    }

    /// Carries out requests until every tag has ended or the queue is stopped. Returns the buffers, which the caller
    /// keeps until this thread has ended.
    pub(super) fn run(mut self) -> Vec<Option<Buffer>> {
        let mut arrived = Vec::new();
        loop {
            self.answer();
            let is_over = match self.stop.is_wanted() {
                true => self.running == 0 || self.is_late(),
                false => self.ended == self.buffers.len(),
            };
            if is_over {
                break;
            }
            self.wait();
            arrived.extend(self.ring.completion().map(|it| (it.user_data(), it.result(), it.flags())));
            for (tag, result, flags) in arrived.drain(..) {
                match u16::try_from(tag) {
                    Ok(tag) => self.take(tag, result),
                    Err(_) if cqueue::more(flags) => {}
                    Err(_) => self.watch_bell(),
                }
            }
            tasks::turn();
        }
        tasks::detach();
        self.done
            .borrow_mut()
            .drain(..)
            .for_each(|done| self.buffers[usize::from(done.tag)] = Some(done.buffer));
        self.buffers
    }

    /// Begins the request that has arrived for a tag.
    fn take(&mut self, tag: u16, result: i32) {
        if result != 0 {
            if result != ENDED {
                tracing::error!("ublk: tag {tag} of {:?} ended with {result}", self.file);
            }
            self.ended += 1;
            return;
        }
        // A request that arrives during the stop is for the next server.
        let Some(buffer) = self.buffers[usize::from(tag)].take_if(|_| !self.stop.is_wanted()) else { return };
        let descriptor = self.descriptor(tag);
        match Operation::of(&descriptor, buffer.len()) {
            Ok(operation) => self.begin(tag, operation, buffer),
            Err(errno) => self.end(tag, buffer, Some(refused(errno))),
        }
    }

    /// Begins an operation. A READ that memory has is answered at once; any other operation is a task of this thread.
    fn begin(&mut self, tag: u16, operation: Operation, mut buffer: Buffer) {
        if let Operation::Read { offset, len } = operation
            && self.disk.try_read(offset, &mut buffer[..len]) == Ok(true)
        {
            return self.end(tag, buffer, Some(operation.done()));
        }
        self.running += 1;
        let (disk, done) = (self.disk.clone(), self.done.clone());
        tasks::spawn(async move {
            let result = match carry_out(&*disk, operation, &mut buffer).await {
                Ok(()) => Some(operation.done()),
                Err(error) => failed(error),
            };
            done.borrow_mut().push(Done { tag, buffer, result });
        });
    }

    /// Puts the answers of all requests that are done into the ring.
    fn answer(&mut self) {
        let done = std::mem::take(&mut *self.done.borrow_mut());
        self.running -= done.len();
        done.into_iter().for_each(|Done { tag, buffer, result }| self.end(tag, buffer, result));
    }

    /// Answers a request and takes the next one of its tag. During a stop, or without a result, leaves the request to
    /// the next server.
    fn end(&mut self, tag: u16, buffer: Buffer, result: Option<i32>) {
        match result.filter(|_| !self.stop.is_wanted()) {
            Some(result) => self.transfer(Transfer::CommitAndFetch, tag, result, buffer),
            // The next server carries it out again, which changes nothing.
            None => self.buffers[usize::from(tag)] = Some(buffer),
        }
    }

    /// Sends a command for a tag to the driver. The buffer belongs to the driver until the command has ended.
    fn transfer(&mut self, transfer: Transfer, tag: u16, result: i32, buffer: Buffer) {
        let command = TransferCommand { queue: 0, tag, result, address: buffer.as_ptr() as u64 };
        self.buffers[usize::from(tag)] = Some(buffer);
        let file = types::Fd(self.file.as_raw_fd());
        let entry = opcode::UringCmd80::new(file, self.form.transfer(transfer)).cmd(command_bytes(&command));
        self.push(&entry.build().user_data(tag.into()));
    }

    /// Asks the ring for a completion each time the bell rings, until the kernel ends that.
    fn watch_bell(&mut self) {
        let poll = opcode::PollAdd::new(types::Fd(self.bell.as_raw_fd()), libc::POLLIN as u32).multi(true);
        self.push(&poll.build().user_data(BELL).into());
    }

    /// Puts a command into the ring. The next submission passes it to the kernel.
    fn push(&mut self, entry: &squeue::Entry128) {
        // SAFETY: the descriptor of the entry is open as long as the ring, and a buffer lives until the thread has
        // ended: see `Buffer`.
        let pushed = unsafe { self.ring.submission().push(entry) };
        assert!(pushed.is_ok(), "the queue has an entry for each tag and for the bell");
    }

    /// Submits what was put into the ring, and waits for a request, the bell, or the time of a timer.
    fn wait(&mut self) {
        let until = [tasks::next_timer(), *self.stop.until.lock()].into_iter().flatten().min();
        let submitter = self.ring.submitter();
        let waited = match until.map(|until| until.saturating_duration_since(Instant::now())) {
            None => submitter.submit_and_wait(1),
            Some(time) => {
                let time = types::Timespec::from(time);
                submitter.submit_with_args(1, &types::SubmitArgs::new().timespec(&time))
            }
        };
        match waited.as_ref().err().and_then(Errno::from_io_error) {
            // EBUSY: completions have to be taken first. EAGAIN: the kernel is short of memory for the moment.
            None | Some(Errno::INTR | Errno::TIME | Errno::BUSY | Errno::AGAIN) => {}
            Some(errno) => {
                tracing::error!("ublk: io_uring_enter fails with {errno}; the process ends");
                std::process::abort();
            }
        }
    }

    fn is_late(&self) -> bool {
        self.stop.until.lock().is_some_and(|until| Instant::now() >= until)
    }

    /// Returns the description of the request that has arrived for a tag.
    fn descriptor(&self, tag: u16) -> Descriptor {
        let all = self.descriptors.as_ptr().cast::<Descriptor>();
        // SAFETY: the mapping has a descriptor for each tag, and the driver gave this one to the server.
        unsafe { all.add(usize::from(tag)).read_volatile() }
    }
}

/// Carries out an operation on the volume. `buffer` has the data of a WRITE, or gets that of a READ.
async fn carry_out(disk: &dyn Disk, operation: Operation, buffer: &mut [u8]) -> Result<(), DiskError> {
    match operation {
        Operation::Read { offset, len } => disk.read(offset, &mut buffer[..len]).await,
        Operation::Write { offset, len, stability } => disk.write(offset, &buffer[..len], stability).await,
        Operation::Flush => disk.flush().await,
        Operation::Discard { offset, len } => disk.discard(offset, len, Stability::of_discard(false)).await,
        Operation::WriteZeroes { offset, len, keep, stability } => {
            disk.write_zeroes(offset, len, keep, stability).await
        }
    }
}
