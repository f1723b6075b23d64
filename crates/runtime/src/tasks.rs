//! Futures on a thread that waits by other means than [`block_on`], such as an event loop.
//!
//! The thread calls [`attach`] once, [`spawn`] as needed, and [`turn`] when it is idle and when the descriptor is
//! readable. A turn hands all operations that the futures made since the last turn to the kernel in one system call.
//! The call also collects completions. Therefore a large number of small reads costs one call and one wake-up together.

use std::cell::RefCell;
use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Instant;

#[cfg(test)]
use shuttle::sync::{
    Mutex,
    atomic::{AtomicBool, Ordering},
};
use slab::Slab;
#[cfg(not(test))]
use std::sync::{
    Mutex,
    atomic::{AtomicBool, Ordering},
};

use forebay_engine::io::Io;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use crate::executor::{self, Inside, block_on, collect, hand_over, ring_bell_of};

type Task = Pin<Box<dyn Future<Output = ()>>>;

/// The futures of a thread. The fields are dropped in this order: operations in flight end last.
struct Tasks {
    running: Slab<Running>,
    /// The number of futures that must not be dropped before their end.
    kept: usize,
    bell: Arc<Bell>,
    _inside: Inside,
}

struct Running {
    /// `None` while it is being polled.
    task: Option<Task>,
    waker: Waker,
    kept: bool,
}

/// The bell by which the futures of a thread report that they can continue.
struct Bell {
    woken: Mutex<Vec<usize>>,
    /// True if the thread may be waiting: the next waker has to write to the descriptor.
    asleep: AtomicBool,
    eventfd: Arc<OwnedFd>,
}

/// A waker for the future with the number `key`. A later future may have the number; it is polled without effect.
struct Woken {
    key: usize,
    bell: Arc<Bell>,
}

thread_local! {
    static TASKS: RefCell<Option<Tasks>> = const { RefCell::new(None) };
    /// The futures to run at the end of [`and_then_run`].
    static LATER: RefCell<Option<Vec<Io<()>>>> = const { RefCell::new(None) };
}

/// Allows this thread to [`spawn`]. Returns a descriptor that becomes readable when [`turn`] has work. The descriptor
/// must be watched edge-triggered, and is not read.
///
/// # Errors
/// The kernel has no io_uring or no descriptor left. Attaching has no benefit then.
pub fn attach() -> io::Result<Arc<OwnedFd>> {
    let fd = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
    ring_bell_of(&fd)?;
    let bell = Arc::new(Bell { woken: Mutex::default(), asleep: AtomicBool::new(true), eventfd: fd.clone() });
    TASKS.set(Some(Tasks { running: Slab::new(), kept: 0, bell, _inside: Inside::enter() }));
    Ok(fd)
}

/// Returns true if this thread may [`spawn`].
pub fn attached() -> bool {
    TASKS.with_borrow(Option::is_some)
}

/// Runs `future` on this thread, from the next [`turn`] on. It is dropped at once if the thread is not [`attached`].
///
/// The future must not block. It may sleep on the engine's clock only if the thread's loop has a turn at
/// [`next_timer`]. Otherwise its timer would be noticed only at the next turn.
pub fn spawn(future: impl Future<Output = ()> + 'static) {
    TASKS.with_borrow_mut(|tasks| {
        if let Some(tasks) = tasks {
            tasks.add(Box::pin(future), false);
        }
    });
}

/// Runs `act`, and then to their end the tasks that the engine gave this thread meanwhile ([`Spawn::here`]).
///
/// [`Spawn::here`]: forebay_engine::io::Spawn::here
pub fn and_then_run<T>(act: impl FnOnce() -> T) -> T {
    /// Runs also after a panic, because other threads would wait for ever.
    struct Later(Option<Vec<Io<()>>>);
    impl Drop for Later {
        fn drop(&mut self) {
            LATER.replace(self.0.take()).into_iter().flatten().for_each(block_on);
        }
    }
    let _later = Later(LATER.replace(Some(Vec::new())));
    act()
}

/// Runs `task` to its end: on an [`attached`] thread from its next [`turn`] on, and at once on other threads. The
/// caller holds no lock that the task takes.
pub fn run_to_end(task: Io<()>) {
    match attached() {
        true => spawn_to_end(task).into_iter().for_each(block_on),
        false => and_then_run(|| block_on(task)),
    }
}

/// Spawns a task like [`Spawn::here`](forebay_engine::io::Spawn::here): [`detach`] runs it to its end.
pub(crate) fn spawn_to_end(task: Io<()>) -> Option<Io<()>> {
    let task = LATER.with_borrow_mut(|later| match later {
        Some(later) => {
            later.push(task);
            None
        }
        None => Some(task),
    })?;
    TASKS.with_borrow_mut(|tasks| match tasks {
        Some(tasks) => {
            tasks.add(task, true);
            None
        }
        None => Some(task),
    })
}

