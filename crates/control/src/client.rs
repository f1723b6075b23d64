//! The client's side of the control protocol. Each request has a connection of its own.

use std::io::{self, BufRead, BufReader, Write};
use std::ops::ControlFlow;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_config::{Entry, Mode};
use rustix::io::retry_on_intr;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use crate::activity::Activity;
use crate::advice::Advice;
use crate::event::Event;
use crate::notify::Delivery;
use crate::policy::{PolicyReport, PolicyRequest};
use crate::protocol::{
    CachedFiles, Call, FlushProgress, FlushReport, PROTOCOL_VERSION, PoolRequest, PoolStatus, ReloadReport,
    Request, Response, WarmReport,
};
use crate::sample::StatSample;
use crate::socket::short_path;
use crate::status::Status;
use crate::trace::TraceBatch;
use crate::volume::{VolumeRequest, VolumeStatus};

/// Longest wait for each line of an answer that a sound server gives at once.
const PATIENCE: Duration = Duration::from_secs(10);
/// Wait for a line of an answer that may take long, before the client looks whether the server answers at all.
const LOOK: Duration = Duration::from_secs(5);

/// The reason why a request has no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No process listens on the control socket, and no process holds the lock of the state directory.
    #[error(
        "no server runs with the state directory {0}; start one with `forebay serve`, or name another with --state-dir"
    )]
    NotRunning(PathBuf),
    /// A process holds the lock of the state directory, but does not listen. The server is starting or stopping.
    #[error(
        "the server with the state directory {path} (process {process}) is starting or stopping and does not answer yet; its log \
         says how far it is"
    )]
    NotListening {
        /// State directory.
        path: PathBuf,
        /// Process id of the server.
        process: u32,
    },
    /// The socket belongs to another user.
    #[error("the server with the state directory {0} belongs to another user; ask as that user or as root")]
    Denied(PathBuf),
    /// The connection failed.
    #[error("the connection to the server with the state directory {path} failed: {source}")]
    Connection {
        /// State directory.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The server accepts connections, and does not answer in time.
    #[error(
        "the server with the state directory {0} does not answer; see its log, and whether its process runs or is stopped"
    )]
    Silent(PathBuf),
    /// The server has accepted a request that may take long, and answers no other request either.
    #[error(
        "the server with the state directory {0} does not answer; see its log, and whether its process runs or is stopped (it \
         may carry the command out when it goes on)"
    )]
    Stopped(PathBuf),
    /// The answer is not a response of this protocol version. The server may be of another version.
    #[error("the server's answer is not understood ({0}); use the forebay of the server's version")]
    Protocol(String),
    /// The server refused the request. The text is the server's sentence.
    #[error("{0}")]
    Refused(String),
}

/// The past events that a client wants; by default all events that are kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Past {
    /// The largest number of events, the newest ones; `None` sets no bound.
    pub last: Option<usize>,
    /// The moment of the oldest event wanted, in nanoseconds since 1970; `None` sets no bound.
    pub since_ns: Option<u64>,
}

/// A client of the server of one state directory.
#[derive(Debug, Clone)]
pub struct Client {
    state_dir: PathBuf,
}

impl Client {
    /// Returns a client of the server with this state directory. The server need not run yet.
    pub fn new(state_dir: &Path) -> Self {
        Self { state_dir: state_dir.to_owned() }
    }

    /// Returns the state directory of the server that this client asks.
    pub fn state_dir(&self) -> &Path {
        &self.state_dir
    }

    /// Returns the state of the server at this moment.
    ///
    /// # Errors
    /// [`ClientError`] says why there is no answer.
    pub fn status(&self) -> Result<Status, ClientError> {
        match self.last_answer(Request::Status, |_| ControlFlow::Continue(()))? {
            Response::Status(status) => Ok(*status),
            other => Err(unexpected(&other)),
        }
    }

    /// Returns the settings in force.
    ///
    /// # Errors
    /// [`ClientError`] says why there is no answer.
    pub fn config(&self) -> Result<Vec<Entry>, ClientError> {
        match self.last_answer(Request::Config, |_| ControlFlow::Continue(()))? {
            Response::Config { entries } => Ok(entries),
            other => Err(unexpected(&other)),
        }
    }

    /// Returns the server's counters since its start.
    ///
    /// # Errors
    /// [`ClientError`] says why there is no answer.
    pub fn sample(&self) -> Result<StatSample, ClientError> {
        match self.last_answer(Request::Sample, |_| ControlFlow::Continue(()))? {
            Response::Sample(sample) => Ok(*sample),
            other => Err(unexpected(&other)),
        }
    }

