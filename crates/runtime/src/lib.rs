//! Runs futures in production: operations on files by io_uring, one thread per background task, and the monotonic
//! clock.
//!
//! # Where an operation runs
//!
//! - Inside [`block_on`], and on a thread that is [attached](tasks::attach), an operation is put on the ring of the
//!   calling thread when it is made. It is handed to the kernel at the latest when that thread has nothing else to
//!   poll, or at its next [turn](tasks::turn). So operations made one after another start together: up to 127 of a
//!   thread at once.
//! - Elsewhere, or if the kernel refuses io_uring, an operation runs to its end while it is made.
//! - The ring owns the memory of an operation until the kernel is done with it, whatever happens to the future.
//! - A future may be polled on any thread. Its completion arrives at the thread that made it. That thread stays in
//!   [`block_on`] (or [`tasks::detach`]) until none of its operations is in flight. So such a thread must not wait by
//!   other means (a channel, a join) for a thread that polls an operation it has made.

mod clock;
mod completion;
mod executor;
mod io_pool;
mod request;
mod ring;
mod signal;
pub mod tasks;
mod threads;

pub use clock::SystemClock;
pub use completion::{Completion, Slot};
pub use executor::{block_on, start, start_or_run};
pub use io_pool::IoPool;
pub use request::{Fault, Observer, Outcome, Request, Target, Work};
pub use threads::{Threads, block_on_apart, unblock};
