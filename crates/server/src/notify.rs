//! The connection to the process that sends notifications, and that process's start.
//!
//! The process starts before the server gives up executing programs. It has no capability, and neither it nor a program
//! that it runs can get one back. The thread that passes events on reads them from the event log. So an event never
//! waits for a notification. If that thread falls behind by more than the log holds, it passes on the number of events
//! that it has missed.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use forebay_common::lock::{Condvar, Mutex};
use forebay_config::Notify;
use forebay_control::{Delivery, EventLog, Severity};
use forebay_notify::{Order, Policy, Report, is_own_kind};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities, set_no_new_privs};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// The hidden verb of the `forebay` command that runs [`send_notifications`].
pub const NOTIFY_VERB: &str = "send-notifications";

/// The time after which a process that takes no order is given up.
const PATIENCE: Duration = Duration::from_secs(5);
/// The longest wait for the next event.
const LOOK: Duration = Duration::from_secs(3600);
/// The longest time for the last notifications at a stop.
const LAST: Duration = Duration::from_secs(4);
/// The longest time for the results of a test: the largest timeout of a target, and some more.
const TEST: Duration = Duration::from_secs(310);

/// The process that sends notifications, as the server sees it.
pub(crate) struct Notifier {
    line: Arc<Line>,
    passing: Mutex<Option<JoinHandle<()>>>,
    process: Mutex<Child>,
}

/// The connection to the process.
struct Line {
    events: Arc<EventLog>,
    stream: Mutex<UnixStream>,
    /// True if no event follows the newest one.
    stopping: AtomicBool,
    tests: Mutex<HashMap<u64, Sender<Vec<Delivery>>>>,
    /// True once the process has ended.
    has_ended: Mutex<bool>,
    ended: Condvar,
}

impl Notifier {
    /// Starts the process, unless there are no targets. Events from now on are passed on. A failure is an event.
    pub(crate) fn start(targets: &[Notify], events: &Arc<EventLog>) -> Option<Arc<Self>> {
        if targets.is_empty() {
            return None;
        }
        let started = Self::spawn(targets, events);
        let failed = |error: &io::Error| {
            let message =
                format!("nobody is notified of events: the process for that does not start: {error}");
            events.add(Severity::Error, "notify-ended", message, &[]);
        };
        started.inspect_err(failed).ok().map(Arc::new)
    }

    /// Starts the process that sends notifications, gives it the targets, and starts two threads: one passes events
    /// on, one reads its reports.
    fn spawn(targets: &[Notify], events: &Arc<EventLog>) -> io::Result<Self> {
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_write_timeout(Some(PATIENCE))?;
        let mut command = Command::new("/proc/self/exe");
        command.arg(NOTIFY_VERB).stdin(std::os::fd::OwnedFd::from(theirs));
        // The process must hold no descriptor of the server open, nor a directory.
        command.stdout(Stdio::null()).stderr(Stdio::null()).current_dir("/");
        let process = command.spawn()?;
        let reports = ours.try_clone()?;
        let line = Arc::new(Line {
            events: events.clone(),
            stream: Mutex::new(ours),
            stopping: AtomicBool::new(false),
            tests: Mutex::default(),
            has_ended: Mutex::new(false),
            ended: Condvar::default(),
        });
        line.send(&Order::Targets { targets: targets.to_vec() })?;
        let reading = line.clone();
        let read = move || reading.take_reports(reports);
        std::thread::Builder::new().name("forebay-reports".into()).spawn(read)?;
        let (passing, newest) = (line.clone(), events.newest());
        let pass = move || passing.pass_events(newest);
        let passing = std::thread::Builder::new().name("forebay-notify".into()).spawn(pass)?;
        Ok(Notifier { line, passing: Mutex::new(Some(passing)), process: Mutex::new(process) })
    }

    /// Puts other targets in force.
    pub(crate) fn set(&self, targets: &[Notify]) {
        // If the process has ended, an event and the health say so.
        let _ = self.line.send(&Order::Targets { targets: targets.to_vec() });
    }

