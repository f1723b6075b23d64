//! Attributes for the client: GETATTR, VERIFY, NVERIFY and the entries of READDIR (RFC 8881 section 5).

use forebay_rpc::Reply;
use forebay_vfs::{Attr, Export};
use forebay_wire::Opaque;
use forebay_wire::nfs3::FileHandle;
use forebay_wire::nfs4::{
    Attributes, Bitmap, ChangeAttrType, Fattr, Fsid4, Ftype4, Nfsstat4, Nfstime4, Opcode, OpenArguments,
    Specdata4, attr,
};

use super::acl;
use super::compound::{Compound, Context, Stop};
use super::convert::{change, ftype, wire_time};
use super::owner_names::{Names, Text};
use super::place::{Place, Reached, may_wait};
use super::pseudo::Pseudo;
use crate::MAX_TRANSFER;
use crate::owners::Whose;

/// The attributes that the server serves.
pub(super) const SUPPORTED: Bitmap = Bitmap::of(&[
    attr::SUPPORTED_ATTRS,
    attr::TYPE,
    attr::FH_EXPIRE_TYPE,
    attr::CHANGE,
    attr::SIZE,
    attr::LINK_SUPPORT,
    attr::SYMLINK_SUPPORT,
    attr::NAMED_ATTR,
    attr::FSID,
    attr::UNIQUE_HANDLES,
    attr::LEASE_TIME,
    attr::RDATTR_ERROR,
    attr::ACL,
    attr::ACLSUPPORT,
    attr::CANSETTIME,
    attr::CASE_INSENSITIVE,
    attr::CASE_PRESERVING,
    attr::CHOWN_RESTRICTED,
    attr::FILEHANDLE,
    attr::FILEID,
    attr::FILES_AVAIL,
    attr::FILES_FREE,
    attr::FILES_TOTAL,
    attr::HOMOGENEOUS,
    attr::MAXFILESIZE,
    attr::MAXLINK,
    attr::MAXNAME,
    attr::MAXREAD,
    attr::MAXWRITE,
    attr::MODE,
    attr::NO_TRUNC,
    attr::NUMLINKS,
    attr::OWNER,
    attr::OWNER_GROUP,
    attr::RAWDEV,
    attr::SPACE_AVAIL,
    attr::SPACE_FREE,
    attr::SPACE_TOTAL,
    attr::SPACE_USED,
    attr::TIME_ACCESS,
    attr::TIME_ACCESS_SET,
    attr::TIME_DELTA,
    attr::TIME_METADATA,
    attr::TIME_MODIFY,
    attr::TIME_MODIFY_SET,
    attr::MOUNTED_ON_FILEID,
    attr::SUPPATTR_EXCLCREAT,
    attr::CLONE_BLKSIZE,
    attr::SPACE_FREED,
    attr::CHANGE_ATTR_TYPE,
    attr::XATTR_SUPPORT,
    attr::OPEN_ARGUMENTS,
]);

/// The attributes that an exclusive create may set. The times hold its verifier.
pub(super) const EXCLUSIVE_CREATE: Bitmap =
    Bitmap::of(&[attr::SIZE, attr::MODE, attr::OWNER, attr::OWNER_GROUP]);

/// The attributes that need the space of the file system.
const SPACE: Bitmap = Bitmap::of(&[
    attr::FILES_AVAIL,
    attr::FILES_FREE,
    attr::FILES_TOTAL,
    attr::SPACE_AVAIL,
    attr::SPACE_FREE,
    attr::SPACE_TOTAL,
]);

/// The attribute that needs the access control list.
pub(super) const LIST: Bitmap = Bitmap::of(&[attr::ACL]);

