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

/// A time to wake at; the number tells timers of one instant apart.
pub(crate) type TimerKey = (Instant, u64);

/// What belongs to one thread.
struct Local {
    ring: RingState,
    timers: BTreeMap<TimerKey, Waker>,
}

enum RingState {
    Untried,
    Refused,
    Open(Box<Ring>),
}

/// Whom to tell, once nothing of the thread is borrowed any more: wakers run anything.
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

/// Runs `future` to its end on this thread, which sleeps while nothing is ready. Operations of devices made meanwhile run
/// side by side on the thread's io_uring; they are all at their end when this returns, also those whose futures were
/// dropped or passed on. May be called inside itself.
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

/// Has `bell` rung whenever something completes on the thread's ring.
pub(crate) fn ring_bell_of(bell: &OwnedFd) -> io::Result<()> {
    LOCAL.with_borrow_mut(|local| local.ring().ok_or(io::ErrorKind::Unsupported)?.register_bell(bell))
}

/// Submits what was made on this thread, and tells of what has completed, without waiting.
pub(crate) fn collect() {
    LOCAL
        .with_borrow_mut(|local| {
            local.submit();
            local.collect()
        })
        .tell();
}

/// Submits what was made on this thread.
pub(crate) fn hand_over() {
    LOCAL.with_borrow_mut(Local::submit);
}

/// Starts `request` on the thread's ring, or runs it now if there is none or the thread is not inside `block_on`.
pub(crate) fn start(request: Request) -> Completion<Outcome> {
    if DEPTH.get() == 0 {
        return Completion::ready(request.run().told());
    }
    let started = LOCAL.with_borrow_mut(|local| match local.ring() {
        Some(ring) => Ok(ring.push(request)),
        None => Err(request),
    });
    started.unwrap_or_else(|request| Completion::ready(request.run().told()))
}

/// As [`start`], but runs it now if the thread has nothing else under way: it would only wait, and others be woken for it.
pub(crate) fn start_or_run(request: Request) -> Completion<Outcome> {
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

/// Forgets a timer of this thread; one of another thread stays there and wakes for nothing.
pub(crate) fn clear_timer(key: TimerKey) {
    let removed = LOCAL.try_with(|local| local.try_borrow_mut().map(|mut local| local.timers.remove(&key)));
    drop(removed);
}

impl Local {
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

    fn open_ring(&mut self) -> Option<&mut Ring> {
        match &mut self.ring {
            RingState::Open(ring) => Some(ring),
            RingState::Untried | RingState::Refused => None,
        }
    }

    /// Submits what was made, waits unless the thread was woken, and collects what has happened.
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

    fn submit(&mut self) {
        if let Some(ring) = self.open_ring() {
            ring.submit();
        }
    }

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

    /// Waits for what is under way on the ring; `None` when nothing is. Timers end early: who still waits for one sets it
    /// again, on the thread that polls it then.
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
    fn tell(self) {
        self.finished.into_iter().for_each(Finished::tell);
        self.due.into_iter().for_each(Waker::wake);
    }
}

/// The thread is inside `block_on`, also while a panic unwinds through it; or it has a loop of its own (`tasks.rs`).
pub(crate) struct Inside(());

impl Inside {
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

/// Says once for the process that there is no io_uring.
fn warn_once(error: &std::io::Error) {
    static SAID: Once = Once::new();
    SAID.call_once(|| {
        tracing::warn!(
            "io_uring is not available ({error}): device operations run one after another, more slowly"
        );
    });
}
