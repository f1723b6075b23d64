//! Arguments of the procedures (RFC 1813, section 3.3). The length of names and paths is bounded by the message only.

use super::attr::Sattr3;
use super::handle::FileHandle;
use super::types::{Ftype3, Nfstime3, Specdata3, StableHow};
use crate::xdr::{Decode, DecodeError, Encode, Reader};

xdr_struct! {
    /// `GETATTR3args`: the arguments of GETATTR. READLINK, FSSTAT, FSINFO and PATHCONF have this layout as well.
    pub struct GetattrArgs {
        /// The object.
        pub object: FileHandle,
    }
}

/// `READLINK3args`: the arguments of READLINK.
pub type ReadlinkArgs = GetattrArgs;
/// `FSSTAT3args`: the arguments of FSSTAT.
pub type FsstatArgs = GetattrArgs;
/// `FSINFO3args`: the arguments of FSINFO.
pub type FsinfoArgs = GetattrArgs;
/// `PATHCONF3args`: the arguments of PATHCONF.
pub type PathconfArgs = GetattrArgs;

xdr_struct! {
    /// `SETATTR3args`: the arguments of SETATTR.
    pub struct SetattrArgs {
        /// The object.
        pub object: FileHandle,
        /// Attributes to set.
        pub new_attributes: Sattr3,
        /// Expected ctime of the object. If the object has another ctime, the server answers NFS3ERR_NOT_SYNC.
        pub guard: Option<Nfstime3>,
    }
}

xdr_struct! {
    /// `diropargs3`: a name in a directory.
    pub struct DirOpArgs<'a> {
        /// The directory.
        pub dir: FileHandle,
        /// The name: any bytes, any length.
        pub name: &'a [u8],
    }
}

/// `LOOKUP3args`: the arguments of LOOKUP.
pub type LookupArgs<'a> = DirOpArgs<'a>;
/// `REMOVE3args`: the arguments of REMOVE.
pub type RemoveArgs<'a> = DirOpArgs<'a>;
/// `RMDIR3args`: the arguments of RMDIR.
pub type RmdirArgs<'a> = DirOpArgs<'a>;

xdr_struct! {
    /// `ACCESS3args`: the arguments of ACCESS.
    pub struct AccessArgs {
        /// The object.
        pub object: FileHandle,
        /// Bits of [`super::access`] to check.
        pub access: u32,
    }
}

xdr_struct! {
    /// `READ3args`: the arguments of READ.
    pub struct ReadArgs {
        /// The file.
        pub file: FileHandle,
        /// Offset of the first byte.
        pub offset: u64,
        /// Bytes wanted.
        pub count: u32,
    }
}

xdr_struct! {
    /// `WRITE3args`: the arguments of WRITE.
    pub struct WriteArgs<'a> {
        /// The file.
        pub file: FileHandle,
        /// Offset of the first byte.
        pub offset: u64,
        /// Bytes to write. Decoding does not check that `data` has this length.
        pub count: u32,
        /// Durability that the client asks for.
        pub stable: StableHow,
        /// The data.
        pub data: &'a [u8],
    }
}

impl WriteArgs<'_> {
    /// Appends everything up to and including the length word of the data. The caller then sends `count` bytes of
    /// data and [`crate::xdr::padding`] from another buffer.
    #[inline]
    pub fn encode_header(out: &mut Vec<u8>, file: &FileHandle, offset: u64, count: u32, stable: StableHow) {
        file.encode(out);
        offset.encode(out);
        count.encode(out);
        stable.encode(out);
        count.encode(out);
    }
}

/// `createhow3`: the behaviour of CREATE if the file exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(test, derive(arbitrary::Arbitrary))]
pub enum CreateHow {
    /// The server takes the existing file.
    Unchecked(Sattr3),
    /// The server answers NFS3ERR_EXIST.
    Guarded(Sattr3),
    /// The server answers NFS3ERR_EXIST, unless a call with this verifier made the file.
    Exclusive([u8; 8]),
}

impl Encode for CreateHow {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            CreateHow::Unchecked(attributes) => {
                0u32.encode(out);
                attributes.encode(out);
            }
            CreateHow::Guarded(attributes) => {
                1u32.encode(out);
                attributes.encode(out);
            }
            CreateHow::Exclusive(verifier) => {
                2u32.encode(out);
                verifier.encode(out);
            }
        }
    }
}

impl<'a> Decode<'a> for CreateHow {
    fn decode(input: &mut Reader<'a>) -> Result<Self, DecodeError> {
        match input.u32()? {
            0 => Sattr3::decode(input).map(CreateHow::Unchecked),
            1 => Sattr3::decode(input).map(CreateHow::Guarded),
            2 => Decode::decode(input).map(CreateHow::Exclusive),
            value => Err(DecodeError::UnknownValue { ty: "createmode3", value }),
        }
    }
}

xdr_struct! {
    /// `CREATE3args`: the arguments of CREATE.
    pub struct CreateArgs<'a> {
        /// Directory and name of the new file.
        pub target: DirOpArgs<'a>,
        /// Behaviour if the file exists, and initial attributes.
        pub how: CreateHow,
    }
}

