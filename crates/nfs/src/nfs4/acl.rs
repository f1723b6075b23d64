//! The attribute `acl` (RFC 8881 section 6): POSIX access control lists as NFSv4 lists, and back.

use forebay_acl::nfs4::flag;
use forebay_acl::{Acls, Object, PosixAcl, Who, from_nfs4, to_nfs4};
use forebay_vfs::{Attr, FileType, SetAttr, Target};
use forebay_wire::Array;
use forebay_wire::nfs4::{Ace, Acl, Fattr, Nfsstat4};

use super::compound::{Change, Context, Stop};
use super::owner_names::Names;
use super::set_attrs::{id, set_attr};
use crate::acl::{change_to, object, read};
use crate::caller::At;
use crate::owners::Whose;

/// The bits of a mode that no access control list determines.
const SPECIAL: u32 = 0o7000;

/// Buffers of a list for the client.
#[derive(Default)]
pub(super) struct Buffer {
    names: Vec<Option<String>>,
    aces: Vec<u8>,
}

/// Returns the list of an inode with these attributes.
pub(super) fn of<'a>(
    (cx, names): (&Context<'_>, &Names),
    target: &Target,
    attr: &Attr,
    buffer: &'a mut Buffer,
) -> Result<Acl<'a>, Stop> {
    let acls = read(&cx.shared.vfs, target, attr)?;
    encoded(&acls, object(attr.kind), buffer, |whose, number| names.in_list(cx, whose, number))
}

/// Returns the list of a directory with this mode only.
pub(super) fn of_mode(mode: u32, buffer: &mut Buffer) -> Result<Acl<'_>, Stop> {
    let acls = Acls { access: PosixAcl::from_mode(mode), default: None };
    // The list has no named users or groups.
    encoded(&acls, Object::Directory, buffer, |_, number| number.to_string())
}

/// Returns the NFSv4 form of POSIX lists, encoded into `buffer`. `name` gives the text of a user or group. Fails
/// with NFS4ERR_REP_TOO_BIG for a list that no message can hold.
fn encoded<'a>(
    acls: &Acls,
    object: Object,
    buffer: &'a mut Buffer,
    name: impl Fn(Whose, u32) -> String,
) -> Result<Acl<'a>, Stop> {
    let aces = to_nfs4(acls, object);
    let Buffer { names, aces: bytes } = buffer;
    *names = aces
        .iter()
        .map(|ace| match ace.who {
            Who::User(id) => Some(name(Whose::User, id)),
            Who::Group(id) => Some(name(Whose::Group, id)),
            Who::Owner | Who::OwningGroup | Who::Everyone => None,
        })
        .collect();
    let wire = |(ace, name): (&forebay_acl::Ace, &'a Option<String>)| Ace {
        kind: ace.kind,
        flag: ace.flags,
        access_mask: ace.mask,
        principal: name.as_deref().or(ace.who.special_name()).unwrap_or_default().as_bytes(),
    };
    let wire: Vec<_> = aces.iter().zip(&*names).map(wire).collect();
    // A list with more entries than a message may have.
    Array::encoded(bytes, &wire).ok_or(Stop::Fail(Nfsstat4::RepTooBig))
}

/// Returns the lists that a client asks to set, if it asks for any.
pub(super) fn wanted(
    cx: &Context<'_>,
    wire: &Fattr<'_>,
    target: &Target,
    kind: FileType,
) -> Result<Option<Acls>, Stop> {
    let values = wire.attributes().map_err(|_| Stop::Fail(Nfsstat4::Badxdr))?;
    let Some(list) = values.acl else { return Ok(None) };
    if kind == FileType::Symlink || !target.export.supports_acls() {
        return Err(Stop::Fail(Nfsstat4::Attrnotsupp));
    }
    let ace = |ace: Ace<'_>| {
        let who = match Who::from_special_name(ace.principal) {
            Some(who) => who,
            None if ace.flag & flag::IDENTIFIER_GROUP != 0 => {
                Who::Group(id(cx, ace.principal, Whose::Group)?)
            }
            None => Who::User(id(cx, ace.principal, Whose::User)?),
        };
        Ok(forebay_acl::Ace { kind: ace.kind, flags: ace.flag, mask: ace.access_mask, who })
    };
    let aces = list.iter().map(ace).collect::<Result<Vec<_>, Stop>>()?;
    match from_nfs4(&aces, object(kind)) {
        Ok(acls) => Ok(Some(acls)),
        Err(_) => Err(Stop::Fail(Nfsstat4::Attrnotsupp)),
    }
}

/// Returns the attributes that a client gives a new inode. If a list follows, the mode grants nothing until then.
pub(super) fn set_attr_of_new(cx: &Context<'_>, wire: &Fattr<'_>) -> Result<SetAttr, Stop> {
    let set = set_attr(cx, wire)?;
    let has_list = wire.mask.contains(forebay_wire::nfs4::attr::ACL);
    let mode = if has_list { Some(set.mode.unwrap_or(0) & SPECIAL) } else { set.mode };
    Ok(SetAttr { mode, ..set })
}

/// Sets lists after another change of the inode, which becomes durable first. Returns the change that the reply has to
/// wait for.
pub(super) fn set_after(
    cx: &Context<'_>,
    at: &At,
    target: &Target,
    acls: Option<Acls>,
    before: Option<Change>,
) -> Result<Option<Change>, Stop> {
    let Some(acls) = acls else { return Ok(before) };
    if let Some(change) = before {
        change.wait(cx)?;
    }
    let set = change_to(&acls, object(target.object.kind()));
    let changed = cx.shared.vfs.set_acls(target, &at.caller.cred, &set);
    let ((), change) = Change::of(cx, &target.export, changed.result, changed.intent)?;
    Ok(change)
}
