//! The server's side: one thread accepts, one short-lived thread serves each client, at most `MOST_CLIENTS`.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use forebay_common::lock::{Condvar, Mutex};
use forebay_config::Mode;

use crate::client::Past;
use crate::event::{EventLog, Severity};
use crate::protocol::{
    CachedFiles, Call, FlushProgress, FlushReport, PROTOCOL_VERSION, PoolRequest, PoolStatus, ReloadReport,
    Request, Response,
};
use crate::sample::StatSample;
use crate::socket::{short_path, socket_path};
use crate::status::Status;

/// Clients served at once; more are refused with a sentence.
const MOST_CLIENTS: usize = 16;
/// Of these, clients whose request may take long, such as a flush to a file system that does not answer: there is always room for
/// those who look.
const MOST_LONG: usize = 12;
/// Longest request line in bytes.
const LONGEST_CALL: u64 = 64 * 1024;
/// A client that does not send its request, or does not read the answer, for this long is dropped.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often a follower looks whether its client or the server is gone.
const FOLLOW_CHECK: Duration = Duration::from_millis(250);
/// How long a stop waits for answers under way.
const STOP_WAIT: Duration = Duration::from_secs(2);

/// What a server does for its control clients. Called from several threads at once; errors are one sentence.
pub trait Handler: Send + Sync + 'static {
    /// The server at this moment.
    fn status(&self) -> Status;
    /// Its counters since the start.
    fn sample(&self) -> StatSample;
    /// Its events.
    fn events(&self) -> &EventLog;
    /// Whether clients are served: before that the server may be looked at, and nothing may be changed.
    ///
    /// # Errors
    /// How far the start has come.
    fn serving(&self) -> Result<(), String>;
    /// Its mode.
    fn mode(&self) -> Mode;
    /// The mode in force, where devices are missing for the other.
    fn effective_mode(&self) -> Mode;
    /// Changes the mode; returns when the new one holds for every write acknowledged from now on.
    ///
    /// # Errors
    /// Why it cannot be changed to this one.
    fn set_mode(&self, mode: Mode) -> Result<(), String>;
    /// Makes durable on the backing store what was acknowledged before the call.
    ///
    /// # Errors
    /// What could not be made durable.
    fn flush(&self, progress: &mut dyn FnMut(FlushProgress)) -> Result<FlushReport, String>;
    /// Shows or changes the pool of cache devices.
    ///
    /// # Errors
    /// Why it cannot be changed so.
    fn pool(&self, request: PoolRequest) -> Result<PoolStatus, String>;
    /// Reads the configuration anew and puts into force what can change in service.
    ///
    /// # Errors
    /// Why the configuration cannot be looked at now; mistakes in it are in the report.
    fn reload(&self) -> Result<ReloadReport, String>;
    /// What is cached of the files at or below `path`; with `drop`, what was, before it was destaged and dropped.
    ///
    /// # Errors
    /// Why nothing can be said of the path, or what could not be destaged.
    fn cached(&self, path: &Path, drop: bool) -> Result<CachedFiles, String>;
}

/// Why the control socket could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// Another server answers there.
    #[error("another server already uses the state directory {0}; stop it, or name another with --state-dir")]
    InUse(PathBuf),
    /// The system refused.
    #[error("cannot open the control socket {path}: {source}")]
    Socket {
        /// The socket.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// A control socket that is being served until this is dropped or [stopped](Self::stop).
#[derive(Debug)]
pub struct Server {
    listener: UnixListener,
    path: PathBuf,
    clients: Arc<Clients>,
    thread: Option<JoinHandle<()>>,
}

/// Clients being served, and whether they should end.
#[derive(Debug, Default)]
struct Clients {
    stopping: AtomicBool,
    count: Mutex<usize>,
    left: Condvar,
    /// Requests under way that may take long.
    long: Mutex<usize>,
}

/// A request that may take long and is being counted.
struct Long<'a>(&'a Clients);

impl<'a> Long<'a> {
    fn enter(clients: &'a Clients) -> Option<Self> {
        let mut long = clients.long.lock();
        if *long >= MOST_LONG {
            return None;
        }
        *long += 1;
        Some(Self(clients))
    }
}

impl Drop for Long<'_> {
    fn drop(&mut self) {
        *self.0.long.lock() -= 1;
    }
}

/// Whether an answer takes as long as a disk, a file system or the client's patience.
fn takes_long(request: &Request) -> bool {
    match request {
        Request::Status
        | Request::Sample
        | Request::Mode
        | Request::Pool(PoolRequest::Status)
        | Request::Events { follow: false, .. } => false,
        Request::Events { follow: true, .. }
        | Request::SetMode { .. }
        | Request::Flush { .. }
        | Request::Pool(_)
        | Request::Reload
        | Request::Cached { .. } => true,
    }
}

