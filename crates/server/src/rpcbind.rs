//! The registration with the rpcbind of this host.
//!
//! Calls go over rpcbind's local socket if it exists: rpcbind takes them from any user, whatever the rules for loopback
//! are. Without the socket they go over UDP from a reserved port, which rpcbind demands then (rpcbind(8)).

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use forebay_common::lock::{Condvar, Mutex};
use forebay_nfs::Ports;
use forebay_wire::Opaque;
use forebay_wire::portmap::{IPPROTO_TCP, IPPROTO_UDP, Mapping, PORT, PROGRAM, Procedure, VERSION};
use forebay_wire::rpc::{Auth, CallHeader, OpaqueAuth, ReplyHeader, ReplyStatus};
use forebay_wire::rpcbind::{self, Rpcb};
use forebay_wire::xdr::{Decode, Encode, Reader};
use forebay_wire::{mount3, nfs3, nlm4};

use crate::error::Error;

/// The local socket of rpcbind.
const SOCKET: &str = "/run/rpcbind.sock";
/// The time after which a call to rpcbind fails.
const PATIENCE: Duration = Duration::from_secs(2);
/// The time between two looks at the registration. After a restart, rpcbind has forgotten it.
const LOOK: Duration = Duration::from_secs(5);
/// The longest reply of rpcbind, in bytes.
const REPLY: usize = 256;
/// The bit of a record mark that ends a message (RFC 5531 section 11).
const LAST_FRAGMENT: u32 = 1 << 31;

/// The registration of all programs, kept until [`Registration::end`].
pub(crate) struct Registration {
    programs: Programs,
    is_ended: Arc<(Mutex<bool>, Condvar)>,
}

#[derive(Clone, Copy)]
struct Programs {
    ports: Ports,
    /// True if clients come over IPv6 as well.
    ipv6: bool,
}

impl Registration {
    /// Registers all programs, or none. A thread registers them again when rpcbind has restarted.
    pub(crate) fn begin(listen: &[SocketAddr], ports: Ports) -> Result<Self, Error> {
        let programs = Programs { ports, ipv6: listen.iter().any(SocketAddr::is_ipv6) };
        for mapping in ports.mappings() {
            let held = number(Procedure::Getport, &mapping).map_err(failed)?;
            if held != 0 && held != mapping.port && is_in_use(held, &mapping) {
                return Err(Error::RpcbindHeld { program: name(mapping.prog), port: held });
            }
        }
        // A registration that a crashed server left would refuse the new port.
        programs.unregister();
        programs.register()?;
        let is_ended: Arc<(Mutex<bool>, Condvar)> = Arc::default();
        let ended = is_ended.clone();
        let thread = std::thread::Builder::new().name("rpcbind".into());
        thread.spawn(move || programs.keep(&ended)).map_err(Error::System)?;
        Ok(Registration { programs, is_ended })
    }

    /// Withdraws the registration. If rpcbind no longer runs, there is nothing to withdraw.
    pub(crate) fn end(self) {
        // The thread registers nothing from here on: it does so only with this lock.
        *self.is_ended.0.lock() = true;
        self.is_ended.1.notify_all();
        self.programs.unregister();
    }
}

