//! Basic data types (RFC 1813, sections 2.5 and 2.6).

use crate::xdr::{Decode, DecodeError, Encode, Reader, opaque_size};

xdr_enum! {
    /// `nfsstat3`: the outcome of a request (RFC 1813, section 2.6).
    pub enum Nfsstat3("nfsstat3") {
        /// Success.
        Ok = 0,
        /// Not owner.
        Perm = 1,
        /// No such file or directory.
        Noent = 2,
        /// I/O error.
        Io = 5,
        /// No such device.
        Nxio = 6,
        /// Permission denied.
        Acces = 13,
        /// File exists.
        Exist = 17,
        /// Cross-device link.
        Xdev = 18,
        /// No such device: the device does not support the operation.
        Nodev = 19,
        /// Not a directory.
        Notdir = 20,
        /// Is a directory.
        Isdir = 21,
        /// Invalid argument.
        Inval = 22,
        /// File too large.
        Fbig = 27,
        /// No space left on device.
        Nospc = 28,
        /// Read-only file system.
        Rofs = 30,
        /// Too many hard links.
        Mlink = 31,
        /// Name too long.
        Nametoolong = 63,
        /// Directory not empty.
        Notempty = 66,
        /// Quota exceeded.
        Dquot = 69,
        /// The file of the handle no longer exists.
        Stale = 70,
        /// Too many levels of remote in path.
        Remote = 71,
        /// The handle does not come from this server.
        Badhandle = 10001,
        /// The object has changed since the time in the guard of SETATTR.
        NotSync = 10002,
        /// The cookie of READDIR is stale.
        BadCookie = 10003,
        /// Operation is not supported.
        Notsupp = 10004,
        /// Buffer or request is too small.
        Toosmall = 10005,
        /// An error without a code of its own.
        Serverfault = 10006,
        /// The type of the object to make is not supported.
        Badtype = 10007,
        /// The request was started but has not finished. The client should try again later with a new transaction.
        Jukebox = 10008,
    }
}

impl std::fmt::Display for Nfsstat3 {
    /// Writes the name in the spelling of RFC 1813, such as NFS3ERR_NOT_SYNC.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if *self == Nfsstat3::Ok { "NFS3" } else { "NFS3ERR" })?;
        for letter in format!("{self:?}").chars() {
            let separator = if letter.is_ascii_uppercase() { "_" } else { "" };
            write!(f, "{separator}{}", letter.to_ascii_uppercase())?;
        }
        Ok(())
    }
}

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

/// `nfs_fh3`: an opaque file handle of at most 64 bytes, stored inline.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct FileHandle {
    len: u8,
    // Bytes from `len` on are zero, so that the derived equality and hash are right.
    bytes: [u8; FileHandle::MAX_SIZE],
}

impl FileHandle {
    /// NFS3_FHSIZE: most bytes in a handle.
    pub const MAX_SIZE: usize = 64;

    /// Returns a handle with a copy of `bytes`; `None` for more than 64 bytes.
    #[inline]
    #[must_use]
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let mut handle = Self { len: u8::try_from(bytes.len()).ok()?, bytes: [0; Self::MAX_SIZE] };
        handle.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(handle)
    }

    /// Returns the handle's bytes, 0 to 64.
    #[inline]
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// Returns the size of the XDR representation in bytes.
    #[inline]
    #[must_use]
    pub const fn encoded_size(&self) -> usize {
        opaque_size(self.len as usize)
    }
}

impl std::fmt::Debug for FileHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FileHandle(")?;
        self.as_bytes().iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        f.write_str(")")
    }
}

impl Encode for FileHandle {
    #[inline]
    fn encode(&self, out: &mut Vec<u8>) {
        self.as_bytes().encode(out);
    }
}

impl<'a> Decode<'a> for FileHandle {
    #[inline]
    fn decode(input: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let bytes = input.opaque_var(Self::MAX_SIZE)?;
        let mut handle = Self { len: bytes.len() as u8, bytes: [0; Self::MAX_SIZE] };
        handle.bytes[..bytes.len()].copy_from_slice(bytes);
        Ok(handle)
    }
}

xdr_struct! {
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
    /// `nfstime3`: a time since 1970-01-01 00:00 UTC.
    #[derive(Default, PartialOrd, Ord)]
    pub struct Nfstime3 {
        /// Whole seconds.
        pub seconds: u32,
        /// Nanoseconds, which should be below 1,000,000,000. Decoding does not check this.
        pub nseconds: u32,
    }
}

/// `fattr3`: the attributes of a file (RFC 1813, section 2.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(test, derive(arbitrary::Arbitrary))]
pub struct Fattr3 {
    /// Type of the file.
    pub ftype: Ftype3,
    /// Permission bits.
    pub mode: u32,
    /// Hard links.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Size in bytes.
    pub size: u64,
    /// Bytes of storage in use.
    pub used: u64,
    /// Device number of a block or character device.
    pub rdev: Specdata3,
    /// Identity of the file system.
    pub fsid: u64,
    /// Identity of the file within its file system.
    pub fileid: u64,
    /// Last access.
    pub atime: Nfstime3,
    /// Last change of the content.
    pub mtime: Nfstime3,
    /// Last change of the attributes.
    pub ctime: Nfstime3,
}

