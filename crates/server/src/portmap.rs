//! Port 111: registers with the rpcbind of this host, or answers GETPORT itself.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::sync::{Arc, Weak};
use std::time::Duration;

use forebay_config::{Portmap, is_loopback};
use forebay_control::{EventLog, Severity};
use forebay_nfs::{Nfs, Ports};
use forebay_rpc::{Config, Handled, Message, Reply, Running, Server, Service};
use forebay_wire::Opaque;
use forebay_wire::portmap::{IPPROTO_TCP, IPPROTO_UDP, Mapping, PORT, PROGRAM, Procedure, VERSION};
use forebay_wire::rpc::{Auth, CallHeader, OpaqueAuth, ReplyHeader, ReplyStatus};
use forebay_wire::rpcbind::{self, Rpcb};
use forebay_wire::xdr::{Decode, Encode, Reader};
use forebay_wire::{mount3, nfs3, nlm4};

use crate::error::Error;
use crate::serve::listen_error;
use crate::udp;

/// The use of port 111 while clients are served.
pub(crate) enum Found {
    /// None.
    Nowhere,
    /// Programs are registered with rpcbind.
    Registered(Ports),
    /// The server answers.
    Answering(Running),
}

impl Found {
    /// Lets clients find the programs as `how` says. With `auto` a failure is an event.
    pub(crate) fn begin(
        how: Portmap,
        listen: &[SocketAddr],
        ports: Ports,
        nfs: &Arc<Nfs>,
        events: &EventLog,
    ) -> Result<Self, Error> {
        let answer = || answer(listen, Portmapper { ports, nfs: Arc::downgrade(nfs) });
        match how {
            Portmap::Off => Ok(Found::Nowhere),
            Portmap::Answer => answer(),
            Portmap::Register => register(listen, ports),
            Portmap::Auto if listen.iter().all(is_loopback) => Ok(Found::Nowhere),
            Portmap::Auto => {
                let found = if rpcbind_runs() { register(listen, ports) } else { answer() };
                found.or_else(|error| {
                    let message = format!(
                        "clients do not find NFS and its locks on port 111: {error}; mount with port, mountport and \
                         nolock, or serve with --portmap=off"
                    );
                    events.add(Severity::Warning, "portmap", message, &[]);
                    Ok(Found::Nowhere)
                })
            }
        }
    }

    pub(crate) fn end(self) {
        match self {
            Found::Nowhere => {}
            Found::Registered(ports) => unregister(ports),
            Found::Answering(tcp) => tcp.shutdown(Duration::from_secs(1)),
        }
    }
}

/// The server's portmapper. It answers the addresses to which some export is open: an answer over UDP may be longer
/// than its question, and a forged address must not direct it to another host.
#[derive(Clone)]
struct Portmapper {
    ports: Ports,
    nfs: Weak<Nfs>,
}

impl Service for Portmapper {
    fn handle(&self, message: Message<'_>, reply: &mut Reply<'_>) -> Handled {
        self.ports.handle(message, reply)
    }

    fn admits(&self, address: IpAddr) -> bool {
        self.nfs.upgrade().is_some_and(|nfs| nfs.admits(address))
    }
}

/// Starts to answer on the addresses that NFS listens on.
fn answer(listen: &[SocketAddr], portmapper: Portmapper) -> Result<Found, Error> {
    let addresses: Vec<_> = listen.iter().map(|address| SocketAddr::new(address.ip(), PORT)).collect();
    let bound = |address: &SocketAddr| udp::bound(*address).map_err(|source| listen_error(*address, source));
    let sockets = addresses.iter().map(bound).collect::<Result<Vec<_>, _>>()?;
    let config = Config { threads: 1, max_record: 4096, max_connections: 256, ..Config::default() };
    let server = Server::bind(&addresses, config, Arc::new(portmapper.clone()));
    let tcp = server.and_then(Server::spawn).map_err(|error| match error {
        forebay_rpc::StartError::Listen { addr, source } => listen_error(addr, source),
        forebay_rpc::StartError::Loop(source) => Error::System(source),
    })?;
    for socket in sockets {
        let portmapper = portmapper.clone();
        udp::serve("portmap-udp", socket, move |call, from, reply| {
            if portmapper.admits(from.ip()) {
                portmapper.ports.answer(call, reply);
            }
            true
        })?;
    }
    Ok(Found::Answering(tcp))
}

/// Returns true if rpcbind runs on this host.
fn rpcbind_runs() -> bool {
    let at = SocketAddr::from((Ipv4Addr::LOCALHOST, PORT));
    TcpStream::connect_timeout(&at, Duration::from_secs(1)).is_ok()
}

