//! Results of the procedures (RFC 1813, section 3.3).

use super::dirlist::{Entry, EntryList, EntryPlus};
use super::types::{Fattr3, FileHandle, Nfsstat3, Nfstime3, PostOpAttr, PostOpFh, StableHow, WccData};
use crate::xdr::{Decode, DecodeError, Encode, Reader};

/// The failure arm of a result: the status and what the procedure still tells about its objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failed<F> {
    /// Anything but [`Nfsstat3::Ok`].
    pub status: Nfsstat3,
    /// Attributes, as far as the server could get them.
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

/// `GETATTR3res`.
pub type GetattrRes = Result<Fattr3, Failed<()>>;
/// `SETATTR3res`.
pub type SetattrRes = Result<WccData, Failed<WccData>>;
/// `LOOKUP3res`; the failure carries the directory's attributes.
pub type LookupRes = Result<LookupOk, Failed<PostOpAttr>>;
/// `ACCESS3res`.
pub type AccessRes = Result<AccessOk, Failed<PostOpAttr>>;
/// `READLINK3res`.
pub type ReadlinkRes<'a> = Result<ReadlinkOk<'a>, Failed<PostOpAttr>>;
/// `READ3res`.
pub type ReadRes<'a> = Result<ReadOk<'a>, Failed<PostOpAttr>>;
/// `WRITE3res`.
pub type WriteRes = Result<WriteOk, Failed<WccData>>;
/// `CREATE3res`; the failure carries the directory's.
pub type CreateRes = Result<CreateOk, Failed<WccData>>;
/// `MKDIR3res`.
pub type MkdirRes = CreateRes;
/// `SYMLINK3res`.
pub type SymlinkRes = CreateRes;
/// `MKNOD3res`.
pub type MknodRes = CreateRes;
/// `REMOVE3res`: of the directory, in both arms.
pub type RemoveRes = Result<WccData, Failed<WccData>>;
/// `RMDIR3res`.
pub type RmdirRes = RemoveRes;
/// `RENAME3res`.
pub type RenameRes = Result<RenameWcc, Failed<RenameWcc>>;
/// `LINK3res`.
pub type LinkRes = Result<LinkWcc, Failed<LinkWcc>>;
/// `READDIR3res`.
pub type ReaddirRes<'a> = Result<ReaddirOk<'a>, Failed<PostOpAttr>>;
/// `READDIRPLUS3res`.
pub type ReaddirplusRes<'a> = Result<ReaddirplusOk<'a>, Failed<PostOpAttr>>;
/// `FSSTAT3res`.
pub type FsstatRes = Result<FsstatOk, Failed<PostOpAttr>>;
/// `FSINFO3res`.
pub type FsinfoRes = Result<FsinfoOk, Failed<PostOpAttr>>;
/// `PATHCONF3res`.
pub type PathconfRes = Result<PathconfOk, Failed<PostOpAttr>>;
/// `COMMIT3res`.
pub type CommitRes = Result<CommitOk, Failed<WccData>>;

xdr_struct! {
    /// `LOOKUP3resok`.
    pub struct LookupOk {
        /// The object found.
        pub object: FileHandle,
        /// Its attributes.
        pub obj_attributes: PostOpAttr,
        /// The directory's attributes.
        pub dir_attributes: PostOpAttr,
    }
}

xdr_struct! {
    /// `ACCESS3resok`.
    pub struct AccessOk {
        /// The object's attributes.
        pub obj_attributes: PostOpAttr,
        /// Bits of [`super::access`] that are granted, of those asked for.
        pub access: u32,
    }
}

xdr_struct! {
    /// `READLINK3resok`.
    pub struct ReadlinkOk<'a> {
        /// The link's attributes.
        pub symlink_attributes: PostOpAttr,
        /// What the link says.
        pub path: &'a [u8],
    }
}

xdr_struct! {
    /// `READ3resok`.
    pub struct ReadOk<'a> {
        /// The file's attributes.
        pub file_attributes: PostOpAttr,
        /// Bytes read; a sane server's `data` has this length (not checked here).
        pub count: u32,
        /// Whether the read reached the end of the file.
        pub eof: bool,
        /// The data.
        pub data: &'a [u8],
    }
}

/// Appends a successful `READ3res`, status included, up to and including the length word of the data. What has to
/// follow are `count` bytes of data and [`crate::xdr::padding`] of `count` zero bytes, from wherever they are.
#[inline]
pub fn encode_read_header(out: &mut Vec<u8>, attributes: &PostOpAttr, count: u32, eof: bool) {
    Nfsstat3::Ok.encode(out);
    attributes.encode(out);
    count.encode(out);
    eof.encode(out);
    count.encode(out);
}

