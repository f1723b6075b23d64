//! Requests and answers in NFSv4.1 (RFC 8881): each request is one COMPOUND in the form of Linux.

use forebay_wire::nfs3::StableHow;
use forebay_wire::nfs4::*;
use forebay_wire::{Decode, Encode, Opaque, Reader};

use super::Handle;
use super::answer::{self, Fault, Made, Status, Written};
use super::request::{Open, Request};
use super::session4::Session4;
use crate::connection::Connection;

/// Attributes that NFSv3 returns with every reply, and that Linux asks for.
const ATTRIBUTES: Bitmap = Bitmap::of(&[
    attr::TYPE,
    attr::CHANGE,
    attr::SIZE,
    attr::FSID,
    attr::FILEID,
    attr::MODE,
    attr::NUMLINKS,
    attr::OWNER,
    attr::OWNER_GROUP,
    attr::RAWDEV,
    attr::SPACE_USED,
    attr::TIME_ACCESS,
    attr::TIME_METADATA,
    attr::TIME_MODIFY,
    attr::MOUNTED_ON_FILEID,
]);
/// Minor version.
pub(super) const MINOR: u32 = 1;

/// A COMPOUND that is being appended.
struct Writer<'c> {
    out: &'c mut Vec<u8>,
    compound: CompoundWriter,
}

impl Writer<'_> {
    /// Appends an operation.
    #[inline]
    fn add(&mut self, number: Opcode, arguments: &impl Encode) {
        number.encode(self.out);
        arguments.encode(self.out);
        self.compound.counted(self.out);
    }

    #[inline]
    fn at(&mut self, handle: &Handle) {
        self.add(Opcode::Putfh, &HandleArgs { object: Opaque(handle.as_bytes()) });
    }

    #[inline]
    fn getattr(&mut self) {
        self.add(Opcode::Getattr, &GetattrArgs { request: ATTRIBUTES });
    }

    /// Appends the operations that ask for the handle and the attributes of the current object.
    fn found(&mut self) {
        self.add(Opcode::Getfh, &());
        self.getattr();
    }

    fn access(&mut self) {
        self.add(Opcode::Access, &AccessArgs { access: access::READ | access::MODIFY | access::EXTEND });
    }
}

fn stateid(open: Open) -> Stateid {
    open.unwrap_or(Stateid::ANONYMOUS)
}

/// Returns the stability of a WRITE in terms of NFSv4.
fn stable(how: StableHow) -> StableHow4 {
    match how {
        StableHow::Unstable => StableHow4::Unstable,
        StableHow::DataSync => StableHow4::DataSync,
        StableHow::FileSync => StableHow4::FileSync,
    }
}

