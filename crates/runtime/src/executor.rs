//! Runs futures on plain threads.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::sync::Once;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use crate::completion::Completion;
use crate::request::{Outcome, Request};
use crate::ring::{Finished, Ring};
use crate::signal::{Signal, Wait};

/// The time at which to wake. The number distinguishes timers of one instant.
pub(crate) type TimerKey = (Instant, u64);

/// The state of one thread.
struct Local {
    ring: RingState,
    timers: BTreeMap<TimerKey, Waker>,
}

enum RingState {
    Untried,
    Refused,
    Open(Box<Ring>),
}

/// The wakers to call once nothing of the thread is borrowed any more: a waker may run anything.
#[derive(Default)]
struct News {
    finished: Vec<Finished>,
    due: Vec<Waker>,
}

thread_local! {
    /// Calls of `block_on` that the thread is in.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
    static LOCAL: RefCell<Local> =
        const { RefCell::new(Local { ring: RingState::Untried, timers: BTreeMap::new() }) };
}

/// Runs `future` to its end on this thread, which sleeps while nothing is ready. Operations of devices made meanwhile
/// run side by side on the thread's io_uring. All of them have ended when this returns, including those whose futures
/// were dropped or passed on. Calls may be nested.
pub fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let signal = Signal::new();
    let waker = Waker::from(signal.clone());
    let mut context = Context::from_waker(&waker);
    let _inside = Inside::enter();
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
        loop {
            LOCAL.with_borrow_mut(|local| local.turn(&signal)).tell();
            if signal.take() {
                break;
            }
        }
    }
}

/// Registers `bell` to be rung whenever an operation completes on the thread's ring.
pub(crate) fn ring_bell_of(bell: &OwnedFd) -> io::Result<()> {
    LOCAL.with_borrow_mut(|local| local.ring().ok_or(io::ErrorKind::Unsupported)?.register_bell(bell))
}

/// Submits the operations made on this thread, and reports completed ones, without waiting.
pub(crate) fn collect() {
    LOCAL
        .with_borrow_mut(|local| {
            local.submit();
            local.collect()
        })
        .tell();
}

/// Submits the operations made on this thread.
pub(crate) fn hand_over() {
    LOCAL.with_borrow_mut(Local::submit);
}

/// Starts `request` on the thread's ring, or runs it now if there is none or the thread is not inside `block_on`.
pub fn start(request: Request) -> Completion<Outcome> {
    if DEPTH.get() == 0 {
        return Completion::ready(request.run().told());
    }
    let started = LOCAL.with_borrow_mut(|local| match local.ring() {
        Some(ring) => Ok(ring.push(request)),
        None => Err(request),
    });
    started.unwrap_or_else(|request| Completion::ready(request.run().told()))
}

/// Starts `request` like [`start`], but runs it now if the thread has no other operation in flight. Such a thread would
/// only wait, and other threads would be woken for the operation.
pub fn start_or_run(request: Request) -> Completion<Outcome> {
    let alone = LOCAL.with_borrow_mut(|local| local.open_ring().is_none_or(|ring| ring.is_idle()));
    if alone { Completion::ready(request.run().told()) } else { start(request) }
}

/// Has `waker` woken at the time of `key`; false if the thread is not inside `block_on`.
pub(crate) fn set_timer(key: TimerKey, waker: Waker) -> bool {
    if DEPTH.get() == 0 {
        return false;
    }
    let replaced = LOCAL.with_borrow_mut(|local| local.timers.insert(key, waker));
    drop(replaced);
    true
}

/// Returns the time of this thread's next timer.
pub(crate) fn next_timer() -> Option<Instant> {
    LOCAL.with_borrow(|local| local.timers.first_key_value().map(|(key, _)| key.0))
}

/// Removes a timer of this thread. A timer of another thread stays there and wakes without effect.
pub(crate) fn clear_timer(key: TimerKey) {
    let removed = LOCAL.try_with(|local| local.try_borrow_mut().map(|mut local| local.timers.remove(&key)));
    drop(removed);
}

