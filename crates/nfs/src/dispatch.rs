//! The way from a record to a procedure: RPC headers, program and version, and errors on the way (RFC 5531).

use std::sync::Arc;

use forebay_rpc::Peer;
use forebay_vfs::Error;
use forebay_wire::nfs3::{Failed, Nfsstat3, Procedure};
use forebay_wire::rpc::{AuthStat, CallError, CallHeader, ReplyHeader, ReplyStatus};
use forebay_wire::xdr::{Decode, DecodeError, Encode, Reader};
use forebay_wire::{mount3, nfs3};

use crate::caller;
use crate::convert::status;

/// A call with a valid header.
pub(crate) struct Call<'a> {
    pub(crate) header: CallHeader<'a>,
    pub(crate) args: Reader<'a>,
    pub(crate) peer: &'a Arc<Peer>,
}

/// The reason why a procedure has no result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    /// The procedure would have to wait, and may not wait here.
    Later,
    /// The arguments of the procedure cannot be decoded.
    Garbage,
    /// The procedure failed.
    Fail(Nfsstat3),
}

impl From<DecodeError> for Stop {
    fn from(_: DecodeError) -> Self {
        Stop::Garbage
    }
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        match error {
            Error::WouldBlock => Stop::Later,
            error => Stop::Fail(status(error)),
        }
    }
}

/// A procedure's result, or the reason why there is none.
pub(crate) type Answer<T, F> = Result<Result<T, Failed<F>>, Stop>;

/// Turns a failure into the result's failure arm with these attributes.
pub(crate) fn finish<T, F>(result: Result<T, Stop>, attributes: F) -> Answer<T, F> {
    match result {
        Ok(done) => Ok(Ok(done)),
        Err(Stop::Fail(status)) => Ok(Err(Failed { status, attributes })),
        Err(stop) => Err(stop),
    }
}

impl<'a> Call<'a> {
    /// Decodes the procedure's arguments. Bytes after them are ignored, as every server does.
    pub(crate) fn args<T: Decode<'a>>(&self) -> Result<T, Stop> {
        Ok(T::decode(&mut self.args.clone())?)
    }

    pub(crate) fn xid(&self) -> u32 {
        self.header.xid
    }
}

