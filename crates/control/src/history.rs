//! Events on disk, so that they survive a restart: lines of JSON in the state directory, in two files of bounded size.
//!
//! A thread of its own appends events behind those who add them; it syncs nothing. What a crash tears or the disk spoils
//! is a line that is not understood and is left out.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::event::{Event, EventLog};

/// The newer file in the state directory.
const NEWER: &str = "events.jsonl";
/// The older one, which the newer one replaces when that is full.
const OLDER: &str = "events.old.jsonl";
/// Bytes of a file from which on another one is begun: some 5000 events.
const FULL: u64 = 1 << 20;
/// Most bytes read of a file; what is in front of them is left out.
const MOST_READ: u64 = 4 * FULL;
/// Longest sleep without an event.
const LOOK: Duration = Duration::from_secs(600);
/// How long a stop waits for events that are not written yet.
const LAST: Duration = Duration::from_secs(2);

/// The files of a state directory.
#[derive(Debug, Clone)]
pub(crate) struct History {
    dir: PathBuf,
}

impl History {
    pub(crate) fn new(dir: &Path) -> Self {
        History { dir: dir.to_owned() }
    }

    /// Every event in the files, oldest first. What cannot be read or understood is left out.
    pub(crate) fn read(&self) -> Vec<Event> {
        let mut events: Vec<Event> = Vec::new();
        for name in [OLDER, NEWER] {
            let text = tail(&self.dir.join(name)).unwrap_or_default();
            for event in
                text.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok())
            {
                let event: Event = event;
                // Numbers go up; where they do not, two servers have written or the line is spoilt.
                if events.last().is_none_or(|last| last.sequence < event.sequence) {
                    events.push(event);
                }
            }
        }
        events
    }

    /// The number of the last event in the files; 0 without one.
    pub(crate) fn last(&self) -> u64 {
        self.read().last().map_or(0, |event| event.sequence)
    }

    /// Opens the newer file for appending, behind a whole line.
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

/// The end of a file.
fn tail(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let len = file.metadata()?.len();
    file.seek(SeekFrom::Start(len.saturating_sub(MOST_READ)))?;
    let mut bytes = Vec::new();
    file.take(MOST_READ).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The thread that appends events to the files, until this is dropped: then it appends what there is, for two seconds at most.
#[derive(Debug)]
pub struct EventWriter {
    ending: Arc<AtomicBool>,
    events: Arc<EventLog>,
    thread: Option<JoinHandle<()>>,
}

impl EventWriter {
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
        // A disk that hangs keeps nobody from ending.
        while !thread.is_finished() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

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
                // Perhaps in the middle of a line.
                open = None;
            }
            events.set_trouble(appended.err().map(|error| error.to_string()));
        }
        if last {
            return;
        }
    }
}