/// The arguments of OPEN that the server accepts, as bits of RFC 9754 section 3.
const OPEN_ARGUMENTS: OpenArguments = OpenArguments {
    // READ, WRITE, BOTH; NONE and these.
    share_access: Bitmap::of(&[1, 2, 3]),
    share_deny: Bitmap::of(&[0, 1, 2, 3]),
    // ANY_DELEG, NO_DELEG, CANCEL.
    share_access_want: Bitmap::of(&[3, 4, 5]),
    // NULL, PREVIOUS, DELEGATE_CUR, FH, DELEG_CUR_FH.
    open_claim: Bitmap::of(&[0, 1, 2, 4, 5]),
    // UNCHECKED4, GUARDED4, EXCLUSIVE4, EXCLUSIVE4_1.
    create_mode: Bitmap::of(&[0, 1, 2, 3]),
};

/// Buffers for values that attributes borrow.
#[derive(Default)]
pub(super) struct Scratch {
    owner: Text,
    group: Text,
    handle: Option<FileHandle>,
}

impl Scratch {
    /// Keeps the values until the attributes are encoded.
    fn keep(
        &mut self,
        (cx, names): (&Context<'_>, &Names),
        (owner, group): (u32, u32),
        handle: FileHandle,
    ) -> (&[u8], &[u8], &[u8]) {
        let owner = names.write(cx, Whose::User, owner, &mut self.owner);
        let group = names.write(cx, Whose::Group, group, &mut self.group);
        (owner, group, self.handle.insert(handle).as_bytes())
    }
}

/// An object with attributes.
pub(super) struct Described<'a> {
    pub(super) attr: &'a Attr,
    pub(super) export: &'a Export,
    pub(super) handle: FileHandle,
    /// The number of the directory on which the object is mounted, if it is an export's root.
    pub(super) mounted_on: Option<u64>,
}

/// Returns the attributes that the server serves of an export's objects.
fn supported(export: &Export) -> Bitmap {
    if export.supports_acls() { SUPPORTED } else { SUPPORTED & !LIST }
}

/// Returns the attributes that are equal for all objects. Out of line the large result would be copied for each object.
#[inline(always)]
fn common<'a>(cx: &Context<'_>) -> Attributes<'a> {
    Attributes {
        supported_attrs: Some(SUPPORTED),
        fh_expire_type: Some(0),
        link_support: Some(true),
        symlink_support: Some(true),
        named_attr: Some(false),
        unique_handles: Some(true),
        lease_time: Some(cx.server.lease_seconds()),
        rdattr_error: Some(Nfsstat4::Ok),
        aclsupport: Some(forebay_acl::nfs4::SUPPORT),
        cansettime: Some(true),
        case_insensitive: Some(false),
        case_preserving: Some(true),
        chown_restricted: Some(true),
        homogeneous: Some(true),
        maxread: Some(MAX_TRANSFER.into()),
        maxwrite: Some(MAX_TRANSFER.into()),
        no_trunc: Some(true),
        time_delta: Some(Nfstime4 { seconds: 0, nseconds: 1 }),
        suppattr_exclcreat: Some(EXCLUSIVE_CREATE),
        change_attr_type: Some(ChangeAttrType::TimeMetadata),
        xattr_support: Some(false),
        open_arguments: Some(OPEN_ARGUMENTS),
        ..Attributes::default()
    }
}