/// The service that a call is for.
pub(crate) enum Route<'a> {
    /// An NFSv3 procedure.
    Nfs(Procedure, Call<'a>),
    /// An NFSv4 procedure.
    Nfs4(u32, Call<'a>),
    /// A MOUNT v3 procedure.
    Mount(mount3::Procedure, Call<'a>),
    /// The answer is an RPC-level status.
    Answer(ReplyHeader),
    /// The record is no call, so the connection is closed.
    Close,
}

/// Reads the header of a record and finds its procedure.
pub(crate) fn route<'a>(record: &'a [u8], peer: &'a Arc<Peer>, serves_v4: bool) -> Route<'a> {
    let mut args = Reader::new(record);
    let header = match CallHeader::decode(&mut args) {
        Ok(header) => header,
        Err(CallError::Malformed(_)) => return Route::Close,
        Err(CallError::RpcMismatch { xid }) => {
            return answer(xid, ReplyStatus::RpcMismatch { low: 2, high: 2 });
        }
        Err(CallError::BadAuth { xid, stat }) => return answer(xid, ReplyStatus::AuthError(stat)),
    };
    let xid = header.xid;
    if header.prog == nfs3::PROGRAM && header.vers == forebay_wire::nfs4::VERSION && serves_v4 {
        return match header.proc {
            0 | 1 if header.proc == 0 || caller::accepted(&header.cred) => {
                Route::Nfs4(header.proc, Call { header, args, peer })
            }
            1 => answer(xid, ReplyStatus::AuthError(AuthStat::TooWeak)),
            _ => answer(xid, ReplyStatus::ProcUnavail),
        };
    }
    let serves = match header.prog {
        nfs3::PROGRAM => nfs3::VERSION,
        mount3::PROGRAM => mount3::VERSION,
        _ => return answer(xid, ReplyStatus::ProgUnavail),
    };
    if header.vers != serves {
        return answer(xid, ReplyStatus::ProgMismatch { low: serves, high: serves });
    }
    // The null procedure takes any flavour: it returns nothing and does nothing.
    if header.proc != 0 && !caller::accepted(&header.cred) {
        return answer(xid, ReplyStatus::AuthError(AuthStat::TooWeak));
    }
    let call = Call { header, args, peer };
    if header.prog == nfs3::PROGRAM {
        match Procedure::try_from(header.proc) {
            Ok(procedure) => Route::Nfs(procedure, call),
            Err(_) => answer(xid, ReplyStatus::ProcUnavail),
        }
    } else {
        match mount3::Procedure::try_from(header.proc) {
            Ok(procedure) => Route::Mount(procedure, call),
            Err(_) => answer(xid, ReplyStatus::ProcUnavail),
        }
    }
}

fn answer<'a>(xid: u32, status: ReplyStatus) -> Route<'a> {
    Route::Answer(ReplyHeader { xid, status })
}

/// Appends the header of a successful reply.
pub(crate) fn success(out: &mut Vec<u8>, xid: u32) {
    ReplyHeader { xid, status: ReplyStatus::Success }.encode(out);
}

/// Appends a whole reply with the failure arm of `procedure` and no attributes.
pub(crate) fn failure(out: &mut Vec<u8>, xid: u32, procedure: Procedure, status: Nfsstat3) {
    success(out, xid);
    status.encode(out);
    nothing(out, attributes_of_failure(procedure));
}

/// Appends a whole reply that says only that a change of names is done.
pub(crate) fn done(out: &mut Vec<u8>, xid: u32, procedure: Procedure) {
    success(out, xid);
    Nfsstat3::Ok.encode(out);
    // A created inode would also have its handle and its attributes here; all of them are left out.
    let made =
        matches!(procedure, Procedure::Create | Procedure::Mkdir | Procedure::Symlink | Procedure::Mknod);
    nothing(out, attributes_of_failure(procedure) + if made { 2 } else { 0 });
}

/// Appends `things` absent optional values.
fn nothing(out: &mut Vec<u8>, things: usize) {
    (0..things).for_each(|_| false.encode(out));
}

fn attributes_of_failure(procedure: Procedure) -> usize {
    // Words of "no attributes": one for post_op_attr, two for wcc_data (RFC 1813 section 3.3).
    match procedure {
        Procedure::Null | Procedure::Getattr => 0,
        Procedure::Setattr | Procedure::Write | Procedure::Create | Procedure::Mkdir => 2,
        Procedure::Symlink | Procedure::Mknod | Procedure::Remove | Procedure::Rmdir | Procedure::Commit => 2,
        Procedure::Rename => 4,
        Procedure::Link => 3,
        Procedure::Lookup | Procedure::Access | Procedure::Readlink | Procedure::Read => 1,
        Procedure::Readdir | Procedure::Readdirplus => 1,
        Procedure::Fsstat | Procedure::Fsinfo | Procedure::Pathconf => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_wire::nfs3::*;

    /// Checks that a failure decodes as the procedure's own result, to the last byte.
    fn decodes<'a, T: Decode<'a> + std::fmt::Debug, F: Decode<'a> + std::fmt::Debug>(bytes: &'a [u8]) {
        let mut reader = Reader::new(bytes);
        ReplyHeader::decode(&mut reader).unwrap();
        let result = Result::<T, Failed<F>>::decode(&mut reader).unwrap();
        assert_eq!(result.unwrap_err().status, Nfsstat3::Jukebox);
        assert_eq!(reader.remaining(), 0);
    }

    #[test]
    fn every_failure_has_the_shape_of_its_procedure() {
        for number in 1..Procedure::COUNT as u32 {
            let procedure = Procedure::try_from(number).unwrap();
            let mut out = Vec::new();
            failure(&mut out, 7, procedure, Nfsstat3::Jukebox);
            match procedure {
                Procedure::Null => {}
                Procedure::Getattr => decodes::<Fattr3, ()>(&out),
                Procedure::Setattr | Procedure::Remove | Procedure::Rmdir => {
                    decodes::<WccData, WccData>(&out)
                }
                Procedure::Lookup => decodes::<LookupOk, PostOpAttr>(&out),
                Procedure::Access => decodes::<AccessOk, PostOpAttr>(&out),
                Procedure::Readlink => decodes::<ReadlinkOk<'_>, PostOpAttr>(&out),
                Procedure::Read => decodes::<ReadOk<'_>, PostOpAttr>(&out),
                Procedure::Write => decodes::<WriteOk, WccData>(&out),
                Procedure::Create | Procedure::Mkdir | Procedure::Symlink | Procedure::Mknod => {
                    decodes::<CreateOk, WccData>(&out);
                }
                Procedure::Rename => decodes::<RenameWcc, RenameWcc>(&out),
                Procedure::Link => decodes::<LinkWcc, LinkWcc>(&out),
                Procedure::Readdir => decodes::<ReaddirOk<'_>, PostOpAttr>(&out),
                Procedure::Readdirplus => decodes::<ReaddirplusOk<'_>, PostOpAttr>(&out),
                Procedure::Fsstat => decodes::<FsstatOk, PostOpAttr>(&out),
                Procedure::Fsinfo => decodes::<FsinfoOk, PostOpAttr>(&out),
                Procedure::Pathconf => decodes::<PathconfOk, PostOpAttr>(&out),
                Procedure::Commit => decodes::<CommitOk, WccData>(&out),
            }
        }
    }
}
