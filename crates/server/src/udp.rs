//! Small services over UDP: a thread for each address answers each datagram with one datagram.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt};

/// Binds a socket. An IPv6 wildcard address is for IPv6 only.
pub(crate) fn bound(address: SocketAddr) -> io::Result<UdpSocket> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket: OwnedFd = socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    bind(&socket, &address)?;
    Ok(socket.into())
}

/// Answers datagrams until the process ends. `answer` appends the answer; none is sent if there is none. It returns
/// false to end the service.
pub(crate) fn serve(
    name: &str,
    socket: UdpSocket,
    mut answer: impl FnMut(&[u8], SocketAddr, &mut Vec<u8>) -> bool + Send + 'static,
) -> io::Result<()> {
    let work = move || {
        let mut call = [0; 2048];
        let mut reply = Vec::with_capacity(128);
        loop {
            // An error belongs to an earlier answer (a closed port, for example), not to the socket.
            let Ok((len, from)) = socket.recv_from(&mut call) else { continue };
            reply.clear();
            if !answer(&call[..len], from, &mut reply) {
                return;
            }
            if !reply.is_empty() {
                let _ = socket.send_to(&reply, from);
            }
        }
    };
    std::thread::Builder::new().name(name.into()).spawn(work).map(drop)
}
