//! Starts the server, runs it and stops it.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};

use forebay_config::{Mode, Settings, format_size};
use forebay_control::{EventLog, Figures, HandleMode, Handler, Severity};
use forebay_http::{Listener, Web};
use forebay_rpc::StartError;
use forebay_tls::Keyring;
use forebay_vfs::DirectoryLocks;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};

use crate::busy_retry::BusyRetry;
use crate::cache::CacheReady;
use crate::error::Error;
use crate::front::{ControlFront, Started};
use crate::health::Asker;
use crate::host::Host;
use crate::notify::Notifier;
use crate::start::{Served, Start, Watches};
use crate::stop::{self, Stopping};
use crate::ublk_control::UblkDriver;
use crate::under_way::{Reports, UnderWay};
use crate::{privileges, sandbox, state_dir, volumes};

/// The contents of the message that clients are accepted.
#[derive(Debug)]
pub struct Ready {
    /// The addresses that the server listens on.
    pub listen: Vec<SocketAddr>,
    /// The kind of file handles in use.
    pub handles: HandleMode,
    /// The cache.
    pub cache: CacheReady,
    /// The mode in force.
    pub mode: Mode,
    /// Duplicates of the listening sockets, in the order of `listen`.
    pub sockets: Vec<OwnedFd>,
}

/// The size of the stack of a start and of a stop in bytes: the usual size for the first thread of a process.
pub(crate) const STACK: usize = 8 << 20;

/// Serves until SIGTERM or SIGINT, which also end a start. SIGHUP has the configuration read again. Returns `Ok` after
/// a start that a signal ended. Threads of that start may still wait for a file system, so the process must end then.
///
/// # Errors
/// [`Error`]: no client was served, unless the error is [`Error::Unstable`].
pub fn run(settings: Settings, host: Arc<dyn Host>) -> Result<(), Error> {
    let started = Started::now();
    // A closed terminal has no effect as long as there is no configuration to read again.
    let mut signals = Signals::new([SIGHUP])?;
    let open_files = privileges::raise_open_files();
    if volumes::door::is_wanted(&settings) || UblkDriver::is_there() {
        privileges::serve_devices_of_host();
    }
    let (asker, ublk) = (Asker::start(), UblkDriver::start());
    let under_way = Arc::new(UnderWay::default());
    let watches = Watches::begin(&settings, &under_way)?;
    let refused = sandbox::refused();
    privileges::drop_capabilities();
    let retry = BusyRetry::new();
    let owner = DirectoryLocks::default();
    let mut state = retry.take(
        "the state directory",
        |error| matches!(error, Error::StateDirInUse(_) | Error::StateDirServed { .. }),
        || state_dir::take(&settings.state_dir, &owner),
    )?;
    let events = Arc::new(EventLog::kept_in(&settings.state_dir));
    sandbox::tell_refused(&refused, &events);
    // From here on no program can be executed.
    let notifier = Notifier::start(&settings.notify, &events);
    let sandbox = sandbox::enter(settings.sandbox, &events);
    host.privileges_dropped();
    let reports = Reports::start(&under_way, &host)?;
    let writer = events.write_behind()?;
    let figures = Arc::new(Figures::new(&settings.state_dir));
    let web = Arc::new(Web::new(settings.http.clone(), figures.clone()));
    let front = ControlFront::new(&settings, started, &events, &host, &under_way, sandbox, web.clone());
    let front = Arc::new(front.notifying(notifier.clone()));
    let control_server = forebay_control::Server::start(&settings.state_dir, front.clone())?;
    let sampled = front.clone();
    let past = figures.write_behind(move || sampled.sample())?;
    let keyring = Arc::<Keyring>::default();
    let http = Listener::start(&web, front.clone(), keyring.clone())?;
    signals.add_signal(SIGTERM)?;
    signals.add_signal(SIGINT)?;
    let decided = Arc::new(OnceLock::new());
    let start = Start {
        settings: settings.clone(),
        keyring,
        host: host.clone(),
        events: events.clone(),
        under_way: under_way.clone(),
        reports,
        front: front.clone(),
        sandbox,
        owner,
        asker,
        ublk,
        watches,
        retry,
        open_files,
        notifier: notifier.clone(),
        decided: decided.clone(),
    };
    let served = serve(start, &mut signals, &front, &decided);
    // The next start needs the key that this one has restored.
    if decided.get().is_some() || matches!(served, Err(Error::HandleKeyRestored(_))) {
        state.keep();
    }
    let Some(served) = served? else {
        host.stopping();
        let message = format!("a signal ended the start ({})", under_way.shown());
        events.add(Severity::Info, "start-ended", message, &[]);
        drop((past, http));
        drop(control_server);
        drop(writer);
        notifier.iter().for_each(|notifier| notifier.stop());
        // The lock ends with the process: threads of the start may still work in the state directory.
        std::mem::forget(state);
        return Ok(());
    };
    host.stopping();
    under_way.step("stopping");
    let _reports = Reports::start(&under_way, &host)?;
    events.add(Severity::Info, "stopping", "finishing the requests in flight", &[]);
    let (vfs, control) = (served.vfs.clone(), served.control.clone());
    let stopping =
        Stopping { served, administration: (past, http, control_server), events: events.clone(), notifier };
    let drain = control.limits().drain_timeout;
    let silent = || stop::silent_exports(&vfs, control.cache());
    stop::in_time(drain, move || stopping.end(), silent).unwrap_or_else(|exports| {
        // Threads may still work in the state directory, so its lock ends with the process.
        std::mem::forget(state);
        let dirty = control.cache().map_or(0, |cache| cache.engine.dirty_bytes());
        Err(Error::SilentAtStop { exports: exports.join(", "), dirty: format_size(dirty) })
    })
}

