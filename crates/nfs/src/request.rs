//! A request: the header of its record is decoded once, wherever the request is carried out.
//!
//! The event loop has the record in its receive buffer; a request that leaves the loop takes the record along. So the
//! decoded header borrows nothing, and keeps offsets into the record. The arguments are decoded where they are used,
//! and borrow from the record.

use std::cell::Cell;
use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use forebay_profile::Moved;
use forebay_rpc::{Peer, Record, Ticket};
use forebay_wire::nfs3::{self, ReadArgs};
use forebay_wire::rpc::{
    AUTH_TLS, Auth, AuthStat, CallError, CallHeader, Gids, OpaqueAuth, ReplyHeader, ReplyStatus,
};
use forebay_wire::xdr::{Decode, Reader};

use crate::MAX_TRANSFER;
use crate::caller::{Caller, accepted};
use crate::nfs4::program::Begun;
use crate::profiled::About;
use crate::program::{Kind, Program, Served};
use crate::reply_cache::RequestKey;
use crate::result::Stop;

/// The decoded header of a call that a program serves.
pub(crate) struct Head {
    /// The transaction number.
    pub(crate) xid: u32,
    /// The program and its procedure.
    pub(crate) program: Program,
    /// The number of the procedure.
    pub(crate) procedure: u32,
    /// True if the client asks for TLS (RFC 9289 section 4.1). The procedure is then the null procedure.
    pub(crate) wants_tls: bool,
    /// The user of AUTH_SYS, or the one that a context of RPCSEC_GSS stands for; none for AUTH_NONE, and for a
    /// principal without a user.
    pub(crate) user: Option<SysUser>,
    /// The caller by RPCSEC_GSS.
    pub(crate) gss: Option<forebay_gss::Caller>,
    /// The offset of the arguments in the record.
    args: usize,
    /// The caller after the export's rules, if an attempt that had to wait has found out.
    pub(crate) admitted: Cell<Option<Caller>>,
    /// The kind of workers that carry out the request.
    pub(crate) kind: Cell<Kind>,
    /// The caller and the file, for the profile. The last attempt has found out.
    pub(crate) about: Cell<Option<About>>,
    /// The range of a READ or WRITE of NFSv3 that succeeded, for the profile.
    pub(crate) moved: Cell<Option<Moved>>,
    /// A COMPOUND that an attempt has begun.
    pub(crate) compound: Cell<Option<Begun>>,
}

/// The credential of AUTH_SYS, as the client sent it; or the user of a principal, whose groups this host knows.
pub(crate) struct SysUser {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) gids: Gids,
    /// The place of the machine's name in the record.
    machine: Range<usize>,
}

/// A decoded call with its record. All of it is borrowed from the event loop, or from a [`Request`].
#[derive(Clone, Copy)]
pub(crate) struct Call<'a> {
    pub(crate) head: &'a Head,
    pub(crate) record: &'a [u8],
    pub(crate) peer: &'a Arc<Peer>,
}

/// A request that has left the event loop's buffers, or is about to leave the event loop.
pub(crate) struct Request {
    pub(crate) head: Head,
    pub(crate) record: Record,
    pub(crate) ticket: Ticket,
    pub(crate) arrived: Instant,
    /// The key of a change that the reply cache knows as in progress, because the change was tried already.
    pub(crate) begun: Option<RequestKey>,
}

/// The reason why a record reaches no procedure.
#[derive(Debug)]
pub(crate) enum Rejected {
    /// The record is no call, so the connection is closed.
    NotACall,
    /// The answer is an RPC-level status (RFC 5531).
    With(ReplyHeader),
}

/// Decodes the header of a record. Returns a reader at the arguments as well.
pub(crate) fn header(record: &[u8]) -> Result<(CallHeader<'_>, Reader<'_>), Rejected> {
    let mut args = Reader::new(record);
    let (xid, status) = match CallHeader::decode(&mut args) {
        Ok(header) => return Ok((header, args)),
        Err(CallError::Malformed(_)) => return Err(Rejected::NotACall),
        Err(CallError::RpcMismatch { xid }) => (xid, ReplyStatus::RpcMismatch { low: 2, high: 2 }),
        Err(CallError::BadAuth { xid, stat }) => (xid, ReplyStatus::AuthError(stat)),
    };
    Err(Rejected::With(ReplyHeader { xid, status }))
}

