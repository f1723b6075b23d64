//! The 22 procedures (RFC 1813, section 3.3).

xdr_enum! {
    /// A procedure of NFSv3 by its number.
    pub enum Procedure("NFSv3 procedure") {
        /// Do nothing.
        Null = 0,
        /// Get file attributes.
        Getattr = 1,
        /// Set file attributes.
        Setattr = 2,
        /// Look a name up in a directory.
        Lookup = 3,
        /// Check access permission.
        Access = 4,
        /// Read from a symbolic link.
        Readlink = 5,
        /// Read from a file.
        Read = 6,
        /// Write to a file.
        Write = 7,
        /// Create a file.
        Create = 8,
        /// Create a directory.
        Mkdir = 9,
        /// Create a symbolic link.
        Symlink = 10,
        /// Create a device, FIFO or socket.
        Mknod = 11,
        /// Remove a file.
        Remove = 12,
        /// Remove a directory.
        Rmdir = 13,
        /// Rename a file or directory.
        Rename = 14,
        /// Create a hard link.
        Link = 15,
        /// Read from a directory.
        Readdir = 16,
        /// Read from a directory, with attributes and handles.
        Readdirplus = 17,
        /// Get dynamic file system information.
        Fsstat = 18,
        /// Get static file system information.
        Fsinfo = 19,
        /// Get POSIX information.
        Pathconf = 20,
        /// Commit cached data to stable storage.
        Commit = 21,
    }
}

impl Procedure {
    /// How many there are; numbers run from 0 to this minus 1.
    pub const COUNT: usize = 22;

    /// The name as the RFC writes it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        const NAMES: [&str; Procedure::COUNT] = [
            "NULL",
            "GETATTR",
            "SETATTR",
            "LOOKUP",
            "ACCESS",
            "READLINK",
            "READ",
            "WRITE",
            "CREATE",
            "MKDIR",
            "SYMLINK",
            "MKNOD",
            "REMOVE",
            "RMDIR",
            "RENAME",
            "LINK",
            "READDIR",
            "READDIRPLUS",
            "FSSTAT",
            "FSINFO",
            "PATHCONF",
            "COMMIT",
        ];
        NAMES[self as usize]
    }
}
