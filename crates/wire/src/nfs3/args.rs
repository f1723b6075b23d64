//! Arguments of the procedures (RFC 1813, section 3.3). Names and paths are bytes, bounded by the message only.

use super::types::{FileHandle, Ftype3, Nfstime3, Sattr3, Specdata3, StableHow};
use crate::xdr::{Decode, DecodeError, Encode, Reader};

xdr_struct! {
    /// `GETATTR3args`; FSSTAT, FSINFO, PATHCONF and READLINK have the same.
    pub struct GetattrArgs {
        /// The object.
        pub object: FileHandle,
    }
}

/// `READLINK3args`.
pub type ReadlinkArgs = GetattrArgs;
/// `FSSTAT3args`.
pub type FsstatArgs = GetattrArgs;
/// `FSINFO3args`.
pub type FsinfoArgs = GetattrArgs;
/// `PATHCONF3args`.
pub type PathconfArgs = GetattrArgs;

xdr_struct! {
    /// `SETATTR3args`.
    pub struct SetattrArgs {
        /// The object.
        pub object: FileHandle,
        /// What to set.
        pub new_attributes: Sattr3,
        /// Refuse with NFS3ERR_NOT_SYNC unless the object's ctime is this.
        pub guard: Option<Nfstime3>,
    }
}

xdr_struct! {
    /// `diropargs3`: a name in a directory.
    pub struct DirOpArgs<'a> {
        /// The directory.
        pub dir: FileHandle,
        /// The name, any bytes of any length.
        pub name: &'a [u8],
    }
}

/// `LOOKUP3args`.
pub type LookupArgs<'a> = DirOpArgs<'a>;
/// `REMOVE3args`.
pub type RemoveArgs<'a> = DirOpArgs<'a>;
/// `RMDIR3args`.
pub type RmdirArgs<'a> = DirOpArgs<'a>;

xdr_struct! {
    /// `ACCESS3args`.
    pub struct AccessArgs {
        /// The object.
        pub object: FileHandle,
        /// Bits of [`super::access`] to check.
        pub access: u32,
    }
}

xdr_struct! {
    /// `READ3args`.
    pub struct ReadArgs {
        /// The file.
        pub file: FileHandle,
        /// First byte.
        pub offset: u64,
        /// Bytes wanted.
        pub count: u32,
    }
}

xdr_struct! {
    /// `WRITE3args`.
    pub struct WriteArgs<'a> {
        /// The file.
        pub file: FileHandle,
        /// First byte.
        pub offset: u64,
        /// Bytes to write; a sane client's `data` has this length (not checked here).
        pub count: u32,
        /// How durable.
        pub stable: StableHow,
        /// The data.
        pub data: &'a [u8],
    }
}

impl WriteArgs<'_> {
    /// Appends everything up to and including the length word of the data, for a client that sends the `count` bytes
    /// of data (and [`crate::xdr::padding`]) from elsewhere.
    #[inline]
    pub fn encode_header(out: &mut Vec<u8>, file: &FileHandle, offset: u64, count: u32, stable: StableHow) {
        file.encode(out);
        offset.encode(out);
        count.encode(out);
        stable.encode(out);
        count.encode(out);
    }
}

/// `createhow3`: what to do where the file is there already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(test, derive(arbitrary::Arbitrary))]
pub enum CreateHow {
    /// Take the existing file.
    Unchecked(Sattr3),
    /// Fail with NFS3ERR_EXIST.
    Guarded(Sattr3),
    /// Fail unless it was made by a call with the same verifier.
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
    /// `CREATE3args`.
    pub struct CreateArgs<'a> {
        /// Where.
        pub target: DirOpArgs<'a>,
        /// How.
        pub how: CreateHow,
    }
}

xdr_struct! {
    /// `MKDIR3args`.
    pub struct MkdirArgs<'a> {
        /// Where.
        pub target: DirOpArgs<'a>,
        /// Initial attributes.
        pub attributes: Sattr3,
    }
}

xdr_struct! {
    /// `SYMLINK3args`.
    pub struct SymlinkArgs<'a> {
        /// Where.
        pub target: DirOpArgs<'a>,
        /// Initial attributes of the link.
        pub attributes: Sattr3,
        /// What the link says.
        pub path: &'a [u8],
    }
}

/// `mknoddata3`: what to make.
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
    /// The type asked for.
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
    /// `MKNOD3args`.
    pub struct MknodArgs<'a> {
        /// Where.
        pub target: DirOpArgs<'a>,
        /// What.
        pub what: MknodData,
    }
}

xdr_struct! {
    /// `RENAME3args`.
    pub struct RenameArgs<'a> {
        /// The name now.
        pub from: DirOpArgs<'a>,
        /// The name then.
        pub to: DirOpArgs<'a>,
    }
}

xdr_struct! {
    /// `LINK3args`.
    pub struct LinkArgs<'a> {
        /// The existing file.
        pub file: FileHandle,
        /// Its additional name.
        pub link: DirOpArgs<'a>,
    }
}

xdr_struct! {
    /// `READDIR3args`.
    pub struct ReaddirArgs {
        /// The directory.
        pub dir: FileHandle,
        /// 0 at first, then the cookie of the last entry received.
        pub cookie: u64,
        /// Zero at first, then the verifier of the last reply.
        pub cookieverf: [u8; 8],
        /// Most bytes of `READDIR3resok`, all XDR overhead included.
        pub count: u32,
    }
}

xdr_struct! {
    /// `READDIRPLUS3args`.
    pub struct ReaddirplusArgs {
        /// The directory.
        pub dir: FileHandle,
        /// 0 at first, then the cookie of the last entry received.
        pub cookie: u64,
        /// Zero at first, then the verifier of the last reply.
        pub cookieverf: [u8; 8],
        /// Most bytes of names, file ids and cookies.
        pub dircount: u32,
        /// Most bytes of `READDIRPLUS3resok`, all XDR overhead included.
        pub maxcount: u32,
    }
}

xdr_struct! {
    /// `COMMIT3args`.
    pub struct CommitArgs {
        /// The file.
        pub file: FileHandle,
        /// First byte.
        pub offset: u64,
        /// Bytes to commit; 0 is up to the end of the file.
        pub count: u32,
    }
}
