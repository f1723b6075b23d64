//! Handles, names and attributes: the operations that NFSv4 has in common with NFSv3, except I/O and READDIR.

use super::attr::Fattr;
use super::bitmap::Bitmap;
use super::types::{ChangeInfo, Handle, Specdata4, Stateid};
use crate::array::Array;
use crate::xdr::{Decode, DecodeError, Encode, Reader};

/// Most security flavours in a result of SECINFO; decoding fails above it.
pub const MAX_SECINFO: usize = 64;
/// Most states in TEST_STATEID; decoding fails above it.
pub const MAX_TEST_STATEIDS: usize = 16_384;

xdr_struct! {
    /// `ACCESS4args`: the arguments of ACCESS.
    pub struct AccessArgs {
        /// Bits of [`super::access`] to check.
        pub access: u32,
    }
}

xdr_struct! {
    /// `ACCESS4resok`: the successful result of ACCESS.
    pub struct AccessOk {
        /// Bits of the request that the server can check.
        pub supported: u32,
        /// Bits that are granted.
        pub access: u32,
    }
}

xdr_union! {
    /// `createtype4`: the type of an object that CREATE is to make.
    pub enum CreateType<'a>("nfs_ftype4") {
        /// Regular file: valid on the wire, answered with NFS4ERR_BADTYPE.
        Reg = 1,
        /// Directory.
        Dir = 2,
        /// Block device.
        Blk(device: Specdata4) = 3,
        /// Character device.
        Chr(device: Specdata4) = 4,
        /// Symbolic link, with its target.
        Lnk(target: &'a [u8]) = 5,
        /// Socket.
        Sock = 6,
        /// Named pipe.
        Fifo = 7,
        /// Directory of named attributes: valid on the wire, answered with NFS4ERR_BADTYPE.
        Attrdir = 8,
        /// Named attribute: valid on the wire, answered with NFS4ERR_BADTYPE.
        Namedattr = 9,
    }
}

xdr_struct! {
    /// `CREATE4args`: the arguments of CREATE.
    pub struct CreateArgs<'a> {
        /// Type of the new object.
        pub objtype: CreateType<'a>,
        /// Name in the current directory.
        pub name: &'a [u8],
        /// Initial attributes.
        pub attributes: Fattr<'a>,
    }
}

xdr_struct! {
    /// `CREATE4resok`: the successful result of CREATE.
    pub struct CreateOk {
        /// Change of the directory.
        pub cinfo: ChangeInfo,
        /// Attributes that the server has set.
        pub attrset: Bitmap,
    }
}

xdr_struct! {
    /// `GETATTR4args`: the arguments of GETATTR.
    pub struct GetattrArgs {
        /// Attributes wanted. Attributes above 95 are ignored: no server supports them.
        pub request: Bitmap,
    }
}

xdr_struct! {
    /// Attributes of an object: the successful result of GETATTR and CB_GETATTR, and the arguments of VERIFY and
    /// NVERIFY. The server encodes a result with [`super::Attributes::encode`].
    pub struct ObjectAttributes<'a> {
        /// The attributes.
        pub attributes: Fattr<'a>,
    }
}

xdr_struct! {
    /// A handle: the arguments of PUTFH, and the successful result of GETFH.
    pub struct HandleArgs<'a> {
        /// The handle.
        pub object: Handle<'a>,
    }
}

xdr_struct! {
    /// A name in the current directory: the arguments of LINK, LOOKUP, REMOVE and SECINFO.
    pub struct NameArgs<'a> {
        /// The name: any bytes, any length.
        pub name: &'a [u8],
    }
}

xdr_struct! {
    /// A change of one directory or file: the successful result of LINK, REMOVE, SETXATTR and REMOVEXATTR.
    pub struct ChangeOk {
        /// The change.
        pub cinfo: ChangeInfo,
    }
}

xdr_struct! {
    /// `RENAME4args`: the arguments of RENAME.
    pub struct RenameArgs<'a> {
        /// Name in the saved directory.
        pub oldname: &'a [u8],
        /// Name in the current directory.
        pub newname: &'a [u8],
    }
}

xdr_struct! {
    /// `RENAME4resok`: the successful result of RENAME.
    pub struct RenameOk {
        /// Change of the source directory.
        pub source: ChangeInfo,
        /// Change of the target directory.
        pub target: ChangeInfo,
    }
}

xdr_struct! {
    /// `READLINK4resok`: the successful result of READLINK.
    pub struct ReadlinkOk<'a> {
        /// Target of the link.
        pub link: &'a [u8],
    }
}

xdr_struct! {
    /// `SETATTR4args`: the arguments of SETATTR.
    pub struct SetattrArgs<'a> {
        /// The open, the locks or the delegation, if the size changes.
        pub stateid: Stateid,
        /// New attributes.
        pub attributes: Fattr<'a>,
    }
}

xdr_struct! {
    /// A state identity as a result: CLOSE, LOCK, LOCKU, OPEN_CONFIRM and OPEN_DOWNGRADE.
    pub struct StateidOk {
        /// The state.
        pub stateid: Stateid,
    }
}

xdr_struct! {
    /// `TEST_STATEID4args`: the arguments of TEST_STATEID.
    pub struct TestStateidArgs<'a> {
        /// The states.
        pub stateids: Array<'a, Stateid, MAX_TEST_STATEIDS>,
    }
}

xdr_struct! {
    /// `TEST_STATEID4resok`: the successful result of TEST_STATEID.
    pub struct TestStateidOk<'a> {
        /// The status of each state.
        pub codes: Array<'a, super::Nfsstat4, MAX_TEST_STATEIDS>,
    }
}

xdr_enum! {
    /// `secinfo_style4`: the arguments of SECINFO_NO_NAME.
    pub enum SecinfoStyle("secinfo_style4") {
        /// Flavours of the current handle.
        CurrentFh = 0,
        /// Flavours of the parent directory.
        Parent = 1,
    }
}

xdr_struct! {
    /// `rpcsec_gss_info`: a mechanism of RPCSEC_GSS.
    pub struct GssInfo<'a> {
        /// Object identity of the mechanism.
        pub oid: &'a [u8],
        /// Quality of protection.
        pub qop: u32,
        /// Service: 1 none, 2 integrity, 3 privacy. Decoding does not check the number.
        pub service: u32,
    }
}

/// Number of the flavour RPCSEC_GSS.
pub const RPCSEC_GSS: u32 = 6;

/// `secinfo4`: a security flavour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Secinfo<'a> {
    /// A flavour other than [`RPCSEC_GSS`].
    Flavor(u32),
    /// RPCSEC_GSS.
    Gss(GssInfo<'a>),
}

impl Encode for Secinfo<'_> {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Secinfo::Flavor(flavor) => flavor.encode(out),
            Secinfo::Gss(info) => {
                RPCSEC_GSS.encode(out);
                info.encode(out);
            }
        }
    }
}

impl<'a> Decode<'a> for Secinfo<'a> {
    fn decode(input: &mut Reader<'a>) -> Result<Self, DecodeError> {
        match input.u32()? {
            RPCSEC_GSS => Decode::decode(input).map(Self::Gss),
            flavor => Ok(Self::Flavor(flavor)),
        }
    }
}

xdr_struct! {
    /// `SECINFO4resok`: the successful result of SECINFO and SECINFO_NO_NAME.
    pub struct SecinfoOk<'a> {
        /// Flavours, best first.
        pub flavors: Array<'a, Secinfo<'a>, MAX_SECINFO>,
    }
}
