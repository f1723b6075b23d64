//! Attributes of files, and changes of attributes (RFC 1813, section 2.5).

use super::types::{Ftype3, Nfstime3, Specdata3};
use crate::xdr::{Decode, DecodeError, Encode, Fixed as _, Reader};

xdr_struct! {
    fixed
    /// `fattr3`: the attributes of a file (RFC 1813, section 2.5).
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
