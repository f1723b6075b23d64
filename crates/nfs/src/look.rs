//! The procedures that change nothing: GETATTR, LOOKUP, ACCESS, READLINK, FSSTAT, FSINFO, PATHCONF; READ is in
//! `read.rs`.

use forebay_rpc::Reply;
use forebay_vfs::{Access, Attr, CachedAttr, Export, FileType, Outcome, Wait};
use forebay_wire::nfs3::{
    self, AccessArgs, AccessOk, Failed, Fattr3, FileHandle, FsinfoOk, FsstatOk, GetattrArgs, LookupArgs,
    LookupOk, Nfsstat3, Nfstime3, PathconfOk, PostOpAttr, Procedure, access, fsf,
};
use forebay_wire::xdr::Encode;

use crate::MAX_TRANSFER;
use crate::caller::{At, Caller};
use crate::convert::{fattr, handle};
use crate::request::Call;
use crate::result::{ProcedureResult, Stop, finish, success};
use crate::shared::Shared;

/// Appends a result; returns its status for the counters.
pub(crate) fn put<T: Encode, F: Encode>(
    reply: &mut Reply<'_>,
    xid: u32,
    result: ProcedureResult<T, F>,
) -> Result<Nfsstat3, Stop> {
    let result = result?;
    let out = reply.head();
    success(out, xid);
    result.encode(out);
    Ok(result.err().map_or(Nfsstat3::Ok, |failed| failed.status))
}

impl Shared {
    /// Runs a procedure that changes nothing. Returns [`Stop::Later`] for all others.
    pub(crate) fn look(
        &self,
        procedure: Procedure,
        call: &Call<'_>,
        reply: &mut Reply<'_>,
        wait: Wait,
    ) -> Result<Nfsstat3, Stop> {
        let xid = call.xid();
        match procedure {
            Procedure::Null => {
                success(reply.head(), xid);
                Ok(Nfsstat3::Ok)
            }
            Procedure::Getattr => put(reply, xid, self.getattr(call, wait)),
            Procedure::Lookup => put(reply, xid, self.lookup(call, wait)),
            Procedure::Access => put(reply, xid, self.access(call, wait)),
            Procedure::Read => match self.read(call, reply, wait)? {
                Outcome::Done(status) => Ok(status),
                Outcome::FromSsd(_) | Outcome::Wait => Err(Stop::Later),
            },
            Procedure::Fsinfo => put(reply, xid, self.fsinfo(call, wait)),
            Procedure::Pathconf => put(reply, xid, self.pathconf(call, wait)),
            Procedure::Readdirplus => self.readdirplus(call, reply, wait),
            _ if wait == Wait::No => Err(Stop::Later),
            Procedure::Readlink => self.readlink(call, reply),
            Procedure::Fsstat => put(reply, xid, self.fsstat(call, wait)),
            Procedure::Readdir => self.readdir(call, reply),
            _ => Err(Stop::Later),
        }
    }

    /// Returns the result of GETATTR. An event loop answers from the attribute cache if the inode is not open.
    /// Recalls a write delegation first, because its holder knows the size and times.
    fn getattr(&self, call: &Call<'_>, wait: Wait) -> ProcedureResult<Fattr3, ()> {
        let args: GetattrArgs = call.args()?;
        if let Err(stop) = self.announce_look_v3(call, &args.object, wait) {
            return finish(Err(stop), ());
        }
        let found = match self.at(call, &args.object, wait) {
            Err(Stop::Later) => {
                self.known(call, &args.object, |_, export, known| Some(fattr(&known.attr, export.fsid)))
            }
            at => at.and_then(|at| Ok(fattr(&self.vfs.getattr(&at.target)?, at.fsid()))),
        };
        finish(found, ())
    }

