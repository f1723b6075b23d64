//! READDIR (RFC 8881, section 18.23). The result is encoded entry by entry, so that a server can stop at the client's
//! size limits.

use super::attr::Fattr;
use super::bitmap::Bitmap;
use super::types::Verifier;
use crate::nfs3::EntryList;
use crate::xdr::{Encode, opaque_size};

xdr_struct! {
    /// `READDIR4args`: the arguments of READDIR.
    pub struct ReaddirArgs {
        /// 0 in the first request, then the cookie of the last entry received.
        pub cookie: u64,
        /// Zero in the first request, then the verifier of the last result.
        pub cookieverf: Verifier,
        /// Most bytes of names and cookies. It is a hint; 0 means no limit.
        pub dircount: u32,
        /// Most bytes of `READDIR4resok`, including all XDR overhead.
        pub maxcount: u32,
        /// Attributes wanted of each entry.
        pub request: Bitmap,
    }
}

xdr_struct! {
    /// `entry4`: an entry of a directory, without the link to the next entry.
    pub struct DirEntry<'a> {
        /// Cookie that a client sends to continue behind this entry.
        pub cookie: u64,
        /// Name of the file.
        pub name: &'a [u8],
        /// Attributes of the file.
        pub attributes: Fattr<'a>,
    }
}

xdr_struct! {
    /// `READDIR4resok`: the successful result of READDIR.
    pub struct ReaddirOk<'a> {
        /// Verifier of the cookies.
        pub cookieverf: Verifier,
        /// The entries.
        pub entries: EntryList<'a, DirEntry<'a>>,
        /// True if the directory has no further entries.
        pub eof: bool,
    }
}

/// Size in bytes of the end of a listing: the end of the list and the end-of-directory flag.
const END_SIZE: usize = 8;

/// A `READDIR4resok` while its entries are appended to a buffer.
#[derive(Debug, Clone, Copy)]
pub struct Listing {
    // The buffer must not grow above this position, the end of the listing included.
    end: usize,
    dir_left: usize,
    entries: u32,
}

impl Listing {
    /// Appends the part of `READDIR4resok` before the first entry. `maxcount` is the smaller of the request's limit
    /// and of the bytes that are left in the reply.
    pub fn begin(out: &mut Vec<u8>, cookieverf: Verifier, dircount: u32, maxcount: usize) -> Self {
        let end = out.len().saturating_add(maxcount).saturating_sub(END_SIZE);
        cookieverf.encode(out);
        let dir_left = if dircount == 0 { usize::MAX } else { dircount as usize };
        Self { end, dir_left, entries: 0 }
    }

    /// Appends an entry; `attributes` appends its `fattr4`. Returns false and leaves the buffer unchanged if the entry
    /// exceeds a limit. The first entry counts only against `maxcount`, so that each result makes progress.
    #[must_use]
    pub fn entry(
        &mut self,
        out: &mut Vec<u8>,
        cookie: u64,
        name: &[u8],
        attributes: impl FnOnce(&mut Vec<u8>),
    ) -> bool {
        let dir_size = 8 + opaque_size(name.len());
        let start = out.len();
        if start + 4 + dir_size > self.end || (self.entries > 0 && dir_size > self.dir_left) {
            return false;
        }
        true.encode(out);
        cookie.encode(out);
        name.encode(out);
        attributes(out);
        if out.len() > self.end {
            out.truncate(start);
            return false;
        }
        self.dir_left = self.dir_left.saturating_sub(dir_size);
        self.entries += 1;
        true
    }

    /// Returns the number of entries. If the directory goes on and the number is 0, the server answers
    /// NFS4ERR_TOOSMALL.
    #[must_use]
    pub const fn len(&self) -> u32 {
        self.entries
    }

    /// Returns true if the listing has no entries.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.entries == 0
    }

    /// Appends the end of the list. `eof` is true if the directory has no further entries.
    pub fn finish(self, out: &mut Vec<u8>, eof: bool) {
        false.encode(out);
        eof.encode(out);
    }
}
