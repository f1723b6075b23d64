//! The mapping between POSIX ACLs and NFSv4 ACLs (draft-ietf-nfsv4-acl-mapping-05, as the Linux server applies it).
//!
//! # Operations
//!
//! | permission | operations |
//! |---|---|
//! | read | `READ_DATA` |
//! | write | `WRITE_DATA`, `APPEND_DATA`; on a directory also `DELETE_CHILD` |
//! | execute | `EXECUTE` |
//! | always allowed to every principal | `READ_ATTRIBUTES`, `READ_ACL`, `SYNCHRONIZE` |
//! | always allowed to the owner | `WRITE_ATTRIBUTES`, `WRITE_ACL` |
//!
//! In the direction to POSIX, a permission is granted only if all of its operations are. All other operations are
//! ignored: POSIX ACLs cannot express them.

mod from_nfs4;
mod to_nfs4;

use crate::nfs4::mask;
use crate::{Invalid, Permissions, PosixAcl};

pub use from_nfs4::from_nfs4;
pub use to_nfs4::to_nfs4;

/// Most entries of an NFSv4 ACL: as many as the mapping makes of an access ACL and a default ACL.
pub const MAX_ACES: usize = 4 * crate::posix::MAX_ENTRIES;

/// The kind of object that has an ACL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Object {
    /// A file, or any other object that is not a directory.
    File,
    /// A directory.
    Directory,
}

/// The POSIX ACLs of a file or directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Acls {
    /// The ACL that controls access.
    pub access: PosixAcl,
    /// The ACL that new files and directories in a directory inherit.
    pub default: Option<PosixAcl>,
}

/// The reason why an NFSv4 ACL cannot be stored as POSIX ACLs.
///
/// The Linux server answers `NFS4ERR_ATTRNOTSUPP` to each reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// An entry that neither allows nor denies.
    #[error("an entry has type {0}; only 0 (allow) and 1 (deny) are supported")]
    Kind(u32),
    /// Flags that POSIX ACLs cannot express.
    #[error("an entry has the unsupported flags {0:#x}")]
    Flags(u32),
    /// An inheritable entry for an object that is not a directory.
    #[error("an entry of a file is inheritable")]
    InheritableOnFile,
    /// An entry with `INHERIT_ONLY` that neither files nor directories inherit. RFC 8881, section 6.2.1.4, says that
    /// such an ACL should be refused. The Linux server ignores the flag and applies the entry.
    #[error("an entry has the flag INHERIT_ONLY, but neither FILE_INHERIT nor DIRECTORY_INHERIT")]
    InheritOnly,
    /// The list has more entries than [`MAX_ACES`].
    #[error("an ACL has {0} entries; at most {max} are supported", max = MAX_ACES)]
    TooMany(usize),
    /// The resulting POSIX ACL would be invalid.
    #[error(transparent)]
    Invalid(#[from] Invalid),
}

/// The permissions and the operations that each stands for on files. [`operations`] adds the operations on directories.
const OPERATIONS: [(Permissions, u32); 3] = [
    (Permissions::READ, mask::READ_DATA),
    (Permissions::WRITE, mask::WRITE_DATA | mask::APPEND_DATA),
    (Permissions::EXECUTE, mask::EXECUTE),
];

/// Returns the operations of one row of [`OPERATIONS`].
const fn on(object: Object, permission: Permissions, operations: u32) -> u32 {
    let removes = matches!(object, Object::Directory) && permission.contains(Permissions::WRITE);
    if removes { operations | mask::DELETE_CHILD } else { operations }
}

/// Returns the operations that `permissions` stand for.
fn operations(permissions: Permissions, object: Object) -> u32 {
    let granted = OPERATIONS.into_iter().filter(|(permission, _)| permissions.contains(*permission));
    granted.fold(0, |all, (permission, operations)| all | on(object, permission, operations))
}

/// Returns the permissions of which every operation is in `operations`.
fn permissions(operations: u32, object: Object) -> Permissions {
    let is_whole = |(permission, all)| {
        let all = on(object, permission, all);
        if operations & all == all { permission } else { Permissions::NONE }
    };
    OPERATIONS.into_iter().map(is_whole).fold(Permissions::NONE, |set, permission| set | permission)
}
