//! Results of the procedures (RFC 1813, section 3.3).

use super::attr::{Fattr3, PostOpAttr, WccData};
use super::dirlist::{Entry, EntryList, EntryPlus};
use super::handle::{FileHandle, PostOpFh};
use super::status::Nfsstat3;
use super::types::{Nfstime3, StableHow};
use crate::xdr::{Decode, DecodeError, Encode, Reader};

/// The failure arm of a result: a status, and attributes of the objects involved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failed<F> {
    /// Any status except [`Nfsstat3::Ok`].
    pub status: Nfsstat3,
    /// Attributes, if the server could get them.
    pub attributes: F,
}

impl<T: Encode, F: Encode> Encode for Result<T, Failed<F>> {
    #[inline]
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Ok(result) => {
                Nfsstat3::Ok.encode(out);
                result.encode(out);
            }
            Err(failed) => {
                failed.status.encode(out);
                failed.attributes.encode(out);
            }
        }
    }
}

impl<'a, T: Decode<'a>, F: Decode<'a>> Decode<'a> for Result<T, Failed<F>> {
    #[inline]
    fn decode(input: &mut Reader<'a>) -> Result<Self, DecodeError> {
        Ok(match Nfsstat3::decode(input)? {
            Nfsstat3::Ok => Ok(T::decode(input)?),
            status => Err(Failed { status, attributes: F::decode(input)? }),
        })
    }
}

/// `GETATTR3res`: the result of GETATTR.
pub type GetattrRes = Result<Fattr3, Failed<()>>;
/// `SETATTR3res`: the result of SETATTR.
pub type SetattrRes = Result<WccData, Failed<WccData>>;
/// `LOOKUP3res`: the result of LOOKUP. A failure has the directory's attributes.
pub type LookupRes = Result<LookupOk, Failed<PostOpAttr>>;
/// `ACCESS3res`: the result of ACCESS.
pub type AccessRes = Result<AccessOk, Failed<PostOpAttr>>;
/// `READLINK3res`: the result of READLINK.
pub type ReadlinkRes<'a> = Result<ReadlinkOk<'a>, Failed<PostOpAttr>>;
/// `READ3res`: the result of READ.
pub type ReadRes<'a> = Result<ReadOk<'a>, Failed<PostOpAttr>>;
/// `WRITE3res`: the result of WRITE.
pub type WriteRes = Result<WriteOk, Failed<WccData>>;
/// `CREATE3res`: the result of CREATE. A failure has the directory's attributes.
pub type CreateRes = Result<CreateOk, Failed<WccData>>;
/// `MKDIR3res`: the result of MKDIR.
pub type MkdirRes = CreateRes;
/// `SYMLINK3res`: the result of SYMLINK.
pub type SymlinkRes = CreateRes;
/// `MKNOD3res`: the result of MKNOD.
pub type MknodRes = CreateRes;
/// `REMOVE3res`: the result of REMOVE. Both arms have the directory's attributes.
pub type RemoveRes = Result<WccData, Failed<WccData>>;
/// `RMDIR3res`: the result of RMDIR.
pub type RmdirRes = RemoveRes;
/// `RENAME3res`: the result of RENAME.
pub type RenameRes = Result<RenameWcc, Failed<RenameWcc>>;
/// `LINK3res`: the result of LINK.
pub type LinkRes = Result<LinkWcc, Failed<LinkWcc>>;
/// `READDIR3res`: the result of READDIR.
pub type ReaddirRes<'a> = Result<ReaddirOk<'a>, Failed<PostOpAttr>>;
/// `READDIRPLUS3res`: the result of READDIRPLUS.
pub type ReaddirplusRes<'a> = Result<ReaddirplusOk<'a>, Failed<PostOpAttr>>;
/// `FSSTAT3res`: the result of FSSTAT.
pub type FsstatRes = Result<FsstatOk, Failed<PostOpAttr>>;
/// `FSINFO3res`: the result of FSINFO.
pub type FsinfoRes = Result<FsinfoOk, Failed<PostOpAttr>>;
/// `PATHCONF3res`: the result of PATHCONF.
pub type PathconfRes = Result<PathconfOk, Failed<PostOpAttr>>;
/// `COMMIT3res`: the result of COMMIT.
pub type CommitRes = Result<CommitOk, Failed<WccData>>;

xdr_struct! {
    /// `LOOKUP3resok`: the successful result of LOOKUP.
    pub struct LookupOk {
        /// The object found.
        pub object: FileHandle,
        /// The object's attributes.
        pub obj_attributes: PostOpAttr,
        /// The directory's attributes.
        pub dir_attributes: PostOpAttr,
    }
}

xdr_struct! {
    /// `ACCESS3resok`: the successful result of ACCESS.
    pub struct AccessOk {
        /// The object's attributes.
        pub obj_attributes: PostOpAttr,
        /// Bits of [`super::access`] that are granted, among the bits in the request.
        pub access: u32,
    }
}

xdr_struct! {
    /// `READLINK3resok`: the successful result of READLINK.
    pub struct ReadlinkOk<'a> {
        /// The link's attributes.
        pub symlink_attributes: PostOpAttr,
        /// Target of the link.
        pub path: &'a [u8],
    }
}

xdr_struct! {
    /// `READ3resok`: the successful result of READ.
    pub struct ReadOk<'a> {
        /// The file's attributes.
        pub file_attributes: PostOpAttr,
        /// Bytes read. Decoding does not check that `data` has this length.
        pub count: u32,
        /// True if the read reached the end of the file.
        pub eof: bool,
        /// The data.
        pub data: &'a [u8],
    }
}

