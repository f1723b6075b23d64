//! One flush for durable writes to several files of one file system.
//!
//! If a drive has a volatile cache and no FUA, the kernel carries out a write with RWF_DSYNC in two parts. A worker
//! thread flushes the drive after the write. Flushes of one drive run one after the other, so both legs of a frame on
//! one drive wait for two. Therefore the legs are written here without the flag, and the thread whose write ends last
//! calls fdatasync(2) for all of them. It syncs an unnamed file that never changes: each write gives its own file a new
//! modification time, and a file system without a journal would write that time before it flushes.
//!
//! In general, one file's fdatasync does not make another file's writes durable. It does for direct writes over blocks
//! that the file system has recorded as written, if the file system is on one drive. Then the file system only has the
//! drive empty its cache, which it does for any regular file (`ext4_fsync_journal`). For a directory it commits the
//! journal in place of that, and the drive gets no flush if there is nothing to commit. [`Barrier::of`] checks all of
//! these conditions.

use std::collections::HashMap;
use std::fs::File;
use std::future::poll_fn;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use forebay_common::lock::Mutex;
use forebay_runtime::{Observer, Request, Target};
use rustix::fs::{AtFlags, Mode, OFlags, SeekFrom, StatxFlags};

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
    /// An unnamed regular file that never changes. It is synced for all writes.
    unchanged: Arc<File>,
    state: Mutex<State>,
    devices: AtomicUsize,
    is_slow: AtomicBool,
}

/// A device's place behind a barrier.
pub(crate) struct Behind(Arc<Barrier>);

/// One count numbers writes and flushes in the order in which they begin. A flush makes a write durable if its number
/// is greater than the count at the write's end.
#[derive(Default)]
struct State {
    /// The number of writes and flushes begun so far.
    begun: u64,
    /// The numbers of the writes in flight.
    writing: Vec<u64>,
    /// The flush in flight.
    flushing: Option<Flushing>,
    /// The numbers of the last flushes that succeeded and failed.
    succeeded: u64,
    failed: u64,
    waiting: Vec<Waker>,
}

/// A flush that is in flight.
struct Flushing {
    number: u64,
    begun: Instant,
}

/// The next action for a write that has ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// Flush, for all writes, as the operation with this number.
    Flush(u64),
    /// Nothing: the flush of another write covers it.
    Covered,
    /// The flush that would have covered the write failed.
    Uncovered,
}

impl Barrier {
    /// Returns the barrier of the file system that `file` is on. `file` is at `path`, has `size` bytes and is opened
    /// for direct I/O. Returns `None` if each file has to be flushed by itself, or there is no gain.
    pub(crate) fn of(file: &File, path: &Path, size: u64) -> Option<Behind> {
        let drive = Path::new("/sys/block").join(wear::drive(file)?);
        if !needs_flushes(&drive) || !is_overwritten_in_place(file, size) {
            return None;
        }
        let device = rustix::fs::fstat(file).ok()?.st_dev;
        let mut known = KNOWN.lock();
        let known = known.get_or_insert_default();
        known.retain(|_, barrier| barrier.strong_count() > 0);
        if let Some(barrier) = known.get(&device).and_then(Weak::upgrade) {
            return Some(Behind::new(barrier));
        }
        let unchanged = unnamed_beside(path).ok()?;
        if rustix::fs::fstat(&unchanged).ok()?.st_dev != device || !flushes(&unchanged, &drive) {
            return None;
        }
        let barrier = Arc::new(Barrier::new(unchanged));
        known.insert(device, Arc::downgrade(&barrier));
        Some(Behind::new(barrier))
    }

    /// Returns the barrier of a file system. `unchanged` is an unnamed file on it: fdatasync of that file flushes the
    /// drive, and writes no metadata.
    fn new(unchanged: File) -> Self {
        Barrier {
            unchanged: Arc::new(unchanged),
            state: Mutex::default(),
            devices: AtomicUsize::new(0),
            is_slow: AtomicBool::new(false),
        }
    }

    /// Waits until a flush that began after `moment`, the end of a write, has ended, or this write has to make the
    /// flush.
    pub(crate) async fn part(&self, moment: u64) -> Part {
        poll_fn(|context| self.poll_part(moment, context)).await
    }

