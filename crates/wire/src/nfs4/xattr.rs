//! Extended attributes (RFC 8276).

use crate::array::Array;
use crate::xdr::{Encode, opaque_size};

/// Most names in a result of LISTXATTRS; decoding fails above it.
pub const MAX_XATTR_NAMES: usize = 16_384;

xdr_struct! {
    /// The arguments of GETXATTR and REMOVEXATTR.
    pub struct XattrNameArgs<'a> {
        /// Name of the extended attribute, without the prefix `user.`.
        pub name: &'a [u8],
    }
}

xdr_struct! {
    /// The successful result of GETXATTR.
    pub struct GetxattrOk<'a> {
        /// The value.
        pub value: &'a [u8],
    }
}

xdr_enum! {
    /// `setxattr_option4`: the behaviour of SETXATTR if the extended attribute exists or not.
    pub enum SetxattrOption("setxattr_option4") {
        /// It is made or replaced.
        Either = 0,
        /// It must not exist.
        Create = 1,
        /// It must exist.
        Replace = 2,
    }
}

xdr_struct! {
    /// `SETXATTR4args`: the arguments of SETXATTR.
    pub struct SetxattrArgs<'a> {
        /// Behaviour if the extended attribute exists or not.
        pub option: SetxattrOption,
        /// Name of the extended attribute, without the prefix `user.`.
        pub name: &'a [u8],
        /// The value.
        pub value: &'a [u8],
    }
}

xdr_struct! {
    /// `LISTXATTRS4args`: the arguments of LISTXATTRS.
    pub struct ListxattrsArgs {
        /// 0 in the first request, then the cookie of the last result.
        pub cookie: u64,
        /// Most bytes of `LISTXATTRS4resok`, including all XDR overhead.
        pub maxcount: u32,
    }
}

xdr_struct! {
    /// `LISTXATTRS4resok`: the successful result of LISTXATTRS.
    pub struct ListxattrsOk<'a> {
        /// Cookie with which the client goes on.
        pub cookie: u64,
        /// Names without the prefix `user.`.
        pub names: Array<'a, &'a [u8], MAX_XATTR_NAMES>,
        /// True if there are no more names.
        pub eof: bool,
    }
}

/// A `LISTXATTRS4resok` while its names are appended to a buffer.
#[derive(Debug, Clone, Copy)]
pub struct XattrListing {
    start: usize,
    // The buffer must not grow above this position, the word after the names included.
    end: usize,
    names: u32,
}

impl XattrListing {
    /// Begins a `LISTXATTRS4resok`. `maxcount` is the smaller of the request's limit and of the bytes that are left in
    /// the reply.
    pub fn begin(out: &mut Vec<u8>, maxcount: usize) -> Self {
        let start = out.len();
        0u64.encode(out);
        0u32.encode(out);
        Self { start, end: start.saturating_add(maxcount).saturating_sub(4), names: 0 }
    }

    /// Appends a name. Returns false and leaves the buffer unchanged if the name exceeds the limit. If the first name
    /// does, the server answers NFS4ERR_TOOSMALL.
    #[must_use]
    pub fn name(&mut self, out: &mut Vec<u8>, name: &[u8]) -> bool {
        if out.len() + opaque_size(name.len()) > self.end || self.names as usize == MAX_XATTR_NAMES {
            return false;
        }
        name.encode(out);
        self.names += 1;
        true
    }

    /// Writes the cookie and the number of names, and appends the end. `eof` is true if there are no more names.
    pub fn finish(self, out: &mut Vec<u8>, cookie: u64, eof: bool) {
        out[self.start..self.start + 8].copy_from_slice(&cookie.to_be_bytes());
        out[self.start + 8..self.start + 12].copy_from_slice(&self.names.to_be_bytes());
        eof.encode(out);
    }
}