/// Appends a successful `READ3res` with its status, up to and including the length word of the data. The caller then
/// sends `count` bytes of data and [`crate::xdr::padding`] of `count` zero bytes from another buffer.
#[inline]
pub fn encode_read_header(out: &mut Vec<u8>, attributes: &PostOpAttr, count: u32, eof: bool) {
    Nfsstat3::Ok.encode(out);
    attributes.encode(out);
    count.encode(out);
    eof.encode(out);
    count.encode(out);
}

xdr_struct! {
    /// `WRITE3resok`: the successful result of WRITE.
    pub struct WriteOk {
        /// The file's attributes before and after the write.
        pub file_wcc: WccData,
        /// Bytes written.
        pub count: u32,
        /// Durability of the data, at least the durability in the request.
        pub committed: StableHow,
        /// Write verifier. It changes when data that was not committed may have been lost.
        pub verf: [u8; 8],
    }
}

xdr_struct! {
    /// `CREATE3resok`: the successful result of CREATE. MKDIR, SYMLINK and MKNOD have this layout as well.
    pub struct CreateOk {
        /// The new object.
        pub object: PostOpFh,
        /// The object's attributes.
        pub obj_attributes: PostOpAttr,
        /// The directory's attributes before and after the operation.
        pub dir_wcc: WccData,
    }
}

xdr_struct! {
    /// The attributes in both arms of `RENAME3res`.
    #[derive(Default)]
    pub struct RenameWcc {
        /// Attributes of the old name's directory, before and after the operation.
        pub fromdir_wcc: WccData,
        /// Attributes of the new name's directory, before and after the operation.
        pub todir_wcc: WccData,
    }
}

xdr_struct! {
    /// The attributes in both arms of `LINK3res`.
    #[derive(Default)]
    pub struct LinkWcc {
        /// The file's attributes.
        pub file_attributes: PostOpAttr,
        /// Attributes of the new name's directory, before and after the operation.
        pub linkdir_wcc: WccData,
    }
}

xdr_struct! {
    /// `READDIR3resok`, in the form that a client decodes. A server appends the header, the entries and the end one
    /// by one.
    pub struct ReaddirOk<'a> {
        /// The directory's attributes.
        pub dir_attributes: PostOpAttr,
        /// Verifier that the client sends with its next request.
        pub cookieverf: [u8; 8],
        /// The entries.
        pub entries: EntryList<'a, Entry<'a>>,
        /// True if the last entry of the directory is in the list.
        pub eof: bool,
    }
}

xdr_struct! {
    /// `READDIRPLUS3resok`, in the form that a client decodes. A server appends the header, the entries and the end
    /// one by one.
    pub struct ReaddirplusOk<'a> {
        /// The directory's attributes.
        pub dir_attributes: PostOpAttr,
        /// Verifier that the client sends with its next request.
        pub cookieverf: [u8; 8],
        /// The entries.
        pub entries: EntryList<'a, EntryPlus<'a>>,
        /// True if the last entry of the directory is in the list.
        pub eof: bool,
    }
}

xdr_struct! {
    /// `FSSTAT3resok`: the successful result of FSSTAT. Sizes are in bytes.
    pub struct FsstatOk {
        /// Attributes of the object in the request.
        pub obj_attributes: PostOpAttr,
        /// Total size of the file system.
        pub tbytes: u64,
        /// Free space.
        pub fbytes: u64,
        /// Free space that this caller may use.
        pub abytes: u64,
        /// File slots in total.
        pub tfiles: u64,
        /// File slots that are free.
        pub ffiles: u64,
        /// File slots that this caller may use.
        pub afiles: u64,
        /// Seconds for which the file system is not expected to change; 0 means unknown.
        pub invarsec: u32,
    }
}

xdr_struct! {
    /// `FSINFO3resok`: the successful result of FSINFO. Sizes are in bytes.
    pub struct FsinfoOk {
        /// Attributes of the object in the request.
        pub obj_attributes: PostOpAttr,
        /// Largest size of a READ.
        pub rtmax: u32,
        /// Preferred size of a READ.
        pub rtpref: u32,
        /// READ sizes should be a multiple of this number.
        pub rtmult: u32,
        /// Largest size of a WRITE.
        pub wtmax: u32,
        /// Preferred size of a WRITE.
        pub wtpref: u32,
        /// WRITE sizes should be a multiple of this number.
        pub wtmult: u32,
        /// Preferred size of a READDIR.
        pub dtpref: u32,
        /// Largest size of a file.
        pub maxfilesize: u64,
        /// Granularity of times.
        pub time_delta: Nfstime3,
        /// Bits of [`super::fsf`].
        pub properties: u32,
    }
}

xdr_struct! {
    /// `PATHCONF3resok`: the successful result of PATHCONF.
    pub struct PathconfOk {
        /// The object's attributes.
        pub obj_attributes: PostOpAttr,
        /// Most hard links to an object.
        pub linkmax: u32,
        /// Longest name, in bytes.
        pub name_max: u32,
        /// True if a longer name is refused; false if it is cut.
        pub no_trunc: bool,
        /// True if only a privileged user may give a file to another user.
        pub chown_restricted: bool,
        /// True if names that differ only in case are equal.
        pub case_insensitive: bool,
        /// True if the case of names is kept.
        pub case_preserving: bool,
    }
}

xdr_struct! {
    /// `COMMIT3resok`: the successful result of COMMIT.
    pub struct CommitOk {
        /// The file's attributes before and after the operation.
        pub file_wcc: WccData,
        /// Write verifier. It changes when data that was not committed may have been lost.
        pub verf: [u8; 8],
    }
}
