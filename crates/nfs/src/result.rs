//! The results of procedures, and the replies without attributes that any program may need.

use forebay_rpc::Reply;
use forebay_vfs::Error;
use forebay_wire::nfs3::{Failed, Nfsstat3, Procedure};
use forebay_wire::rpc::{ReplyHeader, ReplyStatus};
use forebay_wire::xdr::{DecodeError, Encode};

use crate::convert::status;

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
pub(crate) type ProcedureResult<T, F> = Result<Result<T, Failed<F>>, Stop>;

/// Turns a failure into the result's failure arm with these attributes.
pub(crate) fn finish<T, F>(result: Result<T, Stop>, attributes: F) -> ProcedureResult<T, F> {
    match result {
        Ok(done) => Ok(Ok(done)),
        Err(Stop::Fail(status)) => Ok(Err(Failed { status, attributes })),
        Err(stop) => Err(stop),
    }
}

/// Appends the header of a successful reply.
pub(crate) fn success(out: &mut Vec<u8>, xid: u32) {
    ReplyHeader { xid, status: ReplyStatus::Success }.encode(out);
}

/// Makes the reply say that the arguments of the call cannot be decoded.
pub(crate) fn garbage(reply: &mut Reply<'_>, xid: u32) {
    reply.clear();
    ReplyHeader { xid, status: ReplyStatus::GarbageArgs }.encode(reply.head());
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

/// Returns the number of absent attributes in the failure arm of a procedure.
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
    use forebay_wire::xdr::{Decode, Reader};

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