/// Returns the attributes of an inode, without the space of its file system.
pub(super) fn describe<'a>(
    cx: &Context<'_>,
    names: &Names,
    object: &Described<'_>,
    scratch: &'a mut Scratch,
) -> Attributes<'a> {
    let Described { attr, export, handle, mounted_on } = object;
    let most = cx.shared.vfs.most(export);
    let (owner, group, handle) = scratch.keep((cx, names), (attr.uid, attr.gid), *handle);
    // Clients take 0 for no number at all.
    let fileid = attr.ino.max(1);
    Attributes {
        supported_attrs: Some(supported(export)),
        aclsupport: Some(if export.supports_acls() { forebay_acl::nfs4::SUPPORT } else { 0 }),
        xattr_support: Some(export.supports_xattrs()),
        ftype: Some(ftype(attr.kind)),
        change: Some(change(attr)),
        size: Some(attr.size),
        fsid: Some(Fsid4 { major: export.fsid, minor: 0 }),
        filehandle: Some(Opaque(handle)),
        fileid: Some(fileid),
        maxfilesize: Some(most.max_file_size),
        maxlink: Some(most.max_links),
        maxname: Some(most.name_max),
        mode: Some(attr.mode),
        numlinks: Some(attr.nlink.min(u32::MAX.into()) as u32),
        owner: Some(owner),
        owner_group: Some(group),
        rawdev: Some(Specdata4 { major: attr.rdev.0, minor: attr.rdev.1 }),
        space_used: Some(attr.used),
        clone_blksize: Some(most.clone_block),
        // The last name frees the space.
        space_freed: Some(if attr.nlink > 1 { 0 } else { attr.used }),
        time_access: Some(wire_time(attr.atime)),
        time_metadata: Some(wire_time(attr.ctime)),
        time_modify: Some(wire_time(attr.mtime)),
        mounted_on_fileid: Some(mounted_on.unwrap_or(fileid)),
        ..common(cx)
    }
}

/// The mode of a directory above the exports.
const ABOVE_MODE: u32 = 0o555;

/// Returns the attributes of a directory above the exports.
pub(super) fn describe_above<'a>(
    cx: &Context<'_>,
    names: &Names,
    number: usize,
    scratch: &'a mut Scratch,
) -> Attributes<'a> {
    let pseudo = cx.server.pseudo();
    let node = pseudo.node(number);
    let time = Nfstime4::default();
    let (owner, group, handle) = scratch.keep((cx, names), (0, 0), pseudo.handle(number));
    Attributes {
        ftype: Some(Ftype4::Dir),
        change: Some(pseudo.change()),
        size: Some(4096),
        fsid: Some(Fsid4::default()),
        filehandle: Some(Opaque(handle)),
        fileid: Some(Pseudo::fileid(number)),
        maxfilesize: Some(u64::MAX >> 1),
        maxlink: Some(255),
        maxname: Some(255),
        mode: Some(ABOVE_MODE),
        numlinks: Some(2 + node.names.len() as u32),
        owner: Some(owner),
        owner_group: Some(group),
        rawdev: Some(Specdata4::default()),
        space_used: Some(0),
        clone_blksize: Some(0),
        space_freed: Some(0),
        files_avail: Some(0),
        files_free: Some(0),
        files_total: Some(0),
        space_avail: Some(0),
        space_free: Some(0),
        space_total: Some(0),
        time_access: Some(time),
        time_metadata: Some(time),
        time_modify: Some(time),
        mounted_on_fileid: Some(Pseudo::fileid(number)),
        ..common(cx)
    }
}

