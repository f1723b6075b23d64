//! A small blocking client: one connection, one call at a time, every byte under the test's control.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use forebay_wire::nfs3::{self, Procedure};
use forebay_wire::rpc::{
    AUTH_TLS, Auth, AuthSys, CallHeader, Gids, LAST_FRAGMENT, OpaqueAuth, ReplyHeader, ReplyStatus, STARTTLS,
};
use forebay_wire::rpcsec_gss::GssService;
use forebay_wire::xdr::{Decode, Encode, Reader};
use rustls::pki_types::CertificateDer;
use rustls::{ClientConnection, Stream};

use super::Context;

/// The identity of a caller.
#[derive(Clone, Debug)]
pub(crate) enum User {
    /// AUTH_NONE.
    None,
    /// AUTH_SYS.
    Sys { uid: u32, gid: u32, groups: Vec<u32> },
    /// Any other flavour, with an empty body.
    Flavor(u32),
    /// RPCSEC_GSS with Kerberos.
    Gss(Arc<Context>, GssService),
}

/// Returns an AUTH_SYS caller.
pub(crate) fn user(uid: u32, gid: u32, groups: &[u32]) -> User {
    User::Sys { uid, gid, groups: groups.into() }
}

/// Longest wait for an answer. A working server answers at once, so this bounds a failing test only.
const PATIENCE: Duration = Duration::from_secs(60);

/// A connection to a server.
pub(crate) struct Client {
    stream: TcpStream,
    /// TLS over the stream.
    tls: Option<Box<ClientConnection>>,
    /// Identity of the following calls.
    pub(crate) user: User,
    /// Transaction number of the next call.
    pub(crate) xid: u32,
}

impl Client {
    /// Connects and acts as root.
    pub(crate) fn connect(address: SocketAddr) -> Self {
        Self::over(TcpStream::connect(address).unwrap())
    }

    /// Uses an existing connection.
    pub(crate) fn over(stream: TcpStream) -> Self {
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        // Transaction numbers of one address must not repeat between connections, as those of a kernel's client do
        // not.
        let mut start = [0; 4];
        rustix::rand::getrandom(&mut start, rustix::rand::GetRandomFlags::empty()).unwrap();
        Client { stream, tls: None, user: user(0, 0, &[]), xid: u32::from_ne_bytes(start) }
    }

    /// Asks the server for TLS. Returns the verifier of its reply.
    pub(crate) fn ask_for_tls(&mut self) -> Vec<u8> {
        let user = std::mem::replace(&mut self.user, User::Flavor(AUTH_TLS));
        let call = self.call_bytes((nfs3::PROGRAM, nfs3::VERSION, 0), &[]);
        self.user = user;
        let reply = self.exchange(&call);
        let mut reader = Reader::new(&reply[12..]);
        let verifier = OpaqueAuth::decode(&mut reader).unwrap();
        assert_eq!((verifier.flavor, reader.rest()), (0, &[0; 4][..]), "AUTH_NONE and success");
        verifier.body.to_vec()
    }

    /// Begins TLS, whose handshake the first call completes.
    pub(crate) fn with_tls(mut self, tls: ClientConnection) -> Self {
        assert_eq!(self.ask_for_tls(), STARTTLS);
        self.tls = Some(Box::new(tls));
        self
    }

