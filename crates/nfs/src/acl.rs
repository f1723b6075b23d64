//! Access control lists between the file system and the protocols.

use forebay_acl::{Acls, Object, PosixAcl, xattr};
use forebay_vfs::{Attr, Errno, Error, FileType, SetAcls, Target, Vfs};

/// Returns the access control lists of an inode with these attributes. An inode without a list has the list that its
/// mode means.
pub(crate) fn read(vfs: &Vfs, target: &Target, attr: &Attr) -> Result<Acls, Error> {
    let bytes = vfs.acls(target)?;
    // The kernel has validated what it stores, except for two entries of one user, which this server cannot show.
    let decode = |bytes: &[u8]| xattr::decode(bytes).map_err(|_| Error::Os(Errno::IO));
    let access = bytes.access.map_or_else(|| Ok(PosixAcl::from_mode(attr.mode)), |bytes| decode(&bytes))?;
    Ok(Acls { access, default: bytes.default.map(|bytes| decode(&bytes)).transpose()? })
}

/// Returns the change to these lists. A directory without a default list loses the one that it has.
pub(crate) fn change_to(acls: &Acls, object: Object) -> SetAcls {
    let default = || acls.default.as_ref().map(xattr::encode);
    SetAcls {
        access: Some(Some(xattr::encode(&acls.access))),
        default: (object == Object::Directory).then(default),
    }
}

/// Returns the kind of an inode for the mapping of its lists.
pub(crate) fn object(kind: FileType) -> Object {
    if kind == FileType::Directory { Object::Directory } else { Object::File }
}
