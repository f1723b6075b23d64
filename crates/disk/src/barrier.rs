//! One flush for durable writes to several files of one file system.
//!
//! If a drive has a volatile cache and no FUA, the kernel carries out a write with RWF_DSYNC in two parts. A worker
//! thread flushes the drive after the write. Flushes of one drive run one after the other, so both legs of a frame on
//! one drive wait for two. Therefore the legs are written here without the flag, and the thread whose write ends last
//! calls fdatasync(2) for all of them. It syncs the directory: each write gives its file a new modification time, and a
//! file system without a journal would write that time before it flushes.
//!
//! In general, one file's fdatasync does not make another file's writes durable. It does for direct writes over blocks
//! that the file system has recorded as written, if the file system is on one drive. Then the file system only has the
//! drive empty its cache, which it does for any file (`ext4_sync_file`). [`Barrier::of`] checks all of these
//! conditions.

use std::collections::HashMap;
use std::fs::File;
use std::future::poll_fn;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use forebay_common::lock::Mutex;
use rustix::fs::{AtFlags, SeekFrom, StatxFlags};

use crate::wear;

/// f_type of ext4, in statfs(2). XFS may move a block of a file that was copied by reference.
const EXT4: i64 = 0xef53;

/// The barriers of the file systems that devices are on, by st_dev.
static KNOWN: Mutex<Option<HashMap<u64, Weak<Barrier>>>> = Mutex::new(None);

/// The duration of the last flush up to which an idle thread makes the next flush itself. Other operations of the
/// thread wait meanwhile.
const QUICK: Duration = Duration::from_micros(300);

/// The flush that the durable writes to files of one file system share.
pub(crate) struct Barrier {
    /// The directory of a device, which is synced for all writes, and hardly ever changes.
    directory: File,
    state: Mutex<State>,
    devices: AtomicUsize,
    is_slow: AtomicBool,
}

/// A device's place behind a barrier.
pub(crate) struct Behind(Arc<Barrier>);

#[derive(Default)]
struct State {
    /// The number of writes begun so far, and the numbers of the writes in flight.
    begun: u64,
    writing: Vec<u64>,
    /// The number of flushes begun so far, whether the last one is in flight, and the last ones that succeeded and
    /// failed.
    flushes: u64,
    flushing: bool,
    succeeded: u64,
    failed: u64,
    waiting: Vec<Waker>,
}

/// The waiters for an operation. The thread on which the operation completes wakes them, whether the operation's future
/// is polled or not.
#[derive(Default)]
pub(crate) enum Ticket {
    #[default]
    None,
    Writing(Writing),
    Flushing(Flushing),
    /// A write that has ended and is to be flushed.
    Written(Written),
}

/// A durable write that is in flight.
pub(crate) struct Writing {
    barrier: Arc<Barrier>,
    number: u64,
}

/// A durable write that has ended and is not durable yet.
pub(crate) struct Written {
    barrier: Arc<Barrier>,
    /// The first flush that covers it.
    need: u64,
    /// The last write that had begun when it ended.
    last: u64,
}

/// A flush that is in flight.
pub(crate) struct Flushing {
    barrier: Arc<Barrier>,
    number: u64,
    begun: Instant,
}

/// The next action for a write that has ended.
pub(crate) enum Part {
    /// Flush, for all writes.
    Flush(Flushing),
    /// Nothing: the flush of another write covers it.
    Covered,
    /// The flush that would have covered the write failed.
    Uncovered,
}

impl Barrier {
    /// Returns the barrier of the file system that `file` is on. `file` is at `path`, has `size` bytes and is opened
    /// for direct I/O. Returns `None` if each file has to be flushed by itself, or there is no gain.
    pub(crate) fn of(file: &File, path: &Path, size: u64) -> Option<Behind> {
        let one_drive = wear::drive(file).is_some_and(|name| needs_flushes(Path::new("/sys"), &name));
        if !one_drive || !is_overwritten_in_place(file, size) {
            return None;
        }
        let device = rustix::fs::fstat(file).ok()?.st_dev;
        let mut known = KNOWN.lock();
        let known = known.get_or_insert_default();
        known.retain(|_, barrier| barrier.strong_count() > 0);
        if let Some(barrier) = known.get(&device).and_then(Weak::upgrade) {
            return Some(Behind::new(barrier));
        }
        let directory = directory_of(path).ok()?;
        if rustix::fs::fstat(&directory).ok()?.st_dev != device {
            return None;
        }
        let barrier = Arc::new(Barrier::new(directory));
        known.insert(device, Arc::downgrade(&barrier));
        Some(Behind::new(barrier))
    }

