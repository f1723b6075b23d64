//! Listening sockets, and the choice of a loop for each new connection.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rustix::fs::{FileType, Mode};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::net::sockopt::{
    set_ipv6_v6only, set_socket_keepalive, set_socket_reuseaddr, set_tcp_keepcnt, set_tcp_keepidle,
    set_tcp_keepintvl, set_tcp_nodelay,
};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, acceptfrom_with, bind, connect, getsockname,
    listen, socket_with,
};

use crate::addresses::Addresses;
use crate::bounds::Bounds;
use crate::callback::Line;
use crate::home::{Home, Post};
use crate::rate::LastRate;
use crate::service::Peer;
use crate::stats::CloseReason;

/// Connections that the kernel keeps before they are accepted; the kernel lowers the number to net.core.somaxconn.
const BACKLOG: i32 = 4096;
/// Connections accepted at most before served connections get their turn. The remaining ones wake the loop again at
/// once.
const AT_ONCE: usize = 8;
/// Pause after the process or system ran out of file descriptors or memory for sockets.
const PAUSE: Duration = Duration::from_millis(100);
/// The address of all clients of Unix sockets. No client of TCP has it, so none takes places or memory from them.
const LOCAL: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
/// The time in which at most one warning about the pause is logged.
const WARN_EVERY: Duration = Duration::from_secs(10);

/// Opens a listening socket. IPv6 sockets take IPv6 only, so that both families may use one port.
pub(crate) fn listen_on(addr: SocketAddr) -> Result<(OwnedFd, SocketAddr), Errno> {
    let family = if addr.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let fd = socket_with(family, SocketType::STREAM, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC, None)?;
    set_socket_reuseaddr(&fd, true)?;
    if addr.is_ipv6() {
        set_ipv6_v6only(&fd, true)?;
    }
    set_up(&fd)?;
    bind(&fd, &addr)?;
    listen(&fd, BACKLOG)?;
    let bound = SocketAddr::try_from(getsockname(&fd)?)?;
    Ok((fd, bound))
}

/// Opens a listening Unix socket at `path` with these permissions. Takes the place of a socket on which no process
/// listens.
pub(crate) fn listen_at(path: &Path, mode: u32) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let fd = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    let addr = SocketAddrUnix::new(path)?;
    if let Err(error) = bind(&fd, &addr) {
        let is_socket = rustix::fs::lstat(path)
            .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Socket);
        let probe = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        if error != Errno::ADDRINUSE || !is_socket || connect(&probe, &addr) != Err(Errno::CONNREFUSED) {
            return Err(error);
        }
        rustix::fs::unlink(path)?;
        bind(&fd, &addr)?;
    }
    rustix::fs::chmod(path, Mode::from_raw_mode(mode))?;
    listen(&fd, BACKLOG)?;
    Ok(fd)
}

/// Returns a listening socket of its own for one that another process has opened, set up as [`listen_on`] does. The
/// connections that wait in it are accepted.
pub(crate) fn take_over(socket: &OwnedFd) -> Result<OwnedFd, Errno> {
    let fd = fcntl_dupfd_cloexec(socket, 3)?;
    rustix::io::ioctl_fionbio(&fd, true)?;
    set_up(&fd)?;
    // A socket that listens takes another number of waiting connections (listen(2)).
    listen(&fd, BACKLOG)?;
    Ok(fd)
}

/// A listening socket.
pub(crate) struct Listener {
    pub(crate) fd: OwnedFd,
    /// True for a Unix socket.
    pub(crate) is_local: bool,
}

/// The rules for admission, and the receivers of news about refused connections.
pub(crate) struct Door<'a> {
    pub(crate) admits: &'a dyn Fn(IpAddr) -> bool,
    pub(crate) refused: &'a dyn Fn(SocketAddr, CloseReason),
}

pub(crate) struct Acceptor {
    sockets: Vec<Listener>,
    homes: Arc<[Arc<Home>]>,
    addresses: Arc<Addresses>,
    bounds: Arc<Bounds>,
    next_id: u64,
    paused_until: Option<Instant>,
    warned: Option<Instant>,
}

impl Acceptor {
    /// Returns an acceptor that gives each new connection to one of the event loops in `homes`. The caller watches
    /// the sockets.
    pub(crate) fn new(
        sockets: Vec<Listener>,
        homes: Arc<[Arc<Home>]>,
        addresses: Arc<Addresses>,
        bounds: Arc<Bounds>,
    ) -> Self {
        Self { sockets, homes, addresses, bounds, next_id: 1, paused_until: None, warned: None }
    }

