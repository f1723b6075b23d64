//! The MOUNT protocol, version 3 (RFC 1813, appendix I).

use crate::nfs3::FileHandle;
use crate::xdr::{Decode, DecodeError, Encode, List, Reader};

/// Program number.
pub const PROGRAM: u32 = 100_005;
/// Version of the program.
pub const VERSION: u32 = 3;
/// MNTPATHLEN: longest path in bytes. Not enforced in decoding; a server answers [`Mountstat3::Nametoolong`].
pub const MAX_PATH: usize = 1024;
/// MNTNAMLEN: longest name of a host or group in bytes. Not enforced in decoding.
pub const MAX_NAME: usize = 255;
/// Most authentication flavours in a reply that are decoded.
pub const MAX_FLAVORS: usize = 64;

xdr_enum! {
    /// A procedure of MOUNT v3 by its number.
    pub enum Procedure("MOUNT procedure") {
        /// Do nothing.
        Null = 0,
        /// Get the handle of an export: [`DirPath`] to [`MountRes`].
        Mnt = 1,
        /// List what is mounted: nothing to [`MountList`].
        Dump = 2,
        /// Forget one mount: [`DirPath`] to nothing.
        Umnt = 3,
        /// Forget all mounts of the caller: nothing to nothing.
        Umntall = 4,
        /// List the exports: nothing to [`ExportList`].
        Export = 5,
    }
}

xdr_enum! {
    /// `mountstat3`: what became of a MNT.
    pub enum Mountstat3("mountstat3") {
        /// Done.
        Ok = 0,
        /// Not owner.
        Perm = 1,
        /// No such file or directory.
        Noent = 2,
        /// I/O error.
        Io = 5,
        /// Permission denied.
        Acces = 13,
        /// Not a directory.
        Notdir = 20,
        /// Invalid argument.
        Inval = 22,
        /// Path too long.
        Nametoolong = 63,
        /// Operation is not supported.
        Notsupp = 10004,
        /// An error that has no other code.
        Serverfault = 10006,
    }
}

/// `dirpath`: the argument of MNT and UMNT, any bytes.
pub type DirPath<'a> = &'a [u8];

/// `mountres3_ok`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(test, derive(arbitrary::Arbitrary))]
pub struct MountOk {
    /// Root of the export.
    pub fhandle: FileHandle,
    /// RPC authentication flavours that are accepted for it, best first.
    pub auth_flavors: Vec<u32>,
}

impl Encode for MountOk {
    fn encode(&self, out: &mut Vec<u8>) {
        self.fhandle.encode(out);
        (self.auth_flavors.len() as u32).encode(out);
        for flavor in &self.auth_flavors {
            flavor.encode(out);
        }
    }
}

impl<'a> Decode<'a> for MountOk {
    fn decode(input: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let fhandle = FileHandle::decode(input)?;
        let length = input.u32()?;
        if length as usize > MAX_FLAVORS {
            return Err(DecodeError::TooLong { length, max: MAX_FLAVORS });
        }
        let auth_flavors = (0..length).map(|_| input.u32()).collect::<Result<_, _>>()?;
        Ok(Self { fhandle, auth_flavors })
    }
}

/// `mountres3`: the result of MNT. The error is never [`Mountstat3::Ok`].
pub type MountRes = Result<MountOk, Mountstat3>;

impl Encode for MountRes {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Ok(mount) => {
                Mountstat3::Ok.encode(out);
                mount.encode(out);
            }
            Err(status) => status.encode(out),
        }
    }
}

impl<'a> Decode<'a> for MountRes {
    fn decode(input: &mut Reader<'a>) -> Result<Self, DecodeError> {
        Ok(match Mountstat3::decode(input)? {
            Mountstat3::Ok => Ok(MountOk::decode(input)?),
            status => Err(status),
        })
    }
}

xdr_struct! {
    /// `mountbody`: who has mounted what.
    pub struct MountEntry<'a> {
        /// Name of the client.
        pub hostname: &'a [u8],
        /// Path of the export.
        pub directory: &'a [u8],
    }
}

/// `mountlist`: the result of DUMP.
pub type MountList<'a> = List<MountEntry<'a>>;

/// `exportnode`: one export and who may mount it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(test, derive(arbitrary::Arbitrary))]
pub struct ExportEntry<'a> {
    /// Path of the export.
    pub directory: &'a [u8],
    /// Clients or groups that may mount it; empty means everyone.
    pub groups: List<&'a [u8]>,
}

impl Encode for ExportEntry<'_> {
    fn encode(&self, out: &mut Vec<u8>) {
        self.directory.encode(out);
        self.groups.encode(out);
    }
}

impl<'a> Decode<'a> for ExportEntry<'a> {
    fn decode(input: &mut Reader<'a>) -> Result<Self, DecodeError> {
        Ok(Self { directory: Decode::decode(input)?, groups: List::decode(input)? })
    }
}

/// `exports`: the result of EXPORT.
pub type ExportList<'a> = List<ExportEntry<'a>>;
