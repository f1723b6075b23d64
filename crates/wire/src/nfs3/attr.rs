//! Attributes of files, and changes of attributes (RFC 1813, section 2.5).

use super::types::{Ftype3, Nfstime3, Specdata3};
use crate::xdr::{Decode, DecodeError, Encode, Reader};

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