    pub(crate) fn sockets(&self) -> impl Iterator<Item = &OwnedFd> {
        self.sockets.iter().map(|listener| &listener.fd)
    }

    pub(crate) fn paused_until(&self) -> Option<Instant> {
        self.paused_until
    }

    pub(crate) fn go_on(&mut self) {
        self.paused_until = None;
    }

    /// Accepts the waiting connections and gives them to the loops. Returns false if accepting has to pause.
    pub(crate) fn accept(&mut self, now: Instant, door: &Door<'_>) -> bool {
        for index in 0..self.sockets.len() {
            for _ in 0..AT_ONCE {
                match self.accept_one(index, door) {
                    Ok(()) => {}
                    Err(Errno::AGAIN) => break,
                    Err(error @ (Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)) => {
                        self.pause(error, now);
                        return false;
                    }
                    // The connection died before it was accepted (accept(2) lists the network's errors).
                    Err(_) => {}
                }
            }
        }
        true
    }

    /// Accepts one connection, and gives it to the event loop with the fewest. A refused connection is closed at once.
    fn accept_one(&mut self, index: usize, door: &Door<'_>) -> Result<(), Errno> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let Listener { fd, is_local } = &self.sockets[index];
        let is_local = *is_local;
        let (fd, addr) = acceptfrom_with(fd.as_fd(), flags)?;
        let addr = match is_local {
            true => LOCAL,
            false => SocketAddr::try_from(addr.ok_or(Errno::NOTCONN)?)?,
        };
        let from = addr.ip().to_canonical();
        if !(door.admits)(from) {
            (door.refused)(addr, CloseReason::Stranger);
            return Ok(());
        }
        let Some(seat) = self.addresses.seat(from) else {
            (door.refused)(addr, CloseReason::Crowded);
            return Ok(());
        };
        let peer = Arc::new(Peer {
            id: self.next_id,
            addr,
            is_local,
            line: Line::default(),
            security: OnceLock::new(),
            last_rate: LastRate::default(),
        });
        self.next_id += 1;
        let loads = || self.homes.iter().map(|home| home.load.load(Relaxed));
        let evict = loads().sum::<usize>() >= self.bounds.max_connections();
        if let Some(home) = self.homes.iter().min_by_key(|home| home.load.load(Relaxed)) {
            home.load.fetch_add(1, Relaxed);
            home.post(Post::Adopt { fd, peer, seat, evict });
        }
        Ok(())
    }

    /// Stops accepting for `PAUSE`, because the process lacks descriptors or memory. Warns of that at most once per
    /// `WARN_EVERY`.
    fn pause(&mut self, error: Errno, now: Instant) {
        self.paused_until = Some(now + PAUSE);
        if self.warned.is_none_or(|at| now.duration_since(at) >= WARN_EVERY) {
            self.warned = Some(now);
            tracing::warn!(%error, "cannot accept connections: raise the limit of open files or close idle clients");
        }
    }
}

/// Sets the options of a listening socket: replies are never held back, and a vanished peer is found after about ten
/// minutes. Linux hands these options down to the accepted sockets, which saves five system calls for each.
fn set_up(fd: &OwnedFd) -> Result<(), Errno> {
    set_tcp_nodelay(fd, true)?;
    set_socket_keepalive(fd, true)?;
    set_tcp_keepidle(fd, Duration::from_secs(300))?;
    set_tcp_keepintvl(fd, Duration::from_secs(30))?;
    set_tcp_keepcnt(fd, 10)
}

#[cfg(test)]
mod tests {
    use rustix::net::accept;
    use rustix::net::sockopt::{socket_keepalive, tcp_keepcnt, tcp_keepidle, tcp_keepintvl, tcp_nodelay};

    use super::*;

    #[test]
    fn an_accepted_socket_has_the_options_of_the_listening_one() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok((listening, address)) = listen_on(address.parse().unwrap()) else { continue };
            let _client = std::net::TcpStream::connect(address).unwrap();
            rustix::io::ioctl_fionbio(&listening, false).unwrap();
            let fd = accept(&listening).unwrap();
            assert!(tcp_nodelay(&fd).unwrap() && socket_keepalive(&fd).unwrap());
            let times = [tcp_keepidle(&fd), tcp_keepintvl(&fd)].map(|time| time.unwrap().as_secs());
            assert_eq!((times, tcp_keepcnt(&fd).unwrap()), ([300, 30], 10));
        }
    }
}