/// Appends a COMPOUND in a slot of the session. The caller appends the data of a WRITE.
#[inline]
pub(super) fn encode<'c>(
    connection: &'c mut Connection,
    session: &Session4,
    xid: u32,
    slot: u32,
    request: &Request<'_>,
) -> &'c mut Vec<u8> {
    let out = connection.begin_call(xid, PROC_COMPOUND);
    let compound = CompoundWriter::begin(out, b"", MINOR);
    let mut to = Writer { out, compound };
    to.add(Opcode::Sequence, &session.sequence(slot, request.is_kept()));
    match *request {
        Request::Null => {}
        Request::ReclaimComplete => {
            to.add(Opcode::ReclaimComplete, &ReclaimCompleteArgs { one_fs: false });
        }
        Request::Root { path } => {
            to.add(Opcode::Putrootfh, &());
            for name in path.split('/').filter(|name| !name.is_empty()) {
                to.add(Opcode::Lookup, &NameArgs { name: name.as_bytes() });
            }
            to.found();
        }
        Request::Getattr { object } => {
            to.at(&object);
            to.getattr();
        }
        Request::SetMode { object, mode } => {
            set(&mut to, &object, &Attributes { mode: Some(mode), ..Attributes::default() });
        }
        Request::Truncate { object } => {
            set(&mut to, &object, &Attributes { size: Some(0), ..Attributes::default() });
        }
        Request::Lookup { dir, name } => {
            to.at(&dir);
            to.add(Opcode::Lookup, &NameArgs { name });
            to.found();
        }
        Request::Access { object } => {
            to.at(&object);
            to.access();
        }
        Request::Read { file, open, offset, count } => {
            to.at(&file);
            to.add(Opcode::Read, &ReadArgs { stateid: stateid(open), offset, count });
        }
        Request::Write { file, open, offset, count, stable: how } => {
            to.at(&file);
            Opcode::Write.encode(to.out);
            WriteArgs::encode_header(to.out, &stateid(open), offset, stable(how), count);
            to.compound.counted(to.out);
        }
        Request::Commit { file } => {
            to.at(&file);
            to.add(Opcode::Commit, &CommitArgs { offset: 0, count: 0 });
        }
        Request::Remove { dir, name } | Request::Rmdir { dir, name } => {
            to.at(&dir);
            to.add(Opcode::Remove, &NameArgs { name });
        }
        Request::Rename { dir, from, to: new } => {
            to.at(&dir);
            to.add(Opcode::Savefh, &());
            to.at(&dir);
            to.add(Opcode::Rename, &RenameArgs { oldname: from, newname: new });
        }
        Request::List { dir, cookie, verifier, count } => {
            to.at(&dir);
            let args = ReaddirArgs {
                cookie,
                cookieverf: verifier,
                dircount: count,
                maxcount: count,
                request: ATTRIBUTES | Bitmap::of(&[attr::FILEHANDLE]),
            };
            to.add(Opcode::Readdir, &args);
        }
        Request::Mkdir { .. } | Request::Create { .. } => make(&mut to, session, request),
        Request::Open { dir, name } => {
            to.at(&dir);
            open(&mut to, session, share::READ, OpenHow::NoCreate, OpenClaim::Null(name));
        }
        Request::OpenHandle { file } => {
            to.at(&file);
            open(&mut to, session, share::BOTH, OpenHow::NoCreate, OpenClaim::Fh);
        }
        Request::Close { file, open } => {
            to.at(&file);
            to.add(Opcode::Close, &CloseArgs { seqid: 0, open_stateid: open });
        }
    }
    to.out
}

/// Appends a SETATTR of the object, and a GETATTR as Linux sends it. The state id is the anonymous one.
fn set(to: &mut Writer<'_>, object: &Handle, attributes: &Attributes<'_>) {
    let mut buffer = Vec::new();
    to.at(object);
    let attributes = Fattr::encoded(&mut buffer, attributes);
    to.add(Opcode::Setattr, &SetattrArgs { stateid: Stateid::ANONYMOUS, attributes });
    to.getattr();
}

/// Appends the operations that make a file or a directory.
fn make(to: &mut Writer<'_>, session: &Session4, request: &Request<'_>) {
    let mut buffer = Vec::new();
    let (Request::Mkdir { dir, name, mode } | Request::Create { dir, name, mode, .. }) = *request else {
        return;
    };
    to.at(&dir);
    let attributes = Fattr::encoded(&mut buffer, &Attributes { mode: Some(mode), ..Attributes::default() });
    let how = match request {
        Request::Create { exclusive: true, .. } => CreateHow::Guarded(attributes),
        Request::Create { .. } => CreateHow::Unchecked(attributes),
        _ => {
            to.add(Opcode::Create, &CreateArgs { objtype: CreateType::Dir, name, attributes });
            return to.found();
        }
    };
    open(to, session, share::BOTH, OpenHow::Create(how), OpenClaim::Null(name));
}

/// Appends OPEN and the operations that Linux sends with it.
fn open(to: &mut Writer<'_>, session: &Session4, share: u32, how: OpenHow<'_>, claim: OpenClaim<'_>) {
    let owner = session.owner();
    to.add(Opcode::Open, &OpenArgs { seqid: 0, share_access: share, share_deny: 0, owner, how, claim });
    to.add(Opcode::Getfh, &());
    to.access();
    to.getattr();
}

/// Returns true if the server has accepted the SEQUENCE of a request, so that the slot moves on.
#[inline]
pub(super) fn moves_slot(mut body: Reader<'_>) -> bool {
    let Ok(reply) = CompoundRes::<OpResult<'_>>::decode(&mut body) else { return false };
    let has_results = reply.results.left() > 0;
    // SEQUENCE is the first operation of each request.
    if reply.status == Nfsstat4::Ok {
        return has_results;
    }
    // Each result begins with its number and its status.
    has_results
        && Opcode::decode(&mut body) == Ok(Opcode::Sequence)
        && Nfsstat4::decode(&mut body) == Ok(Nfsstat4::Ok)
}

