//! The server's side of the control protocol. One thread accepts clients; a thread of its own serves each client, at
//! most `MOST_CLIENTS` at once.

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

/// Most clients served at once; a further client is refused with a sentence.
const MOST_CLIENTS: usize = 16;
/// Of these, clients whose request may take long, such as a flush to a file system that does not answer: there is
/// always room for clients that only read the status.
const MOST_LONG: usize = 12;
/// Longest request line in bytes.
const LONGEST_CALL: u64 = 64 * 1024;
/// Longest time without progress of a client that sends its request or reads the answer. The server then drops the
/// client.
const PATIENCE: Duration = Duration::from_secs(10);
/// Interval at which the thread of a following client checks whether the client or the server is gone.
const FOLLOW_CHECK: Duration = Duration::from_millis(250);
/// Longest time that a stop waits for answers in progress.
const STOP_WAIT: Duration = Duration::from_secs(2);

/// The operations that a server offers to its control clients. Several threads call them at once. Each error is one
/// sentence.
pub trait Handler: Send + Sync + 'static {
    /// Returns the state of the server at this moment.
    fn status(&self) -> Status;
    /// Returns the server's counters since its start.
    fn sample(&self) -> StatSample;
    /// Returns the server's event log.
    fn events(&self) -> &EventLog;
    /// Succeeds if the server serves NFS clients. Before that, control clients may look at the server but not change
    /// anything.
    ///
    /// # Errors
    /// The error says how far the start has come.
    fn serving(&self) -> Result<(), String>;
    /// Returns the configured mode.
    fn mode(&self) -> Mode;
    /// Returns the mode in force. It differs from the configured mode when cache devices are missing.
    fn effective_mode(&self) -> Mode;
    /// Changes the mode. Returns when every write acknowledged from now on follows the new mode.
    ///
    /// # Errors
    /// The error says why the mode cannot be changed.
    fn set_mode(&self, mode: Mode) -> Result<(), String>;
    /// Makes all changes that were acknowledged before the call durable on the backing store.
    ///
    /// # Errors
    /// The error names the data that could not be made durable.
    fn flush(&self, progress: &mut dyn FnMut(FlushProgress)) -> Result<FlushReport, String>;
    /// Shows or changes the pool of cache devices.
    ///
    /// # Errors
    /// The error says why the pool cannot be changed.
    fn pool(&self, request: PoolRequest) -> Result<PoolStatus, String>;
    /// Reads the configuration again and applies the settings that can change in service.
    ///
    /// # Errors
    /// The configuration cannot be read at this moment. Mistakes in it are in the report instead.
    fn reload(&self) -> Result<ReloadReport, String>;
    /// Returns how much is cached of the files at or below `path`. With `drop`, counts first, then destages and
    /// drops.
    ///
    /// # Errors
    /// The path is not served, or some of its dirty blocks could not be destaged.
    fn cached(&self, path: &Path, drop: bool) -> Result<CachedFiles, String>;
}

/// The reason why the control socket could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// Another server answers on the socket.
    #[error("another server already uses the state directory {0}; stop it, or name another with --state-dir")]
    InUse(PathBuf),
    /// The system refused an operation on the socket.
    #[error("cannot open the control socket {path}: {source}")]
    Socket {
        /// Path of the socket.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
}

/// A control socket in service. Dropping or [stopping](Self::stop) it ends the service.
#[derive(Debug)]
pub struct Server {
    listener: UnixListener,
    path: PathBuf,
    clients: Arc<Clients>,
    thread: Option<JoinHandle<()>>,
}

/// The clients being served, and the request to stop serving them.
#[derive(Debug, Default)]
struct Clients {
    stopping: AtomicBool,
    count: Mutex<usize>,
    left: Condvar,
    /// The number of requests in progress that may take long.
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

/// Returns true if an answer takes as long as a disk, a file system or the client's patience.
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
    /// Opens the control socket of `state_dir` and serves it. The directory exists and the caller holds its lock.
    ///
    /// # Errors
    /// [`ServerError::InUse`] if a server answers on the socket; otherwise the system's error.
    pub fn start(state_dir: &Path, handler: Arc<dyn Handler>) -> Result<Self, ServerError> {
        let path = socket_path(state_dir);
        let failed = |source| ServerError::Socket { path: path.clone(), source };
        let (address, _directory) = short_path(state_dir).map_err(failed)?;
        match UnixStream::connect(&address) {
            Ok(_) => return Err(ServerError::InUse(state_dir.to_owned())),
            // A server that was killed left the socket behind.
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

    /// Stops serving. Following clients get the final response. The stop waits up to 2 seconds for answers in progress,
    /// then removes the socket.
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

/// A client that is counted in `Clients` until this value is dropped.
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
                // The usual cause is a lack of file descriptors. Without a pause the loop would spin until one is
                // free.
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

/// Reads the request line. The inner error is a sentence for the client.
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
            // A flush continues after its client has disconnected, so errors of the progress lines are ignored.
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
    // With `last` 0 no past event is sent, and following starts after the newest event.
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

/// Returns true if the client has closed its end.
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
