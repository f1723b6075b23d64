//! Background tasks in production: one thread each.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread::JoinHandle;

use forebay_common::lock::Mutex;
use forebay_engine::io::{Io, Spawn};

use crate::completion::{Completion, Slot};
use crate::executor::block_on;
use crate::tasks;

/// A spawner that runs each task on a thread of its own, which has the task's name.
#[derive(Default)]
pub struct Threads {
    running: Mutex<Vec<JoinHandle<()>>>,
}

impl Threads {
    /// Returns a value without threads.
    pub fn new() -> Self {
        Self::default()
    }

    /// Waits until every task has ended, including those spawned meanwhile. Must not be called from a task.
    pub fn join(&self) {
        loop {
            let Some(thread) = self.running.lock().pop() else { return };
            // A task that panicked has already reported the panic.
            let _ = thread.join();
        }
    }
}

/// Runs `work`, which may wait for a disk, on a thread of its own, or on this one if the system refuses a thread. The
/// work begins at once. The returned future ends with the value that `work` returns.
pub fn unblock<T: Send + Unpin + 'static>(
    name: &'static str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Io<T> {
    let (slot, work) = (Slot::new(), Arc::new(Mutex::new(Some(work))));
    let run = {
        let (slot, work) = (slot.clone(), work.clone());
        move || {
            let work = work.lock().take();
            work.into_iter().for_each(|work| slot.complete(work()));
        }
    };
    if std::thread::Builder::new().name(name.to_owned()).spawn(run).is_err() {
        let work = work.lock().take();
        work.into_iter().for_each(|work| slot.complete(work()));
    }
    Box::pin(Completion::Waiting(slot))
}

/// Runs `future` to its end on a thread of its own, or on this thread if the system refuses one.
///
/// Unlike [`block_on`], it returns when the future ends, even if operations whose futures were dropped are still in
/// flight on a device. The new thread waits for those. So a silent device delays no caller that has given it up. Must
/// not be called from inside [`block_on`].
pub fn block_on_apart<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> T {
    let (send, result) = channel();
    let future = Arc::new(Mutex::new(Some(future)));
    let run = {
        let future = future.clone();
        move || {
            let Some(future) = future.lock().take() else { return };
            // Sending fails only if the caller has gone.
            block_on(async move { drop(send.send(future.await)) });
        }
    };
    let thread = std::thread::Builder::new().name("forebay-apart".into()).spawn(run);
    match (result.recv(), thread) {
        (Ok(result), _) => result,
        (Err(_), Ok(thread)) => match thread.join() {
            Err(panic) => std::panic::resume_unwind(panic),
            Ok(()) => unreachable!("the thread has sent what the future gave"),
        },
        (Err(_), Err(_)) => {
            let own = future.lock().take();
            let Some(own) = own else { unreachable!("no thread has taken it") };
            block_on(own)
        }
    }
}

impl Spawn for Threads {
    /// Runs the task on a new thread. Ends the process if the system refuses a thread: an engine that lacks a task
    /// would hang, and the engine is designed to survive a crash.
    fn spawn(&self, name: &'static str, task: Io<()>) {
        let builder = std::thread::Builder::new().name(name.to_owned());
        match builder.spawn(move || block_on(task)) {
            Ok(thread) => {
                let mut running = self.running.lock();
                running.retain(|thread| !thread.is_finished());
                running.push(thread);
            }
            Err(error) => {
                tracing::error!("cannot start a thread for {name}: {error}; raise the limit of processes");
                std::process::abort();
            }
        }
    }

    fn here(&self, task: Io<()>) -> Option<Io<()>> {
        tasks::spawn_to_end(task)
    }
}