impl Head {
    /// Decodes the header of a record and finds the procedure.
    pub(crate) fn decode(record: &[u8], served: Served) -> Result<Self, Rejected> {
        let (header, args) = header(record)?;
        let wants_tls = wants_tls(&header).map_err(|stat| {
            Rejected::With(ReplyHeader { xid: header.xid, status: ReplyStatus::AuthError(stat) })
        })?;
        let user = match &header.cred {
            Auth::Sys(sys) => Some(SysUser {
                uid: sys.uid,
                gid: sys.gid,
                gids: sys.gids,
                machine: place(record, sys.machine_name),
            }),
            Auth::None | Auth::Other(_) => None,
        };
        // The null procedure takes any flavour: it returns nothing and does nothing.
        if header.proc != 0 && !accepted(&header.cred) {
            let status = Program::number(&header, served).err();
            let status = status.unwrap_or(ReplyStatus::AuthError(AuthStat::TooWeak));
            return Err(Rejected::With(ReplyHeader { xid: header.xid, status }));
        }
        Self::new(&header, served, user, record.len() - args.remaining())
            .map(|head| Head { wants_tls, ..head })
            .map_err(|status| Rejected::With(ReplyHeader { xid: header.xid, status }))
    }

    /// Returns the header of a call whose caller RPCSEC_GSS has established. `args` is the offset of the arguments in
    /// the record that the request will have.
    pub(crate) fn of_gss(
        header: &CallHeader<'_>,
        served: Served,
        gss: forebay_gss::Caller,
        args: usize,
    ) -> Result<Self, ReplyStatus> {
        let user = gss.user.map(|(uid, gid)| SysUser { uid, gid, gids: Gids::default(), machine: 0..0 });
        Ok(Head { gss: Some(gss), ..Self::new(header, served, user, args)? })
    }

    /// Finds the program and procedure of a call. `args` is the offset of the arguments in the record. Fails with the
    /// status of the reply to a call that no program takes.
    fn new(
        header: &CallHeader<'_>,
        served: Served,
        user: Option<SysUser>,
        args: usize,
    ) -> Result<Self, ReplyStatus> {
        let program = Program::find(header, served)?;
        let (admitted, kind, compound) = (Cell::new(None), Cell::new(program.kind()), Cell::new(None));
        let (xid, procedure) = (header.xid, header.proc);
        Ok(Head {
            xid,
            program,
            procedure,
            wants_tls: false,
            user,
            gss: None,
            args,
            admitted,
            kind,
            about: Cell::new(None),
            moved: Cell::new(None),
            compound,
        })
    }

    /// Returns the call. `record` is the one that this header was decoded from.
    pub(crate) fn call<'a>(&'a self, record: &'a [u8], peer: &'a Arc<Peer>) -> Call<'a> {
        Call { head: self, record, peer }
    }
}

impl<'a> Call<'a> {
    /// Decodes the procedure's arguments. Bytes after them are ignored, as every server does.
    pub(crate) fn args<T: Decode<'a>>(&self) -> Result<T, Stop> {
        Ok(T::decode(&mut Reader::new(self.rest()))?)
    }

    /// Returns the arguments as the client sent them, with all bytes after them.
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.record.get(self.head.args..).unwrap_or_default()
    }

    /// Returns the name of the client's machine as AUTH_SYS has it.
    pub(crate) fn machine_name(&self, user: &SysUser) -> &'a [u8] {
        self.record.get(user.machine.clone()).unwrap_or_default()
    }

    pub(crate) fn xid(&self) -> u32 {
        self.head.xid
    }

    /// Keeps the caller for the worker that carries the request out after this attempt.
    pub(crate) fn keep(&self, caller: Caller) {
        self.head.admitted.set(Some(caller));
    }
}

impl Request {
    /// Returns the call.
    pub(crate) fn call(&self) -> Call<'_> {
        self.head.call(&self.record, self.ticket.peer())
    }

    /// Returns the address of the client.
    pub(crate) fn client(&self) -> IpAddr {
        self.ticket.peer().addr.ip()
    }

    /// Returns the bytes that the request works on, for the client's share of the workers. The data that a COMPOUND
    /// reads is left out.
    pub(crate) fn bytes(&self) -> usize {
        let read = match self.head.program {
            Program::Nfs3(nfs3::Procedure::Read) => self.call().args().map_or(0, |args: ReadArgs| args.count),
            _ => 0,
        };
        self.record.len() + read.min(MAX_TRANSFER) as usize
    }
}

/// Returns true if the call asks for TLS. Such a call has the null procedure and an empty credential (RFC 9289
/// section 4.1).
fn wants_tls(header: &CallHeader<'_>) -> Result<bool, AuthStat> {
    match header.cred {
        Auth::Other(OpaqueAuth { flavor: AUTH_TLS, body }) => {
            if header.proc != 0 || !body.is_empty() {
                Err(AuthStat::BadCred)
            } else if header.verf != OpaqueAuth::NONE {
                Err(AuthStat::BadVerf)
            } else {
                Ok(true)
            }
        }
        _ => Ok(false),
    }
}

/// Returns the place of `part`, which is borrowed from `record`.
fn place(record: &[u8], part: &[u8]) -> Range<usize> {
    let start = part.as_ptr().addr() - record.as_ptr().addr();
    start..start + part.len()
}

#[cfg(test)]
mod tests {
    use forebay_wire::rpc::{AuthStat, AuthSys, OpaqueAuth};
    use forebay_wire::xdr::Encode;
    use forebay_wire::{mount3, nfs3};

