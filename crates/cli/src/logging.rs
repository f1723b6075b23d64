//! The log on stderr, as text for people or as JSON.
//!
//! Logging never delays service. A thread that logs puts its line into a queue and continues. A thread of its own
//! writes the queue to stderr. Lines are lost and counted if the queue is full, because the reader of stderr has
//! stopped. They are also lost if stderr cannot be written, because its reader is gone or its partition is full.

use std::backtrace::Backtrace;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use forebay_config::{Log, LogFormat, LogLevel};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{fmt, reload};

/// Most lines in the queue. A line usually has less than 8 KiB.
const QUEUE: usize = 1024;
/// Longest time that the end of the process waits for lines in the queue.
const LAST_WORDS: Duration = Duration::from_secs(1);

static LINES: OnceLock<Lines> = OnceLock::new();
static SET_LEVEL: OnceLock<Box<dyn Fn(LevelFilter) + Send + Sync>> = OnceLock::new();

/// The queue in front of stderr.
struct Lines {
    send: SyncSender<Line>,
    /// The receiving end of the queue; `None` once the writing thread has it.
    unwritten: Mutex<Option<Receiver<Line>>>,
    lost: AtomicU64,
    colours: bool,
}

enum Line {
    Text(Vec<u8>),
    /// A marker. It is answered when all lines before it are written or lost.
    Barrier(SyncSender<()>),
}

/// Starts logging for the rest of the process. Call it once. Lines stay in the queue until [`start_thread`] or
/// [`finish`].
pub(crate) fn start(log: &Log) {
    let colours = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let (send, receive) = sync_channel(QUEUE);
    let unwritten = Mutex::new(Some(receive));
    let _ = LINES.set(Lines { send, unwritten, lost: AtomicU64::new(0), colours });
    let (level, handle) = reload::Layer::new(filter(log.level));
    let _ = SET_LEVEL.set(Box::new(move |level| drop(handle.reload(level))));
    let logged = tracing_subscriber::registry().with(level);
    // An error message of the library would go straight to stderr, and would end the process if that write fails.
    let form = fmt::layer().with_writer(|| Queued).log_internal_errors(false);
    match log.format {
        LogFormat::Text => logged.with(form.with_ansi(colours).with_target(false)).init(),
        LogFormat::Json => logged.with(form.json()).init(),
    }
    std::panic::set_hook(Box::new(|panic| {
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("without a name");
        write(&format!("thread `{name}` {panic}\n{}\n", Backtrace::force_capture()));
        finish();
    }));
}

/// Returns the filter that lets this level and more severe ones through.
fn filter(level: LogLevel) -> LevelFilter {
    match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    }
}

/// Changes the least severe level that is logged.
pub(crate) fn set_level(level: LogLevel) {
    if let Some(set) = SET_LEVEL.get() {
        set(filter(level));
    }
}

/// Starts the thread that writes to stderr. A thread keeps the privileges of its start, so privileges are dropped
/// before.
pub(crate) fn start_thread() {
    let Some(lines) = LINES.get() else { return };
    let Some(unwritten) = taken(lines) else { return };
    let started =
        std::thread::Builder::new().name("forebay-log".into()).spawn(move || lines.write_all(&unwritten));
    if started.is_err() {
        // The receiver was dropped with the closure, so every line is counted as lost.
        lines.lost.fetch_add(1, Relaxed);
    }
}

/// Queues a text for people. Returns false if logging has not started.
pub(crate) fn write(text: &str) -> bool {
    let Some(lines) = LINES.get() else { return false };
    let text = if lines.colours { text.to_owned() } else { anstream::adapter::strip_str(text).to_string() };
    lines.add(text.into_bytes());
    true
}

/// Returns the number of lines lost since the start.
pub(crate) fn lines_lost() -> u64 {
    LINES.get().map_or(0, |lines| lines.lost.load(Relaxed))
}

/// Waits until all logged lines are written, for at most one second.
pub(crate) fn finish() {
    let Some(lines) = LINES.get() else { return };
    if let Some(unwritten) = taken(lines) {
        // The writing thread has not been started.
        unwritten.try_iter().for_each(|line| lines.put(line));
        *unwritten_of(lines) = Some(unwritten);
        return;
    }
    let until = Instant::now() + LAST_WORDS;
    let (written, wait) = sync_channel(1);
    while lines.send.try_send(Line::Barrier(written.clone())).is_err() {
        if Instant::now() >= until {
            return;
        }
        std::thread::sleep(LAST_WORDS / 100);
    }
    let _ = wait.recv_timeout(until.saturating_duration_since(Instant::now()));
}

fn taken(lines: &Lines) -> Option<Receiver<Line>> {
    unwritten_of(lines).take()
}

fn unwritten_of(lines: &Lines) -> MutexGuard<'_, Option<Receiver<Line>>> {
    lines.unwritten.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Lines {
    /// Queues a line for the thread that writes the log, without waiting. A line that the queue has no room for is
    /// counted as lost.
    fn add(&self, text: Vec<u8>) {
        if self.send.try_send(Line::Text(text)).is_err() {
            self.lost.fetch_add(1, Relaxed);
        }
    }

    /// Writes the queued lines to stderr until the process ends. Reports lost lines once stderr takes lines again.
    fn write_all(&self, unwritten: &Receiver<Line>) {
        let mut told = 0;
        for line in unwritten {
            let was_lost = self.lost.load(Relaxed);
            self.put(line);
            let lost = self.lost.load(Relaxed);
            // The loss is reported only after a line has been written.
            if lost > told && lost == was_lost {
                tracing::warn!("{} lines of the log were lost: stderr failed or was too slow", lost - told);
                told = lost;
            }
        }
    }

    /// Writes a line to stderr, or tells the thread at a barrier that all lines before it are written.
    fn put(&self, line: Line) {
        match line {
            Line::Text(text) => {
                if put(&text).is_err() {
                    self.lost.fetch_add(1, Relaxed);
                }
            }
            Line::Barrier(written) => drop(written.try_send(())),
        }
    }
}

/// Writes a line to stderr, also if the descriptor is non-blocking.
fn put(mut text: &[u8]) -> Result<(), Errno> {
    let stderr = io::stderr();
    while !text.is_empty() {
        match rustix::io::write(stderr.as_fd(), text) {
            Ok(0) => return Err(Errno::IO),
            Ok(len) => text = text.get(len..).unwrap_or_default(),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => drop(poll(&mut [PollFd::new(&stderr, PollFlags::OUT)], None)?),
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// The writer of the logging library. Each line goes into the queue.
struct Queued;

impl Write for Queued {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if let Some(lines) = LINES.get() {
            lines.add(line.to_vec());
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
