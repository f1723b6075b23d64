//! The client's side: each request is one connection.

use std::io::{self, BufRead, BufReader, Write};
use std::ops::ControlFlow;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_config::Mode;

use crate::event::Event;
use crate::protocol::{
    CachedFiles, Call, FlushProgress, FlushReport, PROTOCOL_VERSION, PoolRequest, PoolStatus, ReloadReport,
    Request, Response,
};
use crate::sample::StatSample;
use crate::socket::short_path;
use crate::status::Status;

/// Why a request had no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nothing listens there.
    #[error(
        "no server runs with the state directory {0}; start one with `forebay serve`, or name another with --state-dir"
    )]
    NotRunning(PathBuf),
    /// A server has the state directory, and nothing listens there: it opens what it serves, or is about to end.
    #[error(
        "the server with the state directory {path} (process {process}) is starting or stopping and does not answer yet; its log \
         says how far it is"
    )]
    NotListening {
        /// State directory.
        path: PathBuf,
        /// The server.
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
        /// Why.
        source: io::Error,
    },
    /// The answer makes no sense, as from another version.
    #[error("the server's answer is not understood ({0}); use the forebay of the server's version")]
    Protocol(String),
    /// The server said no.
    #[error("{0}")]
    Refused(String),
}

/// Which past events are wanted; by default all that are kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Past {
    /// At most so many of the newest ones.
    pub last: Option<usize>,
    /// Only those of this moment, in nanoseconds since 1970, and later ones.
    pub since_ns: Option<u64>,
}

/// Asks the server of one state directory.
#[derive(Debug, Clone)]
pub struct Client {
    state_dir: PathBuf,
}

impl Client {
    /// A client of the server with this state directory, whether it runs or not.
    pub fn new(state_dir: &Path) -> Self {
        Self { state_dir: state_dir.to_owned() }
    }

    /// The state directory it asks.
    pub fn state_dir(&self) -> &Path {
        &self.state_dir
    }

    /// The server at this moment.
    ///
    /// # Errors
    /// See [`ClientError`]; so for all requests.
    pub fn status(&self) -> Result<Status, ClientError> {
        match self.last_answer(Request::Status, |_| ControlFlow::Continue(()))? {
            Response::Status(status) => Ok(*status),
            other => Err(unexpected(&other)),
        }
    }

    /// Its counters since the start.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn sample(&self) -> Result<StatSample, ClientError> {
        match self.last_answer(Request::Sample, |_| ControlFlow::Continue(()))? {
            Response::Sample(sample) => Ok(*sample),
            other => Err(unexpected(&other)),
        }
    }

    /// Its mode, after changing it if `change` names one, and the mode in force if that is another.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn mode(&self, change: Option<Mode>) -> Result<(Mode, Option<Mode>), ClientError> {
        let request = change.map_or(Request::Mode, |mode| Request::SetMode { mode });
        match self.last_answer(request, |_| ControlFlow::Continue(()))? {
            Response::Mode { mode, effective_mode } => Ok((mode, effective_mode)),
            other => Err(unexpected(&other)),
        }
    }

    /// Starts a flush and does not wait for its end, which is an event.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn start_flush(&self) -> Result<(), ClientError> {
        self.last_answer(Request::Flush { wait: false }, |_| ControlFlow::Continue(())).map(drop)
    }

    /// Makes durable on the backing store what was acknowledged so far.
    ///
    /// # Errors
    /// See [`ClientError`].
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
    /// See [`ClientError`].
    pub fn pool(&self, request: PoolRequest) -> Result<PoolStatus, ClientError> {
        match self.last_answer(Request::Pool(request), |_| ControlFlow::Continue(()))? {
            Response::Pool(pool) => Ok(*pool),
            other => Err(unexpected(&other)),
        }
    }

    /// Has it read its configuration anew.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn reload(&self) -> Result<ReloadReport, ClientError> {
        match self.last_answer(Request::Reload, |_| ControlFlow::Continue(()))? {
            Response::Reloaded(report) => Ok(report),
            other => Err(unexpected(&other)),
        }
    }

    /// What is cached of the files at or below `path`, which is absolute and without symbolic links. With `drop` they
    /// are destaged and dropped, and the answer says what there was.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn cached(&self, path: &Path, drop: bool) -> Result<CachedFiles, ClientError> {
        let request = Request::Cached { path: path.to_owned(), drop };
        match self.last_answer(request, |_| ControlFlow::Continue(()))? {
            Response::Cached(files) => Ok(files),
            other => Err(unexpected(&other)),
        }
    }

    /// Hands out events, oldest first: past ones, and with `follow` new ones until the server stops. Ends early when `each`
    /// breaks.
    ///
    /// # Errors
    /// See [`ClientError`].
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

    /// Sends a request; hands intermediate lines to `step` until it breaks, and returns the final one.
    fn last_answer(
        &self,
        request: Request,
        mut step: impl FnMut(Response) -> ControlFlow<()>,
    ) -> Result<Response, ClientError> {
        let failed = |source| ClientError::Connection { path: self.state_dir.clone(), source };
        let mut stream = self.connect()?;
        stream.set_read_timeout(patience(&request)).map_err(failed)?;
        let call = Call { version: PROTOCOL_VERSION, request };
        let mut line = serde_json::to_vec(&call).map_err(|error| ClientError::Protocol(error.to_string()))?;
        line.push(b'\n');
        // A server that refuses at once may have closed before the request was written; its answer says why.
        let written = stream.write_all(&line);
        for line in BufReader::new(stream).lines() {
            let line = line.map_err(failed)?;
            let response =
                serde_json::from_str(&line).map_err(|error| ClientError::Protocol(error.to_string()))?;
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

    fn connect(&self) -> Result<UnixStream, ClientError> {
        use io::ErrorKind::{ConnectionRefused, NotADirectory, NotFound, PermissionDenied};
        let connected = short_path(&self.state_dir).and_then(|(path, _directory)| UnixStream::connect(path));
        connected.map_err(|source| match source.kind() {
            NotFound | ConnectionRefused | NotADirectory => self.not_listening(),
            PermissionDenied => ClientError::Denied(self.state_dir.clone()),
            _ => ClientError::Connection { path: self.state_dir.clone(), source },
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

/// How long an answer may take: what only looks is quick in a server that is well, the rest takes what it takes.
fn patience(request: &Request) -> Option<Duration> {
    let quick = matches!(request, Request::Status | Request::Sample | Request::Mode);
    quick.then_some(Duration::from_secs(10))
}

fn unexpected(response: &Response) -> ClientError {
    let kind = serde_json::to_value(response)
        .ok()
        .and_then(|value| Some(value.get("response")?.as_str()?.to_owned()));
    ClientError::Protocol(format!("unexpected answer `{}`", kind.unwrap_or_default()))
}

/// The process that has a file locked (flock(2)), where the kernel tells. The lock itself is not tried: a server that starts at
/// this moment would find it taken.
fn holder(file: &Path) -> Option<u32> {
    let stat = rustix::fs::stat(file).ok()?;
    let (major, minor) = (rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev));
    let wanted = format!("{major:02x}:{minor:02x}:{}", stat.st_ino);
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    // As in `1: FLOCK  ADVISORY  WRITE 1234 fd:00:5678 0 EOF`; a waiting one has an arrow before its kind.
    let lines = locks.lines().map(|line| line.split_whitespace().skip(1).collect::<Vec<_>>());
    let mut held =
        lines.filter(|words| words.first() == Some(&"FLOCK") && words.get(4) == Some(&wanted.as_str()));
    held.find_map(|words| words.get(3)?.parse().ok()).filter(|process| *process != 0)
}
