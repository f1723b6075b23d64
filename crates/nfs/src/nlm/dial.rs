//! One call to a client: asks its rpcbind for the port, calls over TCP and else over UDP. Waits for seconds at most.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use forebay_wire::Opaque;
use forebay_wire::portmap::{self, IPPROTO_TCP, IPPROTO_UDP, Mapping};
use forebay_wire::rpc::{
    Auth, AuthSys, CallHeader, Gids, LAST_FRAGMENT, OpaqueAuth, ReplyHeader, ReplyStatus,
};
use forebay_wire::rpcbind::{self, Rpcb};
use forebay_wire::xdr::{Decode, Encode, Reader};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::calls::Job;

/// The time for the answer to one message.
const PATIENCE: Duration = Duration::from_secs(3);
/// The longest answer in bytes.
const MAX_REPLY: usize = 4096;

/// The reason why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The call did not reach the program of the client.
    Unsent,
    /// The call was sent, so the client may have carried it out.
    Unanswered,
}

/// Calls a procedure of a client. Returns the bytes of the result.
pub(super) fn call(job: &Job, source: Option<IpAddr>) -> Result<Vec<u8>, Failure> {
    let mut failure = Failure::Unsent;
    for protocol in [IPPROTO_TCP, IPPROTO_UDP] {
        let Some(port) = port_of(job, protocol, source) else { continue };
        let message = message(job.program, job.version, job.procedure, &job.args);
        match exchange(SocketAddr::new(job.to, port), protocol, source, &message) {
            Ok(result) => return Ok(result),
            Err(Failure::Unsent) => {}
            Err(Failure::Unanswered) => failure = Failure::Unanswered,
        }
        if failure == Failure::Unanswered {
            break;
        }
    }
    Err(failure)
}

/// Asks the rpcbind of the client for the port of a program.
fn port_of(job: &Job, protocol: u32, source: Option<IpAddr>) -> Option<u16> {
    let at = SocketAddr::new(job.to, portmap::PORT);
    let mut args = Vec::new();
    let message = if job.to.is_ipv4() {
        Mapping { prog: job.program, vers: job.version, prot: protocol, port: 0 }.encode(&mut args);
        message(portmap::PROGRAM, portmap::VERSION, portmap::Procedure::Getport as u32, &args)
    } else {
        let netid = rpcbind::netid(&at, protocol == IPPROTO_UDP).as_bytes();
        let asked = Rpcb {
            prog: job.program,
            vers: job.version,
            netid: Opaque(netid),
            addr: Opaque(b""),
            owner: Opaque(b""),
        };
        asked.encode(&mut args);
        message(rpcbind::PROGRAM, rpcbind::VERSION_4, rpcbind::Procedure::Getversaddr as u32, &args)
    };
    let asked = [IPPROTO_TCP, IPPROTO_UDP].map(|protocol| exchange(at, protocol, source, &message));
    let result = asked.into_iter().find_map(Result::ok)?;
    let mut reader = Reader::new(&result);
    let port = if job.to.is_ipv4() {
        u16::try_from(reader.u32().ok()?).ok()?
    } else {
        rpcbind::parse_universal(rpcbind::Text::decode(&mut reader).ok()?.0)?.port()
    };
    (port != 0).then_some(port)
}

/// Returns an RPC call with AUTH_SYS of root, and its transaction id, which the reply has to repeat.
fn message(prog: u32, vers: u32, proc: u32, args: &[u8]) -> (u32, Vec<u8>) {
    let mut xid = [0; 4];
    // The number need not be unpredictable: a call has a socket of its own.
    let _ = rustix::rand::getrandom(&mut xid, rustix::rand::GetRandomFlags::NONBLOCK);
    let xid = u32::from_ne_bytes(xid);
    let mut out = Vec::new();
    let gids = Gids::default();
    let cred = Auth::Sys(AuthSys { stamp: 0, machine_name: b"forebay", uid: 0, gid: 0, gids });
    CallHeader { xid, prog, vers, proc, cred, verf: OpaqueAuth::NONE }.encode(&mut out);
    out.extend_from_slice(args);
    (xid, out)
}

/// Sends a call to an address and waits for the reply, up to `PATIENCE`. Returns the result of the procedure. The
/// error says if the call may have reached the client.
fn exchange(
    to: SocketAddr,
    protocol: u32,
    source: Option<IpAddr>,
    (xid, message): &(u32, Vec<u8>),
) -> Result<Vec<u8>, Failure> {
    let until = Instant::now() + PATIENCE;
    let reply = match protocol {
        IPPROTO_TCP => {
            let mut stream = connect(to, source, until).map_err(|_| Failure::Unsent)?;
            over_tcp(&mut stream, message, until).map_err(|_| Failure::Unanswered)?
        }
        _ => over_udp(to, source, message, until)?,
    };
    let mut reader = Reader::new(&reply);
    match ReplyHeader::decode(&mut reader) {
        Ok(ReplyHeader { xid: answered, status: ReplyStatus::Success }) if answered == *xid => {
            Ok(reader.rest().to_vec())
        }
        // The program refuses the call.
        Ok(ReplyHeader { xid: answered, .. }) if answered == *xid => Err(Failure::Unsent),
        _ => Err(Failure::Unanswered),
    }
}

fn wildcard(to: SocketAddr) -> IpAddr {
    if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() }
}

