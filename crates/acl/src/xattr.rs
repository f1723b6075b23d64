//! The extended attributes in which Linux passes POSIX ACLs: version 2, little endian.
//!
//! A header of 4 bytes holds the version. Each entry has 8 bytes: tag (16 bits), permissions (16 bits), and identity
//! (32 bits).

use crate::posix::MAX_ENTRIES;
use crate::tagged::{NO_ID, Tagged, tag};
use crate::{Invalid, Permissions, PosixAcl};

/// The attribute with the access ACL of a file or directory. It is absent if the mode says everything.
pub const ACCESS: &str = "system.posix_acl_access";
/// The attribute with the default ACL of a directory. It is absent if the directory has none.
pub const DEFAULT: &str = "system.posix_acl_default";

/// The version in the header.
const VERSION: u32 = 2;
/// Length of the header in bytes.
pub(crate) const HEADER: usize = 4;
/// Length of an entry in bytes.
pub(crate) const ENTRY: usize = 8;

/// Returns the bytes of `acl` as Linux returns them: in the order of tags and numbers, and without identity in entries
/// that are not named.
#[must_use]
pub fn encode(acl: &PosixAcl) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEADER + ENTRY * acl.count());
    out.extend(VERSION.to_le_bytes());
    for Tagged { tag, id, permissions } in acl.tagged() {
        // Both values have at most 6 bits.
        out.extend((tag as u16).to_le_bytes());
        out.extend((permissions.bits() as u16).to_le_bytes());
        out.extend(id.to_le_bytes());
    }
    out
}

/// Decodes an ACL. Tags must be in order, as Linux demands. Linux does not sort named entries, so their numbers may be
/// in any order.
///
/// # Errors
/// [`Invalid`] if the bytes are not the valid ACL of an attribute. Two entries for one number are invalid, although
/// Linux stores such an ACL.
pub fn decode(bytes: &[u8]) -> Result<PosixAcl, Invalid> {
    let (version, rest) = bytes.split_first_chunk().ok_or(Invalid::Length(bytes.len()))?;
    let version = u32::from_le_bytes(*version);
    if version != VERSION {
        return Err(Invalid::Version(version));
    }
    let (entries, []) = rest.as_chunks::<ENTRY>() else {
        return Err(Invalid::Length(bytes.len()));
    };
    if entries.len() > MAX_ENTRIES {
        return Err(Invalid::TooMany { count: entries.len(), max: MAX_ENTRIES });
    }
    let mut highest = 0;
    PosixAcl::from_tagged(entries.iter().map(|bytes| {
        let entry = entry(*bytes)?;
        if entry.tag < highest {
            return Err(Invalid::Order { tag: entry.tag });
        }
        highest = entry.tag;
        Ok(entry)
    }))
}

/// Decodes one entry.
fn entry([t0, t1, p0, p1, id @ ..]: [u8; ENTRY]) -> Result<Tagged, Invalid> {
    let tag = u32::from(u16::from_le_bytes([t0, t1]));
    let bits = u32::from(u16::from_le_bytes([p0, p1]));
    let id = u32::from_le_bytes(id);
    let permissions = Permissions::from_bits(bits).ok_or(Invalid::Permissions { tag, bits })?;
    let is_named = matches!(tag, tag::USER | tag::GROUP);
    if !is_named && id != NO_ID {
        return Err(Invalid::Id { tag, id });
    }
    Ok(Tagged { tag, id, permissions })
}