xdr_struct! {
    /// `WRITE3resok`.
    pub struct WriteOk {
        /// The file's attributes before and after.
        pub file_wcc: WccData,
        /// Bytes written.
        pub count: u32,
        /// How durable they are, at least as asked for.
        pub committed: StableHow,
        /// Changes when data that was not committed may have been lost.
        pub verf: [u8; 8],
    }
}

xdr_struct! {
    /// `CREATE3resok`; MKDIR, SYMLINK and MKNOD have the same.
    pub struct CreateOk {
        /// The new object.
        pub object: PostOpFh,
        /// Its attributes.
        pub obj_attributes: PostOpAttr,
        /// The directory's attributes before and after.
        pub dir_wcc: WccData,
    }
}

xdr_struct! {
    /// Both arms of `RENAME3res`.
    #[derive(Default)]
    pub struct RenameWcc {
        /// The directory of the old name, before and after.
        pub fromdir_wcc: WccData,
        /// The directory of the new name, before and after.
        pub todir_wcc: WccData,
    }
}

xdr_struct! {
    /// Both arms of `LINK3res`.
    #[derive(Default)]
    pub struct LinkWcc {
        /// The file's attributes.
        pub file_attributes: PostOpAttr,
        /// The directory of the new name, before and after.
        pub linkdir_wcc: WccData,
    }
}

xdr_struct! {
    /// `READDIR3resok`, as a client sees it; a server appends the pieces one by one.
    pub struct ReaddirOk<'a> {
        /// The directory's attributes.
        pub dir_attributes: PostOpAttr,
        /// To be sent with the next request.
        pub cookieverf: [u8; 8],
        /// The entries.
        pub entries: EntryList<'a, Entry<'a>>,
        /// Whether the last entry is among them.
        pub eof: bool,
    }
}

xdr_struct! {
    /// `READDIRPLUS3resok`, as a client sees it; a server appends the pieces one by one.
    pub struct ReaddirplusOk<'a> {
        /// The directory's attributes.
        pub dir_attributes: PostOpAttr,
        /// To be sent with the next request.
        pub cookieverf: [u8; 8],
        /// The entries.
        pub entries: EntryList<'a, EntryPlus<'a>>,
        /// Whether the last entry is among them.
        pub eof: bool,
    }
}

xdr_struct! {
    /// `FSSTAT3resok`; sizes in bytes.
    pub struct FsstatOk {
        /// The root's attributes.
        pub obj_attributes: PostOpAttr,
        /// Total size.
        pub tbytes: u64,
        /// Free.
        pub fbytes: u64,
        /// Free to this caller.
        pub abytes: u64,
        /// File slots in total.
        pub tfiles: u64,
        /// Free file slots.
        pub ffiles: u64,
        /// File slots free to this caller.
        pub afiles: u64,
        /// Seconds for which the file system is not expected to change; 0 is unknown.
        pub invarsec: u32,
    }
}

xdr_struct! {
    /// `FSINFO3resok`; sizes in bytes.
    pub struct FsinfoOk {
        /// The root's attributes.
        pub obj_attributes: PostOpAttr,
        /// Largest READ.
        pub rtmax: u32,
        /// Preferred READ.
        pub rtpref: u32,
        /// READ sizes should be a multiple of this.
        pub rtmult: u32,
        /// Largest WRITE.
        pub wtmax: u32,
        /// Preferred WRITE.
        pub wtpref: u32,
        /// WRITE sizes should be a multiple of this.
        pub wtmult: u32,
        /// Preferred READDIR.
        pub dtpref: u32,
        /// Largest file.
        pub maxfilesize: u64,
        /// Granularity of times.
        pub time_delta: Nfstime3,
        /// Bits of [`super::fsf`].
        pub properties: u32,
    }
}

xdr_struct! {
    /// `PATHCONF3resok`.
    pub struct PathconfOk {
        /// The object's attributes.
        pub obj_attributes: PostOpAttr,
        /// Most hard links.
        pub linkmax: u32,
        /// Longest name in bytes.
        pub name_max: u32,
        /// Longer names are refused, not cut.
        pub no_trunc: bool,
        /// Only a privileged user may give files away.
        pub chown_restricted: bool,
        /// Names differ not only in case.
        pub case_insensitive: bool,
        /// Case is kept.
        pub case_preserving: bool,
    }
}

xdr_struct! {
    /// `COMMIT3resok`.
    pub struct CommitOk {
        /// The file's attributes before and after.
        pub file_wcc: WccData,
        /// Changes when data that was not committed may have been lost.
        pub verf: [u8; 8],
    }
}
