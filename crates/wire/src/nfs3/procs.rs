//! The 22 procedures (RFC 1813, section 3.3).

xdr_enum! {
    /// A procedure of NFSv3.
    pub enum Procedure("NFSv3 procedure") {
        /// Does nothing.
        Null = 0,
        /// Returns the attributes of an object.
        Getattr = 1,
        /// Sets attributes of an object.
        Setattr = 2,
        /// Looks up a name in a directory.
        Lookup = 3,
        /// Checks access rights.
        Access = 4,
        /// Reads the target of a symbolic link.
        Readlink = 5,
        /// Reads from a file.
        Read = 6,
        /// Writes to a file.
        Write = 7,
        /// Creates a file.
        Create = 8,
        /// Creates a directory.
        Mkdir = 9,
        /// Creates a symbolic link.
        Symlink = 10,
        /// Creates a device, FIFO or socket.
        Mknod = 11,
        /// Removes a file.
        Remove = 12,
        /// Removes a directory.
        Rmdir = 13,
        /// Renames a file or directory.
        Rename = 14,
        /// Creates a hard link.
        Link = 15,
        /// Reads from a directory.
        Readdir = 16,
        /// Reads from a directory, with attributes and handles.
        Readdirplus = 17,
        /// Returns dynamic file system information.
        Fsstat = 18,
        /// Returns static file system information.
        Fsinfo = 19,
        /// Returns POSIX information.
        Pathconf = 20,
        /// Commits cached data to stable storage.
        Commit = 21,
    }
}

impl Procedure {
    /// Number of procedures. Procedure numbers run from 0 to this number minus 1.
    pub const COUNT: usize = 22;

    /// Returns the name in the spelling of RFC 1813.
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
