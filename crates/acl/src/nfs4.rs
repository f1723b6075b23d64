//! NFSv4 ACLs (RFC 8881, section 6.2.1).

/// Types of entries (RFC 8881, section 6.2.1.1).
pub mod kind {
    /// Grants the operations of the mask.
    pub const ALLOW: u32 = 0;
    /// Denies the operations of the mask.
    pub const DENY: u32 = 1;
    /// Logs access.
    pub const AUDIT: u32 = 2;
    /// Raises an alarm at access.
    pub const ALARM: u32 = 3;
}

/// The value of the attribute `aclsupport` (RFC 8881, section 6.2.1.2): entries that allow, and entries that deny.
pub const SUPPORT: u32 = 0x1 | 0x2;

/// Flags of entries (RFC 8881, section 6.2.1.4).
pub mod flag {
    /// New files inherit the entry.
    pub const FILE_INHERIT: u32 = 0x01;
    /// New directories inherit the entry.
    pub const DIRECTORY_INHERIT: u32 = 0x02;
    /// New directories inherit the entry, but do not pass it on.
    pub const NO_PROPAGATE_INHERIT: u32 = 0x04;
    /// The entry does not apply to the directory that has it.
    pub const INHERIT_ONLY: u32 = 0x08;
    /// Successful access is logged or raises an alarm.
    pub const SUCCESSFUL_ACCESS: u32 = 0x10;
    /// Failed access is logged or raises an alarm.
    pub const FAILED_ACCESS: u32 = 0x20;
    /// The principal is a group.
    pub const IDENTIFIER_GROUP: u32 = 0x40;
    /// The entry was inherited.
    pub const INHERITED: u32 = 0x80;
}

/// Operations in the masks of entries (RFC 8881, section 6.2.1.3).
pub mod mask {
    /// Read the data of a file.
    pub const READ_DATA: u32 = 0x0000_0001;
    /// List a directory.
    pub const LIST_DIRECTORY: u32 = READ_DATA;
    /// Modify the data of a file.
    pub const WRITE_DATA: u32 = 0x0000_0002;
    /// Create a file in a directory.
    pub const ADD_FILE: u32 = WRITE_DATA;
    /// Append data to a file.
    pub const APPEND_DATA: u32 = 0x0000_0004;
    /// Create a directory in a directory.
    pub const ADD_SUBDIRECTORY: u32 = APPEND_DATA;
    /// Read named attributes.
    pub const READ_NAMED_ATTRS: u32 = 0x0000_0008;
    /// Write named attributes.
    pub const WRITE_NAMED_ATTRS: u32 = 0x0000_0010;
    /// Execute a file, or search a directory.
    pub const EXECUTE: u32 = 0x0000_0020;
    /// Remove a file or directory from a directory.
    pub const DELETE_CHILD: u32 = 0x0000_0040;
    /// Read attributes.
    pub const READ_ATTRIBUTES: u32 = 0x0000_0080;
    /// Change times.
    pub const WRITE_ATTRIBUTES: u32 = 0x0000_0100;
    /// Change how long a file is retained.
    pub const WRITE_RETENTION: u32 = 0x0000_0200;
    /// Hold a file for administrative reasons.
    pub const WRITE_RETENTION_HOLD: u32 = 0x0000_0400;
    /// Remove the file or directory itself.
    pub const DELETE: u32 = 0x0001_0000;
    /// Read the ACL.
    pub const READ_ACL: u32 = 0x0002_0000;
    /// Change the ACL and the mode.
    pub const WRITE_ACL: u32 = 0x0004_0000;
    /// Change the owner and the group.
    pub const WRITE_OWNER: u32 = 0x0008_0000;
    /// Use synchronous I/O on the server.
    pub const SYNCHRONIZE: u32 = 0x0010_0000;
}

/// The principal of an entry (RFC 8881, section 6.2.1.5). The caller resolves the names of users and groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Who {
    /// `OWNER@`, the owner of the file.
    Owner,
    /// `GROUP@`, the group of the file.
    OwningGroup,
    /// `EVERYONE@`: every user, including the owner and members of the group.
    Everyone,
    /// A user by number.
    User(u32),
    /// A group by number. The flag [`flag::IDENTIFIER_GROUP`] belongs to it.
    Group(u32),
}

impl Who {
    /// Returns the principal with a special name of RFC 8881, section 6.2.1.5. Of these, `INTERACTIVE@` and so on are
    /// unknown here, as POSIX ACLs have no equivalent.
    #[must_use]
    pub fn from_special_name(name: &[u8]) -> Option<Self> {
        let all = [Self::Owner, Self::OwningGroup, Self::Everyone];
        all.into_iter().find(|who| who.special_name().is_some_and(|special| special.as_bytes() == name))
    }

    /// Returns the special name, or `None` for a numbered user or group.
    #[must_use]
    pub const fn special_name(self) -> Option<&'static str> {
        match self {
            Self::Owner => Some("OWNER@"),
            Self::OwningGroup => Some("GROUP@"),
            Self::Everyone => Some("EVERYONE@"),
            Self::User(_) | Self::Group(_) => None,
        }
    }
}

/// An entry of an NFSv4 ACL (`nfsace4`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ace {
    /// A value of [`kind`].
    pub kind: u32,
    /// A set of [`flag`].
    pub flags: u32,
    /// A set of [`mask`].
    pub mask: u32,
    /// The principal.
    pub who: Who,
}
