//! Events on disk, so that they survive a restart: lines of JSON in the state directory, in two files of bounded
//! size.
//!
//! A thread of its own appends the events, so that the threads that add them do not wait for the disk. It syncs
//! nothing. A crash may tear a line and a disk may damage one; the reader skips a line that it cannot parse.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::event::{Event, EventLog, Severity};

/// The newer file in the state directory. New events are appended to it.
const NEWER: &str = "events.jsonl";
/// The older file. A full newer file replaces it.
const OLDER: &str = "events.old.jsonl";
/// The kind of the event that the files cannot be written.
const KIND: &str = "state-directory";
/// Size in bytes at which a file is full: about 5000 events.
const FULL: u64 = 1 << 20;
/// Most bytes read of a file; bytes before them are skipped.
const MOST_READ: u64 = 4 * FULL;
/// Longest sleep of the writer without an event.
const LOOK: Duration = Duration::from_secs(600);
/// Longest time that a stop waits for the writer.
const LAST: Duration = Duration::from_secs(2);

/// The event files of a state directory.
#[derive(Debug, Clone)]
pub(crate) struct History {
    dir: PathBuf,
}

impl History {
    pub(crate) fn new(dir: &Path) -> Self {
        History { dir: dir.to_owned() }
    }

    /// Returns every event in the files, oldest first. A file that cannot be read and a line that cannot be parsed
    /// are skipped.
    pub(crate) fn read(&self) -> Vec<Event> {
        let mut events: Vec<Event> = Vec::new();
        for name in [OLDER, NEWER] {
            let text = tail(&self.dir.join(name)).unwrap_or_default();
            for event in
                text.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok())
            {
                let event: Event = event;
                // The numbers of one server's events rise. A line with a lower number is damaged, or two servers
                // wrote to the file.
                if events.last().is_none_or(|last| last.sequence < event.sequence) {
                    events.push(event);
                }
            }
        }
        events
    }

    /// Returns the number of the last event in the files; 0 if they have none.
    pub(crate) fn last(&self) -> u64 {
        self.read().last().map_or(0, |event| event.sequence)
    }

    /// Opens the newer file for appending. If its last line is torn, ends that line first.
    fn open(&self) -> io::Result<(File, u64)> {
        let path = self.dir.join(NEWER);
        let mut file = OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(path)?;
        let mut len = file.seek(SeekFrom::End(0))?;
        let mut last = [b'\n'];
        if len > 0 {
            file.seek(SeekFrom::End(-1))?;
            file.read_exact(&mut last)?;
        }
        if last != [b'\n'] {
            file.write_all(b"\n")?;
            len += 1;
        }
        Ok((file, len))
    }

    /// Appends events to the newer file. A full file becomes the older one, whose events are dropped. `open` caches
    /// the file and its length in bytes.
    fn append(&self, open: &mut Option<(File, u64)>, events: &[Event]) -> io::Result<()> {
        for event in events {
            let mut line = serde_json::to_vec(event)?;
            line.push(b'\n');
            if open.as_ref().is_some_and(|(_, len)| len + line.len() as u64 > FULL) {
                *open = None;
                std::fs::rename(self.dir.join(NEWER), self.dir.join(OLDER))?;
            }
            let (file, len) = match open {
                Some(open) => open,
                None => open.insert(self.open()?),
            };
            file.write_all(&line)?;
            *len += line.len() as u64;
        }
        Ok(())
    }
}

/// Returns the last [`MOST_READ`] bytes of a file.
fn tail(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let len = file.metadata()?.len();
    file.seek(SeekFrom::Start(len.saturating_sub(MOST_READ)))?;
    let mut bytes = Vec::new();
    file.take(MOST_READ).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The thread that appends events to the files. When this value is dropped, the thread appends the remaining events,
/// and the drop waits up to 2 seconds for it.
#[derive(Debug)]
pub struct EventWriter {
    ending: Arc<AtomicBool>,
    events: Arc<EventLog>,
    thread: Option<JoinHandle<()>>,
}

impl EventWriter {
    /// Starts the thread that appends events. Events up to number `written` are in the file already.
    pub(crate) fn start(events: Arc<EventLog>, written: u64) -> io::Result<Self> {
        let ending = Arc::new(AtomicBool::new(false));
        let (log, end) = (events.clone(), ending.clone());
        let thread = std::thread::Builder::new()
            .name("forebay-events".into())
            .spawn(move || write(&log, written, &end))?;
        Ok(EventWriter { ending, events, thread: Some(thread) })
    }
}

impl Drop for EventWriter {
    fn drop(&mut self) {
        self.ending.store(true, Ordering::SeqCst);
        self.events.wake();
        let until = Instant::now() + LAST;
        let Some(thread) = self.thread.take() else { return };
        // The wait is bounded, so that a hanging disk does not hold up the end of the process.
        while !thread.is_finished() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Appends new events until the end is asked for, and once more then. After a failed write the next event tries
/// again, and the event log reports the trouble.
fn write(events: &EventLog, mut written: u64, ending: &AtomicBool) {
    let Some(history) = events.history() else { return };
    let mut open = None;
    loop {
        let last = ending.load(Ordering::SeqCst);
        let new = events.after_unless(written, LOOK, ending);
        if let Some(newest) = new.last() {
            written = newest.sequence;
            let appended = history.append(&mut open, &new);
            if appended.is_err() {
                // The write may have ended in the middle of a line. Opening the file again ends that line.
                open = None;
            }
            let trouble = appended.err().map(|error| error.to_string());
            tell(events, events.trouble(), trouble.as_ref());
            events.set_trouble(trouble);
        }
        if last {
            return;
        }
    }
}

/// Adds an event if the state directory takes no more events, or takes them again. While it takes none, the event is in
/// memory only.
fn tell(events: &EventLog, before: Option<String>, now: Option<&String>) {
    match (before, now) {
        (None, Some(error)) => {
            let message = format!(
                "the state directory cannot be written ({error}): service goes on, but events and figures are lost at a restart, \
                 and changes of policies and volumes are refused; make room in its file system, or mend it"
            );
            events.add(Severity::Error, KIND, message, &[]);
        }
        (Some(_), None) => events.add(Severity::Info, KIND, "the state directory can be written again", &[]),
        _ => {}
    }
}