impl Programs {
    /// Registers all programs with rpcbind. If rpcbind refuses one, withdraws all of them and fails.
    fn register(self) -> Result<(), Error> {
        for mapping in self.ports.mappings() {
            match number(Procedure::Set, &mapping) {
                Ok(1) => {}
                Ok(_) => {
                    self.unregister();
                    return Err(Error::Rpcbind(format!("it refused {}", name(mapping.prog))));
                }
                Err(error) => return Err(failed(error)),
            }
            // Version 2 of the portmapper knows IPv4 only. A portmapper without version 4 has no clients over IPv6.
            if self.ipv6 {
                let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, mapping.port as u16));
                let _ = rpcb(rpcbind::Procedure::Set, &mapping, &rpcbind::universal(&any));
            }
        }
        Ok(())
    }

    /// Withdraws all programs, as far as rpcbind answers. Errors are ignored: a stale registration only misleads
    /// clients that ask for a port.
    fn unregister(self) {
        for mapping in self.ports.mappings() {
            let _ = number(Procedure::Unset, &mapping);
            let _ = rpcb(rpcbind::Procedure::Unset, &mapping, "");
        }
    }

    /// Registers the programs again whenever rpcbind does not know the first one, until the registration ends.
    fn keep(self, (is_ended, changed): &(Mutex<bool>, Condvar)) {
        let Some(first) = self.ports.mappings().first().copied() else { return };
        loop {
            let ended = changed.wait_while_for(is_ended.lock(), LOOK, |ended| !*ended);
            if *ended {
                return;
            }
            // While rpcbind does not run, the call fails.
            if matches!(number(Procedure::Getport, &first), Ok(0)) {
                match self.register() {
                    Ok(()) => tracing::info!("rpcbind has restarted: all programs are registered again"),
                    Err(error) => tracing::warn!("rpcbind has restarted: {error}"),
                }
            }
        }
    }
}

fn failed(error: io::Error) -> Error {
    Error::Rpcbind(error.to_string())
}

/// Returns true if rpcbind runs on this host.
pub(crate) fn runs() -> bool {
    let at = SocketAddr::from((Ipv4Addr::LOCALHOST, PORT));
    UnixStream::connect(SOCKET).is_ok() || TcpStream::connect_timeout(&at, Duration::from_secs(1)).is_ok()
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

/// Calls a procedure of rpcbind. Returns its result: a port, or 1 for true.
fn number(procedure: Procedure, mapping: &Mapping) -> io::Result<u32> {
    call(VERSION, procedure as u32, mapping)
}

/// Calls a procedure of rpcbind over its local socket, or over UDP without that socket. Returns the number in the
/// reply, and 0 if rpcbind refuses the call.
fn call(vers: u32, proc: u32, args: &impl Encode) -> io::Result<u32> {
    let xid = std::process::id();
    let mut message = Vec::new();
    let (cred, verf) = (Auth::None, OpaqueAuth::NONE);
    CallHeader { xid, prog: PROGRAM, vers, proc, cred, verf }.encode(&mut message);
    args.encode(&mut message);
    let reply = match UnixStream::connect(Path::new(SOCKET)) {
        Ok(stream) => over_stream(stream, &message)?,
        Err(_) => over_udp(&message)?,
    };
    let mut reader = Reader::new(&reply);
    match ReplyHeader::decode(&mut reader).map_err(bad)? {
        ReplyHeader { xid: answered, status: ReplyStatus::Success } if answered == xid => {
            reader.u32().map_err(bad)
        }
        _ => Ok(0),
    }
}

fn bad<E>(_: E) -> io::Error {
    io::ErrorKind::InvalidData.into()
}

/// Calls over the local socket. Returns the reply.
fn over_stream(mut stream: UnixStream, message: &[u8]) -> io::Result<Vec<u8>> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mark = LAST_FRAGMENT | message.len() as u32;
    stream.write_all(&[&mark.to_be_bytes()[..], message].concat())?;
    let mut mark = [0; 4];
    stream.read_exact(&mut mark)?;
    let mark = u32::from_be_bytes(mark);
    let len = (mark & !LAST_FRAGMENT) as usize;
    if mark & LAST_FRAGMENT == 0 || len > REPLY {
        return Err(bad(()));
    }
    let mut reply = vec![0; len];
    stream.read_exact(&mut reply)?;
    Ok(reply)
}

/// Calls over UDP. Returns the reply.
fn over_udp(message: &[u8]) -> io::Result<Vec<u8>> {
    let socket = reserved_socket()?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.connect((IpAddr::V4(Ipv4Addr::LOCALHOST), PORT))?;
    socket.send(message)?;
    let mut reply = vec![0; REPLY];
    let len = socket.recv(&mut reply)?;
    reply.truncate(len);
    Ok(reply)
}

/// Returns a UDP socket at a privileged port: rpcbind accepts registrations from such ports only. Fails if all ports
/// from 600 to 1023 are in use.
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