/// Starts, then serves until a signal ends the service. Returns `None` if a signal came before clients were served.
fn serve(
    start: Start,
    signals: &mut Signals,
    front: &Arc<ControlFront>,
    decided: &OnceLock<bool>,
) -> Result<Option<Served>, Error> {
    let reloads = Reloads::start(front.clone())?;
    let (started, failed) = (reloads.clone(), EndSignals(Some(signals.handle())));
    let starting = std::thread::Builder::new().name("forebay-start".into()).stack_size(STACK);
    let starting = starting.spawn(move || {
        let mut failed = failed;
        let served = start.run()?;
        // Only a failed start ends the wait for signals.
        failed.0 = None;
        started.wake();
        Ok(served)
    })?;
    loop {
        match signals.forever().next() {
            Some(SIGHUP) => reloads.want(),
            Some(_) if decided.set(false).is_ok() => return Ok(None),
            // The start has ended, or ends without asking a file system.
            Some(_) | None => break,
        }
    }
    starting.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Ends the wait for signals when it is dropped.
struct EndSignals(Option<Handle>);

impl Drop for EndSignals {
    fn drop(&mut self) {
        if let Some(signals) = &self.0 {
            signals.close();
        }
    }
}

/// The reloads that SIGHUP requests. A thread of its own carries them out: a directory of the new configuration may not
/// answer, and SIGTERM has to be answered all the same.
#[derive(Clone)]
struct Reloads {
    wanted: Arc<AtomicBool>,
    wake: SyncSender<()>,
}

impl Reloads {
    /// Starts the thread that carries out reloads. A reload that is asked for during the start waits until clients
    /// are served.
    fn start(front: Arc<ControlFront>) -> io::Result<Self> {
        let wanted = Arc::new(AtomicBool::new(false));
        let (wake, woken) = sync_channel(1);
        let requested = wanted.clone();
        std::thread::Builder::new().name("forebay-reload".into()).spawn(move || {
            for () in woken {
                // The configuration can be read again once clients are served.
                if let (Ok(control), true) = (front.in_service(), requested.load(Ordering::SeqCst)) {
                    requested.store(false, Ordering::SeqCst);
                    // An event reports the result.
                    let _ = control.reload();
                }
            }
        })?;
        Ok(Reloads { wanted, wake })
    }

    /// Asks for a reload, which begins at once if clients are served. Does not wait.
    fn want(&self) {
        self.wanted.store(true, Ordering::SeqCst);
        self.wake();
    }

    /// Has the thread look for a request.
    fn wake(&self) {
        // A full channel holds a wake-up that the thread has not seen yet.
        let _ = self.wake.try_send(());
    }
}

/// Returns the error for a listener or event loop that could not be started.
pub(crate) fn start_error(error: StartError) -> Error {
    match error {
        StartError::Listen { addr, source } => listen_error(addr, source),
        StartError::ListenAt { source, .. } | StartError::Loop(source) => Error::System(source),
    }
}

/// Returns the error for an address that the server cannot listen on, with the remedy for the usual causes.
pub(crate) fn listen_error(address: SocketAddr, source: io::Error) -> Error {
    match source.kind() {
        io::ErrorKind::AddrInUse => Error::PortInUse(address),
        io::ErrorKind::PermissionDenied => {
            Error::Listen { address, reason: "ports below 1024 need root; name another with --listen".into() }
        }
        io::ErrorKind::AddrNotAvailable => {
            Error::Listen { address, reason: "this host has no such address".into() }
        }
        _ => Error::Listen { address, reason: source.to_string() },
    }
}