xdr_struct! {
    /// `MKDIR3args`: the arguments of MKDIR.
    pub struct MkdirArgs<'a> {
        /// Directory and name of the new directory.
        pub target: DirOpArgs<'a>,
        /// Initial attributes.
        pub attributes: Sattr3,
    }
}

xdr_struct! {
    /// `SYMLINK3args`: the arguments of SYMLINK.
    pub struct SymlinkArgs<'a> {
        /// Directory and name of the new link.
        pub target: DirOpArgs<'a>,
        /// Initial attributes of the link.
        pub attributes: Sattr3,
        /// Target of the link.
        pub path: &'a [u8],
    }
}

/// `mknoddata3`: the type and attributes of an object that MKNOD is to make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(test, derive(arbitrary::Arbitrary))]
pub enum MknodData {
    /// Character device.
    Chr(Sattr3, Specdata3),
    /// Block device.
    Blk(Sattr3, Specdata3),
    /// Socket.
    Sock(Sattr3),
    /// Named pipe.
    Fifo(Sattr3),
    /// Regular file: valid on the wire, answered with NFS3ERR_BADTYPE.
    Reg,
    /// Directory: valid on the wire, answered with NFS3ERR_BADTYPE.
    Dir,
    /// Symbolic link: valid on the wire, answered with NFS3ERR_BADTYPE.
    Lnk,
}

impl MknodData {
    /// Returns the type of the object.
    #[must_use]
    pub const fn ftype(&self) -> Ftype3 {
        match self {
            MknodData::Chr(..) => Ftype3::Chr,
            MknodData::Blk(..) => Ftype3::Blk,
            MknodData::Sock(_) => Ftype3::Sock,
            MknodData::Fifo(_) => Ftype3::Fifo,
            MknodData::Reg => Ftype3::Reg,
            MknodData::Dir => Ftype3::Dir,
            MknodData::Lnk => Ftype3::Lnk,
        }
    }
}

impl Encode for MknodData {
    fn encode(&self, out: &mut Vec<u8>) {
        self.ftype().encode(out);
        match self {
            MknodData::Chr(attributes, device) | MknodData::Blk(attributes, device) => {
                attributes.encode(out);
                device.encode(out);
            }
            MknodData::Sock(attributes) | MknodData::Fifo(attributes) => attributes.encode(out),
            MknodData::Reg | MknodData::Dir | MknodData::Lnk => {}
        }
    }
}

impl<'a> Decode<'a> for MknodData {
    fn decode(input: &mut Reader<'a>) -> Result<Self, DecodeError> {
        Ok(match Ftype3::decode(input)? {
            Ftype3::Chr => MknodData::Chr(Sattr3::decode(input)?, Specdata3::decode(input)?),
            Ftype3::Blk => MknodData::Blk(Sattr3::decode(input)?, Specdata3::decode(input)?),
            Ftype3::Sock => MknodData::Sock(Sattr3::decode(input)?),
            Ftype3::Fifo => MknodData::Fifo(Sattr3::decode(input)?),
            Ftype3::Reg => MknodData::Reg,
            Ftype3::Dir => MknodData::Dir,
            Ftype3::Lnk => MknodData::Lnk,
        })
    }
}

xdr_struct! {
    /// `MKNOD3args`: the arguments of MKNOD.
    pub struct MknodArgs<'a> {
        /// Directory and name of the new object.
        pub target: DirOpArgs<'a>,
        /// Type and attributes of the new object.
        pub what: MknodData,
    }
}

xdr_struct! {
    /// `RENAME3args`: the arguments of RENAME.
    pub struct RenameArgs<'a> {
        /// Old directory and name.
        pub from: DirOpArgs<'a>,
        /// New directory and name.
        pub to: DirOpArgs<'a>,
    }
}

xdr_struct! {
    /// `LINK3args`: the arguments of LINK.
    pub struct LinkArgs<'a> {
        /// The existing file.
        pub file: FileHandle,
        /// Directory and name of the new hard link.
        pub link: DirOpArgs<'a>,
    }
}

xdr_struct! {
    /// `READDIR3args`: the arguments of READDIR.
    pub struct ReaddirArgs {
        /// The directory.
        pub dir: FileHandle,
        /// 0 in the first request, then the cookie of the last entry received.
        pub cookie: u64,
        /// Zero in the first request, then the verifier of the last reply.
        pub cookieverf: [u8; 8],
        /// Most bytes of `READDIR3resok`, including all XDR overhead.
        pub count: u32,
    }
}

xdr_struct! {
    /// `READDIRPLUS3args`: the arguments of READDIRPLUS.
    pub struct ReaddirplusArgs {
        /// The directory.
        pub dir: FileHandle,
        /// 0 in the first request, then the cookie of the last entry received.
        pub cookie: u64,
        /// Zero in the first request, then the verifier of the last reply.
        pub cookieverf: [u8; 8],
        /// Most bytes of names, file ids and cookies.
        pub dircount: u32,
        /// Most bytes of `READDIRPLUS3resok`, including all XDR overhead.
        pub maxcount: u32,
    }
}

xdr_struct! {
    /// `COMMIT3args`: the arguments of COMMIT.
    pub struct CommitArgs {
        /// The file.
        pub file: FileHandle,
        /// Offset of the first byte.
        pub offset: u64,
        /// Bytes to commit; 0 means up to the end of the file.
        pub count: u32,
    }
}
