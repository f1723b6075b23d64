//! Notifications to systemd, as sd_notify(3) describes. A process that no service manager started sends none.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// A start or a stop goes on: the service manager waits this much longer for it.
const EXTENSION: Duration = Duration::from_secs(30);

/// Clients are accepted.
pub(crate) fn ready() {
    tell("READY=1\nSTATUS=serving");
}

/// A start or a stop is under way and has come so far. To be said again within 30 seconds.
pub(crate) fn under_way(progress: &str) {
    tell(&format!("EXTEND_TIMEOUT_USEC={}\nSTATUS={progress}", EXTENSION.as_micros()));
}

/// A stop has begun.
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
        // A service manager that stands still stops nobody.
        from.set_nonblocking(true)?;
        from.send_to_addr(state.as_bytes(), &address)
    };
    if let Err(error) = send() {
        tracing::warn!("cannot tell the service manager `{}`: {error}", state.replace('\n', " "));
    }
}