/// Registers with rpcbind. All programs are registered, or none.
fn register(listen: &[SocketAddr], ports: Ports) -> Result<Found, Error> {
    let failed = |error: io::Error| Error::Rpcbind(error.to_string());
    for mapping in ports.mappings() {
        let held = number(Procedure::Getport, &mapping).map_err(failed)?;
        if held != 0 && held != mapping.port && is_in_use(held, &mapping) {
            return Err(Error::RpcbindHeld { program: name(mapping.prog), port: held });
        }
    }
    // A registration that a crashed server left would refuse the new port.
    unregister(ports);
    for mapping in ports.mappings() {
        match number(Procedure::Set, &mapping) {
            Ok(1) => {}
            Ok(_) => {
                unregister(ports);
                return Err(Error::Rpcbind(format!("it refused {}", name(mapping.prog))));
            }
            Err(error) => return Err(failed(error)),
        }
        // Version 2 of the portmapper knows IPv4 only. A portmapper without version 4 has no clients over IPv6.
        if listen.iter().any(SocketAddr::is_ipv6) {
            let _ = set_ipv6(&mapping);
        }
    }
    Ok(Found::Registered(ports))
}

/// Returns true if a program of this host listens on the TCP port of a registration. A registration over UDP is not
/// tested: its program is registered over TCP as well.
fn is_in_use(port: u32, mapping: &Mapping) -> bool {
    let at = SocketAddr::from((Ipv4Addr::LOCALHOST, port as u16));
    mapping.prot == IPPROTO_TCP && TcpStream::connect_timeout(&at, Duration::from_secs(1)).is_ok()
}

/// Returns the name of a program for an administrator.
fn name(program: u32) -> &'static str {
    match program {
        nfs3::PROGRAM => "nfs",
        mount3::PROGRAM => "mountd",
        nlm4::PROGRAM => "nlockmgr (lockd)",
        _ => "status (rpc.statd)",
    }
}

/// Withdraws the registration. If rpcbind no longer runs, there is nothing to withdraw.
fn unregister(ports: Ports) {
    for mapping in ports.mappings() {
        let _ = number(Procedure::Unset, &mapping);
        let _ = rpcb(rpcbind::Procedure::Unset, &mapping, "");
    }
}

/// Registers a program for IPv6.
fn set_ipv6(mapping: &Mapping) -> io::Result<u32> {
    let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, mapping.port as u16));
    rpcb(rpcbind::Procedure::Set, mapping, &rpcbind::universal(&any))
}

/// Calls a procedure of rpcbind, version 4, for the IPv6 transport of a program.
fn rpcb(procedure: rpcbind::Procedure, mapping: &Mapping, address: &str) -> io::Result<u32> {
    let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0));
    let netid = rpcbind::netid(&any, mapping.prot == IPPROTO_UDP);
    let args = Rpcb {
        prog: mapping.prog,
        vers: mapping.vers,
        netid: Opaque(netid.as_bytes()),
        addr: Opaque(address.as_bytes()),
        owner: Opaque(b"superuser"),
    };
    call(rpcbind::VERSION_4, procedure as u32, &args)
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

/// Calls a procedure of rpcbind. Returns its result: a port, or 1 for true.
fn number(procedure: Procedure, mapping: &Mapping) -> io::Result<u32> {
    call(VERSION, procedure as u32, mapping)
}

fn call(vers: u32, proc: u32, args: &impl Encode) -> io::Result<u32> {
    let socket = reserved_socket()?;
    socket.set_read_timeout(Some(Duration::from_secs(2)))?;
    socket.connect((IpAddr::V4(Ipv4Addr::LOCALHOST), PORT))?;
    let xid = std::process::id();
    let mut message = Vec::new();
    let (cred, verf) = (Auth::None, OpaqueAuth::NONE);
    CallHeader { xid, prog: PROGRAM, vers, proc, cred, verf }.encode(&mut message);
    args.encode(&mut message);
    socket.send(&message)?;
    let mut reply = [0; 256];
    let len = socket.recv(&mut reply)?;
    let mut reader = Reader::new(&reply[..len]);
    let bad = |_| io::Error::from(io::ErrorKind::InvalidData);
    match ReplyHeader::decode(&mut reader).map_err(bad)? {
        ReplyHeader { xid: answered, status: ReplyStatus::Success } if answered == xid => {
            reader.u32().map_err(bad)
        }
        _ => Ok(0),
    }
}
