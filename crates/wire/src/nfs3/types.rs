//! Small data types: kinds of files, device numbers, times, durability, and the bits of ACCESS and FSINFO (RFC 1813).

xdr_enum! {
    /// `ftype3`: the type of a file (RFC 1813, section 2.5).
    pub enum Ftype3("ftype3") {
        /// Regular file.
        Reg = 1,
        /// Directory.
        Dir = 2,
        /// Block special device.
        Blk = 3,
        /// Character special device.
        Chr = 4,
        /// Symbolic link.
        Lnk = 5,
        /// Socket.
        Sock = 6,
        /// Named pipe.
        Fifo = 7,
    }
}

xdr_struct! {
    fixed
    /// `specdata3`: the device number of a special file.
    #[derive(Default)]
    pub struct Specdata3 {
        /// Major device number.
        pub major: u32,
        /// Minor device number.
        pub minor: u32,
    }
}

xdr_struct! {
    fixed
    /// `nfstime3`: a time since 1970-01-01 00:00 UTC.
    #[derive(Default, PartialOrd, Ord)]
    pub struct Nfstime3 {
        /// Whole seconds.
        pub seconds: u32,
        /// Nanoseconds, which should be below 1,000,000,000. Decoding does not check this.
        pub nseconds: u32,
    }
}

xdr_enum! {
    /// `stable_how`: the durability of a WRITE, in the request or in the reply (RFC 1813, section 3.3.7).
    #[derive(PartialOrd, Ord)]
    pub enum StableHow("stable_how") {
        /// The data may be lost until a COMMIT.
        Unstable = 0,
        /// The data, and the metadata needed to find it, are on stable storage.
        DataSync = 1,
        /// The data and all metadata are on stable storage.
        FileSync = 2,
    }
}

/// Permission bits of ACCESS (RFC 1813, section 3.3.4).
pub mod access {
    /// Read data from a file or read a directory.
    pub const READ: u32 = 0x01;
    /// Look up a name in a directory.
    pub const LOOKUP: u32 = 0x02;
    /// Rewrite existing data or change existing directory entries.
    pub const MODIFY: u32 = 0x04;
    /// Write new data or add directory entries.
    pub const EXTEND: u32 = 0x08;
    /// Delete an existing directory entry.
    pub const DELETE: u32 = 0x10;
    /// Execute a file.
    pub const EXECUTE: u32 = 0x20;
}

/// Properties of a file system in the FSINFO reply (RFC 1813, section 3.3.19).
pub mod fsf {
    /// Hard links are supported.
    pub const LINK: u32 = 0x01;
    /// Symbolic links are supported.
    pub const SYMLINK: u32 = 0x02;
    /// PATHCONF gives equal answers for all files.
    pub const HOMOGENEOUS: u32 = 0x08;
    /// Times can be set by SETATTR.
    pub const CANSETTIME: u32 = 0x10;
}
