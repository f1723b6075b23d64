//! The files that clients usually read, for `forebay warm --from-profile`. The list outlives restarts.
//!
//! The profile counts since the start. Every five minutes, at a stop, and when somebody asks, the READs of each file
//! since then are added to the file's weight. A weight halves in a week, so that files which nobody reads any more make
//! room. The list is in the file `usual-reads.json` of the state directory.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use forebay_common::lock::{Condvar, Mutex};
use forebay_common::state_file;
use forebay_control::MOST_ACTIVE;
use forebay_nfs::Nfs;
use forebay_profile::Kind;
use serde::{Deserialize, Serialize};

/// The time between two additions to the list.
const TURN: Duration = Duration::from_secs(300);
/// Seconds in which a weight halves.
const HALF: f64 = 7.0 * 24.0 * 3600.0;
/// The highest number of files in the list.
const MOST: usize = 2048;
/// The version of the file. The server ignores a file of another version.
const VERSION: u32 = 1;

/// The list of files that clients usually read, with the thread that keeps it.
pub(crate) struct UsualReads {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    nfs: Arc<Nfs>,
    file: PathBuf,
    list: Mutex<List>,
    ending: Mutex<bool>,
    ended: Condvar,
}

impl UsualReads {
    /// Reads the list of the last run, and starts the thread that goes on with it.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(crate) fn start(state_dir: &Path, nfs: &Arc<Nfs>) -> io::Result<Self> {
        let file = state_dir.join("usual-reads.json");
        let list = read(&file).unwrap_or_else(|error| {
            tracing::warn!("the list of files that clients usually read begins again: {error}");
            List::default()
        });
        let (list, ending) = (Mutex::new(list), Mutex::default());
        let shared = Arc::new(Shared { nfs: nfs.clone(), file, list, ending, ended: Condvar::default() });
        let of_thread = shared.clone();
        let keep = move || {
            while !of_thread.is_ending() {
                of_thread.keep();
            }
        };
        let thread = std::thread::Builder::new().name("forebay-reads".into()).spawn(keep)?;
        Ok(UsualReads { shared, thread: Mutex::new(Some(thread)) })
    }

    /// Returns the handles of the files, the most read ones first.
    pub(crate) fn handles(&self) -> Vec<Vec<u8>> {
        let mut list = self.shared.list.lock();
        self.shared.add(&mut list);
        list.most_first()
    }

    /// Ends the thread, and writes the list a last time.
    pub(crate) fn end(&self) {
        *self.shared.ending.lock() = true;
        self.shared.ended.notify_one();
        if let Some(thread) = self.thread.lock().take() {
            // A thread that panicked has already reported the panic.
            let _ = thread.join();
        }
        self.shared.keep();
    }
}

impl Shared {
    /// Waits for the next turn. Returns true if there is none.
    fn is_ending(&self) -> bool {
        let ending = self.ending.lock();
        *self.ended.wait_while_for(ending, TURN, |ending| !*ending)
    }

    /// Adds what the profile has counted, and writes the list if it changed.
    fn keep(&self) {
        let mut list = self.list.lock();
        self.add(&mut list);
        if !list.is_changed {
            return;
        }
        match write(&self.file, &list) {
            Ok(()) => list.is_changed = false,
            Err(error) => {
                tracing::warn!("cannot write {}: {error}; the next try is later", self.file.display());
            }
        }
    }

    /// Adds what the profile has counted since the last time.
    fn add(&self, list: &mut List) {
        let (snapshot, _) = self.nfs.profile(MOST_ACTIVE);
        let read = snapshot
            .files
            .into_iter()
            .filter_map(|file| Some((file.id?.as_bytes().to_vec(), file.counters.of(Kind::Read))));
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        list.add(snapshot.since, read, now);
    }
}

/// The files that clients have read, by their handles.
#[derive(Debug, Default, PartialEq)]
struct List {
    files: HashMap<Vec<u8>, Read>,
    /// The time of the last addition, in seconds since 1970.
    updated: u64,
    /// The time of the profile's last reset, since the profile began.
    since: Duration,
    /// True if the file lacks something of the list.
    is_changed: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Read {
    /// READs, the older the less.
    weight: f64,
    /// READs in the profile that the weight contains.
    counted: u64,
}

impl List {
    /// Adds the READs of files in a profile that was reset at `since`.
    fn add(&mut self, since: Duration, read: impl Iterator<Item = (Vec<u8>, u64)>, now: u64) {
        let aged = 0.5_f64.powf(now.saturating_sub(self.updated) as f64 / HALF);
        let was_reset = since != self.since;
        for read in self.files.values_mut() {
            read.weight *= aged;
            if was_reset {
                read.counted = 0;
            }
        }
        (self.updated, self.since) = (now, since);
        for (handle, reads) in read.filter(|(handle, reads)| !handle.is_empty() && *reads > 0) {
            let known = self.files.entry(handle).or_default();
            // The profile begins again at 0 with a file that it had no room for.
            let new = reads.checked_sub(known.counted).unwrap_or(reads);
            *known = Read { weight: known.weight + new as f64, counted: reads };
            self.is_changed |= new > 0;
        }
        if self.files.len() > MOST {
            for handle in self.most_first().split_off(MOST) {
                self.files.remove(&handle);
            }
        }
    }