    /// Sends a test to the target with this name, or to all, and waits for the results.
    pub(crate) fn test(&self, target: Option<&str>) -> Result<Vec<Delivery>, String> {
        let (sender, results) = channel();
        let number = {
            let mut tests = self.line.tests.lock();
            let number = tests.keys().max().map_or(0, |last| last + 1);
            tests.insert(number, sender);
            number
        };
        let target = target.map(str::to_owned);
        let sent = self.line.send(&Order::Test { number, target: target.clone() });
        let tested = sent.ok().and_then(|()| results.recv_timeout(TEST).ok());
        self.line.tests.lock().remove(&number);
        match (tested, target) {
            (None, _) => Err(ended().to_owned()),
            (Some(results), Some(target)) if results.is_empty() => {
                Err(format!("there is no target {target}; `forebay config show` lists each [[notify]]"))
            }
            (Some(results), _) => Ok(results),
        }
    }

    /// Returns the reason why nobody is notified.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.line.has_ended().then(|| ended().to_owned())
    }

    /// Passes the last events on, and waits some seconds for their notifications.
    pub(crate) fn stop(&self) {
        self.line.stopping.store(true, Ordering::SeqCst);
        self.line.events.wake();
        let passing = self.passing.lock().take();
        passing.into_iter().for_each(|thread| drop(thread.join()));
        let has_ended = self.line.has_ended.lock();
        drop(self.line.ended.wait_while_for(has_ended, LAST, |has_ended| !*has_ended));
        let mut process = self.process.lock();
        let _ = process.kill();
        let _ = process.wait();
    }
}

fn ended() -> &'static str {
    "nobody is notified of events: the process that sends notifications has ended; restart the server"
}

impl Line {
    /// Sends an order to the process, and waits up to `PATIENCE`. An error ends the connection, and with it the
    /// process.
    fn send(&self, order: &Order) -> io::Result<()> {
        let mut line = serde_json::to_vec(order)?;
        line.push(b'\n');
        let mut stream = self.stream.lock();
        let sent = stream.write_all(&line);
        if sent.is_err() {
            // A part of a line would spoil the next one.
            let _ = stream.shutdown(Shutdown::Both);
        }
        sent
    }

    fn has_ended(&self) -> bool {
        *self.has_ended.lock()
    }

    /// Passes events on until the stop, or until the process has ended.
    fn pass_events(&self, mut last: u64) {
        loop {
            for event in self.events.after_unless(last, LOOK, &self.stopping) {
                let missed = event.sequence - last - 1;
                last = event.sequence;
                let count = (missed > 0).then(|| self.send(&Order::Missed { count: missed }));
                let is_own = is_own_kind(&event.kind);
                let sent = if is_own { Ok(()) } else { self.send(&Order::Event(event)) };
                if sent.is_err() || count.is_some_and(|sent| sent.is_err()) {
                    return;
                }
            }
            if self.stopping.load(Ordering::SeqCst) && self.events.newest() == last {
                let _ = self.send(&Order::Stop);
                let _ = self.stream.lock().shutdown(Shutdown::Write);
                return;
            }
        }
    }

    /// Takes reports until the process ends.
    fn take_reports(&self, reports: UnixStream) {
        for line in BufReader::new(reports).lines() {
            match line.ok().and_then(|line| serde_json::from_str(&line).ok()) {
                Some(Report::Happened { severity, kind, message, target }) => {
                    self.events.add(severity, &kind, message, &[("target", &target)]);
                }
                Some(Report::Tested { number, deliveries }) => {
                    if let Some(results) = self.tests.lock().remove(&number) {
                        let _ = results.send(deliveries);
                    }
                }
                None => break,
            }
        }
        *self.has_ended.lock() = true;
        self.ended.notify_all();
        // A thread that waits for a test learns that there is no result.
        self.tests.lock().clear();
        if !self.stopping.load(Ordering::SeqCst) {
            self.events.add(Severity::Error, "notify-ended", ended(), &[]);
        }
    }
}

/// Sends notifications for the server at the other end of standard input, which is a socket, until that end is closed.
///
/// # Errors
/// The capabilities cannot be given up, or an order is not understood.
pub fn send_notifications() -> io::Result<()> {
    set_no_new_privs(true)?;
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })?;
    // A service manager and a terminal signal all processes of the server. This one has to tell of the server's end. A
    // program that it runs has the signals' usual effects.
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        signal_hook::flag::register(signal, Arc::default())?;
    }
    let server = rustix::process::getppid().map_or(0, |server| server.as_raw_nonzero().get().unsigned_abs());
    let line = UnixStream::from(rustix::io::dup(io::stdin())?);
    forebay_notify::run(line.try_clone()?, line, Policy::default(), server)
}