    /// Returns the miss-ratio curve, and what follows from it.
    ///
    /// # Errors
    /// [`ClientError`] says why there is no answer.
    pub fn advise(&self) -> Result<Advice, ClientError> {
        match self.last_answer(Request::Advise, |_| ControlFlow::Continue(()))? {
            Response::Advice(advice) => Ok(*advice),
            other => Err(unexpected(&other)),
        }
    }

    /// Returns what clients do, with the `top` busiest entries of each group.
    ///
    /// # Errors
    /// [`ClientError`] says why there is no answer.
    pub fn activity(&self, top: usize) -> Result<Activity, ClientError> {
        match self.last_answer(Request::Activity { top }, |_| ControlFlow::Continue(()))? {
            Response::Activity(activity) => Ok(*activity),
            other => Err(unexpected(&other)),
        }
    }

    /// Records the operations of clients. Gives them to `take` several times a second, until `take` breaks or the
    /// server stops.
    ///
    /// # Errors
    /// [`ClientError`] says why there is no trace.
    pub fn trace(&self, mut take: impl FnMut(TraceBatch) -> ControlFlow<()>) -> Result<(), ClientError> {
        let answer = self.last_answer(Request::Trace, |response| match response {
            Response::Trace(batch) => take(batch),
            _ => ControlFlow::Continue(()),
        });
        answer.map(drop)
    }

    /// Makes the counters of [`Client::activity`] begin at 0, except those of devices.
    ///
    /// # Errors
    /// [`ClientError`] says why there is no answer.
    pub fn reset_activity(&self) -> Result<(), ClientError> {
        self.last_answer(Request::ResetActivity, |_| ControlFlow::Continue(())).map(drop)
    }

    /// Returns every figure in the text format of Prometheus, version 0.0.4.
    ///
    /// # Errors
    /// [`ClientError`] says why there is no answer.
    pub fn metrics(&self) -> Result<String, ClientError> {
        self.text(Request::Metrics)
    }

    /// Returns a URL that opens the page of the server with the rights of an administrator, once. `who` is the
    /// administrator's name in later events.
    ///
    /// # Errors
    /// [`ClientError`] says why there is no answer.
    pub fn invite(&self, who: &str) -> Result<String, ClientError> {
        self.text(Request::Invite { who: who.to_owned() })
    }

    /// Sends a request whose answer is text for people, and returns the text.
    fn text(&self, request: Request) -> Result<String, ClientError> {
        match self.last_answer(request, |_| ControlFlow::Continue(()))? {
            Response::Text { text } => Ok(text),
            other => Err(unexpected(&other)),
        }
    }

    /// Changes the mode if `change` names one. Returns the configured mode, and the mode in force if the two differ.
    ///
    /// # Errors
    /// [`ClientError`] says why there is no answer.
    pub fn mode(&self, change: Option<Mode>) -> Result<(Mode, Option<Mode>), ClientError> {
        let request = change.map_or(Request::Mode, |mode| Request::SetMode { mode });
        match self.last_answer(request, |_| ControlFlow::Continue(()))? {
            Response::Mode { mode, effective_mode } => Ok((mode, effective_mode)),
            other => Err(unexpected(&other)),
        }
    }

    /// Starts a flush and returns at once. An event reports the end of the flush.
    ///
    /// # Errors
    /// [`ClientError`] says why there is no answer.
    pub fn start_flush(&self) -> Result<(), ClientError> {
        self.last_answer(Request::Flush { wait: false }, |_| ControlFlow::Continue(())).map(drop)
    }

    /// Makes all changes that were acknowledged before the call durable on the backing store.
    ///
    /// # Errors
    /// [`ClientError`] says why there is no answer.
    pub fn flush(&self, mut progress: impl FnMut(FlushProgress)) -> Result<FlushReport, ClientError> {
        let answer = self.last_answer(Request::Flush { wait: true }, |response| {
            if let Response::Progress(step) = response {
                progress(step);
            }
            ControlFlow::Continue(())
        })?;
        match answer {
            Response::Flushed(report) => Ok(report),
            other => Err(unexpected(&other)),
        }
    }

    /// Shows or changes the pool of cache devices.
    ///
    /// # Errors
    /// [`ClientError`] says why there is no answer.
    pub fn pool(&self, request: PoolRequest) -> Result<PoolStatus, ClientError> {
        match self.last_answer(Request::Pool(request), |_| ControlFlow::Continue(()))? {
            Response::Pool(pool) => Ok(*pool),
            other => Err(unexpected(&other)),
        }
    }

