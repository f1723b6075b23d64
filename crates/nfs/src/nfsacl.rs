//! NFSACL, version 3: POSIX access control lists beside NFSv3. No RFC describes it; the rules are those of the Linux
//! client and server.

use std::sync::Arc;

use forebay_acl::nfsacl::{Entry, Owners, Role, from_list, to_list};
use forebay_acl::{Invalid, PosixAcl, xattr};
use forebay_rpc::Reply;
use forebay_vfs::{CommitRequest, Export, SetAcls, Wait};
use forebay_wire::Array;
use forebay_wire::nfs3::{Failed, Nfsstat3, PostOpAttr};
use forebay_wire::nfsacl3::{
    self, GetaclArgs, GetaclOk, GetaclRes, Procedure, Secattr, SetaclArgs, SetaclRes, mask,
};
use forebay_wire::xdr::Encode;

use crate::acl::read;
use crate::convert::{fattr, status};
use crate::request::{Call, Request};
use crate::result::{Stop, garbage, success};
use crate::shared::Shared;

/// A change of lists, and the durability that its reply waits for.
struct Executed {
    result: SetaclRes,
    durable: Option<(Arc<Export>, CommitRequest)>,
}

impl Shared {
    /// Answers on a worker.
    pub(crate) fn carry_out_nfsacl(self: &Arc<Self>, procedure: Procedure, request: Request) {
        let (mut reply, call, xid) = (request.ticket.reply(), request.call(), request.head.xid);
        success(reply.head(), xid);
        let done = match procedure {
            Procedure::Null => Ok(None),
            Procedure::Getacl => self.get_acl(&call, reply.head()).map(|()| None),
            Procedure::Setacl => self.set_acl(&call).map(|Executed { result, durable }| {
                result.encode(reply.head());
                durable
            }),
        };
        let durable = match done {
            Ok(durable) => durable,
            Err(stop) => {
                match stop {
                    Stop::Garbage => garbage(&mut reply, xid),
                    Stop::Fail(status) => fail(&mut reply, xid, status),
                    Stop::Later => fail(&mut reply, xid, Nfsstat3::Jukebox),
                }
                None
            }
        };
        let Some((export, intent)) = durable else { return self.send(request.ticket, reply) };
        let (shared, ticket) = (self.clone(), request.ticket);
        let answer = Box::new(move |result: Result<(), forebay_vfs::Error>| {
            if let Err(error) = result {
                fail(&mut reply, xid, status(error));
            }
            shared.send(ticket, reply);
        });
        self.vfs.commit(&export, intent, &[], answer);
    }

    /// Answers a request for which no worker is free.
    pub(crate) fn turn_away_nfsacl(&self, request: Request) {
        let mut reply = request.ticket.reply();
        fail(&mut reply, request.head.xid, Nfsstat3::Jukebox);
        self.send(request.ticket, reply);
    }

    /// Appends the lists of an inode.
    fn get_acl(&self, call: &Call<'_>, out: &mut Vec<u8>) -> Result<(), Stop> {
        let args: GetaclArgs = call.args()?;
        let at = self.at(call, &args.fh, Wait::Yes)?;
        if args.mask & !mask::ALL != 0 {
            return Err(Stop::Fail(Nfsstat3::Inval));
        }
        if !at.target.export.supports_acls() {
            return Err(Stop::Fail(Nfsstat3::Notsupp));
        }
        let attr = self.vfs.getattr(&at.target)?;
        let acls = read(&self.vfs, &at.target, &attr)?;
        let owners = Owners { uid: attr.uid, gid: attr.gid };
        let asked = |bits: u32| args.mask & bits != 0;
        let list =
            |acl: Option<&PosixAcl>, role| acl.map_or(Ok(Vec::new()), |acl| to_list(acl, role, owners));
        let access = Some(&acls.access).filter(|_| asked(mask::ACL | mask::ACLCNT));
        let default = acls.default.as_ref().filter(|_| asked(mask::DFACL | mask::DFACLCNT));
        let too_many = |_: Invalid| Stop::Fail(Nfsstat3::Serverfault);
        let access = list(access, Role::Access).map_err(too_many)?;
        let default = list(default, Role::Default).map_err(too_many)?;
        let (mut first, mut second) = (Vec::new(), Vec::new());
        let acl = Secattr {
            mask: args.mask,
            acl_count: access.len() as u32,
            acl: sent(&mut first, &access, asked(mask::ACL))?,
            default_count: default.len() as u32,
            default: sent(&mut second, &default, asked(mask::DFACL))?,
        };
        let result: GetaclRes<'_> =
            Ok(GetaclOk { attributes: self.shown(args.fh.as_bytes(), fattr(&attr, at.fsid())), acl });
        result.encode(out);
        Ok(())
    }

    /// Sets the lists of an inode.
    fn set_acl(&self, call: &Call<'_>) -> Result<Executed, Stop> {
        let SetaclArgs { fh, acl } = call.args()?;
        let at = self.at(call, &fh, Wait::Yes)?;
        if at.caller.read_only {
            return Err(Stop::Fail(Nfsstat3::Rofs));
        }
        if acl.mask & !mask::ALL != 0 {
            return Err(Stop::Fail(Nfsstat3::Inval));
        }
        let decoded = |list: Array<'_, nfsacl3::Entry, { nfsacl3::MAX_ENTRIES }>| {
            let entry = |nfsacl3::Entry { tag, id, perm }| Entry { tag, id, permissions: perm };
            let list: Vec<_> = list.iter().map(entry).collect();
            let acl = from_list(&list).map_err(|_| Stop::Fail(Nfsstat3::Inval))?;
            Ok::<_, Stop>(acl.as_ref().map(xattr::encode))
        };
        let access = (acl.mask & mask::ACL != 0).then(|| decoded(acl.acl)).transpose()?;
        let default = (acl.mask & mask::DFACL != 0).then(|| decoded(acl.default)).transpose()?;
        let _changing = self.begin_change(call, &fh, Wait::Yes)?;
        let changed = self.vfs.set_acls(&at.target, &at.caller.cred, &SetAcls { access, default });
        let attributes: PostOpAttr = changed.wcc.after.map(|attr| fattr(&attr, at.fsid()));
        let result = match changed.result {
            Ok(()) => Ok(attributes),
            Err(error) => Err(Failed { status: status(error), attributes }),
        };
        let durable = changed.intent.map(|intent| (at.target.export.clone(), intent));
        Ok(Executed { result, durable })
    }
}

/// Returns a list for the client. It is empty if the client asked only for its length.
fn sent<'a>(
    buffer: &'a mut Vec<u8>,
    list: &[Entry],
    whole: bool,
) -> Result<Array<'a, nfsacl3::Entry, { nfsacl3::MAX_ENTRIES }>, Stop> {
    let entry =
        |Entry { tag, id, permissions }: &Entry| nfsacl3::Entry { tag: *tag, id: *id, perm: *permissions };
    let entries: Vec<_> = list.iter().filter(|_| whole).map(entry).collect();
    Array::encoded(buffer, &entries).ok_or(Stop::Fail(Nfsstat3::Serverfault))
}

/// Makes the reply a failure without attributes.
fn fail(reply: &mut Reply<'_>, xid: u32, status: Nfsstat3) {
    reply.clear();
    success(reply.head(), xid);
    let failed: SetaclRes = Err(Failed { status, attributes: None });
    failed.encode(reply.head());
}
