//! Futures on plain threads, with real operations under them.

#![allow(clippy::unwrap_used)]

mod common;

use std::future::{Future, poll_fn};
use std::path::Path;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::task::Poll;
use std::time::{Duration, Instant};

use common::TestFile;
use forebay_engine::buffer::{BLOCK, Buffer};
use forebay_engine::io::{Clock, Durability, Io, Spawn};
use forebay_runtime::{
    Fault, Observer, Request, SystemClock, Target, Threads, Work, block_on, start, start_or_run,
};
use futures_util::future::{Either, join, join_all, select};
use futures_util::stream::{FuturesUnordered, StreamExt};

const SIZE: u64 = 16 << 20;

fn file(dir: &Path, name: &str) -> TestFile {
    TestFile::new(&dir.join(name), SIZE)
}

fn block_of(byte: u8) -> Buffer {
    Buffer::from_bytes(&[byte; BLOCK])
}

/// Ends when the other side is dropped or sends.
fn from_thread<T: Send + 'static>(thread: impl FnOnce() -> T + Send + 'static) -> Io<T> {
    let slot = Arc::new(forebay_common::lock::Mutex::new((None, None::<std::task::Waker>)));
    let theirs = slot.clone();
    std::thread::spawn(move || {
        let value = thread();
        let mut slot = theirs.lock();
        slot.0 = Some(value);
        if let Some(waker) = slot.1.take() {
            waker.wake();
        }
    });
    Box::pin(poll_fn(move |context| {
        let mut slot = slot.lock();
        match slot.0.take() {
            Some(value) => Poll::Ready(value),
            None => {
                slot.1 = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }))
}

#[test]
fn many_operations_run_side_by_side() {
    let dir = tempfile::tempdir().unwrap();
    let file = file(dir.path(), "a");
    let blocks = SIZE / BLOCK as u64;
    block_on(async {
        // More than the kernel is given at once, and made before any is polled.
        let writes: Vec<_> = (0..blocks)
            .map(|block| file.write(block * BLOCK as u64, block_of(block as u8).into(), Durability::Later))
            .collect();
        assert!(join_all(writes).await.iter().all(Result::is_ok));
        start(file.0.flush()).await.result.unwrap();
        let mut reads: FuturesUnordered<_> = (0..blocks)
            .map(|block| {
                let read = file.read(block * BLOCK as u64, Buffer::zeroed(1));
                async move { (block, read.await) }
            })
            .collect();
        let mut count = 0;
        while let Some((block, (buffer, result))) = reads.next().await {
            result.unwrap();
            assert!(buffer.iter().all(|byte| *byte == block as u8));
            count += 1;
        }
        assert_eq!(count, blocks);
    });
}

#[test]
fn an_operation_whose_future_is_dropped_still_happens() {
    let dir = tempfile::tempdir().unwrap();
    let file = file(dir.path(), "a");
    block_on(async {
        drop(file.write(0, block_of(7).into(), Durability::Now));
        drop(file.read(0, Buffer::zeroed(256)));
    });
    let (buffer, result) = block_on(file.read(0, Buffer::zeroed(1)));
    result.unwrap();
    assert_eq!(buffer[0], 7);
}

/// Counts the ends of operations and keeps the sum of their numbers.
#[derive(Default)]
struct Sums {
    ended: AtomicU64,
    failed: AtomicU64,
}

impl Observer for Sums {
    fn ended(&self, number: u64, succeeded: bool) -> u64 {
        self.failed.fetch_add(u64::from(!succeeded), Ordering::SeqCst);
        self.ended.fetch_add(number, Ordering::SeqCst) + number
    }
}

#[test]
fn an_observer_is_told_of_every_end() {
    let dir = tempfile::tempdir().unwrap();
    let target = Arc::new(Target::new(std::fs::File::create_new(dir.path().join("a")).unwrap()));
    let directory = Arc::new(std::fs::File::open(dir.path()).unwrap());
    let reader = Arc::new(Target::new(std::fs::File::open(dir.path().join("a")).unwrap()));
    let sums = Arc::new(Sums::default());
    let write = |number| {
        let work = Work::Write(block_of(7).into(), Durability::Later);
        Request::new(target.clone(), 0, work).observed(sums.clone(), number)
    };
    assert_eq!(block_on(start(write(1))).moment, 1, "outside the executor");
    block_on(async {
        // Their futures are dropped.
        drop(start(write(10)));
        drop(start(target.flush_by(directory).observed(sums.clone(), 100)));
        let beyond = Request::new(reader, SIZE, Work::Read(Buffer::zeroed(1)));
        let outcome = start_or_run(beyond.observed(sums.clone(), 1000)).await;
        assert_eq!(outcome.result, Err(Fault::End));
        assert!(outcome.moment >= 1001);
    });
    assert_eq!(sums.ended.load(Ordering::SeqCst), 1111);
    assert_eq!(sums.failed.load(Ordering::SeqCst), 1);
}

#[test]
fn operations_outside_block_on_are_done_when_made() {
    let dir = tempfile::tempdir().unwrap();
    let file = file(dir.path(), "a");
    drop(file.write(0, block_of(9).into(), Durability::Now));
    assert_eq!(std::fs::read(dir.path().join("a")).unwrap()[..BLOCK], [9; BLOCK]);
    block_on(start(file.0.flush())).result.unwrap();
}

#[test]
fn a_future_made_on_one_thread_ends_on_another() {
    let dir = tempfile::tempdir().unwrap();
    let file = file(dir.path(), "a");
    block_on(async {
        let operations: Vec<_> = (0..8_u8)
            .map(|block| {
                let write = file.write(u64::from(block) * 4096, block_of(block).into(), Durability::Now);
                from_thread(move || block_on(write))
            })
            .collect();
        assert!(join_all(operations).await.iter().all(Result::is_ok));
    });
}

#[test]
fn the_maker_may_leave_before_the_other_thread_polls() {
    let dir = tempfile::tempdir().unwrap();
    let file = file(dir.path(), "a");
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        block_on(async { sender.send(file.write(4096, block_of(5).into(), Durability::Now)).unwrap() });
    })
    .join()
    .unwrap();
    block_on(receiver.recv().unwrap()).unwrap();
}