impl Compound {
    /// Returns the attributes of the current object that a request asks for.
    fn attributes<'a>(
        &mut self,
        cx: &Context<'_>,
        (request, names): (&Bitmap, &Names),
        scratch: &'a mut Scratch,
        list: &'a mut acl::Buffer,
    ) -> Result<Attributes<'a>, Stop> {
        let held = self.look(cx, request)?;
        let place = self.place()?;
        let needs_list = !(*request & LIST).is_empty();
        if let Place::Above(number) = place {
            let mut attributes = describe_above(cx, names, *number, scratch);
            attributes.acl = needs_list.then(|| acl::of_mode(ABOVE_MODE, list)).transpose()?;
            return Ok(attributes);
        }
        let handle = place.handle(cx);
        let needs_space = !(*request & SPACE).is_empty();
        if needs_space || needs_list {
            // The file system has to be asked, and may not answer.
            may_wait(cx)?;
        }
        place.reach(cx)?;
        if let Place::Inode(wire, Reached::Cached(_)) = place {
            // The root of an export is always open.
            let known = cx.shared.vfs.known(wire.as_bytes(), |export, known| {
                let object = Described { attr: &known.attr, export, handle, mounted_on: None };
                Some(describe(cx, names, &object, scratch))
            });
            return known.ok_or(Stop::Later);
        }
        let at = place.resolve(cx)?;
        let attr = held.map_or_else(|| cx.shared.vfs.getattr(&at.target), Ok)?;
        let export = &at.target.export;
        let mounted_on = mounted_on(cx, at);
        let object = Described { attr: &attr, export, handle, mounted_on };
        let mut attributes = describe(cx, names, &object, scratch);
        if needs_list && export.supports_acls() {
            attributes.acl = Some(acl::of((cx, names), &at.target, &attr, list)?);
        }
        if needs_space {
            let space = cx.shared.vfs.space(export)?;
            (attributes.space_total, attributes.space_free, attributes.space_avail) =
                (Some(space.bytes.0), Some(space.bytes.1), Some(space.bytes.2));
            (attributes.files_total, attributes.files_free, attributes.files_avail) =
                (Some(space.files.0), Some(space.files.1), Some(space.files.2));
        }
        Ok(attributes)
    }

    /// Carries out GETATTR, and appends the attributes that are both asked for and supported. Fails with
    /// NFS4ERR_INVAL if the client asks for an attribute that can only be set.
    pub(super) fn getattr(
        &mut self,
        cx: &Context<'_>,
        request: &Bitmap,
        reply: &mut Reply<'_>,
    ) -> Result<(), Stop> {
        if !(*request & attr::WRITE_ONLY).is_empty() {
            return Err(Stop::Fail(Nfsstat4::Inval));
        }
        let names = Names::asked(cx, request);
        loop {
            let (mut scratch, mut list) = (Scratch::default(), acl::Buffer::default());
            let attributes = self.attributes(cx, (request, &names), &mut scratch, &mut list)?;
            if !names.learn(cx)? {
                self.reply.start(reply.head(), Opcode::Getattr);
                attributes.encode(&(*request & SUPPORTED), reply.head());
                return Ok(());
            }
        }
    }

    /// VERIFY goes on if the attributes are equal, NVERIFY if they differ.
    pub(super) fn verify(
        &mut self,
        cx: &Context<'_>,
        wanted: &Fattr<'_>,
        number: Opcode,
        reply: &mut Reply<'_>,
    ) -> Result<(), Stop> {
        let never = attr::WRITE_ONLY | Bitmap::of(&[attr::RDATTR_ERROR]);
        if !(wanted.mask & never).is_empty() {
            return Err(Stop::Fail(Nfsstat4::Inval));
        }
        if wanted.unknown || !wanted.mask.is_subset(&SUPPORTED) {
            return Err(Stop::Fail(Nfsstat4::Attrnotsupp));
        }
        let names = Names::as_sent(cx, wanted);
        let equal = loop {
            let (mut scratch, mut list) = (Scratch::default(), acl::Buffer::default());
            let attributes = self.attributes(cx, (&wanted.mask, &names), &mut scratch, &mut list)?;
            if !names.learn(cx)? {
                break attributes.matches(wanted, &mut Vec::new());
            }
        };
        match (equal, number) {
            (None, _) => Err(Stop::Fail(Nfsstat4::Attrnotsupp)),
            (Some(false), Opcode::Verify) => Err(Stop::Fail(Nfsstat4::NotSame)),
            (Some(true), Opcode::Nverify) => Err(Stop::Fail(Nfsstat4::Same)),
            _ => {
                self.reply.start(reply.head(), number);
                Ok(())
            }
        }
    }
}

/// Returns the number of the directory on which an export's root is mounted.
pub(super) fn mounted_on(cx: &Context<'_>, at: &crate::caller::At) -> Option<u64> {
    let root = at.target.export.root();
    if !std::sync::Arc::ptr_eq(&root.object, &at.target.object) {
        return None;
    }
    match cx.server.pseudo().above(&at.target.export) {
        super::pseudo::Entry::Node(number) => Some(Pseudo::fileid(number)),
        _ => None,
    }
}
