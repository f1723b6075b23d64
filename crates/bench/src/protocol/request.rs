//! Requests, whatever the version.

use forebay_wire::nfs3::StableHow;
use forebay_wire::nfs4::Stateid;
use serde::{Deserialize, Serialize};

use super::{Handle, Version};

/// An open of NFSv4. `None` means that the file is not open: always in NFSv3.
pub(crate) type Open = Option<Stateid>;

/// A request of a client.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Request<'a> {
    Null,
    /// Tells that there is nothing to reclaim. Only NFSv4; until then the server grants no opens.
    ReclaimComplete,
    /// Returns the root of an export by the names on the way. Only NFSv4.
    Root {
        path: &'a str,
    },
    Getattr {
        object: Handle,
    },
    SetMode {
        object: Handle,
        mode: u32,
    },
    Truncate {
        object: Handle,
    },
    Lookup {
        dir: Handle,
        name: &'a [u8],
    },
    Access {
        object: Handle,
    },
    Read {
        file: Handle,
        open: Open,
        offset: u64,
        count: u32,
    },
    /// The caller appends the data with its padding.
    Write {
        file: Handle,
        open: Open,
        offset: u64,
        count: u32,
        stable: StableHow,
    },
    Commit {
        file: Handle,
    },
    /// Makes a file; with `exclusive` it must not exist. In NFSv4 the file is open afterwards.
    Create {
        dir: Handle,
        name: &'a [u8],
        mode: u32,
        exclusive: bool,
    },
    Mkdir {
        dir: Handle,
        name: &'a [u8],
        mode: u32,
    },
    Remove {
        dir: Handle,
        name: &'a [u8],
    },
    Rmdir {
        dir: Handle,
        name: &'a [u8],
    },
    /// Renames within a directory.
    Rename {
        dir: Handle,
        from: &'a [u8],
        to: &'a [u8],
    },
    /// Lists a directory with attributes. `count` is the largest size of the reply in bytes.
    List {
        dir: Handle,
        cookie: u64,
        verifier: [u8; 8],
        count: u32,
    },
    /// Opens a file for reading by its name. In NFSv3 this is LOOKUP.
    Open {
        dir: Handle,
        name: &'a [u8],
    },
    /// Opens a file for reading and writing by its handle. Only NFSv4.
    OpenHandle {
        file: Handle,
    },
    /// Only NFSv4.
    Close {
        file: Handle,
        open: Stateid,
    },
}

/// The operation under which reports count a request: a procedure of NFSv3, or the main operation of a COMPOUND.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Operation {
    Null,
    Getattr,
    Setattr,
    Lookup,
    Access,
    Read,
    Write,
    Commit,
    Create,
    Mkdir,
    Remove,
    Rmdir,
    Rename,
    Readdir,
    Readdirplus,
    Open,
    Close,
}

impl Operation {
    pub(crate) const ALL: [Self; 17] = [
        Self::Null,
        Self::Getattr,
        Self::Setattr,
        Self::Lookup,
        Self::Access,
        Self::Read,
        Self::Write,
        Self::Commit,
        Self::Create,
        Self::Mkdir,
        Self::Remove,
        Self::Rmdir,
        Self::Rename,
        Self::Readdir,
        Self::Readdirplus,
        Self::Open,
        Self::Close,
    ];

    /// Returns the name in the spelling of the RFCs.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Null => "NULL",
            Self::Getattr => "GETATTR",
            Self::Setattr => "SETATTR",
            Self::Lookup => "LOOKUP",
            Self::Access => "ACCESS",
            Self::Read => "READ",
            Self::Write => "WRITE",
            Self::Commit => "COMMIT",
            Self::Create => "CREATE",
            Self::Mkdir => "MKDIR",
            Self::Remove => "REMOVE",
            Self::Rmdir => "RMDIR",
            Self::Rename => "RENAME",
            Self::Readdir => "READDIR",
            Self::Readdirplus => "READDIRPLUS",
            Self::Open => "OPEN",
            Self::Close => "CLOSE",
        }
    }
}

impl Request<'_> {
    /// Returns the operation that carries the request out in a version.
    pub(crate) const fn operation(&self, version: Version) -> Operation {
        match (self, version) {
            (Self::Null | Self::ReclaimComplete, _) => Operation::Null,
            (Self::Getattr { .. }, _) => Operation::Getattr,
            (Self::SetMode { .. } | Self::Truncate { .. }, _) => Operation::Setattr,
            (Self::Root { .. } | Self::Lookup { .. }, _) | (Self::Open { .. }, Version::V3) => {
                Operation::Lookup
            }
            (Self::Access { .. }, _) => Operation::Access,
            (Self::Read { .. }, _) => Operation::Read,
            (Self::Write { .. }, _) => Operation::Write,
            (Self::Commit { .. }, _) => Operation::Commit,
            (Self::Create { .. }, Version::V3) | (Self::Mkdir { .. }, Version::V41) => Operation::Create,
            (Self::Mkdir { .. }, Version::V3) => Operation::Mkdir,
            (Self::Remove { .. }, _) | (Self::Rmdir { .. }, Version::V41) => Operation::Remove,
            (Self::Rmdir { .. }, Version::V3) => Operation::Rmdir,
            (Self::Rename { .. }, _) => Operation::Rename,
            (Self::List { .. }, Version::V3) => Operation::Readdirplus,
            (Self::List { .. }, Version::V41) => Operation::Readdir,
            (Self::Create { .. } | Self::Open { .. }, Version::V41) | (Self::OpenHandle { .. }, _) => {
                Operation::Open
            }
            (Self::Close { .. }, _) => Operation::Close,
        }
    }

    /// Returns true if the server shall keep the reply for a retransmission, as Linux asks for changes of names.
    pub(super) const fn is_kept(&self) -> bool {
        matches!(
            self,
            Self::SetMode { .. }
                | Self::Truncate { .. }
                | Self::Create { .. }
                | Self::Mkdir { .. }
                | Self::Remove { .. }
                | Self::Rmdir { .. }
                | Self::Rename { .. }
                | Self::Open { .. }
                | Self::OpenHandle { .. }
                | Self::Close { .. }
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_is_at_its_number() {
        assert!(Operation::ALL.iter().enumerate().all(|(number, operation)| *operation as usize == number));
    }
}
