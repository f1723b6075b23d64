//! A datagram to the socket of syslog or of the journal.

use std::os::unix::net::UnixDatagram;
use std::path::Path;

use forebay_config::{Notify, NotifyKind};
use forebay_control::Event;

use super::Trouble;
use crate::payload;

/// The socket of syslog.
const SYSLOG: &str = "/dev/log";
/// The socket of the journal.
const JOURNAL: &str = "/run/systemd/journal/socket";

/// Sends the event.
pub(super) fn send(target: &Notify, event: &Event) -> Result<(), Trouble> {
    let (usual, datagram) = match target.kind {
        NotifyKind::Journal => (JOURNAL, payload::journal(event)),
        _ => (SYSLOG, payload::syslog(event, std::process::id())),
    };
    let path = target.socket.as_deref().unwrap_or(Path::new(usual));
    let sent = UnixDatagram::unbound().and_then(|socket| {
        socket.set_write_timeout(Some(target.timeout))?;
        socket.connect(path)?;
        socket.send(&datagram)
    });
    sent.map(drop).map_err(|error| {
        let remedy = "see whether its service runs, or set `socket`";
        Trouble::passing(format!("{} takes no message: {error}; {remedy}", path.display()))
    })
}
