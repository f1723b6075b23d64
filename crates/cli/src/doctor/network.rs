//! Checks of addresses and of other servers on this host.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use forebay_config::state_base;

use super::Check;
use crate::control;

/// The reason why `--apply` does not change an address.
const LISTEN: &str = "only you know the address that clients use";

/// Checks the addresses that a server will listen on.
pub(crate) fn check(listen: &[SocketAddr]) -> Vec<Check> {
    let mut checks: Vec<Check> = listen.iter().map(port).collect();
    checks.push(portmapper());
    checks.extend(kernel_server());
    checks
}

/// Checks that the server may listen on an address, by trying that for a moment. An address in use by Forebay is
/// fine.
fn port(address: &SocketAddr) -> Check {
    let subject = format!("address {address}");
    let Err(error) = TcpListener::bind(address) else { return Check::ok(subject, "free") };
    match error.kind() {
        ErrorKind::AddrInUse => match forebay_on(address) {
            Some(pid) => Check::ok(subject, format!("in use by forebay (pid {pid})")),
            None => Check::fail(subject, "in use by another program").mend(
                format!("ss -ltnp 'sport = :{}' names it; stop it, or use --listen", address.port()),
                "only you know which of the two programs is to have it",
            ),
        },
        ErrorKind::PermissionDenied => Check::fail(subject, "this user may not use ports below 1024")
            .mend("use a port from 1024 on, such as 2049 or 12049", LISTEN),
        ErrorKind::AddrNotAvailable => Check::fail(subject, "no interface of this host has the address")
            .mend("ip address show; correct --listen", LISTEN),
        _ => Check::fail(subject, format!("cannot be used: {error}")),
    }
}

/// Returns the process id of this user's server that listens on the address.
fn forebay_on(address: &SocketAddr) -> Option<u32> {
    let running = control::look(&state_base()?).ok()?.running;
    let serves = |own: &SocketAddr| own.port() == address.port();
    running.into_iter().find(|(_, status)| status.listen.iter().any(serves)).map(|(_, status)| status.pid)
}

/// Says if the host has a portmapper, which decides how `serve` offers its ports. Waits half a second at most.
fn portmapper() -> Check {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 111));
    match TcpStream::connect_timeout(&address, Duration::from_millis(500)) {
        Ok(_) => Check::ok(
            "portmapper",
            "a portmapper answers on port 111; `serve` registers with it if it listens on an address beyond loopback",
        ),
        Err(_) => Check::ok(
            "portmapper",
            "no portmapper answers on port 111; `serve` answers there itself if it listens on an address beyond loopback",
        ),
    }
}

/// Checks that Linux's own NFS server does not run, because it must not export Forebay's directories.
fn kernel_server() -> Option<Check> {
    let threads: u64 = std::fs::read_to_string("/proc/fs/nfsd/threads").ok()?.trim().parse().ok()?;
    if threads == 0 {
        return None;
    }
    let finding = format!("runs with {threads} threads: two servers must not export the same directory");
    Some(Check::warn("kernel NFS server", finding).mend(
        "exportfs -v shows its exports; systemctl disable --now nfs-server",
        "clients may use its exports",
    ))
}
