//! Tests of [`IoPool`]. The crate's own unit tests run under the checker of interleavings, which has no such threads.

#![allow(clippy::unwrap_used)]

use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use forebay_engine::io::Io;
use forebay_runtime::{IoPool, block_on};

/// Waits for another thread's message, longer than anything takes but a deadlock.
fn hear(word: &Receiver<()>) -> bool {
    word.recv_timeout(Duration::from_secs(60)).is_ok()
}

fn until_idle(pool: &IoPool) {
    while pool.idle() < IoPool::THREADS {
        std::thread::yield_now();
    }
}

/// Gives every thread of the pool work that lasts until its sender is told to end.
fn keep_busy(pool: &IoPool) -> (Vec<Sender<()>>, Vec<Io<bool>>) {
    let work = |_| {
        let (end, word) = channel();
        (end, pool.run(move || hear(&word)))
    };
    (0..IoPool::THREADS).map(work).unzip()
}

#[test]
fn work_that_is_begun_at_once_is_done_side_by_side() {
    let pool = IoPool::new();
    until_idle(&pool);
    let ((tell_first, first), (tell_second, second)) = (channel(), channel());
    let one = pool.run(move || tell_second.send(()).is_ok() && hear(&first));
    let other = pool.run(move || tell_first.send(()).is_ok() && hear(&second));
    assert!(block_on(one) && block_on(other), "each waits for the other one");
}

#[test]
fn work_for_which_no_thread_is_idle_is_done_by_the_thread_that_waits_for_it() {
    let pool = IoPool::new();
    until_idle(&pool);
    let (ends, busy) = keep_busy(&pool);
    let here = std::thread::current().id();
    assert!(block_on(pool.run(move || std::thread::current().id() == here)));
    ends.iter().for_each(|end| end.send(()).unwrap());
    assert!(busy.into_iter().all(block_on));
    until_idle(&pool);
    assert!(!block_on(pool.run(move || std::thread::current().id() == here)));
}

#[test]
fn a_pool_that_queues_never_has_the_caller_do_the_work() {
    let pool = IoPool::queueing();
    until_idle(&pool);
    let (ends, busy) = keep_busy(&pool);
    let here = std::thread::current().id();
    let queued = pool.run(move || std::thread::current().id() == here);
    ends.iter().for_each(|end| end.send(()).unwrap());
    assert!(!block_on(queued));
    assert!(busy.into_iter().all(block_on));
}
