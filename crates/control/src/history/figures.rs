//! The figures of the last 30 days: seconds for an hour, 10 seconds for a day, minutes for 30 days.
//!
//! The figures are in memory, and in a file of the state directory for the next start. If the file cannot be written,
//! the history goes on in memory.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use forebay_common::lock::{Condvar, Mutex};

use super::columns::Point;
use super::ring_file::{LEVELS, RingFile};
use crate::sample::StatSample;

/// The time between two samples.
const TICK: Duration = Duration::from_secs(1);

/// A part of the history: points of equal length, oldest first.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// Length of the interval of a point, in milliseconds. A point after a pause may be of a shorter interval.
    pub step_ms: u64,
    /// The points. Times without a server have no point.
    pub points: Vec<Point>,
}

/// The history of a server.
#[derive(Debug)]
pub struct Figures {
    dir: PathBuf,
    kept: Mutex<Kept>,
    added: Condvar,
}

#[derive(Debug, Default)]
struct Kept {
    levels: [VecDeque<Point>; LEVELS.len()],
    /// The sample at the begin of each level's current interval.
    begun: [Option<StatSample>; LEVELS.len()],
    /// Number of the newest point of the first level since the start.
    newest: u64,
    ending: bool,
}

impl Figures {
    /// Returns an empty history, which a writer keeps in the state directory.
    pub fn new(state_dir: &Path) -> Self {
        Figures { dir: state_dir.to_owned(), kept: Mutex::default(), added: Condvar::new() }
    }

    /// Returns the history that a server has kept in this state directory, up to now. The server may be running.
    ///
    /// # Errors
    /// The file does not exist, or this user may not read it.
    pub fn kept_in(state_dir: &Path, now_ms: u64) -> io::Result<Self> {
        let figures = Self::new(state_dir);
        figures.load(&RingFile::look(state_dir)?, now_ms);
        Ok(figures)
    }

    /// Starts a thread that reads the file of the last server and then adds a sample each second, until the returned
    /// writer is dropped. `sample` must not wait.
    ///
    /// # Errors
    /// The system refused to start the thread.
    pub fn write_behind(
        self: &Arc<Self>,
        sample: impl Fn() -> StatSample + Send + 'static,
    ) -> io::Result<FiguresWriter> {
        let figures = self.clone();
        let run = move || figures.run(&sample);
        let thread = std::thread::Builder::new().name("forebay-figures".into()).spawn(run)?;
        Ok(FiguresWriter { figures: self.clone(), thread: Some(thread) })
    }

    /// Returns the last `span` of the history with at most `most` points. It is of the finest level that goes back
    /// that far. Several points become one if there are more than `most`.
    pub fn last(&self, span: Duration, most: usize, now_ms: u64) -> Series {
        let span_ms = u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
        let covers = |level: usize| LEVELS[level].step_ms * LEVELS[level].kept >= span_ms;
        let level = (0..LEVELS.len()).find(|level| covers(*level)).unwrap_or(LEVELS.len() - 1);
        let since = now_ms.saturating_sub(span_ms);
        let kept = self.kept.lock();
        let points: Vec<_> =
            kept.levels[level].iter().filter(|point| point.time_ms > since).copied().collect();
        drop(kept);
        let wanted = (span_ms / LEVELS[level].step_ms).div_ceil(most.max(1) as u64).max(1);
        let step_ms = LEVELS[level].step_ms * wanted;
        // Chunks lie at multiples of their length, so that a chart does not change as it moves on.
        let chunks = points.chunk_by(|a, b| a.time_ms / step_ms == b.time_ms / step_ms);
        Series { step_ms, points: chunks.filter_map(Point::joined).collect() }
    }

    /// Returns the newest point and its number. Waits up to `wait` for one with a number above `seen`; `None` if none
    /// came, or the server stops. Numbers begin at 1.
    pub fn after(&self, seen: u64, wait: Duration) -> Option<(u64, Point)> {
        let none_yet = |kept: &mut Kept| kept.newest <= seen && !kept.ending;
        let kept = self.added.wait_while_for(self.kept.lock(), wait, none_yet);
        let point = kept.levels[0].back().copied()?;
        (kept.newest > seen && !kept.ending).then_some((kept.newest, point))
    }

    /// Takes a sample each second, in memory and in the file, until the end. A file that cannot be written is tried
    /// again each minute.
    fn run(&self, sample: &dyn Fn() -> StatSample) {
        let mut file = RingFile::open(&self.dir).ok();
        let mut due = Instant::now();
        if let Some(file) = &file {
            self.load(file, sample().time_ns / 1_000_000);
        }
        loop {
            let written = self.add(&sample(), |level, point| match &file {
                Some(file) => file.write(level, point),
                None => Ok(()),
            });
            // A full or missing state directory is tried again with the next minute.
            if written.is_err() {
                file = None;
            } else if file.is_none() && self.kept.lock().newest.is_multiple_of(60) {
                file = RingFile::open(&self.dir).ok();
            }
            // A machine that was suspended skips the seconds that it missed.
            due = (due + TICK).max(Instant::now());
            let left = due.saturating_duration_since(Instant::now());
            if self.added.wait_while_for(self.kept.lock(), left, |kept| !kept.ending).ending {
                return;
            }
        }
    }

    /// Reads the figures of the last run from the file. Records that are torn, or too old at time `now_ms`, are left
    /// out.
    fn load(&self, file: &RingFile, now_ms: u64) {
        let read: [Vec<Point>; LEVELS.len()] = std::array::from_fn(|level| file.read(level, now_ms));
        let mut kept = self.kept.lock();
        for (level, points) in kept.levels.iter_mut().zip(read) {
            *level = points.into();
        }
    }