    /// Shows or changes block volumes. Returns the volumes that the request was about, after the change.
    ///
    /// # Errors
    /// [`ClientError`] says why there is no answer.
    pub fn volume(&self, request: VolumeRequest) -> Result<Vec<VolumeStatus>, ClientError> {
        match self.last_answer(Request::Volume(request), |_| ControlFlow::Continue(()))? {
            Response::Volumes { volumes } => Ok(volumes),
            other => Err(unexpected(&other)),
        }
    }

    /// Shows or changes policies. Returns those that the request was about, after the change.
    ///
    /// # Errors
    /// [`ClientError`] says why there is no answer.
    pub fn policy(&self, request: PolicyRequest) -> Result<PolicyReport, ClientError> {
        match self.last_answer(Request::Policy(request), |_| ControlFlow::Continue(()))? {
            Response::Policies(report) => Ok(report),
            other => Err(unexpected(&other)),
        }
    }

    /// Brings files to the cache devices: those at and below `path`, or else those that clients have read most.
    ///
    /// # Errors
    /// [`ClientError`] says why there is no answer.
    pub fn warm(
        &self,
        path: Option<&Path>,
        mut progress: impl FnMut(WarmReport),
    ) -> Result<WarmReport, ClientError> {
        let answer = self.last_answer(Request::Warm { path: path.map(Path::to_owned) }, |response| {
            if let Response::Warming(step) = response {
                progress(step);
            }
            ControlFlow::Continue(())
        })?;
        match answer {
            Response::Warmed(report) => Ok(report),
            other => Err(unexpected(&other)),
        }
    }

    /// Sends a test to the target of notifications with this name, or to all.
    ///
    /// # Errors
    /// [`ClientError`] says why there is no answer.
    pub fn test_notify(&self, target: Option<&str>) -> Result<Vec<Delivery>, ClientError> {
        let request = Request::TestNotify { target: target.map(str::to_owned) };
        match self.last_answer(request, |_| ControlFlow::Continue(()))? {
            Response::Delivered { deliveries } => Ok(deliveries),
            other => Err(unexpected(&other)),
        }
    }

    /// Makes the server read its configuration again.
    ///
    /// # Errors
    /// [`ClientError`] says why there is no answer.
    pub fn reload(&self) -> Result<ReloadReport, ClientError> {
        match self.last_answer(Request::Reload, |_| ControlFlow::Continue(()))? {
            Response::Reloaded(report) => Ok(report),
            other => Err(unexpected(&other)),
        }
    }

    /// Returns how much is cached of the files at or below `path`, which is absolute. With `drop` the server counts
    /// first, then destages the dirty blocks of the files and drops all their blocks.
    ///
    /// # Errors
    /// [`ClientError`] says why there is no answer.
    pub fn cached(&self, path: &Path, drop: bool) -> Result<CachedFiles, ClientError> {
        let request = Request::Cached { path: path.to_owned(), drop };
        match self.last_answer(request, |_| ControlFlow::Continue(()))? {
            Response::Cached(files) => Ok(files),
            other => Err(unexpected(&other)),
        }
    }

    /// Passes events to `each`, oldest first, until `each` breaks. With `follow`, new events come after the past ones
    /// until the server stops.
    ///
    /// # Errors
    /// [`ClientError`] says why there is no answer.
    pub fn events(
        &self,
        past: Past,
        follow: bool,
        mut each: impl FnMut(Event) -> ControlFlow<()>,
    ) -> Result<(), ClientError> {
        self.last_answer(Request::Events { last: past.last, since_ns: past.since_ns, follow }, |response| {
            match response {
                Response::Event(event) => each(event),
                _ => ControlFlow::Continue(()),
            }
        })?;
        Ok(())
    }

