//! The MOUNT protocol, version 3 (RFC 1813, appendix I).

use crate::nfs3::FileHandle;
use crate::xdr::{Decode, DecodeError, Encode, List, Reader};

/// Program number.
pub const PROGRAM: u32 = 100_005;
/// Version of the program.
pub const VERSION: u32 = 3;
/// MNTPATHLEN: longest path in bytes. Decoding accepts longer paths, so that a server can answer
/// [`Mountstat3::Nametoolong`].
pub const MAX_PATH: usize = 1024;
/// MNTNAMLEN: longest name of a host or group in bytes. Decoding accepts longer names.
pub const MAX_NAME: usize = 255;
/// Most authentication flavours in a reply; decoding fails above it.
pub const MAX_FLAVORS: usize = 64;

xdr_enum! {
    /// A procedure of MOUNT v3.
    pub enum Procedure("MOUNT procedure") {
        /// Does nothing.
        Null = 0,
        /// Returns the handle of an export: [`DirPath`] to [`MountRes`].
        Mnt = 1,
        /// Lists the mounts: nothing to [`MountList`].
        Dump = 2,
        /// Forgets one mount: [`DirPath`] to nothing.
        Umnt = 3,
        /// Forgets all mounts of the caller: nothing to nothing.
        Umntall = 4,
        /// Lists the exports: nothing to [`ExportList`].
        Export = 5,
    }
}

xdr_enum! {
    /// `mountstat3`: the outcome of MNT.
    pub enum Mountstat3("mountstat3") {
        /// Success.
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
        /// An error without a code of its own.
        Serverfault = 10006,
    }
}

/// `dirpath`: the argument of MNT and UMNT. Any bytes are permitted.
pub type DirPath<'a> = &'a [u8];

/// `mountres3_ok`: the successful result of MNT.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(test, derive(arbitrary::Arbitrary))]
pub struct MountOk {
    /// Root of the export.
    pub fhandle: FileHandle,
    /// RPC authentication flavours that the export accepts, best first.
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
    /// `mountbody`: a client and an export that it has mounted.
    pub struct MountEntry<'a> {
        /// Name of the client.
        pub hostname: &'a [u8],
        /// Path of the export.
        pub directory: &'a [u8],
    }
}

/// `mountlist`: the result of DUMP.
pub type MountList<'a> = List<MountEntry<'a>>;

/// `exportnode`: one export and the clients that may mount it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(test, derive(arbitrary::Arbitrary))]
pub struct ExportEntry<'a> {
    /// Path of the export.
    pub directory: &'a [u8],
    /// Clients or groups that may mount the export; empty means every client.
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