#[test]
fn a_panic_leaves_nothing_under_way() {
    let dir = tempfile::tempdir().unwrap();
    let file = file(dir.path(), "a");
    let (sender, receiver) = mpsc::channel();
    let ended = std::thread::spawn(move || {
        block_on(async {
            sender.send(file.read(0, Buffer::zeroed(256))).unwrap();
            panic!("on purpose");
        })
    })
    .join();
    assert!(ended.is_err());
    block_on(receiver.recv().unwrap()).1.unwrap();
}

#[test]
fn block_on_works_inside_itself() {
    let dir = tempfile::tempdir().unwrap();
    let file = file(dir.path(), "a");
    block_on(async {
        let outer = file.write(0, block_of(1).into(), Durability::Now);
        block_on(file.write(4096, block_of(2).into(), Durability::Now)).unwrap();
        outer.await.unwrap();
        let wakes_outer = from_thread(|| 3);
        let _ = block_on(from_thread(|| 4));
        assert_eq!(wakes_outer.await, 3);
    });
}

#[test]
fn wakes_from_other_threads_arrive_in_both_ways_of_waiting() {
    let dir = tempfile::tempdir().unwrap();
    let file = file(dir.path(), "a");
    for _ in 0..200 {
        block_on(async {
            assert_eq!(from_thread(|| 1).await, 1);
            let write = file.write(0, block_of(1).into(), Durability::Later);
            let (woken, written) = join(from_thread(|| 2), write).await;
            assert_eq!(woken, 2);
            written.unwrap();
        });
    }
}

#[test]
fn a_future_that_wakes_itself_does_not_keep_operations_from_running() {
    let dir = tempfile::tempdir().unwrap();
    let file = file(dir.path(), "a");
    block_on(async {
        let mut write = file.write(0, block_of(1).into(), Durability::Now);
        poll_fn(|context| {
            context.waker().wake_by_ref();
            Pin::new(&mut write).poll(context)
        })
        .await
        .unwrap();
    });
}

#[test]
fn sleeps_end_in_the_order_of_their_times() {
    let clock = SystemClock::new();
    let start = clock.now();
    let order = block_on(async {
        let sleeps: FuturesUnordered<_> = [30, 10, 20]
            .map(|ms| {
                let sleep = clock.sleep(Duration::from_millis(ms));
                async move {
                    sleep.await;
                    ms
                }
            })
            .into_iter()
            .collect();
        sleeps.collect::<Vec<_>>().await
    });
    assert_eq!(order, [10, 20, 30]);
    assert!(clock.now() - start >= Duration::from_millis(30));
}

#[test]
fn a_dropped_sleep_does_not_keep_block_on() {
    let clock = SystemClock::new();
    let start = Instant::now();
    block_on(async {
        let never = clock.sleep(Duration::MAX);
        let soon = clock.sleep(Duration::from_millis(5));
        assert!(matches!(select(never, soon).await, Either::Right(_)));
    });
    assert!(start.elapsed() < Duration::from_secs(3600));
}

#[test]
fn a_sleep_set_on_a_thread_that_leaves_ends_on_the_other() {
    let mut sleep = SystemClock::new().sleep(Duration::from_millis(50));
    block_on(poll_fn(|context| {
        assert!(sleep.as_mut().poll(context).is_pending());
        Poll::Ready(())
    }));
    std::thread::spawn(move || block_on(sleep)).join().unwrap();
}

#[test]
fn tasks_run_on_named_threads_and_are_joined() {
    let threads = Arc::new(Threads::new());
    let done = Arc::new(AtomicBool::new(false));
    let (theirs, inner) = (done.clone(), threads.clone());
    threads.spawn(
        "destage",
        Box::pin(async move {
            assert_eq!(std::thread::current().name(), Some("destage"));
            let clock = SystemClock::new();
            clock.sleep(Duration::from_millis(10)).await;
            inner.spawn("later", Box::pin(async move { theirs.store(true, Ordering::SeqCst) }));
        }),
    );
    threads.join();
    assert!(done.load(Ordering::SeqCst));
}