    /// Sends a request, passes the responses before the final one to `step`, and returns the final response. If
    /// `step` breaks, the result is [`Response::Done`].
    fn last_answer(
        &self,
        request: Request,
        mut step: impl FnMut(Response) -> ControlFlow<()>,
    ) -> Result<Response, ClientError> {
        let is_quick = is_quick(&request);
        let mut stream = self.connect()?;
        let failed = |source| self.failed(source);
        stream.set_read_timeout(Some(if is_quick { PATIENCE } else { LOOK })).map_err(failed)?;
        let call = Call { version: PROTOCOL_VERSION, request };
        let mut line = serde_json::to_vec(&call).map_err(|error| ClientError::Protocol(error.to_string()))?;
        line.push(b'\n');
        // A server that refuses a client at once may close the socket before the request is written. Its answer gives
        // the reason, so it is read even if the write failed.
        let written = stream.write_all(&line);
        let mut stream = BufReader::new(stream);
        line.clear();
        loop {
            // A timeout leaves what has arrived in `line`.
            match stream.read_until(b'\n', &mut line) {
                Ok(0) => break,
                Ok(_) => {}
                Err(error) if is_late(&error) && !is_quick => {
                    self.require_answers()?;
                    continue;
                }
                Err(error) => return Err(failed(error)),
            }
            let response =
                serde_json::from_slice(&line).map_err(|error| ClientError::Protocol(error.to_string()))?;
            line.clear();
            match response {
                Response::Error { message } => return Err(ClientError::Refused(message)),
                response if response.is_final() => return Ok(response),
                response => {
                    if step(response).is_break() {
                        return Ok(Response::Done);
                    }
                }
            }
        }
        written.map_err(failed)?;
        Err(failed(io::ErrorKind::UnexpectedEof.into()))
    }

    /// Checks that the server answers another request. The answer to a request that takes long may be a long time in
    /// coming, and a server that is stopped never gives one.
    fn require_answers(&self) -> Result<(), ClientError> {
        match self.mode(None) {
            Err(ClientError::Silent(path)) => Err(ClientError::Stopped(path)),
            // The request's own connection tells everything else.
            _ => Ok(()),
        }
    }

    /// Returns the error for a connection that failed.
    fn failed(&self, source: io::Error) -> ClientError {
        let path = self.state_dir.clone();
        match is_late(&source) {
            true => ClientError::Silent(path),
            false => ClientError::Connection { path, source },
        }
    }

    /// Connects to the control socket. The error tells whether no server runs in the state directory, or access is
    /// denied.
    fn connect(&self) -> Result<UnixStream, ClientError> {
        use io::ErrorKind::{ConnectionRefused, NotADirectory, NotFound, PermissionDenied};
        let connected = short_path(&self.state_dir).and_then(|(path, _directory)| connect_within(&path));
        connected.map_err(|source| match source.kind() {
            NotFound | ConnectionRefused | NotADirectory => self.not_listening(),
            PermissionDenied => ClientError::Denied(self.state_dir.clone()),
            _ => self.failed(source),
        })
    }

    /// Returns why nothing listens: no server runs, or one is starting or stopping.
    fn not_listening(&self) -> ClientError {
        let path = self.state_dir.clone();
        match holder(&path.join("lock")) {
            Some(process) => ClientError::NotListening { path, process },
            None => ClientError::NotRunning(path),
        }
    }
}

/// Connects to a socket within [`PATIENCE`]. Without a bound the system waits for room in the queue of a server that
/// accepts nobody.
fn connect_within(path: &Path) -> io::Result<UnixStream> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_timeout(&socket, Timeout::Send, Some(PATIENCE))?;
    let address = SocketAddrUnix::new(path)?;
    retry_on_intr(|| connect(&socket, &address))?;
    Ok(UnixStream::from(socket))
}

/// Returns true for requests that a sound server answers at once. Any other request may take as long as the disks need.
fn is_quick(request: &Request) -> bool {
    matches!(request, Request::Status | Request::Sample | Request::Config | Request::Mode)
}

/// Returns true for the error of a time limit of a socket.
fn is_late(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// Returns the error for an answer that does not belong to the request. It names the kind of the answer.
fn unexpected(response: &Response) -> ClientError {
    let kind = serde_json::to_value(response)
        .ok()
        .and_then(|value| Some(value.get("response")?.as_str()?.to_owned()));
    ClientError::Protocol(format!("unexpected answer `{}`", kind.unwrap_or_default()))
}

/// Returns the process that holds flock(2) on a file, as /proc/locks names it. Trying the lock instead could make a
/// server that starts at this moment find it taken.
fn holder(file: &Path) -> Option<u32> {
    let stat = rustix::fs::stat(file).ok()?;
    let (major, minor) = (rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev));
    let wanted = format!("{major:02x}:{minor:02x}:{}", stat.st_ino);
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    // A line reads `1: FLOCK  ADVISORY  WRITE 1234 fd:00:5678 0 EOF`. The line of a waiting process has an arrow
    // before `FLOCK`.
    let lines = locks.lines().map(|line| line.split_whitespace().skip(1).collect::<Vec<_>>());
    let mut held =
        lines.filter(|words| words.first() == Some(&"FLOCK") && words.get(4) == Some(&wanted.as_str()));
    held.find_map(|words| words.get(3)?.parse().ok()).filter(|process| *process != 0)
}
