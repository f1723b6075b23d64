//! Futures on a thread that waits by other means than [`block_on`], such as an event loop.
//!
//! The thread calls [`attach`] once, [`spawn`] as it likes, and [`turn`] whenever it has nothing better to do and when the
//! descriptor says so. All operations of devices that its futures made since the last turn are handed to the kernel in one
//! system call, which collects what has completed as well: many small reads cost one call and one wake-up together.

use std::cell::RefCell;
use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

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

use crate::executor::{Inside, block_on, collect, hand_over, ring_bell_of};

type Task = Pin<Box<dyn Future<Output = ()>>>;

/// The futures of a thread. Dropped in this order: operations under way end last.
struct Tasks {
    running: Slab<Running>,
    /// How many are not to be dropped before their end.
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

/// Where futures of a thread say that they can go on.
struct Bell {
    woken: Mutex<Vec<usize>>,
    /// The thread may be waiting: the next one to be woken has to write to the descriptor.
    asleep: AtomicBool,
    eventfd: Arc<OwnedFd>,
}

/// Wakes the future with the number `key`. A later one may have the number: it is polled for nothing then.
struct Woken {
    key: usize,
    bell: Arc<Bell>,
}

thread_local! {
    static TASKS: RefCell<Option<Tasks>> = const { RefCell::new(None) };
    /// What is to be run at the end of [`and_then_run`].
    static LATER: RefCell<Option<Vec<Io<()>>>> = const { RefCell::new(None) };
}

/// Lets this thread [`spawn`]. The descriptor becomes readable (watch it edge-triggered, nobody reads it) when there is
/// something to do for [`turn`].
///
/// # Errors
/// The kernel has no io_uring or no descriptor left: then there is no point.
pub fn attach() -> io::Result<Arc<OwnedFd>> {
    let fd = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
    ring_bell_of(&fd)?;
    let bell = Arc::new(Bell { woken: Mutex::default(), asleep: AtomicBool::new(true), eventfd: fd.clone() });
    TASKS.set(Some(Tasks { running: Slab::new(), kept: 0, bell, _inside: Inside::enter() }));
    Ok(fd)
}

/// Whether this thread may [`spawn`].
pub fn attached() -> bool {
    TASKS.with_borrow(Option::is_some)
}

/// Runs `future` on this thread, from the next [`turn`] on. It is dropped at once if the thread is not [`attached`].
///
/// It must not block, nor sleep on the engine's clock: its time would come at the next turn only.
pub fn spawn(future: impl Future<Output = ()> + 'static) {
    TASKS.with_borrow_mut(|tasks| {
        if let Some(tasks) = tasks {
            tasks.add(Box::pin(future), false);
        }
    });
}

/// Runs `act`, and then, waiting for it, what the engine would have this thread do meanwhile ([`Spawn::here`]).
///
/// [`Spawn::here`]: forebay_engine::io::Spawn::here
pub fn and_then_run<T>(act: impl FnOnce() -> T) -> T {
    /// Also after a panic, or others would wait for ever.
    struct Later(Option<Vec<Io<()>>>);
    impl Drop for Later {
        fn drop(&mut self) {
            LATER.replace(self.0.take()).into_iter().flatten().for_each(block_on);
        }
    }
    let _later = Later(LATER.replace(Some(Vec::new())));
    act()
}

/// As [`Spawn::here`](forebay_engine::io::Spawn::here): [`detach`] runs it to its end.
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

/// Lets the thread's futures go on as far as they can without waiting.
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

/// Runs those futures of the thread to their end that somebody relies on, drops the others, and waits for the operations
/// that they had under way.
pub fn detach() {
    loop {
        turn();
        let keeps =
            |tasks: &Option<Tasks>| tasks.as_ref().filter(|tasks| tasks.kept > 0).map(|t| t.bell.clone());
        let Some(bell) = TASKS.with_borrow(keeps) else { break };
        bell.wait();
    }
    // Dropped outside the cell: futures may do anything then.
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

    /// Says that the thread may wait from now on; false if something can go on already.
    fn fall_asleep(&self) -> bool {
        self.asleep.store(true, Ordering::SeqCst);
        self.lock().is_empty()
    }

    /// Waits until it sounds, for who does not watch the descriptor.
    fn wait(&self) {
        // An interrupted wait is an empty one.
        let _ = poll(&mut [PollFd::new(&*self.eventfd, PollFlags::IN)], None);
        // Empty only if somebody else waited as well.
        let _ = rustix::io::read(&*self.eventfd, &mut [0; 8]);
    }

    fn sound(&self) {
        // Fails only when the counter is full, and then the descriptor is readable.
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

    /// Two threads say something and wake; the one that sleeps until the descriptor is readable, as [`turn`]'s caller does,
    /// hears both. A wake that gets lost shows as an endless run.
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
