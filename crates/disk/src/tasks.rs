//! Futures on a thread that waits by other means than [`block_on`](crate::block_on), such as an event loop.
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

use rustix::event::{EventfdFlags, eventfd};

use crate::executor::{Inside, collect, hand_over, ring_bell_of};

type Task = Pin<Box<dyn Future<Output = ()>>>;

/// The futures of a thread. Dropped in this order: operations under way end last.
struct Tasks {
    /// `None` while one is being polled.
    running: Slab<(Option<Task>, Waker)>,
    bell: Arc<Bell>,
    _inside: Inside,
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
    TASKS.set(Some(Tasks { running: Slab::new(), bell, _inside: Inside::enter() }));
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
        let Some(Tasks { running, bell, .. }) = tasks else { return };
        let entry = running.vacant_entry();
        let key = entry.key();
        let waker = Waker::from(Arc::new(Woken { key, bell: bell.clone() }));
        entry.insert((Some(Box::pin(future)), waker));
        bell.push(key);
    });
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

/// Drops what is left of the thread's futures, and waits for the operations that they had under way.
pub fn detach() {
    // Dropped outside the cell: futures may do anything then.
    let tasks = TASKS.take();
    drop(tasks);
}

fn poll_woken(bell: &Bell) {
    for key in bell.take() {
        let taken = TASKS.with_borrow_mut(|tasks| {
            let (task, waker) = tasks.as_mut()?.running.get_mut(key)?;
            Some((task.take()?, waker.clone()))
        });
        let Some((mut task, waker)) = taken else { continue };
        let ended = task.as_mut().poll(&mut Context::from_waker(&waker)) == Poll::Ready(());
        TASKS.with_borrow_mut(|tasks| {
            let Some(tasks) = tasks else { return };
            match ended {
                true => drop(tasks.running.remove(key)),
                false => tasks.running[key].0 = Some(task),
            }
        });
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