    /// Adds a sample. Each level whose interval ends gets a point, and `write` is called with it.
    fn add(
        &self,
        now: &StatSample,
        mut write: impl FnMut(usize, &Point) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut ended: [Option<Point>; LEVELS.len()] = [None; LEVELS.len()];
        {
            let mut kept = self.kept.lock();
            let Kept { levels, begun, newest, .. } = &mut *kept;
            for (number, level) in LEVELS.iter().enumerate() {
                let slot = |sample: &StatSample| sample.time_ns / 1_000_000 / level.step_ms;
                match &begun[number] {
                    Some(before) if before.started_ns == now.started_ns && slot(before) == slot(now) => {
                        continue;
                    }
                    Some(before) if before.started_ns == now.started_ns => {
                        let point = Point::between(before, now);
                        levels[number].push_back(point);
                        if levels[number].len() > level.kept as usize {
                            levels[number].pop_front();
                        }
                        *newest += u64::from(number == 0);
                        ended[number] = Some(point);
                    }
                    _ => {}
                }
                begun[number] = Some(now.clone());
            }
        }
        self.added.notify_all();
        let ended = ended.iter().enumerate();
        ended
            .filter_map(|(level, point)| Some((level, point.as_ref()?)))
            .try_for_each(|(level, point)| write(level, point))
    }
}

/// The thread that adds samples. When this value is dropped, the thread ends.
#[derive(Debug)]
pub struct FiguresWriter {
    figures: Arc<Figures>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for FiguresWriter {
    fn drop(&mut self) {
        self.figures.kept.lock().ending = true;
        self.figures.added.notify_all();
        // The thread is not joined: a write to a state directory that hangs must not hold up the stop.
        drop(self.thread.take());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 1_700_000_000;

    fn sample(seconds: u64) -> StatSample {
        StatSample {
            time_ns: (START + seconds) * 1_000_000_000,
            started_ns: START * 1_000_000_000,
            uptime_ns: seconds * 1_000_000_000,
            sync_batches: seconds * 2,
            ..StatSample::default()
        }
    }

    fn filled(seconds: u64) -> Figures {
        let figures = Figures::new(Path::new("/nonexistent"));
        (0..=seconds).for_each(|second| figures.add(&sample(second), |_, _| Ok(())).unwrap());
        figures
    }

    #[test]
    fn each_level_has_points_of_its_length_and_forgets_the_oldest() {
        let figures = filled(7300);
        let counts = figures.kept.lock().levels.each_ref().map(VecDeque::len);
        assert_eq!(counts, [3600, 730, 122]);
        let now = (START + 7300) * 1000;
        let hour = figures.last(Duration::from_secs(3600), 10_000, now);
        assert_eq!((hour.step_ms, hour.points.len()), (1000, 3600));
        let day = figures.last(Duration::from_secs(86_400), 10_000, now);
        assert_eq!((day.step_ms, day.points.len()), (10_000, 730));
        assert!(day.points.iter().all(|point| (point.syncs - 2.0).abs() < 0.01), "{day:?}");
        let month = figures.last(Duration::from_secs(40 * 86_400), 100_000, now);
        assert_eq!(month.step_ms, 60_000);
        let few = figures.last(Duration::from_secs(3600), 60, now);
        assert_eq!(few.step_ms, 60_000);
        assert!((60..=61).contains(&few.points.len()), "{}", few.points.len());
    }

    #[test]
    fn two_starts_are_not_subtracted_and_clock_jumps_do_no_harm() {
        let figures = filled(10);
        let restarted = StatSample { started_ns: 1, ..sample(11) };
        figures.add(&restarted, |_, _| panic!("nothing has ended")).unwrap();
        assert_eq!(figures.kept.lock().levels[0].len(), 10);
        let back = StatSample {
            time_ns: 1_000_000_000,
            started_ns: 1,
            uptime_ns: 12_000_000_000,
            ..StatSample::default()
        };
        figures.add(&back, |_, _| Ok(())).unwrap();
        assert_eq!(figures.kept.lock().levels[0].len(), 11);
    }

    #[test]
    fn the_next_writer_goes_on_with_the_file_of_the_last() {
        let dir = tempfile::tempdir().unwrap();
        let file = RingFile::open(dir.path()).unwrap();
        let figures = Figures::new(dir.path());
        (0..=40).for_each(|second| {
            figures.add(&sample(second), |level, point| file.write(level, point)).unwrap()
        });
        let next = Figures::kept_in(dir.path(), (START + 41) * 1000).unwrap();
        let (before, after) = (figures.kept.lock(), next.kept.lock());
        assert_eq!(before.levels, after.levels);
        assert_eq!(after.levels.each_ref().map(VecDeque::len), [40, 4, 1]);
    }

    #[test]
    fn a_state_directory_that_cannot_be_written_harms_nobody() {
        let figures = Arc::new(Figures::new(Path::new("/nonexistent/state")));
        let begun = Instant::now();
        let writer = figures.write_behind(move || {
            let elapsed = begun.elapsed().as_nanos() as u64;
            StatSample {
                time_ns: START * 1_000_000_000 + elapsed,
                uptime_ns: elapsed,
                ..StatSample::default()
            }
        });
        assert!(figures.after(0, Duration::from_secs(20)).is_some());
        drop(writer);
        assert_eq!(figures.after(u64::MAX, Duration::from_secs(20)), None, "the end is no point");
    }
}