/// Returns the results of a COMPOUND that has succeeded.
#[inline]
pub(super) fn results(mut body: Reader<'_>) -> Result<Results<'_, OpResult<'_>>, Fault> {
    let reply = CompoundRes::<OpResult<'_>>::decode(&mut body)?;
    match reply.status {
        Nfsstat4::Ok => Ok(reply.results),
        status => Err(Fault::Status(Status::Nfs4(status))),
    }
}

/// Returns the result of the first operation `number` in the reply to a COMPOUND that has succeeded.
#[inline]
fn result<'a, T: Decode<'a>>(mut body: Reader<'a>, number: Opcode) -> Result<T, Fault> {
    let reply = CompoundRes::<OpResult<'_>>::decode(&mut body)?;
    if reply.status != Nfsstat4::Ok {
        return Err(Fault::Status(Status::Nfs4(reply.status)));
    }
    for _ in 0..reply.results.left() {
        let found = Opcode::decode(&mut body)?;
        if found == number {
            let result = Result::<T, Nfsstat4>::decode(&mut body)?;
            return result.map_err(|status| Fault::Status(Status::Nfs4(status)));
        }
        OpResult::decode_body(found, &mut body)?;
    }
    Err(Fault::Missing)
}

pub(super) fn done(body: Reader<'_>) -> Result<(), Fault> {
    results(body).map(drop)
}

/// Returns the handle that GETFH returned, with the open before it.
pub(super) fn made(body: Reader<'_>) -> Result<Made, Fault> {
    let mut made = Made { handle: None, open: None };
    for result in results(body)? {
        match result? {
            OpResult::Open(Ok(open)) => made.open = Some(open.stateid),
            OpResult::Getfh(Ok(handle)) => made.handle = Some(Handle::new(handle.object.0)),
            _ => {}
        }
    }
    made.handle.map(|_| made).ok_or(Fault::Missing)
}

/// Returns the size and the type from a `fattr4`. Fails if the server left one of them out.
fn attributes_of(attributes: &Fattr<'_>) -> Result<answer::Attributes, Fault> {
    let attributes = attributes.attributes()?;
    let (Some(size), Some(ftype)) = (attributes.size, attributes.ftype) else { return Err(Fault::Missing) };
    Ok(answer::Attributes { size, is_dir: ftype == Ftype4::Dir })
}

/// Returns the attributes from the GETATTR of a COMPOUND reply.
pub(super) fn attributes(body: Reader<'_>) -> Result<answer::Attributes, Fault> {
    let found: ObjectAttributes<'_> = result(body, Opcode::Getattr)?;
    attributes_of(&found.attributes)
}

/// Returns the bytes from the READ of a COMPOUND reply.
#[inline]
pub(super) fn data(body: Reader<'_>) -> Result<&[u8], Fault> {
    result(body, Opcode::Read).map(|read: ReadOk<'_>| read.data)
}

/// Returns the result of the WRITE in a COMPOUND reply, in terms of NFSv3.
#[inline]
pub(super) fn written(body: Reader<'_>) -> Result<Written, Fault> {
    let WriteOk { count, committed, verifier } = result(body, Opcode::Write)?;
    let committed = match committed {
        StableHow4::Unstable => StableHow::Unstable,
        StableHow4::DataSync => StableHow::DataSync,
        StableHow4::FileSync => StableHow::FileSync,
    };
    Ok(Written { count, committed, verifier })
}

/// Returns the write verifier from the COMMIT of a COMPOUND reply.
pub(super) fn committed(body: Reader<'_>) -> Result<[u8; 8], Fault> {
    result(body, Opcode::Commit).map(|committed: CommitOk| committed.verifier)
}

/// Passes each entry of the READDIR in a COMPOUND reply to `each`. Returns the verifier for the next request, and
/// true at the end of the directory.
pub(super) fn listing(
    body: Reader<'_>,
    mut each: impl FnMut(u64, &[u8], Option<answer::Attributes>),
) -> Result<([u8; 8], bool), Fault> {
    let listing: ReaddirOk<'_> = result(body, Opcode::Readdir)?;
    for entry in listing.entries {
        each(entry.cookie, entry.name, attributes_of(&entry.attributes).ok());
    }
    Ok((listing.cookieverf, listing.eof))
}