    /// Decides about a write that ended at `moment`: covered by a flush that began later, not covered, to flush
    /// itself, or to wait.
    fn poll_part(&self, moment: u64, context: &mut Context<'_>) -> Poll<Part> {
        let mut state = self.state.lock();
        if state.failed > moment {
            return Poll::Ready(Part::Uncovered);
        }
        if state.succeeded > moment {
            return Poll::Ready(Part::Covered);
        }
        // Writes that began later wait for the next flush, so a flush is never put off for ever.
        if state.flushing.is_some() || state.writing.iter().any(|number| *number <= moment) {
            state.waiting.push(context.waker().clone());
            return Poll::Pending;
        }
        let number = state.next();
        state.flushing = Some(Flushing { number, begun: Instant::now() });
        Poll::Ready(Part::Flush(number))
    }

    /// Returns the flush `number`, for all writes that wait for it.
    pub(crate) fn flush(self: &Arc<Self>, target: &Arc<Target>, number: u64) -> Request {
        target.flush_by(self.unchanged.clone()).observed(self.clone(), number)
    }

    /// Returns true if the next flush will probably be short.
    pub(crate) fn is_quick(&self) -> bool {
        !self.is_slow.load(Ordering::Relaxed)
    }
}

impl State {
    /// Numbers a write or flush that begins.
    fn next(&mut self) -> u64 {
        self.begun += 1;
        self.begun
    }
}

impl Observer for Barrier {
    /// Records the end of the write or flush `number`, and wakes the writes that wait for it.
    fn ended(&self, number: u64, succeeded: bool) -> u64 {
        let mut state = self.state.lock();
        match state.flushing.take_if(|flushing| flushing.number == number) {
            Some(Flushing { begun, .. }) => {
                self.is_slow.store(begun.elapsed() > QUICK, Ordering::Relaxed);
                let last = if succeeded { &mut state.succeeded } else { &mut state.failed };
                *last = number;
            }
            None => state.writing.retain(|other| *other != number),
        }
        let moment = state.begun;
        let woken = std::mem::take(&mut state.waiting);
        drop(state);
        woken.into_iter().for_each(Waker::wake);
        moment
    }
}

impl Behind {
    /// Counts a device as behind the barrier until the result is dropped.
    fn new(barrier: Arc<Barrier>) -> Self {
        barrier.devices.fetch_add(1, Ordering::Relaxed);
        Behind(barrier)
    }

    /// Begins a durable write. Returns its number, and the barrier, which observes it. Returns `None` if no other
    /// device is behind the barrier.
    pub(crate) fn begin(&self) -> Option<(Arc<Barrier>, u64)> {
        if self.0.devices.load(Ordering::Relaxed) < 2 {
            return None;
        }
        let mut state = self.0.state.lock();
        let number = state.next();
        state.writing.push(number);
        Some((self.0.clone(), number))
    }
}