impl Server {
    /// Opens the control socket of `state_dir`, which exists and whose lock the caller holds, and serves it.
    ///
    /// # Errors
    /// [`ServerError::InUse`] when a server answers there; what the system says otherwise.
    pub fn start(state_dir: &Path, handler: Arc<dyn Handler>) -> Result<Self, ServerError> {
        let path = socket_path(state_dir);
        let failed = |source| ServerError::Socket { path: path.clone(), source };
        let (address, _directory) = short_path(state_dir).map_err(failed)?;
        match UnixStream::connect(&address) {
            Ok(_) => return Err(ServerError::InUse(state_dir.to_owned())),
            // Left behind by a server that was killed.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                std::fs::remove_file(&path).map_err(failed)?;
            }
            Err(_) => {}
        }
        let listener = UnixListener::bind(&address).map_err(failed)?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).map_err(failed)?;
        let clients = Arc::new(Clients::default());
        let accepting = listener.try_clone().map_err(failed)?;
        let shared = Arc::clone(&clients);
        let thread = std::thread::Builder::new()
            .name("control".to_owned())
            .spawn(move || accept_clients(&accepting, &handler, &shared))
            .map_err(failed)?;
        Ok(Self { listener, path, clients, thread: Some(thread) })
    }

    /// Stops serving: followers are told that nothing more follows, answers under way get 2 seconds, the socket is
    /// removed.
    pub fn stop(self) {}
}

impl Drop for Server {
    fn drop(&mut self) {
        self.clients.stopping.store(true, Ordering::SeqCst);
        // Wakes the accepting thread: accept on a socket that was shut down fails with EINVAL.
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        drop(self.clients.left.wait_while_for(self.clients.count.lock(), STOP_WAIT, |count| *count > 0));
        let _ = std::fs::remove_file(&self.path);
    }
}

/// One client that is being counted.
struct Served(Arc<Clients>);

impl Served {
    fn enter(clients: &Arc<Clients>) -> Option<Self> {
        let mut count = clients.count.lock();
        if *count >= MOST_CLIENTS {
            return None;
        }
        *count += 1;
        Some(Self(Arc::clone(clients)))
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        *self.0.count.lock() -= 1;
        self.0.left.notify_all();
    }
}

fn accept_clients(listener: &UnixListener, handler: &Arc<dyn Handler>, clients: &Arc<Clients>) {
    while !clients.stopping.load(Ordering::SeqCst) {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(_) if clients.stopping.load(Ordering::SeqCst) => break,
            Err(error) => {
                tracing::warn!("control socket: cannot accept a client: {error}");
                // Out of descriptors as a rule: without a pause the loop would spin.
                std::thread::sleep(Duration::from_millis(100));
                continue;
            }
        };
        let Some(served) = Served::enter(clients) else {
            let message = format!("{MOST_CLIENTS} control clients are being served already; end one of them");
            let _ = send(&stream, &Response::Error { message });
            continue;
        };
        let handler = Arc::clone(handler);
        let spawned = std::thread::Builder::new().name("control-client".to_owned()).spawn(move || {
            if let Err(error) = serve_client(&stream, handler.as_ref(), &served.0) {
                tracing::debug!("control client: {error}");
            }
        });
        if let Err(error) = spawned {
            tracing::warn!("control socket: cannot start a thread for a client: {error}");
        }
    }
}

fn serve_client(stream: &UnixStream, handler: &dyn Handler, clients: &Clients) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let peer = rustix::net::sockopt::socket_peercred(stream)?;
    if !peer.uid.is_root() && peer.uid != rustix::process::geteuid() {
        let message = "only root and the user that runs the server may control it".to_owned();
        return send(stream, &Response::Error { message });
    }
    match read_call(stream)? {
        Ok(request) => answer(stream, request, handler, clients),
        Err(message) => send(stream, &Response::Error { message }),
    }
}