    /// Returns the certificate that the server has shown in the handshake.
    pub(crate) fn server_certificate(&self) -> CertificateDer<'static> {
        let tls = self.tls.as_ref().expect("the connection has TLS");
        tls.peer_certificates().expect("the handshake is complete")[0].clone().into_owned()
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.tls {
            None => self.stream.write_all(bytes),
            Some(tls) => {
                let mut stream = Stream::new(&mut **tls, &mut self.stream);
                stream.write_all(bytes)?;
                stream.flush()
            }
        }
    }

    fn read_exact(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        match &mut self.tls {
            None => self.stream.read_exact(bytes),
            Some(tls) => Stream::new(&mut **tls, &mut self.stream).read_exact(bytes),
        }
    }

    /// Changes the identity of the following calls.
    pub(crate) fn acting_as(mut self, user: User) -> Self {
        self.user = user;
        self
    }

    /// Returns the bytes of a call with a new transaction number.
    pub(crate) fn call_bytes(&mut self, (prog, vers, proc): (u32, u32, u32), args: &[u8]) -> Vec<u8> {
        self.xid = self.xid.wrapping_add(1);
        let cred = match &self.user {
            User::None => Auth::None,
            User::Gss(..) => panic!("a call with RPCSEC_GSS has a sequence number"),
            User::Flavor(flavor) => Auth::Other(OpaqueAuth { flavor: *flavor, body: &[] }),
            User::Sys { uid, gid, groups } => Auth::Sys(AuthSys {
                stamp: 0,
                machine_name: b"test",
                uid: *uid,
                gid: *gid,
                gids: Gids::new(groups).unwrap(),
            }),
        };
        let mut out = Vec::new();
        CallHeader { xid: self.xid, prog, vers, proc, cred, verf: OpaqueAuth::NONE }.encode(&mut out);
        out.extend_from_slice(args);
        out
    }

    /// Sends bytes without framing.
    pub(crate) fn send_raw(&mut self, bytes: &[u8]) {
        self.write_all(bytes).unwrap();
    }

    /// Sends a record.
    pub(crate) fn send(&mut self, record: &[u8]) {
        let mut framed = (LAST_FRAGMENT | record.len() as u32).to_be_bytes().to_vec();
        framed.extend_from_slice(record);
        self.send_raw(&framed);
    }

    /// Receives a record. Returns `None` if the server closed the connection.
    pub(crate) fn receive(&mut self) -> Option<Vec<u8>> {
        let mut record = Vec::new();
        loop {
            let mut mark = [0; 4];
            match self.read_exact(&mut mark) {
                Ok(()) => {}
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => panic!("no answer came"),
                Err(_) => return None,
            }
            let mark = u32::from_be_bytes(mark);
            let begin = record.len();
            record.resize(begin + (mark & !LAST_FRAGMENT) as usize, 0);
            self.read_exact(&mut record[begin..]).ok()?;
            if mark & LAST_FRAGMENT != 0 {
                return Some(record);
            }
        }
    }

    /// Waits until a reply can be received, but does not receive it.
    pub(crate) fn wait_for_reply(&self) {
        assert_eq!(self.stream.peek(&mut [0]).expect("no answer came"), 1);
    }

    /// Makes the connection reset instead of close when it is dropped.
    pub(crate) fn reset_at_close(&self) {
        rustix::net::sockopt::set_socket_linger(&self.stream, Some(Duration::ZERO)).unwrap();
    }

    /// Sends a record and receives one.
    pub(crate) fn exchange(&mut self, record: &[u8]) -> Vec<u8> {
        self.send(record);
        self.receive().expect("the server closed the connection")
    }

    /// Sends a record and receives one from a server that may be killed at any moment. Returns `None` if there was no
    /// answer.
    pub(crate) fn try_exchange(&mut self, record: &[u8]) -> Option<Vec<u8>> {
        let mark = (LAST_FRAGMENT | record.len() as u32).to_be_bytes();
        self.write_all(&[&mark, record].concat()).ok()?;
        self.receive()
    }

    /// Calls GETATTR. Returns `None` if the server closes the connection.
    pub(crate) fn try_call(&mut self, args: &impl Encode) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        args.encode(&mut bytes);
        let call = self.call_bytes((nfs3::PROGRAM, nfs3::VERSION, Procedure::Getattr as u32), &bytes);
        self.try_exchange(&call)
    }

    /// Calls any procedure with any argument bytes. Returns the RPC status and the bytes of the result.
    pub(crate) fn call(&mut self, procedure: (u32, u32, u32), args: &[u8]) -> (ReplyStatus, Vec<u8>) {
        if let User::Gss(context, service) = &self.user {
            let (context, service) = (context.clone(), *service);
            self.xid = self.xid.wrapping_add(1);
            let (sequence, record) = context.record(self.xid, procedure, service, args);
            let reply = self.exchange(&record);
            let header = ReplyHeader::decode(&mut Reader::new(&reply)).unwrap();
            return match header.status {
                ReplyStatus::Success => {
                    (header.status, context.client.results(&reply, sequence, service).unwrap())
                }
                status => (status, Vec::new()),
            };
        }
        let call = self.call_bytes(procedure, args);
        let reply = self.exchange(&call);
        let mut reader = Reader::new(&reply);
        let header = ReplyHeader::decode(&mut reader).unwrap();
        assert_eq!(header.xid, self.xid);
        (header.status, reader.rest().to_vec())
    }

    /// Returns the result's bytes of a procedure that RPC must accept.
    pub(crate) fn result_bytes(&mut self, procedure: (u32, u32, u32), args: &impl Encode) -> Vec<u8> {
        let mut bytes = Vec::new();
        args.encode(&mut bytes);
        let (status, result) = self.call(procedure, &bytes);
        assert_eq!(status, ReplyStatus::Success, "{procedure:?}");
        result
    }

    /// Calls a procedure of NFSv3.
    pub(crate) fn nfs<T: for<'a> Decode<'a>>(&mut self, procedure: Procedure, args: &impl Encode) -> T {
        let result = self.result_bytes((nfs3::PROGRAM, nfs3::VERSION, procedure as u32), args);
        decode(&result)
    }
}

/// Decodes a whole result.
#[track_caller]
pub(crate) fn decode<'a, T: Decode<'a>>(bytes: &'a [u8]) -> T {
    let mut reader = Reader::new(bytes);
    let value = T::decode(&mut reader).unwrap();
    assert_eq!(reader.remaining(), 0, "bytes after the result");
    value
}