impl Drop for Behind {
    fn drop(&mut self) {
        self.0.devices.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Makes an unnamed regular file in the directory of the file at `path`, durably, so that its syncs have nothing of its
/// own to write.
fn unnamed_beside(path: &Path) -> std::io::Result<File> {
    let path = path.canonicalize()?;
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let directory = path.parent().unwrap_or(&path);
    let file = File::from(rustix::fs::open(directory, flags, Mode::RUSR | Mode::WUSR)?);
    file.sync_all()?;
    Ok(file)
}

/// Returns true if the kernel would have to flush the drive, a directory in /sys/block, after each durable write.
fn needs_flushes(drive: &Path) -> bool {
    let says = |what, text| {
        std::fs::read_to_string(drive.join("queue").join(what)).is_ok_and(|is| is.trim() == text)
    };
    says("write_cache", "write back") && says("fua", "0")
}

/// Returns true if each sync of the file makes the drive, a directory in /sys/block, empty its write cache. That is
/// tried, since it depends on the kernel's version.
fn flushes(file: &File, drive: &Path) -> bool {
    const TIMES: usize = 4;
    (0..TIMES).all(|_| {
        let before = flush_count(drive);
        before.is_some() && file.sync_data().is_ok() && flush_count(drive) > before
    })
}

/// Returns the number of flushes that the drive has carried out, which Linux counts from 5.5 on
/// (Documentation/block/stat.rst).
fn flush_count(drive: &Path) -> Option<u64> {
    std::fs::read_to_string(drive.join("stat")).ok()?.split_whitespace().nth(15)?.parse().ok()
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

    /// Returns the present action for a write that ended at `moment`; `None` means to wait.
    fn part(barrier: &Barrier, moment: u64) -> Option<Part> {
        match barrier.poll_part(moment, &mut Context::from_waker(Waker::noop())) {
            Poll::Ready(part) => Some(part),
            Poll::Pending => None,
        }
    }

    fn flushing(barrier: &Barrier, moment: u64) -> u64 {
        match part(barrier, moment) {
            Some(Part::Flush(number)) => number,
            other => panic!("the flush falls to it, not {other:?}"),
        }
    }

    fn begin(behind: &Behind) -> u64 {
        behind.begin().unwrap().1
    }

    fn two() -> (Arc<Barrier>, [Behind; 2]) {
        let barrier = Arc::new(Barrier::new(File::open("/").unwrap()));
        (Arc::clone(&barrier), [Behind::new(Arc::clone(&barrier)), Behind::new(barrier)])
    }

    #[test]
    fn one_flush_is_for_all_that_were_written_before_it() {
        let (barrier, [a, b]) = two();
        let (first, second) = (begin(&a), begin(&b));
        let first = barrier.ended(first, true);
        assert!(part(&barrier, first).is_none(), "the other one's is soon done");
        let second = barrier.ended(second, true);
        let flush = flushing(&barrier, second);
        assert!(part(&barrier, first).is_none(), "it is under way");
        barrier.ended(flush, true);
        assert_eq!(part(&barrier, first), Some(Part::Covered));
    }

    #[test]
    fn what_was_written_during_a_flush_needs_the_next_one() {
        let (barrier, [a, b]) = two();
        let (first, second) = (begin(&a), begin(&b));
        let (first, second) = (barrier.ended(first, true), barrier.ended(second, true));
        let flush = flushing(&barrier, first);
        let late = barrier.ended(begin(&b), true);
        barrier.ended(flush, true);
        assert_eq!(part(&barrier, second), Some(Part::Covered));
        barrier.ended(flushing(&barrier, late), true);
    }

    #[test]
    fn a_write_that_has_begun_since_is_not_waited_for() {
        let (barrier, [a, b]) = two();
        let first = barrier.ended(begin(&a), true);
        let _later = begin(&b);
        barrier.ended(flushing(&barrier, first), true);
    }

    #[test]
    fn a_flush_that_fails_is_no_news_of_other_files() {
        let (barrier, [a, b]) = two();
        let (first, second) = (begin(&a), begin(&b));
        let (first, second) = (barrier.ended(first, true), barrier.ended(second, true));
        barrier.ended(flushing(&barrier, first), false);
        assert_eq!(part(&barrier, second), Some(Part::Uncovered));
    }

    #[test]
    fn a_device_alone_has_nothing_to_share() {
        let (_, [a, b]) = two();
        drop(b);
        assert!(a.begin().is_none());
    }

    #[test]
    fn a_drive_that_writes_through_or_has_fua_needs_no_flushes() {
        let drive = tempfile::tempdir().unwrap();
        let queue = drive.path().join("queue");
        std::fs::create_dir(&queue).unwrap();
        for (cache, fua, needs) in
            [("write back\n", "0\n", true), ("write back\n", "1\n", false), ("write through\n", "0\n", false)]
        {
            std::fs::write(queue.join("write_cache"), cache).unwrap();
            std::fs::write(queue.join("fua"), fua).unwrap();
            assert_eq!(needs_flushes(drive.path()), needs, "{cache} {fua}");
        }
        assert!(!needs_flushes(&drive.path().join("other")));
    }

    #[test]
    fn a_sync_that_the_drive_does_not_count_is_no_flush() {
        let drive = tempfile::tempdir().unwrap();
        let file = tempfile::tempfile().unwrap();
        assert!(!flushes(&file, drive.path()), "a drive without counters");
        let stat = "   1 0 8 0 2 0 16 3 0 4 4 0 0 0 0 77 5\n";
        std::fs::write(drive.path().join("stat"), stat).unwrap();
        assert_eq!(flush_count(drive.path()), Some(77));
        assert!(!flushes(&file, drive.path()), "the count does not move");
    }
}