impl Local {
    /// Returns the ring of this thread, which is opened at the first use; `None` if the kernel refuses one.
    fn ring(&mut self) -> Option<&mut Ring> {
        if let RingState::Untried = self.ring {
            self.ring = match Ring::new() {
                Ok(ring) => RingState::Open(Box::new(ring)),
                Err(error) => {
                    warn_once(&error);
                    RingState::Refused
                }
            };
        }
        self.open_ring()
    }

    /// Returns the ring if it is open.
    fn open_ring(&mut self) -> Option<&mut Ring> {
        match &mut self.ring {
            RingState::Open(ring) => Some(ring),
            RingState::Untried | RingState::Refused => None,
        }
    }

    /// Submits the new operations, waits unless the thread was woken, and collects the completions.
    fn turn(&mut self, signal: &Signal) -> News {
        let next = self.timers.first_key_value().map(|(key, _)| key.0);
        let wait = next.map(|at| at.saturating_duration_since(Instant::now()));
        let wanted = wait != Some(Duration::ZERO);
        match self.open_ring() {
            Some(ring) if !ring.is_idle() => {
                ring.arm();
                signal.reach_by(ring.eventfd());
                if wanted && signal.begin_wait(Wait::Ring) {
                    ring.enter(wait);
                } else {
                    ring.submit();
                }
            }
            _ if wanted && signal.begin_wait(Wait::Park) => match wait {
                Some(time) => std::thread::park_timeout(time),
                None => std::thread::park(),
            },
            _ => {}
        }
        signal.end_wait();
        self.collect()
    }

    /// Passes all waiting requests to the kernel.
    fn submit(&mut self) {
        if let Some(ring) = self.open_ring() {
            ring.submit();
        }
    }

    /// Returns the requests that have ended and the timers that are due.
    fn collect(&mut self) -> News {
        let mut news = News::default();
        if let Some(ring) = self.open_ring() {
            ring.reap(&mut news.finished);
        }
        if !self.timers.is_empty() {
            let later = self.timers.split_off(&(Instant::now(), u64::MAX));
            news.due.extend(std::mem::replace(&mut self.timers, later).into_values());
        }
        news
    }

    /// Waits for the operations in flight on the ring; returns `None` if there is none. Timers end early. A future that
    /// still waits for one sets it again, on the thread that polls the future then.
    fn drain(&mut self) -> Option<News> {
        let mut news =
            News { due: std::mem::take(&mut self.timers).into_values().collect(), ..News::default() };
        if let Some(ring) = self.open_ring().filter(|ring| !ring.is_idle()) {
            ring.enter(None);
            ring.reap(&mut news.finished);
            return Some(news);
        }
        (!news.due.is_empty()).then_some(news)
    }
}

impl News {
    /// Tells the owners of finished operations, and wakes the tasks whose timers are due.
    fn tell(self) {
        self.finished.into_iter().for_each(Finished::tell);
        self.due.into_iter().for_each(Waker::wake);
    }
}

/// Marks the thread as inside `block_on`, also while a panic unwinds, or as a thread with its own loop (`tasks.rs`).
pub(crate) struct Inside(());

impl Inside {
    /// Marks the thread until the result is dropped.
    pub(crate) fn enter() -> Self {
        DEPTH.set(DEPTH.get() + 1);
        Inside(())
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get() - 1);
        if DEPTH.get() == 0 {
            while let Some(news) = LOCAL.with_borrow_mut(Local::drain) {
                news.tell();
            }
        }
    }
}

/// Warns once for the process that there is no io_uring.
fn warn_once(error: &std::io::Error) {
    static SAID: Once = Once::new();
    SAID.call_once(|| {
        tracing::warn!(
            "io_uring is not available ({error}): device operations run one after another, more slowly"
        );
    });
}