/// Connects to an address over TCP, and waits for that until `until`. `source` is the server's address that the
/// client shall see; the kernel chooses one without it.
fn connect(to: SocketAddr, source: Option<IpAddr>, until: Instant) -> io::Result<TcpStream> {
    let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket: OwnedFd = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    let from = source.unwrap_or_else(|| wildcard(to));
    rustix::net::bind(&socket, &SocketAddr::new(from, 0))?;
    match rustix::net::connect(&socket, &to) {
        Ok(()) => {}
        Err(Errno::INPROGRESS) => {
            let left = until.saturating_duration_since(Instant::now());
            let left =
                rustix::time::Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            let mut ready = [PollFd::new(&socket, PollFlags::OUT)];
            if poll(&mut ready, Some(&left))? == 0 {
                return Err(io::ErrorKind::TimedOut.into());
            }
            rustix::net::sockopt::socket_error(&socket)??;
        }
        Err(error) => return Err(error.into()),
    }
    let stream = TcpStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// Sends one record and receives one. Each step may take the time that is left.
fn over_tcp(stream: &mut TcpStream, message: &[u8], until: Instant) -> io::Result<Vec<u8>> {
    let mark = LAST_FRAGMENT | message.len() as u32;
    let framed = [&mark.to_be_bytes(), message].concat();
    stream.set_write_timeout(Some(left(until)?))?;
    stream.write_all(&framed)?;
    let mut reply = Vec::new();
    loop {
        let mut mark = [0; 4];
        read(stream, &mut mark, until)?;
        let mark = u32::from_be_bytes(mark);
        let (begin, len) = (reply.len(), (mark & !LAST_FRAGMENT) as usize);
        if begin + len > MAX_REPLY {
            return Err(io::ErrorKind::InvalidData.into());
        }
        reply.resize(begin + len, 0);
        read(stream, &mut reply[begin..], until)?;
        if mark & LAST_FRAGMENT != 0 {
            return Ok(reply);
        }
    }
}

/// Fills `into` from the stream. Fails if the stream ends first, or at the time `until`.
fn read(stream: &mut TcpStream, mut into: &mut [u8], until: Instant) -> io::Result<()> {
    while !into.is_empty() {
        stream.set_read_timeout(Some(left(until)?))?;
        match stream.read(into)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            len => into = &mut into[len..],
        }
    }
    Ok(())
}

/// Returns the time until `until`. Fails with `TimedOut` if none is left, because a socket takes zero for no limit.
fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// Sends one datagram and receives one from the same port.
fn over_udp(
    to: SocketAddr,
    source: Option<IpAddr>,
    message: &[u8],
    until: Instant,
) -> Result<Vec<u8>, Failure> {
    let open = || {
        let socket = UdpSocket::bind((source.unwrap_or_else(|| wildcard(to)), 0))?;
        socket.connect(to)?;
        socket.set_read_timeout(Some(left(until)?))?;
        socket.send(message)?;
        Ok::<_, io::Error>(socket)
    };
    let socket = open().map_err(|_| Failure::Unsent)?;
    let mut reply = vec![0; MAX_REPLY];
    match socket.recv(&mut reply) {
        Ok(len) => {
            reply.truncate(len);
            Ok(reply)
        }
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Err(Failure::Unsent),
        Err(_) => Err(Failure::Unanswered),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn local() -> (TcpListener, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        (listener, address)
    }

    fn receive(stream: &mut TcpStream) -> Vec<u8> {
        let mut mark = [0; 4];
        stream.read_exact(&mut mark).unwrap();
        let mut record = vec![0; (u32::from_be_bytes(mark) & !LAST_FRAGMENT) as usize];
        stream.read_exact(&mut record).unwrap();
        record
    }

    #[test]
    fn a_call_over_tcp_returns_the_result_in_any_number_of_fragments() {
        let (listener, address) = local();
        let server = std::thread::spawn(move || {
            let (mut stream, from) = listener.accept().unwrap();
            let call = receive(&mut stream);
            let mut reply = Vec::new();
            let xid = u32::from_be_bytes(call[..4].try_into().unwrap());
            ReplyHeader { xid, status: ReplyStatus::Success }.encode(&mut reply);
            reply.extend_from_slice(b"done");
            let (one, two) = reply.split_at(5);
            stream.write_all(&(one.len() as u32).to_be_bytes()).unwrap();
            stream.write_all(one).unwrap();
            stream.write_all(&(LAST_FRAGMENT | two.len() as u32).to_be_bytes()).unwrap();
            stream.write_all(two).unwrap();
            from.ip()
        });
        let source = Some(IpAddr::from([127, 0, 0, 9]));
        let result = exchange(address, IPPROTO_TCP, source, &message(1, 2, 3, b"args"));
        assert_eq!(result.unwrap(), b"done");
        assert_eq!(Some(server.join().unwrap()), source);
    }

    #[test]
    fn a_call_that_the_client_may_have_seen_is_unanswered_and_any_other_one_is_unsent() {
        let (listener, address) = local();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            receive(&mut stream);
        });
        let ask = |protocol| exchange(address, protocol, None, &message(1, 2, 3, b"args"));
        assert_eq!(ask(IPPROTO_TCP), Err(Failure::Unanswered));
        server.join().unwrap();
        assert_eq!(ask(IPPROTO_TCP), Err(Failure::Unsent), "nobody listens");
        assert_eq!(ask(IPPROTO_UDP), Err(Failure::Unsent), "nobody listens");
    }

    #[test]
    fn a_reply_that_is_too_long_or_of_another_call_is_no_answer() {
        for reply in [vec![0xff; 64], {
            let mut reply = vec![0x80, 0, 0, 24];
            ReplyHeader { xid: 1, status: ReplyStatus::Success }.encode(&mut reply);
            reply
        }] {
            let (listener, address) = local();
            let server = std::thread::spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                receive(&mut stream);
                stream.write_all(&reply).unwrap();
            });
            let call = (7, message(1, 2, 3, b"args").1);
            assert_eq!(exchange(address, IPPROTO_TCP, None, &call), Err(Failure::Unanswered));
            server.join().unwrap();
        }
    }
}
