//! Clients that lock: NLM calls, and a client's own side with rpcbind and NLM in a network of the test.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use forebay_wire::nlm4::{
    self, CancelArgs, Lock, LockArgs, Procedure, Res, ShareAccess, ShareArgs, ShareMode, ShareRes, Stats,
    TestArgs, TestRes, UnlockArgs,
};
use forebay_wire::portmap::{self, IPPROTO_TCP, Mapping};
use forebay_wire::rpc::{CallHeader, LAST_FRAGMENT, ReplyHeader, ReplyStatus};
use forebay_wire::xdr::{Decode, Encode, Reader};
use forebay_wire::{Opaque, nsm};

use super::{Client, CreateHow, FileHandle, decode, mode};

/// Makes a file.
pub(crate) fn make(c: &mut Client, dir: &FileHandle, name: &[u8], bits: u32) -> FileHandle {
    c.create(dir, name, CreateHow::Unchecked(mode(bits))).unwrap().object.unwrap()
}

/// A process on a host that locks files.
pub(crate) struct Process {
    pub(crate) connection: Client,
    pub(crate) host: &'static [u8],
    pub(crate) svid: i32,
    /// State number of the host.
    pub(crate) state: i32,
}

/// The opaque part of all owners.
pub(crate) const OWNER: &[u8] = b"locker";
/// The cookie of all requests.
pub(crate) const COOKIE: &[u8] = b"cookie";

/// A lock of a file: offset and length.
pub(crate) type Bytes = (u64, u64);

impl Process {
    pub(crate) fn new(connection: Client, host: &'static [u8], svid: i32) -> Self {
        Process { connection, host, svid, state: 0 }
    }

    pub(crate) fn alock<'a>(&self, file: &'a FileHandle, (offset, length): Bytes) -> Lock<'a> {
        let (caller_name, fh, oh) = (Opaque(self.host), Opaque(file.as_bytes()), Opaque(OWNER));
        Lock { caller_name, fh, oh, svid: self.svid, offset, length }
    }

    pub(crate) fn args<'a>(&self, file: &'a FileHandle, bytes: Bytes, exclusive: bool) -> LockArgs<'a> {
        LockArgs {
            cookie: Opaque(COOKIE),
            block: false,
            exclusive,
            alock: self.alock(file, bytes),
            reclaim: false,
            state: self.state,
        }
    }

    /// Calls a procedure and returns the bytes of its result.
    pub(crate) fn call(&mut self, procedure: Procedure, args: &impl Encode) -> Vec<u8> {
        self.connection.result_bytes((nlm4::PROGRAM, nlm4::VERSION, procedure as u32), args)
    }

    /// Calls a procedure whose result is a status.
    #[track_caller]
    pub(crate) fn stat(&mut self, procedure: Procedure, args: &impl Encode) -> Stats {
        let result = self.call(procedure, args);
        let res: Res<'_> = decode(&result);
        assert_eq!(res.cookie.0, COOKIE);
        res.stat
    }

    #[track_caller]
    pub(crate) fn lock(&mut self, file: &FileHandle, bytes: Bytes, exclusive: bool) -> Stats {
        let args = self.args(file, bytes, exclusive);
        self.stat(Procedure::Lock, &args)
    }

    /// Asks for an exclusive lock and waits for it.
    #[track_caller]
    pub(crate) fn lock_or_wait(&mut self, file: &FileHandle, bytes: Bytes) -> Stats {
        let args = LockArgs { block: true, ..self.args(file, bytes, true) };
        self.stat(Procedure::Lock, &args)
    }

    #[track_caller]
    pub(crate) fn reclaim(&mut self, file: &FileHandle, bytes: Bytes) -> Stats {
        let args = LockArgs { reclaim: true, ..self.args(file, bytes, true) };
        self.stat(Procedure::Lock, &args)
    }

    #[track_caller]
    pub(crate) fn unlock(&mut self, file: &FileHandle, bytes: Bytes) -> Stats {
        let args = UnlockArgs { cookie: Opaque(COOKIE), alock: self.alock(file, bytes) };
        self.stat(Procedure::Unlock, &args)
    }

    #[track_caller]
    pub(crate) fn cancel(&mut self, file: &FileHandle, bytes: Bytes) -> Stats {
        let alock = self.alock(file, bytes);
        let args = CancelArgs { cookie: Opaque(COOKIE), block: true, exclusive: true, alock };
        self.stat(Procedure::Cancel, &args)
    }

    /// Tests for an exclusive lock, and shows the result to `see`.
    pub(crate) fn test<T>(
        &mut self,
        file: &FileHandle,
        bytes: Bytes,
        see: impl FnOnce(&TestRes<'_>) -> T,
    ) -> T {
        let args = TestArgs { cookie: Opaque(COOKIE), exclusive: true, alock: self.alock(file, bytes) };
        let result = self.call(Procedure::Test, &args);
        let res: TestRes<'_> = decode(&result);
        assert_eq!(res.cookie.0, COOKIE);
        see(&res)
    }

    #[track_caller]
    pub(crate) fn share(
        &mut self,
        procedure: Procedure,
        file: &FileHandle,
        access: ShareAccess,
        mode: ShareMode,
    ) -> Stats {
        let (caller_name, fh, oh) = (Opaque(self.host), Opaque(file.as_bytes()), Opaque(OWNER));
        let share = nlm4::Share { caller_name, fh, oh, mode, access };
        let result = self.call(procedure, &ShareArgs { cookie: Opaque(COOKIE), share, reclaim: false });
        let res: ShareRes<'_> = decode(&result);
        assert_eq!(res.cookie.0, COOKIE);
        res.stat
    }
}