    /// Returns the handles, those with the highest weights first.
    fn most_first(&self) -> Vec<Vec<u8>> {
        let mut files: Vec<_> = self.files.iter().collect();
        files.sort_unstable_by(|(a, read), (b, other)| other.weight.total_cmp(&read.weight).then(a.cmp(b)));
        files.into_iter().map(|(handle, _)| handle.clone()).collect()
    }
}

/// The file of the list.
#[derive(Serialize, Deserialize)]
struct Kept {
    version: u32,
    updated: u64,
    /// Handles as hexadecimal digits, with their weights.
    files: Vec<(String, f64)>,
}

/// Reads the list. A missing file is an empty one. Fails if the file is damaged or of another version.
fn read(path: &Path) -> io::Result<List> {
    let Some(text) = state_file::read(path)? else { return Ok(List::default()) };
    let damaged = || io::Error::other(format!("{} is damaged, or of another version", path.display()));
    let kept: Kept = serde_json::from_str(&text).map_err(|_| damaged())?;
    let mut files = HashMap::new();
    for (digits, weight) in kept.files.into_iter().take(MOST) {
        let handle = bytes(&digits).filter(|_| weight.is_finite()).ok_or_else(damaged)?;
        files.insert(handle, Read { weight, counted: 0 });
    }
    match kept.version == VERSION {
        true => Ok(List { files, updated: kept.updated, since: Duration::ZERO, is_changed: false }),
        false => Err(damaged()),
    }
}

/// Returns the bytes that these hexadecimal digits are.
fn bytes(digits: &str) -> Option<Vec<u8>> {
    let pairs = digits.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).ok());
    pairs.map(|pair| u8::from_str_radix(pair.filter(|pair| pair.len() == 2)?, 16).ok()).collect()
}

/// Replaces the file of the list, durably.
fn write(path: &Path, list: &List) -> io::Result<()> {
    let digits = |handle: &[u8]| handle.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let mut files: Vec<_> = list.files.iter().map(|(handle, read)| (digits(handle), read.weight)).collect();
    files.sort_unstable_by(|(_, weight), (_, other)| other.total_cmp(weight));
    let text = serde_json::to_string(&Kept { version: VERSION, updated: list.updated, files })?;
    state_file::replace(path, text + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(files: &[(u8, u64)]) -> impl Iterator<Item = (Vec<u8>, u64)> {
        files.iter().map(|(file, reads)| (vec![*file; 32], *reads))
    }

    fn order(list: &List) -> Vec<u8> {
        list.most_first().iter().map(|handle| handle[0]).collect()
    }

    const WEEK: u64 = HALF as u64;

    #[test]
    fn a_read_counts_once_and_half_as_much_after_a_week() {
        let mut list = List::default();
        list.add(Duration::ZERO, counted(&[(1, 10), (2, 7), (3, 0)]), 0);
        assert!(std::mem::take(&mut list.is_changed));
        list.add(Duration::ZERO, counted(&[(1, 10), (2, 7)]), 0);
        assert!(!list.is_changed, "nothing new");
        assert_eq!(order(&list), [1, 2], "a file that is only written is not read");
        // After the profile's reset it counts from 0 again.
        let reset = Duration::from_secs(1);
        list.add(reset, counted(&[(2, 7)]), WEEK);
        assert!(list.is_changed);
        assert_eq!(order(&list), [2, 1]);
        assert_eq!(list.files[&vec![1; 32]].weight, 5.0);
        assert_eq!(list.files[&vec![2; 32]], Read { weight: 10.5, counted: 7 });
        // So it does with a file that left its table.
        list.add(reset, counted(&[(2, 3)]), WEEK);
        assert_eq!(list.files[&vec![2; 32]], Read { weight: 13.5, counted: 3 });
    }

    #[test]
    fn the_list_is_bounded_and_outlives_the_server() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("usual-reads.json");
        assert_eq!(read(&path).unwrap(), List::default());
        let mut list = List::default();
        let many = (0..3000_u64).map(|file| (vec![file as u8, (file >> 8) as u8], file + 1));
        list.add(Duration::ZERO, many, 5);
        assert_eq!((list.files.len(), list.most_first()[0].clone()), (MOST, vec![183, 11]));
        write(&path, &list).unwrap();
        let again = read(&path).unwrap();
        assert_eq!((again.most_first(), again.updated), (list.most_first(), 5));
        assert!(again.files.values().all(|read| read.counted == 0), "the profile begins again");
        let text = std::fs::read_to_string(&path).unwrap();
        for damaged in
            ["", &text[..text.len() / 2], &text.replace("\"b7", "\"zz"), &text.replace("\"b7", "\"b")]
        {
            std::fs::write(&path, damaged).unwrap();
            assert!(read(&path).unwrap_err().to_string().contains("damaged"));
        }
        std::fs::write(&path, text.replace("\"version\":1", "\"version\":2")).unwrap();
        assert!(read(&path).is_err());
    }
}