    /// Answers an admitted caller about an inode that is not open, if the attribute cache knows enough about the inode.
    fn known<T>(
        &self,
        call: &Call<'_>,
        object: &FileHandle,
        answer: impl FnOnce(Caller, &Export, &CachedAttr) -> Option<T>,
    ) -> Result<T, Stop> {
        let answered =
            self.vfs.known(object.as_bytes(), |export, known| match self.admit(call, export.id, Wait::No) {
                Ok(caller) => {
                    call.is_about(caller.subject, object);
                    answer(caller, export, known).map(Ok)
                }
                Err(stop) => Some(Err(stop)),
            });
        answered.unwrap_or(Err(Stop::Later))
    }

    /// Returns the result of LOOKUP. Leaves out the attributes of a file that a client holds a write delegation for.
    fn lookup(&self, call: &Call<'_>, wait: Wait) -> ProcedureResult<LookupOk, PostOpAttr> {
        let args: LookupArgs<'_> = call.args()?;
        let mut dir_attributes = None;
        let found = self.at(call, &args.dir, wait).and_then(|at| {
            let (found, dir) = self.vfs.lookup(&at.target, args.name, &at.caller.cred, wait);
            dir_attributes = dir.map(|attr| fattr(&attr, at.fsid()));
            let found = found?;
            let obj_attributes = self.shown(found.handle.as_slice(), fattr(&found.attr, at.fsid()));
            Ok(LookupOk { object: handle(&found.handle), obj_attributes, dir_attributes })
        });
        finish(found, dir_attributes)
    }

    /// Returns the result of ACCESS: the kernel's verdict on the rights that the client asks about. Uses the caches
    /// if the inode is not open and the thread may not wait.
    fn access(&self, call: &Call<'_>, wait: Wait) -> ProcedureResult<AccessOk, PostOpAttr> {
        let AccessArgs { object, access } = call.args()?;
        let answer = |attr: &Attr, fsid: u64, may: Access| {
            let access = access & access_bits(attr.kind == FileType::Directory, may);
            AccessOk { obj_attributes: self.shown(object.as_bytes(), fattr(attr, fsid)), access }
        };
        let found = match self.at(call, &object, wait) {
            Err(Stop::Later) => self.known(call, &object, |caller, export, known| {
                let asked = access_from_bits(access, known.attr.kind, caller.read_only);
                Some(answer(&known.attr, export.fsid, known.access(&caller.cred, asked)?))
            }),
            at => at.and_then(|at| {
                let asked = access_from_bits(access, at.target.object.kind(), at.caller.read_only);
                let (may, attr) = self.vfs.access(&at.target, &at.caller.cred, asked, wait)?;
                Ok(answer(&attr, at.fsid(), may))
            }),
        };
        finish(found, None)
    }

    /// Carries out READLINK, and appends the reply with the target of the symbolic link. May wait for the disk.
    fn readlink(&self, call: &Call<'_>, reply: &mut Reply<'_>) -> Result<Nfsstat3, Stop> {
        let args: GetattrArgs = call.args()?;
        let found = self.at(call, &args.object, Wait::Yes).and_then(|at| {
            let (path, attr) = self.vfs.readlink(&at.target)?;
            Ok((path, Some(fattr(&attr, at.fsid()))))
        });
        let result = finish(found, None)?;
        let result = match &result {
            Ok((path, attributes)) => Ok(nfs3::ReadlinkOk { symlink_attributes: *attributes, path }),
            Err(failed) => Err(*failed),
        };
        put::<_, PostOpAttr>(reply, call.xid(), Ok(result))
    }

    /// Returns the attributes of an inode for a reply that may go without them.
    fn shown_of(&self, object: &FileHandle, at: &At) -> Result<PostOpAttr, Stop> {
        Ok(self.shown(object.as_bytes(), fattr(&self.vfs.getattr(&at.target)?, at.fsid())))
    }

