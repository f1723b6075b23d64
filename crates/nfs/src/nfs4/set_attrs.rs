//! SETATTR, and the attributes of creates (RFC 8881 section 18.30).

use forebay_clientstate::WRITE;
use forebay_rpc::Reply;
use forebay_vfs::{FileType, SetAttr, SetTime, Time};
use forebay_wire::nfs4::{
    Bitmap, Fattr, Nfsstat4, Nfstime4, OpResult, SetTime4, SetattrArgs, SetattrRes, Stateid, attr,
};

use super::acl;
use super::attrs::SUPPORTED;
use super::compound::{Change, Compound, Context, Stop};
use super::place::may_wait;
use crate::lookups::Unanswered;
use crate::owners::{NoNumber, Whose};

/// Nanoseconds in a second.
const SECOND: u32 = 1_000_000_000;

/// Returns the attributes that a client asks to set.
pub(super) fn set_attr(cx: &Context<'_>, wire: &Fattr<'_>) -> Result<SetAttr, Stop> {
    let fail = |status| Err(Stop::Fail(status));
    let settable = attr::SETTABLE & SUPPORTED;
    if wire.unknown || !wire.mask.is_subset(&(SUPPORTED | attr::WRITE_ONLY)) {
        return fail(Nfsstat4::Attrnotsupp);
    }
    if !wire.mask.is_subset(&settable) {
        let is_known = wire.mask.is_subset(&SUPPORTED);
        return fail(if is_known { Nfsstat4::Inval } else { Nfsstat4::Attrnotsupp });
    }
    let values = wire.attributes().map_err(|_| Stop::Fail(Nfsstat4::Badxdr))?;
    Ok(SetAttr {
        mode: values.mode.map(mode).transpose()?,
        uid: values.owner.map(|owner| id(cx, owner, Whose::User)).transpose()?,
        gid: values.owner_group.map(|group| id(cx, group, Whose::Group)).transpose()?,
        size: values.size,
        atime: time(values.time_access_set)?,
        mtime: time(values.time_modify_set)?,
    })
}

fn mode(mode: u32) -> Result<u32, Stop> {
    if mode & !0o7777 == 0 { Ok(mode) } else { Err(Stop::Fail(Nfsstat4::Inval)) }
}

/// Returns the number of an owner or group, which is sent as a number or as a name. A number never gets
/// NFS4ERR_BADOWNER: Linux clients would try names from then on.
pub(super) fn id(cx: &Context<'_>, text: &[u8], whose: Whose) -> Result<u32, Stop> {
    let text = std::str::from_utf8(text).map_err(|_| Stop::Fail(Nfsstat4::Inval))?;
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match text.parse::<u32>() {
        // The largest number means "leave it" to chown(2).
        Ok(u32::MAX) => Err(Stop::Fail(Nfsstat4::Inval)),
        Ok(id) if is_number => Ok(id),
        Err(_) if is_number => Err(Stop::Fail(Nfsstat4::Inval)),
        _ => {
            let found = cx.shared.owners.number(text, whose, cx.call.peer.addr.ip(), cx.wait);
            found.map_err(|why| match why {
                NoNumber::Unknown => Stop::Fail(Nfsstat4::Badowner),
                NoNumber::Unanswered(Unanswered::Later) => Stop::Later,
                NoNumber::Unanswered(_) => Stop::Fail(Nfsstat4::Delay),
            })
        }
    }
}

/// Returns the change of a time that the client asks for. Fails with NFS4ERR_INVAL if the nanoseconds make a second
/// or more.
fn time(set: Option<SetTime4>) -> Result<SetTime, Stop> {
    match set {
        None => Ok(SetTime::Keep),
        Some(SetTime4::ServerTime) => Ok(SetTime::Now),
        Some(SetTime4::ClientTime(Nfstime4 { seconds, nseconds })) if nseconds < SECOND => {
            Ok(SetTime::To(Time { sec: seconds, nsec: nseconds }))
        }
        Some(SetTime4::ClientTime(_)) => Err(Stop::Fail(Nfsstat4::Inval)),
    }
}

/// Returns the attributes of a create that were set: all of them.
pub(super) fn set_mask(wire: &Fattr<'_>) -> Bitmap {
    wire.mask
}

impl Compound {
    /// Executes SETATTR.
    pub(super) fn setattr(
        &mut self,
        cx: &Context<'_>,
        args: &SetattrArgs<'_>,
        reply: &mut Reply<'_>,
    ) -> Result<Option<Change>, Stop> {
        may_wait(cx)?;
        let mut set = set_attr(cx, &args.attributes)?;
        let target = self.place()?.resolve(cx)?.target.clone();
        let acls = acl::wanted(cx, &args.attributes, &target, target.object.kind())?;
        if target.object.kind() == FileType::Symlink {
            // The mode of a symbolic link means nothing, and the kernel does not set it.
            set.mode = None;
        }
        if set.size.is_some() {
            self.check_io(cx, args.stateid, WRITE)?;
        } else if args.stateid != Stateid::ANONYMOUS && args.stateid != Stateid::BYPASS {
            let stateid = self.resolve_stateid(args.stateid)?;
            let client = self.client()?;
            cx.server.state().test_stateid(client, super::convert::state_id(stateid))?;
        }
        let handle = self.place()?.handle(cx);
        if self.place()?.resolve(cx)?.caller.read_only {
            return Err(Stop::Fail(Nfsstat4::Rofs));
        }
        let _changing = self.begin_change(cx, handle.as_bytes())?;
        let at = self.place()?.resolve(cx)?;
        let changed = cx.shared.vfs.setattr(&at.target, &at.caller.cred, &set, None);
        let ((), change) = Change::of(cx, &at.target.export, changed.result, changed.intent)?;
        // The list comes last (RFC 8881 section 6.4.1.3).
        let at = self.place()?.resolve(cx)?.clone();
        let change = acl::set_after(cx, &at, &at.target, acls, change)?;
        let result = SetattrRes { status: Nfsstat4::Ok, attrsset: set_mask(&args.attributes) };
        self.reply.push(reply.head(), &OpResult::Setattr(result));
        Ok(change)
    }
}
