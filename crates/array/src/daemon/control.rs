//! The control socket: one JSON datagram each way. The socket lies in the state directory, for root only.

use super::faults::Fault;
use super::image::Losses;
use crate::sim::{Counters, DiskCounters};
use serde::{Deserialize, Serialize};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Longest message, bytes.
const MESSAGE: usize = 64 * 1024;
/// How long a client waits for an answer; the daemon answers between two requests, so this is generous even on a
/// machine that is busy.
const PATIENCE: Duration = Duration::from_secs(5);

/// What the daemon is asked.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Ask {
    Status,
    Inject(Fault),
    /// The power fails now; `seed` decides what survives of what was not flushed.
    Cut {
        seed: u64,
    },
    Stop,
}

/// What it answers.
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
    /// Nanoseconds since the daemon started.
    pub uptime_ns: u64,
    /// Nanoseconds of processor time the daemon has used.
    pub cpu_ns: u64,
    /// Blocks of 4 KiB that a power cut could lose now.
    pub blocks_at_risk: u64,
    /// Ranges with injected errors.
    pub error_ranges: u64,
    /// Whether requests hang.
    pub hang: bool,
    /// Whether requests complete at once.
    pub instant: bool,
    /// Whether the power has been cut.
    pub cut: bool,
}

fn socket(directory: &Path) -> PathBuf {
    directory.join("control.sock")
}

/// Binds the daemon's end.
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

/// Takes one question, if there is one, and whom to answer.
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

/// Answers; a client that has gone away is no matter.
pub(super) fn answer(listener: &UnixDatagram, to: &Path, answer: &Answer) {
    if let Ok(bytes) = serde_json::to_vec(answer) {
        _ = listener.send_to(&bytes, to);
    }
}

/// Asks the daemon of the array in `directory`.
///
/// # Errors
/// Connection refused or not found when there is no daemon; timed out when it does not answer.
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