/// Moves this thread, and all threads and processes that it starts from now on, to a network with nothing but a
/// loopback device. Port 111 of the host is out of reach then.
pub(crate) fn enter_own_network() {
    // SAFETY: unshare(2) changes only the calling thread.
    let done = unsafe { libc::unshare(libc::CLONE_NEWNET) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    let mut request = request_for(b"lo");
    request.ifr_ifru.ifru_flags = libc::IFF_UP as libc::c_short;
    set(libc::SIOCSIFFLAGS, &request);
}

/// Gives the loopback device a further address.
pub(crate) fn add_address(address: [u8; 4]) {
    let mut request = request_for(b"lo:1");
    let address = libc::sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: 0,
        sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(address) },
        sin_zero: [0; 8],
    };
    // SAFETY: both are 16 bytes and hold an address of any family.
    request.ifr_ifru.ifru_addr = unsafe { std::mem::transmute::<libc::sockaddr_in, libc::sockaddr>(address) };
    set(libc::SIOCSIFADDR, &request);
}

fn request_for(device: &[u8]) -> libc::ifreq {
    // SAFETY: all zeros are a valid ifreq.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_name.iter_mut().zip(device).for_each(|(to, byte)| *to = *byte as libc::c_char);
    request
}

fn set(operation: libc::Ioctl, request: &libc::ifreq) {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    let fd = std::os::fd::AsRawFd::as_raw_fd(&socket);
    // SAFETY: the request is live, and the operation reads it only.
    let done = unsafe { libc::ioctl(fd, operation, std::ptr::from_ref(request)) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
}

/// A call that a host has received.
#[derive(Debug)]
pub(crate) struct Received {
    pub(crate) program: u32,
    pub(crate) procedure: u32,
    pub(crate) args: Vec<u8>,
    pub(crate) from: std::net::IpAddr,
}

/// The reaction of a host to a call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Reaction {
    /// Answers with a status.
    Answer(Stats),
    /// Closes the connection without an answer.
    Hangs,
}

/// The client's own side: rpcbind on port 111, and one port for NLM and NSM.
pub(crate) struct Host {
    received: Mutex<Receiver<Received>>,
}

impl Host {
    /// Starts a host that reacts to its calls in this order, and after that with NLM4_GRANTED.
    pub(crate) fn start(address: [u8; 4], reactions: &[Reaction]) -> Self {
        let address = Ipv4Addr::from(address);
        let rpcbind = TcpListener::bind((address, portmap::PORT)).unwrap();
        let listener = TcpListener::bind((address, 0)).unwrap();
        let port = u32::from(listener.local_addr().unwrap().port());
        let is_served =
            |asked: &Mapping| matches!(asked.prog, nlm4::PROGRAM | nsm::PROGRAM) && asked.prot == IPPROTO_TCP;
        std::thread::spawn(move || {
            for stream in rpcbind.incoming() {
                answer(stream.unwrap(), |_, args| {
                    let asked = Mapping::decode(&mut Reader::new(args)).unwrap();
                    let mut result = Vec::new();
                    u32::encode(&if is_served(&asked) { port } else { 0 }, &mut result);
                    Some(result)
                });
            }
        });
        let reactions = Arc::new(Mutex::new(reactions.to_vec()));
        let (send, received) = channel();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (reactions, send) = (reactions.clone(), send.clone());
                serve(stream.unwrap(), &reactions, &send);
            }
        });
        Host { received: Mutex::new(received) }
    }

    /// Waits for the next call.
    #[track_caller]
    pub(crate) fn next(&self) -> Received {
        self.received.lock().unwrap().recv_timeout(Duration::from_secs(60)).expect("no call came")
    }

    /// Returns true if no call has come that was not waited for.
    pub(crate) fn has_none(&self) -> bool {
        self.received.lock().unwrap().try_recv().is_err()
    }
}

fn serve(stream: TcpStream, reactions: &Mutex<Vec<Reaction>>, send: &Sender<Received>) {
    let from = stream.peer_addr().unwrap().ip();
    answer(stream, |header, args| {
        let mut left = reactions.lock().unwrap();
        let reaction = if left.is_empty() { Reaction::Answer(Stats::Granted) } else { left.remove(0) };
        let (program, procedure) = (header.prog, header.proc);
        let _ = send.send(Received { program, procedure, args: args.to_vec(), from });
        let Reaction::Answer(stat) = reaction else { return None };
        let mut result = Vec::new();
        if program == nlm4::PROGRAM && procedure == Procedure::Granted as u32 {
            Res { cookie: Opaque(COOKIE), stat }.encode(&mut result);
        }
        Some(result)
    });
}

/// Answers the calls of a connection until the peer closes it or `react` has no answer.
fn answer(mut stream: TcpStream, mut react: impl FnMut(&CallHeader<'_>, &[u8]) -> Option<Vec<u8>>) {
    loop {
        let mut mark = [0; 4];
        if stream.read_exact(&mut mark).is_err() {
            return;
        }
        let mut call = vec![0; (u32::from_be_bytes(mark) & !LAST_FRAGMENT) as usize];
        stream.read_exact(&mut call).unwrap();
        let mut reader = Reader::new(&call);
        let header = CallHeader::decode(&mut reader).ok().unwrap();
        let Some(result) = react(&header, reader.rest()) else { return };
        let mut reply = Vec::new();
        ReplyHeader { xid: header.xid, status: ReplyStatus::Success }.encode(&mut reply);
        reply.extend_from_slice(&result);
        let mark = LAST_FRAGMENT | reply.len() as u32;
        stream.write_all(&[&mark.to_be_bytes(), &reply[..]].concat()).unwrap();
    }
}