    use super::*;

    const NONE: OpaqueAuth<'static> = OpaqueAuth::NONE;

    fn record(prog: u32, vers: u32, proc: u32, cred: Auth<'_>) -> Vec<u8> {
        let mut record = Vec::new();
        CallHeader { xid: 9, prog, vers, proc, cred, verf: NONE }.encode(&mut record);
        record.extend_from_slice(b"arguments");
        record
    }

    fn status(record: &[u8]) -> ReplyStatus {
        match Head::decode(record, Served::default()) {
            Err(Rejected::With(ReplyHeader { xid: 9, status })) => status,
            rejected => panic!("{:?}", rejected.err()),
        }
    }

    #[test]
    fn a_decoded_header_finds_its_parts_in_a_copy_of_the_record() {
        let gids = Gids::new(&[7, 8]).unwrap();
        for machine_name in [&b""[..], b"a", b"client.example"] {
            let sys = AuthSys { stamp: 1, machine_name, uid: 5, gid: 6, gids };
            let received = record(nfs3::PROGRAM, nfs3::VERSION, 7, Auth::Sys(sys));
            let head =
                Head::decode(&received, Served::default()).unwrap_or_else(|_| panic!("the header is good"));
            let copied = received.clone();
            drop(received);
            let peer = Arc::new(Peer {
                id: 1,
                addr: "192.0.2.7:700".parse().unwrap(),
                line: forebay_rpc::Line::default(),
                is_local: false,
                security: std::sync::OnceLock::new(),
                last_rate: forebay_rpc::LastRate::default(),
            });
            let call = head.call(&copied, &peer);
            let user = head.user.as_ref().unwrap();
            assert_eq!((user.uid, user.gid, user.gids), (5, 6, gids));
            assert_eq!(call.machine_name(user), machine_name);
            assert_eq!(call.rest(), b"arguments");
            assert_eq!((head.xid, head.procedure), (9, 7));
            assert!(matches!(head.program, Program::Nfs3(nfs3::Procedure::Write)));
        }
    }

    #[test]
    fn only_a_null_call_without_credential_asks_for_tls() {
        let probe = |proc, body: &'static [u8], verf| {
            let cred = Auth::Other(OpaqueAuth { flavor: AUTH_TLS, body });
            let mut record = Vec::new();
            let (prog, vers) = (nfs3::PROGRAM, nfs3::VERSION);
            CallHeader { xid: 9, prog, vers, proc, cred, verf }.encode(&mut record);
            Head::decode(&record, Served::default()).map(|head| head.wants_tls)
        };
        let auth = |probed| match probed {
            Err(Rejected::With(ReplyHeader { xid: 9, status: ReplyStatus::AuthError(stat) })) => stat,
            probed => panic!("{probed:?}"),
        };
        assert!(matches!(probe(0, b"", NONE), Ok(true)));
        assert_eq!(auth(probe(1, b"", NONE)), AuthStat::BadCred);
        assert_eq!(auth(probe(0, b"body", NONE)), AuthStat::BadCred);
        assert_eq!(auth(probe(0, b"", OpaqueAuth { flavor: 0, body: b"STARTTLS" })), AuthStat::BadVerf);
        assert_eq!(auth(probe(0, b"", OpaqueAuth { flavor: 1, body: b"" })), AuthStat::BadVerf);
        let unknown = record(100_021, 4, 0, Auth::Other(OpaqueAuth { flavor: AUTH_TLS, body: b"" }));
        assert_eq!(status(&unknown), ReplyStatus::ProgUnavail);
    }

    #[test]
    fn records_without_a_procedure_are_answered_as_rfc_5531_says() {
        let (nfs, mount) = ((nfs3::PROGRAM, nfs3::VERSION), (mount3::PROGRAM, mount3::VERSION));
        assert!(matches!(Head::decode(b"no call", Served::default()), Err(Rejected::NotACall)));
        assert_eq!(status(&record(100_021, 4, 0, Auth::None)), ReplyStatus::ProgUnavail);
        for (prog, vers) in [nfs, mount] {
            let mismatch = ReplyStatus::ProgMismatch { low: vers, high: vers };
            assert_eq!(status(&record(prog, vers + 1, 0, Auth::None)), mismatch);
            assert_eq!(status(&record(prog, vers, 99, Auth::None)), ReplyStatus::ProcUnavail);
            let other = Auth::Other(OpaqueAuth { flavor: 6, body: b"" });
            let weak = ReplyStatus::AuthError(AuthStat::TooWeak);
            assert_eq!(status(&record(prog, vers, 1, other)), weak);
            assert_eq!(status(&record(prog, vers, 99, other)), weak);
            assert!(
                Head::decode(&record(prog, vers, 0, other), Served::default()).is_ok(),
                "NULL takes any flavour"
            );
        }
    }
}
