//! Notifications to systemd, as in sd_notify(3). Without a service manager no notification is sent.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// Time by which a notification of progress extends the service manager's timeout for a start or a stop.
const EXTENSION: Duration = Duration::from_secs(30);

/// Reports that clients are accepted.
pub(crate) fn ready() {
    tell("READY=1\nSTATUS=serving");
}

/// Reports the progress of a start or a stop. Call it at least every 30 seconds.
pub(crate) fn under_way(progress: &str) {
    tell(&format!("EXTEND_TIMEOUT_USEC={}\nSTATUS={progress}", EXTENSION.as_micros()));
}

/// Reports that a stop has begun.
pub(crate) fn stopping() {
    tell("STOPPING=1\nSTATUS=stopping");
}

fn tell(state: &str) {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let send = || -> io::Result<usize> {
        let address = match socket.as_encoded_bytes() {
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
            _ => SocketAddr::from_pathname(&socket)?,
        };
        let from = UnixDatagram::unbound()?;
        // The socket is non-blocking, so that a service manager that has stopped does not hold up the server.
        from.set_nonblocking(true)?;
        from.send_to_addr(state.as_bytes(), &address)
    };
    if let Err(error) = send() {
        tracing::warn!("cannot tell the service manager `{}`: {error}", state.replace('\n', " "));
    }
}
