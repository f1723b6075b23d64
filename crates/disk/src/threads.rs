//! Background tasks in production: one thread each.

use std::sync::Arc;
use std::thread::JoinHandle;

use forebay_common::lock::Mutex;
use forebay_engine::io::{Io, Spawn};

use crate::completion::{Completion, Slot};
use crate::executor::block_on;
use crate::tasks;

/// Runs each task on a thread of its own, named as the task.
#[derive(Default)]
pub struct Threads {
    running: Mutex<Vec<JoinHandle<()>>>,
}

impl Threads {
    /// No threads yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Waits until every task has ended, also those spawned meanwhile. Not to be called from a task.
    pub fn join(&self) {
        loop {
            let Some(thread) = self.running.lock().pop() else { return };
            // A task that panicked has said so itself.
            let _ = thread.join();
        }
    }
}

/// Runs `work`, which may wait for a disk, on a thread of its own, or on this one if the system refuses a thread. It begins at
/// once; the result ends with what it returns.
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

impl Spawn for Threads {
    /// Ends the process if the system refuses a thread: an engine without one of its tasks would only hang, and a crash is
    /// what it is made to survive.
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