/// Reads the request line; the inner error is a sentence for the client.
fn read_call(stream: &UnixStream) -> io::Result<Result<Request, String>> {
    let mut line = Vec::new();
    BufReader::new(stream.take(LONGEST_CALL)).read_until(b'\n', &mut line)?;
    if line.last() != Some(&b'\n') {
        return Ok(Err(format!("the request is not one line of at most {LONGEST_CALL} bytes")));
    }
    #[derive(serde::Deserialize)]
    struct Versioned {
        version: u32,
    }
    let version = serde_json::from_slice::<Versioned>(&line).map(|call| call.version);
    match version {
        Ok(version) if version != PROTOCOL_VERSION => Ok(Err(format!(
            "the server speaks version {PROTOCOL_VERSION} of the control protocol, not {version}; use the forebay of its version"
        ))),
        Ok(_) | Err(_) => {
            let call = serde_json::from_slice::<Call>(&line).map(|call| call.request);
            Ok(call.map_err(|error| format!("the request is not understood: {error}")))
        }
    }
}

fn answer(stream: &UnixStream, request: Request, handler: &dyn Handler, clients: &Clients) -> io::Result<()> {
    let only_looks = matches!(
        request,
        Request::Status
            | Request::Sample
            | Request::Mode
            | Request::Events { .. }
            | Request::Pool(PoolRequest::Status)
    );
    if let (false, Err(message)) = (only_looks, handler.serving()) {
        return send(stream, &Response::Error { message });
    }
    let long = takes_long(&request).then(|| Long::enter(clients));
    if let Some(None) = &long {
        let message = format!(
            "{MOST_LONG} requests that may take long are under way already, such as flushes and followers of events; end one of \
             them, and see with `forebay status` whether a file system does not answer"
        );
        return send(stream, &Response::Error { message });
    }
    let response = match request {
        Request::Status => Response::Status(Box::new(handler.status())),
        Request::Sample => Response::Sample(Box::new(handler.sample())),
        Request::Mode => mode_of(handler),
        Request::SetMode { mode } => match handler.set_mode(mode) {
            Ok(()) => mode_of(handler),
            Err(message) => Response::Error { message },
        },
        Request::Flush { wait: false } => {
            send(stream, &Response::Done)?;
            stream.shutdown(std::net::Shutdown::Both)?;
            let (severity, kind, message) = match handler.flush(&mut |_| {}) {
                Ok(_) => (
                    Severity::Info,
                    "flush-done",
                    "flush: everything written before it is durable".to_owned(),
                ),
                Err(message) => (Severity::Error, "flush-failed", format!("flush: {message}")),
            };
            handler.events().add(severity, kind, message, &[]);
            return Ok(());
        }
        Request::Flush { wait: true } => {
            // A client that has gone away does not end the flush it began.
            let mut progress = |progress| drop(send(stream, &Response::Progress(progress)));
            handler.flush(&mut progress).map_or_else(|message| Response::Error { message }, Response::Flushed)
        }
        Request::Pool(request) => {
            let pool = handler.pool(request).map(Box::new);
            pool.map_or_else(|message| Response::Error { message }, Response::Pool)
        }
        Request::Reload => {
            handler.reload().map_or_else(|message| Response::Error { message }, Response::Reloaded)
        }
        Request::Cached { path, drop } => {
            let cached = handler.cached(&path, drop);
            cached.map_or_else(|message| Response::Error { message }, Response::Cached)
        }
        Request::Events { last, since_ns, follow } => {
            send_events(stream, handler.events(), Past { last, since_ns }, follow, clients)?;
            Response::Done
        }
    };
    send(stream, &response)
}

fn mode_of(handler: &dyn Handler) -> Response {
    let (mode, effective) = (handler.mode(), handler.effective_mode());
    Response::Mode { mode, effective_mode: (effective != mode).then_some(effective) }
}

fn send_events(
    stream: &UnixStream,
    events: &EventLog,
    past: Past,
    follow: bool,
    clients: &Clients,
) -> io::Result<()> {
    let past = events.past(past);
    // With `last` 0 nothing is sent, and following starts behind what is there.
    let mut sequence = past.last().map_or_else(|| events.newest(), |event| event.sequence);
    for event in past {
        send(stream, &Response::Event(event))?;
    }
    while follow && !clients.stopping.load(Ordering::SeqCst) && !hung_up(stream)? {
        for event in events.after(sequence, FOLLOW_CHECK) {
            sequence = event.sequence;
            send(stream, &Response::Event(event))?;
        }
    }
    Ok(())
}

/// Whether the client closed its end.
fn hung_up(stream: &UnixStream) -> io::Result<bool> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut polled = [PollFd::new(stream, PollFlags::RDHUP)];
    poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))?;
    Ok(polled[0].revents().intersects(PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR))
}

fn send(mut stream: &UnixStream, response: &Response) -> io::Result<()> {
    let mut line = serde_json::to_vec(response)?;
    line.push(b'\n');
    stream.write_all(&line)
}
