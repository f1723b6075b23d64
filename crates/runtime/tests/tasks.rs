//! Futures on threads that wait in epoll, with real operations under them.

#![allow(clippy::unwrap_used)]

mod common;

use std::cell::Cell;
use std::future::poll_fn;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

use common::TestFile;
use forebay_engine::buffer::{BLOCK, Buffer};
use forebay_engine::io::{Durability, Io, Spawn};
use forebay_runtime::{Threads, block_on, tasks};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

const BLOCKS: u64 = 4096;

/// Returns a file in which each block holds its number.
fn file(dir: &Path) -> Arc<TestFile> {
    let file = TestFile::new(&dir.join("a"), BLOCKS * BLOCK as u64);
    let mut contents = Buffer::zeroed(BLOCKS as usize);
    for (number, block) in contents.chunks_exact_mut(BLOCK).enumerate() {
        block[..8].copy_from_slice(&(number as u64).to_le_bytes());
    }
    block_on(file.write(0, contents.into(), Durability::Now)).unwrap();
    Arc::new(file)
}

/// An event loop that has nothing but its tasks.
struct Loop(OwnedFd);

impl Loop {
    fn new() -> Self {
        let epoll = epoll::create(CreateFlags::CLOEXEC).unwrap();
        let fd = tasks::attach().unwrap();
        epoll::add(&epoll, fd, EventData::new_u64(0), EventFlags::IN | EventFlags::ET).unwrap();
        Loop(epoll)
    }

    fn run_until(&self, mut done: impl FnMut() -> bool) {
        let mut events = Vec::with_capacity(8);
        loop {
            tasks::turn();
            if done() {
                return;
            }
            epoll::wait(&self.0, rustix::buffer::spare_capacity(&mut events), None).unwrap();
            events.clear();
        }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        tasks::detach();
    }
}

/// Reads `count` blocks one after another, beginning somewhere.
async fn read_some(file: Arc<TestFile>, seed: u64, count: u64, left: Rc<Cell<u64>>) {
    for n in 0..count {
        let block = (seed * 7919 + n * 104_729) % BLOCKS;
        let (buffer, result) = file.read(block * BLOCK as u64, Buffer::zeroed(1)).await;
        result.unwrap();
        assert_eq!(buffer[..8], block.to_le_bytes());
    }
    left.set(left.get() - 1);
}

#[test]
fn many_futures_share_the_ring_of_a_thread() {
    let dir = tempfile::tempdir().unwrap();
    let file = file(dir.path());
    let events = Loop::new();
    let left = Rc::new(Cell::new(300));
    // More than the kernel is given at once.
    (0..300).for_each(|seed| tasks::spawn(read_some(file.clone(), seed, 20, left.clone())));
    assert_eq!(left.get(), 300, "nothing runs before its turn");
    events.run_until(|| left.get() == 0);
}

#[test]
fn a_future_goes_on_when_another_thread_wakes_it() {
    let events = Loop::new();
    let (send, receive) = std::sync::mpsc::channel::<std::task::Waker>();
    let woken = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let theirs = woken.clone();
    let thread = std::thread::spawn(move || {
        let waker = receive.recv().unwrap();
        theirs.store(true, std::sync::atomic::Ordering::SeqCst);
        waker.wake();
    });
    let done = Rc::new(Cell::new(false));
    let told = done.clone();
    tasks::spawn(async move {
        poll_fn(|context| match woken.load(std::sync::atomic::Ordering::SeqCst) {
            true => Poll::Ready(()),
            false => {
                let _ = send.send(context.waker().clone());
                Poll::Pending
            }
        })
        .await;
        told.set(true);
    });
    events.run_until(|| done.get());
    thread.join().unwrap();
}

#[test]
fn block_on_works_on_such_a_thread() {
    let dir = tempfile::tempdir().unwrap();
    let file = file(dir.path());
    let events = Loop::new();
    let left = Rc::new(Cell::new(50));
    (0..50).for_each(|seed| tasks::spawn(read_some(file.clone(), seed, 20, left.clone())));
    tasks::turn();
    // The completions of the other operations may arrive meanwhile.
    for block in 0..50 {
        let (buffer, result) = block_on(file.read(block * BLOCK as u64, Buffer::zeroed(1)));
        result.unwrap();
        assert_eq!(buffer[..8], block.to_le_bytes());
    }
    events.run_until(|| left.get() == 0);
}

#[test]
fn a_thread_may_end_with_operations_under_way() {
    let dir = tempfile::tempdir().unwrap();
    let file = file(dir.path());
    for _ in 0..20 {
        let file = file.clone();
        let thread = std::thread::spawn(move || {
            let _events = Loop::new();
            let left = Rc::new(Cell::new(200));
            (0..200).for_each(|seed| tasks::spawn(read_some(file.clone(), seed, 20, left.clone())));
            tasks::turn();
        });
        thread.join().unwrap();
    }
    assert_eq!(Arc::strong_count(&file), 1, "the futures are gone");
}

#[test]
fn elsewhere_a_future_is_dropped() {
    let shared = Rc::new(());
    let inside = shared.clone();
    assert!(!tasks::attached());
    tasks::spawn(async move { drop(inside) });
    assert_eq!(Rc::strong_count(&shared), 1);
}

/// Returns a task for [`Spawn::here`] that waits for a write.
fn writing(file: &Arc<TestFile>, ended: &Arc<AtomicBool>) -> Io<()> {
    let (file, ended) = (file.clone(), ended.clone());
    Box::pin(async move {
        file.write(0, Buffer::zeroed(1).into(), Durability::Now).await.unwrap();
        ended.store(true, Ordering::SeqCst);
    })
}

#[test]
fn what_the_engine_gives_a_loop_is_at_its_end_when_the_loop_is() {
    let home = tempfile::tempdir().unwrap();
    let (file, ended) = (file(home.path()), Arc::new(AtomicBool::new(false)));
    let running = Loop::new();
    assert!(Threads::new().here(writing(&file, &ended)).is_none());
    tasks::spawn(std::future::pending());
    assert!(!ended.load(Ordering::SeqCst), "not before the loop's turn");
    drop(running);
    assert!(ended.load(Ordering::SeqCst));
}

#[test]
fn a_thread_without_a_loop_does_it_where_it_says_that_it_will() {
    let home = tempfile::tempdir().unwrap();
    let (file, ended) = (file(home.path()), Arc::new(AtomicBool::new(false)));
    let threads = Threads::new();
    assert!(threads.here(writing(&file, &ended)).is_some(), "it has no place for it");
    let during = tasks::and_then_run(|| {
        assert!(threads.here(writing(&file, &ended)).is_none());
        ended.load(Ordering::SeqCst)
    });
    assert!(!during && ended.load(Ordering::SeqCst));
    assert!(threads.here(writing(&file, &ended)).is_some(), "not any more");
}

#[test]
fn a_task_to_run_to_its_end_needs_no_loop_and_outlasts_none() {
    let home = tempfile::tempdir().unwrap();
    let (file, ended) = (file(home.path()), Arc::new(AtomicBool::new(false)));
    tasks::run_to_end(writing(&file, &ended));
    assert!(ended.swap(false, Ordering::SeqCst), "a thread without a loop runs it at once");
    let running = Loop::new();
    tasks::run_to_end(writing(&file, &ended));
    assert!(!ended.load(Ordering::SeqCst), "not before the loop's turn");
    drop(running);
    assert!(ended.load(Ordering::SeqCst));
}
