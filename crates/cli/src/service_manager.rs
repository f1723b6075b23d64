//! Notifications to systemd, as in sd_notify(3), and listening sockets that it keeps, as in sd_listen_fds(3) and
//! sd_pid_notify_with_fds(3). Without a service manager no notification is sent, and no socket is kept.
//!
//! The server gives its listening sockets to the service manager once it serves. A restarted server gets them back. In
//! between, the kernel goes on to accept connections, so that no client is refused. A socket unit gives sockets from
//! the first start on.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixDatagram};
use std::time::Duration;

use rustix::net::sockopt::{ipv6_v6only, socket_acceptconn};
use rustix::net::{
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, getsockname, sendmsg_addr,
};

use crate::output;

/// Time by which a notification of progress extends the service manager's timeout for a start or a stop.
const EXTENSION: Duration = Duration::from_secs(30);
/// The first descriptor that a service manager passes (sd_listen_fds(3)).
const FIRST: RawFd = 3;
/// Most descriptors that are looked at.
const MOST: RawFd = 256;
/// Beginning of the names under which the server has its sockets kept.
const KEPT: &str = "nfs-";

/// A listening socket from the service manager, with its address.
pub(crate) type Inherited = (SocketAddr, OwnedFd);

/// Reports that clients are accepted.
pub(crate) fn ready() {
    tell("READY=1\nSTATUS=serving", None);
}

/// Reports the progress of a start or a stop. Call it at least every 30 seconds.
pub(crate) fn under_way(progress: &str) {
    tell(&format!("EXTEND_TIMEOUT_USEC={}\nSTATUS={progress}", EXTENSION.as_micros()), None);
}

/// Reports that a stop has begun.
pub(crate) fn stopping() {
    tell("STOPPING=1\nSTATUS=stopping", None);
}

/// Has the service manager keep listening sockets for the next server. A service manager that keeps none ignores it.
pub(crate) fn keep(sockets: &[OwnedFd]) {
    for socket in sockets {
        if let Some(address) = address_of(socket) {
            let (name, fd) = (name_of(&address), socket.as_fd());
            tell(&format!("FDSTORE=1\nFDNAME={name}"), Some(fd));
        }
    }
}

/// Returns the listening sockets of the service manager that are for addresses of `listen`. Tells about the others and
/// closes them: the configuration decides where the server listens. Call it once, when the process starts.
pub(crate) fn inherited(listen: &[SocketAddr]) -> Vec<Inherited> {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u32>().ok());
    // The variables of another process may have been handed down.
    if number("LISTEN_PID") != Some(std::process::id()) {
        return Vec::new();
    }
    let count = number("LISTEN_FDS").and_then(|count| RawFd::try_from(count).ok()).unwrap_or(0).min(MOST);
    let mut taken: Vec<Inherited> = Vec::new();
    for raw in FIRST..FIRST + count {
        // SAFETY: the number is only asked about here, and a closed descriptor is an error.
        if rustix::io::fcntl_getfd(unsafe { BorrowedFd::borrow_raw(raw) }).is_err() {
            continue;
        }
        // SAFETY: the service manager has passed this descriptor to this process, and nothing else here owns it: this
        // function is called once, and only the standard descriptors are below.
        let socket = unsafe { OwnedFd::from_raw_fd(raw) };
        // Programs that the server starts do not get it.
        let _ = rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::CLOEXEC);
        let Some(address) = address_of(&socket) else {
            output::note(
                "Note: the service manager passes a descriptor that is no listening TCP socket; it is not used.",
            );
            continue;
        };
        let both =
            address.is_ipv6() && address.ip().is_unspecified() && !ipv6_v6only(&socket).unwrap_or(true);
        if both {
            output::note(&format!(
                "Note: the service manager's socket {address} takes IPv4 as well; it is not used. Write BindIPv6Only=ipv6-only in \
                 the socket unit."
            ));
        } else if !listen.contains(&address) {
            output::note(&format!(
                "Note: the service manager's socket {address} is not used: `listen` has no such address."
            ));
        } else if taken.iter().all(|(there, _)| *there != address) {
            taken.push((address, socket));
            continue;
        }
        // The service manager closes its copy too, if it was one of an earlier server.
        tell(&format!("FDSTOREREMOVE=1\nFDNAME={}", name_of(&address)), None);
    }
    taken
}

/// Returns the address of a TCP socket that listens.
fn address_of(socket: &OwnedFd) -> Option<SocketAddr> {
    let listens = socket_acceptconn(socket).unwrap_or(false);
    let address = getsockname(socket).ok().filter(|_| listens)?;
    SocketAddr::try_from(address).ok()
}

/// Returns the name of a kept socket. A name must not have colons.
fn name_of(address: &SocketAddr) -> String {
    format!("{KEPT}{}", address.to_string().replace(':', "_"))
}

/// Sends a notification, with a descriptor if there is one.
fn tell(state: &str, descriptor: Option<BorrowedFd<'_>>) {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let send = || -> io::Result<usize> {
        let from = UnixDatagram::unbound()?;
        // The socket is non-blocking, so that a service manager that has stopped does not hold up the server.
        from.set_nonblocking(true)?;
        let bytes = state.as_bytes();
        let name = socket.as_encoded_bytes();
        let Some(descriptor) = descriptor else {
            let address = match name {
                [b'@', name @ ..] => UnixAddr::from_abstract_name(name)?,
                _ => UnixAddr::from_pathname(&socket)?,
            };
            return from.send_to_addr(bytes, &address);
        };
        let address = match name {
            [b'@', name @ ..] => SocketAddrUnix::new_abstract_name(name)?,
            _ => SocketAddrUnix::new(&*socket)?,
        };
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut message = SendAncillaryBuffer::new(&mut space);
        let descriptors = [descriptor];
        message.push(SendAncillaryMessage::ScmRights(&descriptors));
        let sent = sendmsg_addr(&from, &address, &[IoSlice::new(bytes)], &mut message, SendFlags::NOSIGNAL);
        Ok(sent?)
    };
    if let Err(error) = send() {
        tracing::warn!("cannot tell the service manager `{}`: {error}", state.replace('\n', " "));
    }
}
