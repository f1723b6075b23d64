//! New files: how many, how large they become, and the busiest minute.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use forebay_common::lock::Mutex;

/// New files whose writes are followed. A newer file takes the place of an older one.
const FOLLOWED: usize = 4096;
/// The number of classes of sizes of new files.
pub const NEW_SIZES: usize = 8;
/// Seconds of a minute.
const MINUTE: u64 = 60;

/// Returns the largest size in bytes of each class but the last: 0, then 4 KiB to 4 MiB in steps of a factor of 4.
pub fn new_size_bounds() -> [u64; NEW_SIZES - 1] {
    std::array::from_fn(|class| if class == 0 { 0 } else { 1024 << (2 * class) })
}

/// The files that clients made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewFiles {
    /// Files made.
    pub made: u64,
    /// Files by size, in the classes of [`new_size_bounds`]. The size is the end of the last byte that a client wrote
    /// while the file was among the newest 4096.
    pub sizes: [u64; NEW_SIZES],
    /// Files made in the busiest minute.
    pub in_busiest_minute: u64,
    /// The begin of the busiest minute, since the profile began.
    pub busiest_minute: Duration,
}

/// The counters of new files.
pub(crate) struct Followed {
    places: Box<[Place]>,
    counted: Mutex<Counted>,
}

/// A file that is followed.
#[derive(Default)]
struct Place {
    /// The file's key; 0 if the place is free.
    file: AtomicU64,
    end: AtomicU64,
}

#[derive(Default)]
struct Counted {
    files: NewFiles,
    minute: u64,
    in_minute: u64,
}

impl Followed {
    /// Returns counts of zero, with no file followed.
    pub(crate) fn new() -> Self {
        let places = (0..FOLLOWED).map(|_| Place::default()).collect();
        Followed { places, counted: Mutex::default() }
    }

    /// Counts a file that was made. A file that is followed already was there before: CREATE takes existing files too.
    pub(crate) fn made(&self, file: u64, at: Duration) {
        let place = &self.places[file as usize % FOLLOWED];
        let mut counted = self.counted.lock();
        let before = place.file.load(Relaxed);
        if file == 0 || before == file {
            return;
        }
        if before != 0 {
            counted.files.sizes[class(place.end.load(Relaxed))] += 1;
        }
        place.end.store(0, Relaxed);
        place.file.store(file, Relaxed);
        counted.files.made += 1;
        let minute = at.as_secs() / MINUTE;
        if counted.minute != minute {
            (counted.minute, counted.in_minute) = (minute, 0);
        }
        counted.in_minute += 1;
        if counted.in_minute > counted.files.in_busiest_minute {
            counted.files.in_busiest_minute = counted.in_minute;
            counted.files.busiest_minute = Duration::from_secs(minute * MINUTE);
        }
    }

    /// Notes that a file was written up to `end`.
    pub(crate) fn written(&self, file: u64, end: u64) {
        let place = &self.places[file as usize % FOLLOWED];
        if place.file.load(Relaxed) == file && place.end.load(Relaxed) < end {
            place.end.fetch_max(end, Relaxed);
        }
    }

    /// Returns the counts, with the files that are still being written at their present sizes.
    pub(crate) fn snapshot(&self) -> NewFiles {
        let counted = self.counted.lock();
        let mut files = counted.files.clone();
        for place in self.places.iter().filter(|place| place.file.load(Relaxed) != 0) {
            files.sizes[class(place.end.load(Relaxed))] += 1;
        }
        files
    }

    /// Forgets all files and counts.
    pub(crate) fn clear(&self) {
        let mut counted = self.counted.lock();
        self.places.iter().for_each(|place| place.file.store(0, Relaxed));
        *counted = Counted::default();
    }
}

fn class(size: u64) -> usize {
    new_size_bounds().partition_point(|bound| *bound < size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_files_are_counted_once_with_the_size_that_they_reach() {
        let new = Followed::new();
        let at = Duration::from_secs;
        for file in 1..=10 {
            new.made(file, at(30));
            new.made(file, at(31));
            new.written(file, file * 1000);
            new.written(file, 1);
        }
        new.made(11, at(90));
        new.written(77, 5);
        let files = new.snapshot();
        assert_eq!((files.made, files.sizes.iter().sum::<u64>()), (11, 11));
        assert_eq!(files.sizes[..3], [1, 4, 6], "empty, up to 4 KiB, up to 16 KiB");
        assert_eq!((files.in_busiest_minute, files.busiest_minute), (10, Duration::ZERO));
        new.clear();
        assert_eq!(new.snapshot(), NewFiles::default());
    }

    #[test]
    fn a_file_that_is_followed_no_longer_keeps_its_size() {
        let new = Followed::new();
        let files = 3 * FOLLOWED as u64;
        for file in 1..=files {
            new.made(file, Duration::from_secs(file));
            new.written(file, 1 << 20);
        }
        assert_eq!(new.snapshot().sizes, [0, 0, 0, 0, 0, files, 0, 0]);
        assert_eq!(new.snapshot().in_busiest_minute, 60);
    }

    #[test]
    fn classes_reach_from_empty_to_large() {
        assert_eq!(new_size_bounds(), [0, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20]);
        assert_eq!((class(0), class(1), class(4096), class(4097), class(u64::MAX)), (0, 1, 1, 2, 7));
    }
}
