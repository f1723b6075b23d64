//! The io_uring of one thread, and the memory of the operations on it.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use io_uring::{IoUring, opcode, squeue, types};
use rustix::event::EventfdFlags;
use rustix::io::Errno;
use slab::Slab;

use crate::completion::{Completion, Slot};
use crate::request::{Outcome, Request};

/// The number of operations that the kernel has at once, including the read of the eventfd. More operations wait for
/// their turn. So neither the submission queue nor the larger completion queue can be full.
const ENTRIES: u32 = 128;
/// `user_data` of the read of the eventfd.
const WAKE: u64 = u64::MAX;

/// The place into which every ring reads its eventfd. Its value is not used, and it outlives any ring.
static COUNT: AtomicU64 = AtomicU64::new(0);

struct UnderWay {
    request: Request,
    slot: Arc<Slot<Outcome>>,
}

/// An operation that has ended, and whose waiter has not been woken yet.
pub(crate) struct Finished {
    slot: Arc<Slot<Outcome>>,
    outcome: Outcome,
}

impl Finished {
    pub(crate) fn tell(self) {
        self.slot.complete(self.outcome.told());
    }
}

pub(crate) struct Ring {
    uring: IoUring,
    under_way: Slab<UnderWay>,
    /// The entries of `under_way` that the kernel does not have yet, and the number that it has.
    waiting: VecDeque<usize>,
    with_kernel: u32,
    eventfd: Arc<OwnedFd>,
    armed: bool,
}

impl Ring {
    /// Creates the ring. Fails if the kernel has no io_uring, does not permit it, or cannot wait with a timeout (before
    /// Linux 5.11).
    pub(crate) fn new() -> io::Result<Self> {
        // Only this thread submits, and it needs completions only when it waits (Linux 6.1). Other kernels get a plain
        // ring.
        let uring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .build(ENTRIES)
            .or_else(|_| IoUring::new(ENTRIES))?;
        let params = uring.params();
        if !(params.is_feature_ext_arg() && params.is_feature_nodrop()) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let eventfd = Arc::new(rustix::event::eventfd(0, EventfdFlags::CLOEXEC)?);
        Ok(Ring {
            uring,
            under_way: Slab::new(),
            waiting: VecDeque::new(),
            with_kernel: 0,
            eventfd,
            armed: false,
        })
    }

    pub(crate) fn eventfd(&self) -> &Arc<OwnedFd> {
        &self.eventfd
    }

    /// Registers `bell` to be rung whenever a completion may have arrived, for a thread that does not wait in the ring.
    pub(crate) fn register_bell(&self, bell: &OwnedFd) -> io::Result<()> {
        self.uring.submitter().register_eventfd(bell.as_raw_fd())
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.under_way.is_empty()
    }

    /// Queues `request`; the next [`Ring::enter`] submits it.
    pub(crate) fn push(&mut self, request: Request) -> Completion<Outcome> {
        let slot = Slot::new();
        let key = self.under_way.insert(UnderWay { request, slot: slot.clone() });
        self.waiting.push_back(key);
        self.queue();
        Completion::Waiting(slot)
    }

    /// Queues waiting requests while the kernel's completion queue has room for their ends.
    fn queue(&mut self) {
        while self.with_kernel < ENTRIES - 1 {
            let Some(key) = self.waiting.pop_front() else { return };
            let entry = self.under_way[key].request.entry().user_data(key as u64);
            self.with_kernel += 1;
            self.queue_entry(&entry);
        }
    }

    /// Queues an entry. The queue has room, since `with_kernel` bounds the entries.
    fn queue_entry(&mut self, entry: &squeue::Entry) {
        // SAFETY: the entry points to the static `COUNT`, or to a request in `under_way`. The request stays there until
        // its completion is taken from the ring.
        let queued = unsafe { self.uring.submission().push(entry) };
        assert!(queued.is_ok(), "the queue has room for all that the kernel may have at once");
    }

    /// Submits the queued operations, and lets completions arrive, without waiting.
    pub(crate) fn submit(&mut self) {
        let queue = self.uring.submission();
        let needed = !queue.is_empty() || queue.taskrun() || queue.cq_overflow();
        drop(queue);
        if needed {
            self.enter(Some(Duration::ZERO));
        }
    }

    /// Makes the eventfd end a wait. Must be called once before each wait.
    pub(crate) fn arm(&mut self) {
        if !self.armed {
            self.armed = true;
            let fd = types::Fd(self.eventfd.as_raw_fd());
            let read = opcode::Read::new(fd, COUNT.as_ptr().cast(), size_of_val(&COUNT) as u32);
            self.queue_entry(&read.build().user_data(WAKE));
        }
    }

    /// Submits the queued operations and waits for a completion: for ever, or at most for `time`. Zero does not wait.
    pub(crate) fn enter(&mut self, time: Option<Duration>) {
        let submitter = self.uring.submitter();
        let result = match time {
            Some(Duration::ZERO) => submitter.submit(),
            None => submitter.submit_and_wait(1),
            Some(time) => {
                let time = types::Timespec::from(time);
                submitter.submit_with_args(1, &types::SubmitArgs::new().timespec(&time))
            }
        };
        match result.as_ref().err().and_then(Errno::from_io_error) {
            // EBUSY: completions have to be taken first. EAGAIN: the kernel is short of memory for the moment.
            None | Some(Errno::INTR | Errno::TIME | Errno::BUSY | Errno::AGAIN) => {}
            Some(errno) => {
                // The kernel may still write to memory of the ring's operations, so the memory cannot be taken back.
                tracing::error!("io_uring_enter fails with {errno}; the process ends");
                std::process::abort();
            }
        }
    }

    /// Takes the completions that have arrived. Queues the operations that waited, and the rest of operations that were
    /// done in part.
    pub(crate) fn reap(&mut self, finished: &mut Vec<Finished>) {
        for completion in self.uring.completion() {
            if completion.user_data() == WAKE {
                self.armed = false;
                continue;
            }
            self.with_kernel -= 1;
            let key = completion.user_data() as usize;
            let answer = usize::try_from(completion.result())
                .map_err(|_| Errno::from_raw_os_error(completion.result().wrapping_neg()));
            match self.under_way[key].request.advance(answer) {
                None => self.waiting.push_front(key),
                Some(result) => {
                    let UnderWay { request, slot } = self.under_way.remove(key);
                    finished.push(Finished { slot, outcome: request.end(result) });
                }
            }
        }
        self.queue();
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // `block_on` leaves nothing in flight. If it ever does, leaking is right: the kernel still has the addresses.
        if !self.under_way.is_empty() {
            std::mem::forget(std::mem::take(&mut self.under_way));
        }
    }
}