    fn new(directory: File) -> Self {
        Barrier {
            directory,
            state: Mutex::default(),
            devices: AtomicUsize::new(0),
            is_slow: AtomicBool::new(false),
        }
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state.lock();
        change(&mut state);
        let woken = std::mem::take(&mut state.waiting);
        drop(state);
        woken.into_iter().for_each(Waker::wake);
    }
}

impl Behind {
    fn new(barrier: Arc<Barrier>) -> Self {
        barrier.devices.fetch_add(1, Ordering::Relaxed);
        Behind(barrier)
    }

    /// Begins a durable write; returns `None` if no other device is behind the barrier.
    pub(crate) fn begin(&self) -> Option<Writing> {
        if self.0.devices.load(Ordering::Relaxed) < 2 {
            return None;
        }
        let mut state = self.0.state.lock();
        state.begun += 1;
        let number = state.begun;
        state.writing.push(number);
        Some(Writing { barrier: self.0.clone(), number })
    }
}

impl Drop for Behind {
    fn drop(&mut self) {
        self.0.devices.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Ticket {
    /// Records that the operation has ended.
    pub(crate) fn end(&mut self, succeeded: bool) {
        *self = match std::mem::take(self) {
            Ticket::Writing(writing) => Ticket::Written(writing.end()),
            Ticket::Flushing(flushing) => {
                flushing.end(succeeded);
                Ticket::None
            }
            other => other,
        };
    }
}

impl Writing {
    fn end(self) -> Written {
        let Writing { barrier, number } = self;
        let (mut need, mut last) = (0, 0);
        barrier.change(|state| {
            state.writing.retain(|other| *other != number);
            (need, last) = (state.flushes + 1, state.begun);
        });
        Written { barrier, need, last }
    }
}

impl Written {
    /// Waits until a flush that began after the write's end has ended, or this write has to make the flush.
    pub(crate) async fn part(self) -> Part {
        poll_fn(|context| self.poll_part(context)).await
    }

    fn poll_part(&self, context: &mut Context<'_>) -> Poll<Part> {
        let mut state = self.barrier.state.lock();
        if state.failed >= self.need {
            return Poll::Ready(Part::Uncovered);
        }
        if state.succeeded >= self.need {
            return Poll::Ready(Part::Covered);
        }
        // Writes that began later wait for the next flush, so a flush is never put off for ever.
        if state.flushing || state.writing.iter().any(|number| *number <= self.last) {
            state.waiting.push(context.waker().clone());
            return Poll::Pending;
        }
        state.flushing = true;
        state.flushes += 1;
        let number = state.flushes;
        Poll::Ready(Part::Flush(Flushing { barrier: self.barrier.clone(), number, begun: Instant::now() }))
    }
}

impl Flushing {
    /// Returns the file to flush.
    pub(crate) fn of(&self) -> &File {
        &self.barrier.directory
    }

    /// Returns true if the flush will probably be short.
    pub(crate) fn is_quick(&self) -> bool {
        !self.barrier.is_slow.load(Ordering::Relaxed)
    }

    fn end(self, succeeded: bool) {
        self.barrier.is_slow.store(self.begun.elapsed() > QUICK, Ordering::Relaxed);
        self.barrier.change(|state| {
            state.flushing = false;
            let last = if succeeded { &mut state.succeeded } else { &mut state.failed };
            *last = self.number;
        });
    }
}

fn directory_of(path: &Path) -> std::io::Result<File> {
    let path = path.canonicalize()?;
    File::open(path.parent().unwrap_or(&path))
}

/// Returns true if the kernel would have to flush the drive after each durable write.
fn needs_flushes(sys: &Path, drive: &str) -> bool {
    let queue = sys.join("block").join(drive).join("queue");
    let says = |what, text| std::fs::read_to_string(queue.join(what)).is_ok_and(|is| is.trim() == text);
    says("write_cache", "write back") && says("fua", "0")
}

/// Returns true if a direct write changes only blocks of the file that are recorded as written.
fn is_overwritten_in_place(file: &File, size: u64) -> bool {
    let is_ext4 = rustix::fs::fstatfs(file).is_ok_and(|fs| fs.f_type == EXT4);
    // The alignment is zero with data=journal, which makes direct I/O buffered.
    let direct = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN)
        .is_ok_and(|state| state.stx_dio_offset_align > 0);
    // A range that is allocated and was never written counts as a hole.
    let hole = rustix::fs::seek(file, SeekFrom::Hole(0));
    is_ext4 && direct && hole.is_ok_and(|at| at >= size)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the present action for a write that has ended; `None` means to wait.
    fn part(written: &Written) -> Option<Part> {
        match written.poll_part(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(part) => Some(part),
            Poll::Pending => None,
        }
    }

    fn flushing(written: &Written) -> Flushing {
        match part(written) {
            Some(Part::Flush(flushing)) => flushing,
            _ => panic!("the flush falls to it"),
        }
    }

    fn two() -> [Behind; 2] {
        let barrier = Arc::new(Barrier::new(File::open("/").unwrap()));
        [Behind::new(Arc::clone(&barrier)), Behind::new(barrier)]
    }

    #[test]
    fn one_flush_is_for_all_that_were_written_before_it() {
        let [a, b] = two();
        let (first, second) = (a.begin().unwrap(), b.begin().unwrap());
        let first = first.end();
        assert!(part(&first).is_none(), "the other one's is soon done");
        let second = second.end();
        let flush = flushing(&second);
        assert!(part(&first).is_none(), "it is under way");
        flush.end(true);
        assert!(matches!(part(&first), Some(Part::Covered)));
    }

    #[test]
    fn what_was_written_during_a_flush_needs_the_next_one() {
        let [a, b] = two();
        let (first, second) = (a.begin().unwrap(), b.begin().unwrap());
        let (first, second) = (first.end(), second.end());
        let flush = flushing(&first);
        let late = b.begin().unwrap().end();
        flush.end(true);
        assert!(matches!(part(&second), Some(Part::Covered)));
        flushing(&late).end(true);
    }

    #[test]
    fn a_write_that_has_begun_since_is_not_waited_for() {
        let [a, b] = two();
        let first = a.begin().unwrap().end();
        let _later = b.begin().unwrap();
        flushing(&first).end(true);
    }

    #[test]
    fn a_flush_that_fails_is_no_news_of_other_files() {
        let [a, b] = two();
        let (first, second) = (a.begin().unwrap(), b.begin().unwrap());
        let (first, second) = (first.end(), second.end());
        flushing(&first).end(false);
        assert!(matches!(part(&second), Some(Part::Uncovered)));
    }

    #[test]
    fn a_device_alone_has_nothing_to_share() {
        let [a, b] = two();
        drop(b);
        assert!(a.begin().is_none());
    }

    #[test]
    fn a_drive_that_writes_through_or_has_fua_needs_no_flushes() {
        let sys = tempfile::tempdir().unwrap();
        let queue = sys.path().join("block/sdx/queue");
        std::fs::create_dir_all(&queue).unwrap();
        for (cache, fua, needs) in
            [("write back\n", "0\n", true), ("write back\n", "1\n", false), ("write through\n", "0\n", false)]
        {
            std::fs::write(queue.join("write_cache"), cache).unwrap();
            std::fs::write(queue.join("fua"), fua).unwrap();
            assert_eq!(needs_flushes(sys.path(), "sdx"), needs, "{cache} {fua}");
        }
        assert!(!needs_flushes(sys.path(), "sdy"));
    }
}
