//! Port 111: registers with the rpcbind of this host, or answers GETPORT itself.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use forebay_nfs::Ports;
use forebay_rpc::{Config, Running, Server};
use forebay_wire::portmap::{Mapping, PORT, PROGRAM, Procedure, VERSION};
use forebay_wire::rpc::{Auth, CallHeader, OpaqueAuth, ReplyHeader, ReplyStatus};
use forebay_wire::xdr::{Decode, Encode, Reader};

use crate::error::Error;
use crate::serve::listen_error;

/// Answers GETPORT on port 111, TCP and UDP, while it lives.
pub(crate) struct Answering {
    tcp: Running,
}

/// Starts to answer on the addresses that NFS listens on.
pub(crate) fn answer(listen: &[SocketAddr], ports: Ports) -> Result<Answering, Error> {
    let addresses: Vec<_> = listen.iter().map(|address| SocketAddr::new(address.ip(), PORT)).collect();
    for address in &addresses {
        let socket = UdpSocket::bind(address).map_err(|source| listen_error(*address, source))?;
        std::thread::Builder::new().name("portmap-udp".into()).spawn(move || serve_udp(&socket, ports))?;
    }
    let config = Config { threads: 1, max_record: 4096, max_connections: 256, ..Config::default() };
    let server = Server::bind(&addresses, config, Arc::new(ports));
    let tcp = server.and_then(Server::spawn).map_err(|error| match error {
        forebay_rpc::StartError::Listen { addr, source } => listen_error(addr, source),
        forebay_rpc::StartError::Loop(source) => Error::System(source),
    })?;
    Ok(Answering { tcp })
}

impl Answering {
    pub(crate) fn stop(self) {
        self.tcp.shutdown(Duration::from_secs(1));
    }
}

/// Answers each datagram with one datagram, until the process ends.
fn serve_udp(socket: &UdpSocket, ports: Ports) {
    let mut call = [0; 1024];
    let mut reply = Vec::with_capacity(128);
    loop {
        // An error belongs to an earlier answer (a closed port, for example), not to the socket.
        let Ok((len, from)) = socket.recv_from(&mut call) else { continue };
        reply.clear();
        ports.answer(&call[..len], &mut reply);
        if !reply.is_empty() {
            let _ = socket.send_to(&reply, from);
        }
    }
}

/// Registers with rpcbind; [`unregister`] withdraws the registration.
pub(crate) fn register(ports: Ports) -> Result<(), Error> {
    // A registration that a crashed server left would refuse the new port.
    unregister(ports);
    for mapping in ports.mappings() {
        match call(Procedure::Set, &mapping) {
            Ok(true) => {}
            Ok(false) => return Err(Error::Rpcbind("it refused".into())),
            Err(error) => return Err(Error::Rpcbind(error.to_string())),
        }
    }
    Ok(())
}

/// Withdraws the registration. If rpcbind no longer runs, there is nothing to withdraw.
pub(crate) fn unregister(ports: Ports) {
    for mapping in ports.mappings() {
        let _ = call(Procedure::Unset, &mapping);
    }
}

/// Binds a reserved port: rpcbind takes SET and UNSET only from this host and from a reserved port (rpcbind(8)).
fn reserved_socket() -> io::Result<UdpSocket> {
    let ports = (600..1024).rev();
    let mut last = io::ErrorKind::AddrInUse.into();
    for port in ports {
        match UdpSocket::bind((Ipv4Addr::LOCALHOST, port)) {
            Ok(socket) => return Ok(socket),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => last = error,
            Err(error) => return Err(error),
        }
    }
    Err(last)
}

fn call(procedure: Procedure, mapping: &Mapping) -> io::Result<bool> {
    let socket = reserved_socket()?;
    socket.set_read_timeout(Some(Duration::from_secs(2)))?;
    socket.connect((IpAddr::V4(Ipv4Addr::LOCALHOST), PORT))?;
    let xid = std::process::id();
    let mut message = Vec::new();
    let (cred, verf) = (Auth::None, OpaqueAuth::NONE);
    CallHeader { xid, prog: PROGRAM, vers: VERSION, proc: procedure as u32, cred, verf }.encode(&mut message);
    mapping.encode(&mut message);
    socket.send(&message)?;
    let mut reply = [0; 256];
    let len = socket.recv(&mut reply)?;
    let mut reader = Reader::new(&reply[..len]);
    let bad = |_| io::Error::from(io::ErrorKind::InvalidData);
    match ReplyHeader::decode(&mut reader).map_err(bad)? {
        ReplyHeader { xid: answered, status: ReplyStatus::Success } if answered == xid => {
            reader.bool().map_err(bad)
        }
        _ => Ok(false),
    }
}
