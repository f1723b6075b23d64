//! The kinds of operations.

/// A kind of operation. Procedures of NFSv3 and operations of NFSv4 share these kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// READ.
    Read,
    /// WRITE.
    Write,
    /// COMMIT.
    Commit,
    /// GETATTR.
    Getattr,
    /// LOOKUP, LOOKUPP, READLINK.
    Lookup,
    /// ACCESS.
    Access,
    /// READDIR, READDIRPLUS.
    Readdir,
    /// SETATTR, and changes of extended attributes.
    Setattr,
    /// CREATE, MKDIR, SYMLINK, MKNOD, LINK, and an OPEN that makes its file.
    Create,
    /// REMOVE, RMDIR.
    Remove,
    /// RENAME.
    Rename,
    /// OPEN of an existing file, OPEN_DOWNGRADE, CLOSE, DELEGRETURN.
    Open,
    /// LOCK, LOCKT, LOCKU of NFSv4.
    Lock,
    /// Every other operation on a file or a file system.
    Other,
}

impl Kind {
    /// The number of kinds.
    pub const COUNT: usize = Self::ALL.len();

    /// Every kind, in the order of the variants.
    pub const ALL: [Kind; 14] = [
        Kind::Read,
        Kind::Write,
        Kind::Commit,
        Kind::Getattr,
        Kind::Lookup,
        Kind::Access,
        Kind::Readdir,
        Kind::Setattr,
        Kind::Create,
        Kind::Remove,
        Kind::Rename,
        Kind::Open,
        Kind::Lock,
        Kind::Other,
    ];

    /// Returns the name of the kind in reports, in lower case.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Read => "read",
            Kind::Write => "write",
            Kind::Commit => "commit",
            Kind::Getattr => "getattr",
            Kind::Lookup => "lookup",
            Kind::Access => "access",
            Kind::Readdir => "readdir",
            Kind::Setattr => "setattr",
            Kind::Create => "create",
            Kind::Remove => "remove",
            Kind::Rename => "rename",
            Kind::Open => "open",
            Kind::Lock => "lock",
            Kind::Other => "other",
        }
    }

    /// Returns true for operations that change names or attributes.
    pub fn is_change(self) -> bool {
        matches!(self, Kind::Setattr | Kind::Create | Kind::Remove | Kind::Rename)
    }
}
