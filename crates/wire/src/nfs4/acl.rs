//! Access control lists (RFC 8881, section 6.2).

use crate::array::Array;

/// Most entries of an access control list; decoding fails above it.
pub const MAX_ACES: usize = 1024;

/// Types of an access control entry.
pub mod ace_type {
    /// Allows the access.
    pub const ALLOWED: u32 = 0;
    /// Denies the access.
    pub const DENIED: u32 = 1;
    /// Logs the access.
    pub const AUDIT: u32 = 2;
    /// Raises an alarm at the access.
    pub const ALARM: u32 = 3;
}

/// Flags of an access control entry.
pub mod ace_flag {
    /// New files inherit the entry.
    pub const FILE_INHERIT: u32 = 0x01;
    /// New directories inherit the entry.
    pub const DIRECTORY_INHERIT: u32 = 0x02;
    /// Inheritance ends after one level.
    pub const NO_PROPAGATE_INHERIT: u32 = 0x04;
    /// The entry does not apply to its own directory.
    pub const INHERIT_ONLY: u32 = 0x08;
    /// Audits successful accesses.
    pub const SUCCESSFUL_ACCESS: u32 = 0x10;
    /// Audits failed accesses.
    pub const FAILED_ACCESS: u32 = 0x20;
    /// The principal is a group.
    pub const IDENTIFIER_GROUP: u32 = 0x40;
    /// The entry was inherited.
    pub const INHERITED: u32 = 0x80;
}

/// Access bits of an access control entry.
pub mod ace_mask {
    /// Read data of a file, or list a directory.
    pub const READ_DATA: u32 = 0x01;
    /// Write data of a file, or add a file to a directory.
    pub const WRITE_DATA: u32 = 0x02;
    /// Append to a file, or add a directory to a directory.
    pub const APPEND_DATA: u32 = 0x04;
    /// Read named attributes.
    pub const READ_NAMED_ATTRS: u32 = 0x08;
    /// Write named attributes.
    pub const WRITE_NAMED_ATTRS: u32 = 0x10;
    /// Execute a file, or search a directory.
    pub const EXECUTE: u32 = 0x20;
    /// Delete an entry of a directory.
    pub const DELETE_CHILD: u32 = 0x40;
    /// Read attributes.
    pub const READ_ATTRIBUTES: u32 = 0x80;
    /// Change times and other attributes.
    pub const WRITE_ATTRIBUTES: u32 = 0x100;
    /// Change the retention.
    pub const WRITE_RETENTION: u32 = 0x200;
    /// Change the hold of the retention.
    pub const WRITE_RETENTION_HOLD: u32 = 0x400;
    /// Delete the object.
    pub const DELETE: u32 = 0x1_0000;
    /// Read the access control list.
    pub const READ_ACL: u32 = 0x2_0000;
    /// Change the access control list and the mode.
    pub const WRITE_ACL: u32 = 0x4_0000;
    /// Change the owner and the group.
    pub const WRITE_OWNER: u32 = 0x8_0000;
    /// Use the object for synchronization.
    pub const SYNCHRONIZE: u32 = 0x10_0000;
}

/// Bits of the attribute `aclsupport`.
pub mod acl_support {
    /// Entries that allow are supported.
    pub const ALLOW: u32 = 0x01;
    /// Entries that deny are supported.
    pub const DENY: u32 = 0x02;
    /// Entries that audit are supported.
    pub const AUDIT: u32 = 0x04;
    /// Entries that raise alarms are supported.
    pub const ALARM: u32 = 0x08;
}

xdr_struct! {
    /// `nfsace4`: an access control entry.
    pub struct Ace<'a> {
        /// Number of [`ace_type`]. Decoding does not check it.
        pub kind: u32,
        /// Bits of [`ace_flag`].
        pub flag: u32,
        /// Bits of [`ace_mask`].
        pub access_mask: u32,
        /// Name of the principal, such as `OWNER@` or `user@domain`.
        pub principal: &'a [u8],
    }
}

/// `fattr4_acl`: an access control list.
pub type Acl<'a> = Array<'a, Ace<'a>, MAX_ACES>;

xdr_struct! {
    /// `nfsacl41`: an access control list with flags, of the attributes `dacl` and `sacl`.
    pub struct Acl41<'a> {
        /// Flags of the list.
        pub flag: u32,
        /// Entries of the list.
        pub aces: Acl<'a>,
    }
}
