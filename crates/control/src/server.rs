//! The server's side of the control protocol. One thread accepts clients; a thread of its own serves each client, at
//! most `MOST_CLIENTS` at once.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use forebay_common::socket_file::SocketFile;

use crate::protocol::Response;
use crate::socket::{short_path, socket_path};

mod answer;
mod clients;
mod handler;

use answer::{answer, read_call, send};
use clients::{Clients, MOST_CLIENTS, Served};

pub use answer::flush_and_tell;
pub use handler::Handler;

/// Longest time without progress of a client that sends its request or reads the answer. The server then drops the
/// client.
const PATIENCE: Duration = Duration::from_secs(10);
/// Longest time that a stop waits for answers in progress.
const STOP_WAIT: Duration = Duration::from_secs(2);

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
    file: SocketFile,
    clients: Arc<Clients>,
    thread: Option<JoinHandle<()>>,
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
        let file = SocketFile::bound(&path).map_err(failed)?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).map_err(failed)?;
        let clients = Arc::new(Clients::default());
        let accepting = listener.try_clone().map_err(failed)?;
        let shared = Arc::clone(&clients);
        let thread = std::thread::Builder::new()
            .name("control".to_owned())
            .spawn(move || accept_clients(&accepting, &handler, &shared))
            .map_err(failed)?;
        Ok(Self { listener, file, clients, thread: Some(thread) })
    }

    /// Stops serving. Following clients get the final response. The stop waits up to 2 seconds for answers in progress,
    /// then removes the socket, unless another server has taken its place.
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
        self.file.remove();
    }
}

/// Accepts control clients until the server stops, and starts a thread for each. A client beyond `MOST_CLIENTS` gets
/// an error.
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

/// Serves one client's request. Only root and the server's own user may send one; the kernel names the user of the
/// socket's other end.
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
