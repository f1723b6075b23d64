//! The daemon's control socket: one JSON datagram each way. The socket is in the state directory, and only root may
//! use it.

use super::faults::Fault;
use super::image::Losses;
use crate::sim::{Counters, DiskCounters};
use serde::{Deserialize, Serialize};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Longest message, in bytes.
const MESSAGE: usize = 64 * 1024;
/// Longest time that a client waits for an answer. The daemon answers between two requests, so this suffices even on
/// a busy machine.
const PATIENCE: Duration = Duration::from_secs(5);

/// A question to the daemon.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Ask {
    Status,
    Inject(Fault),
    /// Cuts the power now. `seed` decides which unflushed blocks survive.
    Cut {
        seed: u64,
    },
    Stop,
}

/// An answer of the daemon.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Answer {
    Done,
    Status(Box<Status>),
    Cut(Losses),
    Refused(String),
}

/// The state of a running array.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Totals since the start.
    pub counters: Counters,
    /// Totals of each disk.
    pub disks: Vec<DiskCounters>,
    /// Time since the daemon started, in nanoseconds.
    pub uptime_ns: u64,
    /// Processor time of the daemon, in nanoseconds.
    pub cpu_ns: u64,
    /// Blocks of 4 KiB that a power cut at this moment could lose.
    pub blocks_at_risk: u64,
    /// Ranges with injected errors.
    pub error_ranges: u64,
    /// True if requests hang.
    pub hang: bool,
    /// True if requests complete at once.
    pub instant: bool,
    /// True if the power has been cut.
    pub cut: bool,
}

fn socket(directory: &Path) -> PathBuf {
    directory.join("control.sock")
}

/// Binds the daemon's end of the socket.
pub(super) fn listen(directory: &Path) -> io::Result<UnixDatagram> {
    let path = socket(directory);
    match std::fs::remove_file(&path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let listener = UnixDatagram::bind(&path)?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Receives one question and the address for its answer; `None` if no question waits.
pub(super) fn next(listener: &UnixDatagram) -> io::Result<Option<(Ask, PathBuf)>> {
    let mut buffer = vec![0; MESSAGE];
    let (length, from) = match listener.recv_from(&mut buffer) {
        Ok(received) => received,
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(None),
        Err(e) => return Err(e),
    };
    let Some(from) = from.as_pathname().map(Path::to_owned) else { return Ok(None) };
    match serde_json::from_slice(&buffer[..length]) {
        Ok(ask) => Ok(Some((ask, from))),
        Err(e) => {
            answer(listener, &from, &Answer::Refused(format!("cannot understand the request: {e}")));
            Ok(None)
        }
    }
}

/// Sends an answer. Errors are ignored, because the client may have gone away.
pub(super) fn answer(listener: &UnixDatagram, to: &Path, answer: &Answer) {
    if let Ok(bytes) = serde_json::to_vec(answer) {
        _ = listener.send_to(&bytes, to);
    }
}

/// Sends a question to the daemon of the array in `directory` and returns the answer.
///
/// # Errors
/// The error is "not found" or "connection refused" without a daemon, and "timed out" if the daemon does not answer.
pub(crate) fn ask(directory: &Path, question: &Ask) -> io::Result<Answer> {
    let own = directory.join(format!("client-{}.sock", std::process::id()));
    _ = std::fs::remove_file(&own);
    let client = UnixDatagram::bind(&own)?;
    let result = (|| {
        client.set_read_timeout(Some(PATIENCE))?;
        client.send_to(&serde_json::to_vec(question)?, socket(directory))?;
        let mut buffer = vec![0; MESSAGE];
        let length = client.recv(&mut buffer)?;
        Ok(serde_json::from_slice(&buffer[..length])?)
    })();
    _ = std::fs::remove_file(&own);
    result
}
