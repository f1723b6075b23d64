//! A signal that wakes a thread in [`block_on`](crate::block_on), also from other threads.

use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};
use std::task::Wake;

#[cfg(test)]
use shuttle::{
    sync::atomic::{AtomicU8, Ordering},
    thread::{self, Thread},
};
#[cfg(not(test))]
use std::{
    sync::atomic::{AtomicU8, Ordering},
    thread::{self, Thread},
};

const RUNNING: u8 = 0;
const WOKEN: u8 = 1;
const PARKED: u8 = 2;
const IN_RING: u8 = 3;

/// The way in which the thread waits, which decides how it is woken.
#[derive(Clone, Copy)]
pub(crate) enum Wait {
    Park,
    Ring,
}

pub(crate) struct Signal {
    state: AtomicU8,
    thread: Thread,
    /// The eventfd that the ring of the thread reads; kept open here, as wakers may outlive the thread.
    eventfd: OnceLock<Arc<OwnedFd>>,
}

impl Signal {
    /// Returns the signal of the calling thread.
    pub(crate) fn new() -> Arc<Self> {
        let thread = thread::current();
        Arc::new(Signal { state: AtomicU8::new(RUNNING), thread, eventfd: OnceLock::new() })
    }

    pub(crate) fn reach_by(&self, eventfd: &Arc<OwnedFd>) {
        self.eventfd.get_or_init(|| eventfd.clone());
    }

    /// Announces that the thread is about to wait; returns false if it must not, because it has been woken.
    pub(crate) fn begin_wait(&self, wait: Wait) -> bool {
        let state = match wait {
            Wait::Park => PARKED,
            Wait::Ring => IN_RING,
        };
        self.state.compare_exchange(RUNNING, state, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Announces that the thread does not wait any more; a wake is kept.
    pub(crate) fn end_wait(&self) {
        let keep = |state| (state != WOKEN).then_some(RUNNING);
        let _ = self.state.fetch_update(Ordering::SeqCst, Ordering::SeqCst, keep);
    }

    /// Returns true if the thread was woken since the last call.
    pub(crate) fn take(&self) -> bool {
        self.state.swap(RUNNING, Ordering::SeqCst) == WOKEN
    }
}

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        match self.state.swap(WOKEN, Ordering::SeqCst) {
            PARKED => self.thread.unpark(),
            IN_RING => {
                if let Some(eventfd) = self.eventfd.get() {
                    // The write fails only when the counter is full, and then the thread is being woken anyway.
                    let _ = rustix::io::write(&**eventfd, &1_u64.to_ne_bytes());
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use rustix::event::{EventfdFlags, eventfd};
    use shuttle::sync::atomic::AtomicUsize;

    use super::*;

    /// Checks that no wake is lost. Two threads send a message and wake; the thread that waits, as `block_on` does,
    /// receives both. A lost wake shows as a deadlock, or as an endless run in the ring.
    fn no_wake_is_lost(wait: Wait) {
        let signal = Signal::new();
        let bell = Arc::new(eventfd(0, EventfdFlags::NONBLOCK).unwrap());
        signal.reach_by(&bell);
        let said = Arc::new(AtomicUsize::new(0));
        for _ in 0..2 {
            let (waker, said) = (Waker::from(signal.clone()), said.clone());
            thread::spawn(move || {
                said.fetch_add(1, Ordering::SeqCst);
                waker.wake();
            });
        }
        while said.load(Ordering::SeqCst) < 2 {
            loop {
                if signal.begin_wait(wait) {
                    match wait {
                        Wait::Park => thread::park(),
                        Wait::Ring => {
                            while rustix::io::read(&*bell, &mut [0; 8]).is_err() {
                                thread::yield_now();
                            }
                        }
                    }
                }
                signal.end_wait();
                if signal.take() {
                    break;
                }
            }
        }
    }

    #[test]
    fn no_wake_is_lost_by_a_parked_thread() {
        shuttle::check_random(|| no_wake_is_lost(Wait::Park), 3000);
        shuttle::check_pct(|| no_wake_is_lost(Wait::Park), 3000, 3);
    }

    #[test]
    fn no_wake_is_lost_by_a_thread_in_the_ring() {
        shuttle::check_random(|| no_wake_is_lost(Wait::Ring), 3000);
    }
}
