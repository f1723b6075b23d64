//! Extended attributes: GETXATTR, SETXATTR, LISTXATTRS, REMOVEXATTR (RFC 8276).

use forebay_rpc::Reply;
use forebay_vfs::{Changed, Errno, Error, FileType, XattrMust};
use forebay_wire::nfs4::{
    ChangeOk, GetxattrOk, ListxattrsArgs, Nfsstat4, Opcode, SetxattrArgs, SetxattrOption, XattrListing,
};
use xxhash_rust::xxh3::xxh3_64;

use super::compound::{Change, Compound, Context, Stop, put};
use super::entries::{at_to_change, change_info};
use super::place::{Place, may_wait};
use crate::caller::At;

/// The largest value that Linux stores, in bytes.
const VALUE_MAX: usize = 64 << 10;
/// Bytes of the result of GETXATTR around the value.
const AROUND: usize = 16;
/// Bytes of a result of LISTXATTRS without names.
const EMPTY_LIST: usize = 16;

/// Returns the status for an error of an operation on extended attributes.
fn failed(error: Error) -> Stop {
    match error {
        Error::Os(Errno::NODATA) => Stop::Fail(Nfsstat4::Noxattr),
        Error::Os(Errno::TOOBIG | Errno::RANGE) => Stop::Fail(Nfsstat4::Xattr2big),
        error => error.into(),
    }
}

/// Checks a name (RFC 8881 section 14.5). The file system checks its length.
fn check(name: &[u8]) -> Result<(), Stop> {
    match name {
        [] => Err(Stop::Fail(Nfsstat4::Inval)),
        name if name.contains(&0) => Err(Stop::Fail(Nfsstat4::Badchar)),
        _ => Ok(()),
    }
}

/// Returns the cookie of a name. The list is in the order of cookies, so it goes on at the right name after other names
/// were set or removed.
fn cookie(name: &[u8]) -> u64 {
    // 0 begins the list.
    xxh3_64(name).max(1)
}

/// Fails for an inode that has no extended attributes.
fn require_kind(at: &At) -> Result<(), Stop> {
    match at.target.object.kind() {
        FileType::RegularFile | FileType::Directory => Ok(()),
        _ => Err(Stop::Fail(Nfsstat4::WrongType)),
    }
}

impl Compound {
    /// Returns the current inode. A directory above the exports has no extended attributes.
    fn with_xattrs(&mut self, cx: &Context<'_>) -> Result<At, Stop> {
        may_wait(cx)?;
        let place = self.place()?;
        if let Place::Above(_) = place {
            return Err(Stop::Fail(Nfsstat4::Notsupp));
        }
        let at = place.resolve(cx)?.clone();
        require_kind(&at)?;
        Ok(at)
    }

    /// Carries out GETXATTR: appends the value of an extended attribute. Fails if the value does not fit into the
    /// reply that the session allows.
    pub(super) fn get_xattr(
        &mut self,
        cx: &Context<'_>,
        name: &[u8],
        reply: &mut Reply<'_>,
    ) -> Result<(), Stop> {
        check(name)?;
        let at = self.with_xattrs(cx)?;
        let value = cx.shared.vfs.xattr(&at.target, &at.caller.cred, name).map_err(failed)?;
        if value.len() + AROUND > self.reply.room(reply.head()) {
            return Err(Stop::Fail(self.too_big()));
        }
        put(&mut self.reply, reply.head(), Opcode::Getxattr, &GetxattrOk { value: &value });
        Ok(())
    }

    /// Carries out LISTXATTRS: appends the names after the client's cookie that fit. Fails with NFS4ERR_TOOSMALL if
    /// none fits.
    pub(super) fn list_xattrs(
        &mut self,
        cx: &Context<'_>,
        args: &ListxattrsArgs,
        reply: &mut Reply<'_>,
    ) -> Result<(), Stop> {
        let at = self.with_xattrs(cx)?;
        let names = cx.shared.vfs.xattr_names(&at.target, &at.caller.cred).map_err(failed)?;
        let mut left: Vec<_> = names.iter().map(|name| (cookie(name), name)).collect();
        left.retain(|(cookie, _)| *cookie > args.cookie);
        left.sort_unstable();
        self.reply.start(reply.head(), Opcode::Listxattrs);
        let out = reply.head();
        let most = (args.maxcount as usize).min(self.reply.room(out));
        if most < EMPTY_LIST {
            return Err(Stop::Fail(Nfsstat4::Toosmall));
        }
        let mut listing = XattrListing::begin(out, most);
        let fitting = left.iter().take_while(|(_, name)| listing.name(out, name)).count();
        if fitting == 0 && !left.is_empty() {
            return Err(Stop::Fail(Nfsstat4::Toosmall));
        }
        let last = fitting.checked_sub(1).and_then(|last| left.get(last));
        listing.finish(out, last.map_or(args.cookie, |(cookie, _)| *cookie), fitting == left.len());
        Ok(())
    }

    /// Carries out SETXATTR. Fails with NFS4ERR_XATTR2BIG for a value over 64 KiB, before the file system is asked.
    pub(super) fn set_xattr(
        &mut self,
        cx: &Context<'_>,
        args: &SetxattrArgs<'_>,
        reply: &mut Reply<'_>,
    ) -> Result<Option<Change>, Stop> {
        check(args.name)?;
        if args.value.len() > VALUE_MAX {
            return Err(Stop::Fail(Nfsstat4::Xattr2big));
        }
        let must = match args.option {
            SetxattrOption::Either => XattrMust::Any,
            SetxattrOption::Create => XattrMust::BeNew,
            SetxattrOption::Replace => XattrMust::Exist,
        };
        self.change_xattr(cx, Opcode::Setxattr, reply, |cx, at| {
            cx.shared.vfs.set_xattr(&at.target, &at.caller.cred, args.name, args.value, must)
        })
    }

    /// Carries out REMOVEXATTR. Fails with NFS4ERR_NOXATTR if the inode has no attribute of that name.
    pub(super) fn remove_xattr(
        &mut self,
        cx: &Context<'_>,
        name: &[u8],
        reply: &mut Reply<'_>,
    ) -> Result<Option<Change>, Stop> {
        check(name)?;
        self.change_xattr(cx, Opcode::Removexattr, reply, |cx, at| {
            cx.shared.vfs.remove_xattr(&at.target, &at.caller.cred, name)
        })
    }

    /// Recalls delegations, changes an extended attribute with `make`, and appends the reply. Fails with
    /// [`Stop::Later`] on an event loop.
    fn change_xattr(
        &mut self,
        cx: &Context<'_>,
        number: Opcode,
        reply: &mut Reply<'_>,
        make: impl FnOnce(&Context<'_>, &At) -> Changed<()>,
    ) -> Result<Option<Change>, Stop> {
        may_wait(cx)?;
        let at = at_to_change(self.place()?, cx)?;
        require_kind(&at)?;
        let handle = self.place()?.handle(cx);
        let _changing = self.begin_change(cx, handle.as_bytes())?;
        let changed = make(cx, &at);
        if let Err(error @ Error::Os(Errno::NODATA | Errno::TOOBIG | Errno::RANGE)) = changed.result {
            return Err(failed(error));
        }
        let ((), change) = Change::of(cx, &at.target.export, changed.result, changed.intent)?;
        let body = ChangeOk { cinfo: change_info(&changed.wcc) };
        put(&mut self.reply, reply.head(), number, &body);
        Ok(change)
    }
}