    /// Returns the result of FSSTAT: sizes in bytes, and numbers of inodes. Only a worker asks the file system; on an
    /// event loop this fails with [`Stop::Later`].
    fn fsstat(&self, call: &Call<'_>, wait: Wait) -> ProcedureResult<FsstatOk, PostOpAttr> {
        let args: GetattrArgs = call.args()?;
        if wait == Wait::No {
            // The file system has to be asked, and may not answer.
            return Err(Stop::Later);
        }
        let found = self.at(call, &args.object, wait).and_then(|at| {
            let space = self.vfs.space(&at.target.export)?;
            Ok(FsstatOk {
                obj_attributes: self.shown_of(&args.object, &at)?,
                tbytes: space.bytes.0,
                fbytes: space.bytes.1,
                abytes: space.bytes.2,
                tfiles: space.files.0,
                ffiles: space.files.1,
                afiles: space.files.2,
                invarsec: 0,
            })
        });
        finish(found, None)
    }

    /// Returns the result of FSINFO: the sizes of transfers that the server takes, and the largest file of the file
    /// system, in bytes.
    fn fsinfo(&self, call: &Call<'_>, wait: Wait) -> ProcedureResult<FsinfoOk, PostOpAttr> {
        let args: GetattrArgs = call.args()?;
        let found = self.at(call, &args.object, wait).and_then(|at| {
            let most = self.vfs.most(&at.target.export);
            Ok(FsinfoOk {
                obj_attributes: self.shown_of(&args.object, &at)?,
                rtmax: MAX_TRANSFER,
                rtpref: MAX_TRANSFER,
                rtmult: 4096,
                wtmax: MAX_TRANSFER,
                wtpref: MAX_TRANSFER,
                wtmult: 4096,
                dtpref: MAX_TRANSFER,
                maxfilesize: most.max_file_size,
                time_delta: Nfstime3 { seconds: 0, nseconds: 1 },
                properties: fsf::LINK | fsf::SYMLINK | fsf::HOMOGENEOUS | fsf::CANSETTIME,
            })
        });
        finish(found, None)
    }

    /// Returns the result of PATHCONF: the file system's limits on links and on the length of a name.
    fn pathconf(&self, call: &Call<'_>, wait: Wait) -> ProcedureResult<PathconfOk, PostOpAttr> {
        let args: GetattrArgs = call.args()?;
        let found = self.at(call, &args.object, wait).and_then(|at| {
            let most = self.vfs.most(&at.target.export);
            Ok(PathconfOk {
                obj_attributes: self.shown_of(&args.object, &at)?,
                linkmax: most.max_links,
                name_max: most.name_max,
                no_trunc: true,
                chown_restricted: true,
                case_insensitive: false,
                case_preserving: true,
            })
        });
        finish(found, None)
    }
}

/// Returns the access to ask the kernel for, from the protocol's bits (RFC 1813 section 3.3.4).
fn access_from_bits(bits: u32, kind: FileType, read_only: bool) -> Access {
    let any = |some: u32| bits & some != 0;
    let writes = any(access::MODIFY | access::EXTEND | access::DELETE);
    Access {
        read: any(access::READ),
        write: writes && !read_only,
        execute: any(access::LOOKUP | access::EXECUTE) || kind == FileType::Directory && writes,
    }
}

/// Returns the protocol's bits for the access that the kernel grants (RFC 1813 section 3.3.4).
fn access_bits(dir: bool, may: Access) -> u32 {
    let bits = |on: bool, bits: u32| if on { bits } else { 0 };
    if dir {
        bits(may.read, access::READ)
            | bits(may.execute, access::LOOKUP)
            | bits(may.write && may.execute, access::MODIFY | access::EXTEND | access::DELETE)
    } else {
        bits(may.read, access::READ)
            | bits(may.write, access::MODIFY | access::EXTEND)
            | bits(may.execute, access::EXECUTE)
    }
}

/// Returns a failure arm without attributes.
pub(crate) fn failed(status: Nfsstat3) -> Failed<PostOpAttr> {
    Failed { status, attributes: None }
}