/// Runs the thread's futures as far as they get without waiting.
pub fn turn() {
    let bell = TASKS.with_borrow(|tasks| {
        tasks.as_ref().filter(|tasks| !tasks.running.is_empty()).map(|tasks| tasks.bell.clone())
    });
    let Some(bell) = bell else { return };
    bell.wake_up();
    poll_woken(&bell);
    collect();
    poll_woken(&bell);
    hand_over();
    if !bell.fall_asleep() {
        bell.sound();
    }
}

/// Returns the time of the next [`turn`] that a sleeping future of this thread needs.
pub fn next_timer() -> Option<Instant> {
    TASKS
        .with_borrow(|tasks| tasks.as_ref().is_some_and(|tasks| !tasks.running.is_empty()))
        .then(executor::next_timer)?
}

/// Runs those futures of the thread to their end that must end, drops the remaining ones, and waits for their
/// operations in flight.
pub fn detach() {
    loop {
        turn();
        let keeps =
            |tasks: &Option<Tasks>| tasks.as_ref().filter(|tasks| tasks.kept > 0).map(|t| t.bell.clone());
        let Some(bell) = TASKS.with_borrow(keeps) else { break };
        bell.wait();
    }
    // The tasks are dropped outside the cell: futures may run anything then.
    let tasks = TASKS.take();
    drop(tasks);
}

fn poll_woken(bell: &Bell) {
    for key in bell.take() {
        let taken = TASKS.with_borrow_mut(|tasks| {
            let running = tasks.as_mut()?.running.get_mut(key)?;
            Some((running.task.take()?, running.waker.clone()))
        });
        let Some((mut task, waker)) = taken else { continue };
        let ended = task.as_mut().poll(&mut Context::from_waker(&waker)) == Poll::Ready(());
        TASKS.with_borrow_mut(|tasks| {
            let Some(tasks) = tasks else { return };
            match ended {
                true => tasks.kept -= usize::from(tasks.running.remove(key).kept),
                false => tasks.running[key].task = Some(task),
            }
        });
    }
}

impl Tasks {
    fn add(&mut self, task: Task, kept: bool) {
        let entry = self.running.vacant_entry();
        let key = entry.key();
        let waker = Waker::from(Arc::new(Woken { key, bell: self.bell.clone() }));
        entry.insert(Running { task: Some(task), waker, kept });
        self.kept += usize::from(kept);
        self.bell.push(key);
    }
}

impl Bell {
    fn lock(&self) -> impl std::ops::DerefMut<Target = Vec<usize>> + '_ {
        self.woken.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn push(&self, key: usize) {
        self.lock().push(key);
    }

    fn take(&self) -> Vec<usize> {
        std::mem::take(&mut *self.lock())
    }

    fn wake_up(&self) {
        self.asleep.store(false, Ordering::SeqCst);
    }

    /// Announces that the thread may wait from now on; returns false if a future can continue already.
    fn fall_asleep(&self) -> bool {
        self.asleep.store(true, Ordering::SeqCst);
        self.lock().is_empty()
    }

    /// Waits until the bell rings, for a thread that does not watch the descriptor.
    fn wait(&self) {
        // An interrupted wait is an empty one.
        let _ = poll(&mut [PollFd::new(&*self.eventfd, PollFlags::IN)], None);
        // The counter is empty only if another thread waited as well.
        let _ = rustix::io::read(&*self.eventfd, &mut [0; 8]);
    }

    fn sound(&self) {
        // The write fails only when the counter is full, and then the descriptor is readable.
        let _ = rustix::io::write(&*self.eventfd, &1_u64.to_ne_bytes());
    }
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.bell.push(self.key);
        if self.bell.asleep.swap(false, Ordering::SeqCst) {
            self.bell.sound();
        }
    }
}

#[cfg(test)]
mod tests {
    use shuttle::{sync::atomic::AtomicUsize, thread};

    use super::*;

    /// Checks that no wake is lost. Two threads send a message and wake; the thread that sleeps until the descriptor is
    /// readable receives both. A lost wake shows as an endless run.
    fn no_wake_is_lost() {
        let fd = Arc::new(eventfd(0, EventfdFlags::NONBLOCK).unwrap());
        let bell = Bell { woken: Mutex::default(), asleep: AtomicBool::new(true), eventfd: fd.clone() };
        let bell = Arc::new(bell);
        let said = Arc::new(AtomicUsize::new(0));
        for key in 0..2 {
            let (waker, said) = (Waker::from(Arc::new(Woken { key, bell: bell.clone() })), said.clone());
            thread::spawn(move || {
                said.fetch_add(1, Ordering::SeqCst);
                waker.wake();
            });
        }
        let mut heard = 0;
        while heard < 2 {
            while rustix::io::read(&*fd, &mut [0; 8]).is_err() {
                thread::yield_now();
            }
            bell.wake_up();
            heard += bell.take().len();
            if !bell.fall_asleep() {
                bell.sound();
            }
        }
        assert_eq!(said.load(Ordering::SeqCst), 2);
    }

    #[test]
    fn no_wake_is_lost_by_a_thread_with_a_loop_of_its_own() {
        shuttle::check_random(no_wake_is_lost, 3000);
        shuttle::check_pct(no_wake_is_lost, 3000, 3);
    }
}
