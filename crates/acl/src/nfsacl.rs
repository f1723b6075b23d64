//! The lists of NFSACL (program 100227, version 3), which NFSv3 clients use for POSIX ACLs.
//!
//! No RFC describes the protocol. The rules are those of Solaris and of the Linux server:
//!
//! | rule | list from ACL | ACL from list |
//! |---|---|---|
//! | mask | always present; if the ACL has none, the permissions of the file's group | see below |
//! | identity | owner and group have their numbers, mask and other users 0 | counts only in named entries |
//! | default | every tag has [`DEFAULT`] added | [`DEFAULT`] is ignored |
//! | order | by tag, then by number | any |
//! | permissions | 0 to 7 | 0 to 7; higher bits of the mask are ignored, because Solaris sets some |
//!
//! A list without named entries may have a mask. If that mask equals the permissions of the file's group, the ACL has
//! no mask.

use crate::tagged::{NO_ID, Tagged, tag};
use crate::{Invalid, Permissions, PosixAcl};

/// Most entries of a list.
pub const MAX_ENTRIES: usize = 1024;

/// The bit in the tags of a default ACL's entries.
pub const DEFAULT: u32 = 0x1000;

/// The use of an ACL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The ACL controls access to a file or directory.
    Access,
    /// The ACL is what new files and directories in a directory inherit.
    Default,
}

/// An entry as it is on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// A tag of [`tag`], with [`DEFAULT`] added in the list of a default ACL.
    pub tag: u32,
    /// The number of the user or group.
    pub id: u32,
    /// The permissions, 0 to 7.
    pub permissions: u32,
}

/// The owner and the group of a file or directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owners {
    /// The number of the owner.
    pub uid: u32,
    /// The number of the group.
    pub gid: u32,
}

/// Returns the list of `acl`, which has at least four entries. A missing default ACL is an empty list.
///
/// # Errors
/// [`Invalid::TooMany`] if the list would have more than [`MAX_ENTRIES`].
pub fn to_list(acl: &PosixAcl, role: Role, owners: Owners) -> Result<Vec<Entry>, Invalid> {
    let group_obj = acl.entries().group_obj;
    let mut full = acl.entries().clone();
    full.mask = Some(full.mask.unwrap_or(group_obj));
    let full = PosixAcl::new(full)?;
    check_count(full.count())?;
    let default = if role == Role::Default { DEFAULT } else { 0 };
    let entry = |Tagged { tag, id, permissions }| {
        let id = match tag {
            tag::USER_OBJ => owners.uid,
            tag::GROUP_OBJ => owners.gid,
            tag::USER | tag::GROUP => id,
            _ => 0,
        };
        Entry { tag: tag | default, id, permissions: permissions.bits() }
    };
    Ok(full.tagged().map(entry).collect())
}

/// Returns the ACL that a list describes, or `None` for the empty list. An empty list removes the ACL.
///
/// # Errors
/// [`Invalid`] if the list is no valid ACL.
pub fn from_list(list: &[Entry]) -> Result<Option<PosixAcl>, Invalid> {
    if list.is_empty() {
        return Ok(None);
    }
    check_count(list.len())?;
    let acl = PosixAcl::from_tagged(list.iter().map(tagged))?;
    let mut entries = acl.into_entries();
    let is_minimal = entries.users.is_empty() && entries.groups.is_empty();
    if is_minimal && entries.mask == Some(entries.group_obj) {
        entries.mask = None;
    }
    PosixAcl::new(entries).map(Some)
}

fn check_count(count: usize) -> Result<(), Invalid> {
    if count > MAX_ENTRIES { Err(Invalid::TooMany { count, max: MAX_ENTRIES }) } else { Ok(()) }
}

/// Reads one entry from the wire.
fn tagged(entry: &Entry) -> Result<Tagged, Invalid> {
    let tag = entry.tag & !DEFAULT;
    let bits = if tag == tag::MASK { entry.permissions & 7 } else { entry.permissions };
    let permissions = Permissions::from_bits(bits).ok_or(Invalid::Permissions { tag, bits })?;
    let id = if matches!(tag, tag::USER | tag::GROUP) { entry.id } else { NO_ID };
    Ok(Tagged { tag, id, permissions })
}