impl Fattr3 {
    /// Size of the XDR representation in bytes.
    pub const SIZE: usize = 84;
}

impl Encode for Fattr3 {
    // Nearly every reply has attributes, so they are filled in on the stack and appended in one step.
    #[inline]
    fn encode(&self, out: &mut Vec<u8>) {
        let mut bytes = [0; Self::SIZE];
        let mut word = |at: usize, value: u32| bytes[at..at + 4].copy_from_slice(&value.to_be_bytes());
        word(0, self.ftype as u32);
        word(4, self.mode);
        word(8, self.nlink);
        word(12, self.uid);
        word(16, self.gid);
        word(36, self.rdev.major);
        word(40, self.rdev.minor);
        word(60, self.atime.seconds);
        word(64, self.atime.nseconds);
        word(68, self.mtime.seconds);
        word(72, self.mtime.nseconds);
        word(76, self.ctime.seconds);
        word(80, self.ctime.nseconds);
        let mut hyper = |at: usize, value: u64| bytes[at..at + 8].copy_from_slice(&value.to_be_bytes());
        hyper(20, self.size);
        hyper(28, self.used);
        hyper(44, self.fsid);
        hyper(52, self.fileid);
        out.extend_from_slice(&bytes);
    }
}

impl<'a> Decode<'a> for Fattr3 {
    #[inline]
    fn decode(input: &mut Reader<'a>) -> Result<Self, DecodeError> {
        Ok(Self {
            ftype: Ftype3::decode(input)?,
            mode: input.u32()?,
            nlink: input.u32()?,
            uid: input.u32()?,
            gid: input.u32()?,
            size: input.u64()?,
            used: input.u64()?,
            rdev: Specdata3::decode(input)?,
            fsid: input.u64()?,
            fileid: input.u64()?,
            atime: Nfstime3::decode(input)?,
            mtime: Nfstime3::decode(input)?,
            ctime: Nfstime3::decode(input)?,
        })
    }
}

/// `post_op_attr`: attributes after the operation, if the server could get them.
pub type PostOpAttr = Option<Fattr3>;

/// Returns the size in bytes of the XDR representation of a [`PostOpAttr`].
#[inline]
#[must_use]
pub const fn post_op_attr_size(attributes: &PostOpAttr) -> usize {
    if attributes.is_some() { 4 + Fattr3::SIZE } else { 4 }
}

/// `pre_op_attr`: attributes before the operation, if the server could get them.
pub type PreOpAttr = Option<WccAttr>;

/// `post_op_fh3`: the handle of a new object, if the server could get it.
pub type PostOpFh = Option<FileHandle>;

xdr_struct! {
    /// `wcc_attr`: the attributes that show whether a file has changed.
    pub struct WccAttr {
        /// Size in bytes.
        pub size: u64,
        /// Last change of the content.
        pub mtime: Nfstime3,
        /// Last change of the attributes.
        pub ctime: Nfstime3,
    }
}

impl From<&Fattr3> for WccAttr {
    fn from(attributes: &Fattr3) -> Self {
        Self { size: attributes.size, mtime: attributes.mtime, ctime: attributes.ctime }
    }
}

xdr_struct! {
    /// `wcc_data`: weak cache consistency data, attributes from just before and just after the operation.
    #[derive(Default)]
    pub struct WccData {
        /// Attributes before the operation.
        pub before: PreOpAttr,
        /// Attributes after the operation.
        pub after: PostOpAttr,
    }
}

/// `set_atime` and `set_mtime`: the new value of a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(test, derive(arbitrary::Arbitrary))]
pub enum SetTime {
    /// The time does not change.
    #[default]
    DontChange,
    /// The time of the server's clock.
    ServerTime,
    /// A time that the client gives.
    ClientTime(Nfstime3),
}

impl Encode for SetTime {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            SetTime::DontChange => 0u32.encode(out),
            SetTime::ServerTime => 1u32.encode(out),
            SetTime::ClientTime(time) => {
                2u32.encode(out);
                time.encode(out);
            }
        }
    }
}

impl<'a> Decode<'a> for SetTime {
    fn decode(input: &mut Reader<'a>) -> Result<Self, DecodeError> {
        match input.u32()? {
            0 => Ok(SetTime::DontChange),
            1 => Ok(SetTime::ServerTime),
            2 => Nfstime3::decode(input).map(SetTime::ClientTime),
            value => Err(DecodeError::UnknownValue { ty: "time_how", value }),
        }
    }
}

xdr_struct! {
    /// `sattr3`: the attributes that a client can set. An attribute of `None` does not change.
    #[derive(Default)]
    pub struct Sattr3 {
        /// Permission bits.
        pub mode: Option<u32>,
        /// Owner.
        pub uid: Option<u32>,
        /// Group.
        pub gid: Option<u32>,
        /// Size in bytes.
        pub size: Option<u64>,
        /// Last access.
        pub atime: SetTime,
        /// Last change of the content.
        pub mtime: SetTime,
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
