//! Requests and answers in NFSv3 (RFC 1813).

use forebay_wire::nfs3::*;
use forebay_wire::{Decode, Encode as _, Reader};

use super::Handle;
use super::answer::{Attributes, Fault, Made, Status, Written};
use super::request::Request;
use crate::connection::Connection;

/// Returns the procedure that carries a request out. A request that NFSv3 does not have becomes NULL.
const fn procedure(request: &Request<'_>) -> Procedure {
    match request {
        Request::Null | Request::ReclaimComplete | Request::Root { .. } => Procedure::Null,
        Request::OpenHandle { .. } | Request::Close { .. } => Procedure::Null,
        Request::Getattr { .. } => Procedure::Getattr,
        Request::SetMode { .. } | Request::Truncate { .. } => Procedure::Setattr,
        Request::Lookup { .. } | Request::Open { .. } => Procedure::Lookup,
        Request::Access { .. } => Procedure::Access,
        Request::Read { .. } => Procedure::Read,
        Request::Write { .. } => Procedure::Write,
        Request::Commit { .. } => Procedure::Commit,
        Request::Create { .. } => Procedure::Create,
        Request::Mkdir { .. } => Procedure::Mkdir,
        Request::Remove { .. } => Procedure::Remove,
        Request::Rmdir { .. } => Procedure::Rmdir,
        Request::Rename { .. } => Procedure::Rename,
        Request::List { .. } => Procedure::Readdirplus,
    }
}

/// Appends a call. The caller appends the data of a WRITE.
#[inline]
pub(super) fn encode<'c>(connection: &'c mut Connection, xid: u32, request: &Request<'_>) -> &'c mut Vec<u8> {
    let mode = |mode: u32| Sattr3 { mode: Some(mode), ..Sattr3::default() };
    let set = |object: Handle, new_attributes| {
        let object = object.nfs3();
        SetattrArgs { object, new_attributes, guard: None }
    };
    let in_dir = |dir: Handle, name| DirOpArgs { dir: dir.nfs3(), name };
    let out = connection.begin_call(xid, procedure(request) as u32);
    match *request {
        Request::Null
        | Request::ReclaimComplete
        | Request::Root { .. }
        | Request::OpenHandle { .. }
        | Request::Close { .. } => {}
        Request::Getattr { object } => GetattrArgs { object: object.nfs3() }.encode(out),
        Request::SetMode { object, mode: bits } => set(object, mode(bits)).encode(out),
        Request::Truncate { object } => {
            set(object, Sattr3 { size: Some(0), ..Sattr3::default() }).encode(out);
        }
        Request::Lookup { dir, name }
        | Request::Open { dir, name }
        | Request::Remove { dir, name }
        | Request::Rmdir { dir, name } => in_dir(dir, name).encode(out),
        Request::Access { object } => {
            AccessArgs { object: object.nfs3(), access: access::READ | access::MODIFY }.encode(out);
        }
        Request::Read { file, offset, count, .. } => {
            ReadArgs { file: file.nfs3(), offset, count }.encode(out);
        }
        Request::Write { file, offset, count, stable, .. } => {
            WriteArgs::encode_header(out, &file.nfs3(), offset, count, stable);
        }
        Request::Commit { file } => CommitArgs { file: file.nfs3(), offset: 0, count: 0 }.encode(out),
        Request::Create { dir, name, mode: bits, exclusive } => {
            let how =
                if exclusive { CreateHow::Guarded(mode(bits)) } else { CreateHow::Unchecked(mode(bits)) };
            CreateArgs { target: in_dir(dir, name), how }.encode(out);
        }
        Request::Mkdir { dir, name, mode: bits } => {
            MkdirArgs { target: in_dir(dir, name), attributes: mode(bits) }.encode(out);
        }
        Request::Rename { dir, from, to } => {
            RenameArgs { from: in_dir(dir, from), to: in_dir(dir, to) }.encode(out);
        }
        Request::List { dir, cookie, verifier: cookieverf, count } => {
            let (dir, dircount, maxcount) = (dir.nfs3(), count, count);
            ReaddirplusArgs { dir, cookie, cookieverf, dircount, maxcount }.encode(out);
        }
    }
    out
}

/// Decodes a result of NFSv3. A refusal of the server is a fault with its status.
#[inline]
fn result<'a, T: Decode<'a>, F: Decode<'a>>(mut body: Reader<'a>) -> Result<T, Fault> {
    match <Result<T, Failed<F>>>::decode(&mut body)? {
        Ok(result) => Ok(result),
        Err(failed) => Err(Fault::Status(Status::Nfs3(failed.status))),
    }
}

/// Decodes the status of a result whose other contents do not matter.
pub(super) fn done(mut body: Reader<'_>) -> Result<(), Fault> {
    match Nfsstat3::decode(&mut body)? {
        Nfsstat3::Ok => Ok(()),
        status => Err(Fault::Status(Status::Nfs3(status))),
    }
}

/// Returns the handle from the reply to a LOOKUP.
pub(super) fn found(body: Reader<'_>) -> Result<Made, Fault> {
    let found = result::<LookupOk, PostOpAttr>(body)?;
    Ok(Made { handle: Some(found.object.into()), open: None })
}

/// Returns the handle from the reply to a CREATE or MKDIR, if the server has sent one.
pub(super) fn made(body: Reader<'_>) -> Result<Made, Fault> {
    let made = result::<CreateOk, WccData>(body)?;
    Ok(Made { handle: made.object.map(Into::into), open: None })
}

fn attributes_of(attributes: &Fattr3) -> Attributes {
    Attributes { size: attributes.size, is_dir: attributes.ftype == Ftype3::Dir }
}

pub(super) fn attributes(body: Reader<'_>) -> Result<Attributes, Fault> {
    result::<Fattr3, ()>(body).map(|attributes| attributes_of(&attributes))
}

/// Returns the bytes from the reply to a READ. Fails if their number is not the stated one.
#[inline]
pub(super) fn data(body: Reader<'_>) -> Result<&[u8], Fault> {
    let read = result::<ReadOk<'_>, PostOpAttr>(body)?;
    if read.count as usize == read.data.len() { Ok(read.data) } else { Err(Fault::Missing) }
}

/// Returns the result of a WRITE: the number of bytes, the stability and the write verifier.
#[inline]
pub(super) fn written(body: Reader<'_>) -> Result<Written, Fault> {
    let WriteOk { count, committed, verf, .. } = result::<WriteOk, WccData>(body)?;
    Ok(Written { count, committed, verifier: verf })
}

pub(super) fn committed(body: Reader<'_>) -> Result<[u8; 8], Fault> {
    result::<CommitOk, WccData>(body).map(|committed| committed.verf)
}

/// Passes each entry of a READDIRPLUS reply to `each`. Returns the verifier for the next request, and true at the end
/// of the directory.
pub(super) fn listing(
    body: Reader<'_>,
    mut each: impl FnMut(u64, &[u8], Option<Attributes>),
) -> Result<([u8; 8], bool), Fault> {
    let listing = result::<ReaddirplusOk<'_>, PostOpAttr>(body)?;
    for entry in listing.entries {
        each(entry.cookie, entry.name, entry.name_attributes.as_ref().map(attributes_of));
    }
    Ok((listing.cookieverf, listing.eof))
}
