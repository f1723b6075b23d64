//! Directory listings (RFC 1813, sections 3.3.16 and 3.3.17). They are encoded entry by entry, so that a server can
//! stop at the client's size limit.

use std::marker::PhantomData;

use super::attr::{PostOpAttr, post_op_attr_size};
use super::handle::PostOpFh;
use super::status::Nfsstat3;
use crate::xdr::{Decode, DecodeError, Encode, Reader, opaque_size};

xdr_struct! {
    /// `entry3`: an entry of READDIR, without the link to the next entry.
    pub struct Entry<'a> {
        /// Identity of the file.
        pub fileid: u64,
        /// Name of the file.
        pub name: &'a [u8],
        /// Cookie that a client sends to continue behind this entry.
        pub cookie: u64,
    }
}

xdr_struct! {
    /// `entryplus3`: an entry of READDIRPLUS, without the link to the next entry.
    pub struct EntryPlus<'a> {
        /// Identity of the file.
        pub fileid: u64,
        /// Name of the file.
        pub name: &'a [u8],
        /// Cookie that a client sends to continue behind this entry.
        pub cookie: u64,
        /// The file's attributes.
        pub name_attributes: PostOpAttr,
        /// The file's handle.
        pub name_handle: PostOpFh,
    }
}

/// Size in bytes of the end of a listing: the end of the list and the end-of-directory flag.
pub const LISTING_END_SIZE: usize = 8;

/// Returns the size in bytes of `READDIR3resok` or `READDIRPLUS3resok` before the first entry, without the status
/// word.
#[inline]
#[must_use]
pub const fn listing_header_size(dir_attributes: &PostOpAttr) -> usize {
    post_op_attr_size(dir_attributes) + 8
}

/// Returns the number of bytes that [`encode_entry`] appends for a name of `name_len` bytes. An entry of READDIRPLUS
/// counts with this size against `dircount`.
#[inline]
#[must_use]
pub const fn entry_size(name_len: usize) -> usize {
    4 + 8 + opaque_size(name_len) + 8
}

/// Returns the number of bytes that [`encode_entryplus`] appends.
#[inline]
#[must_use]
pub const fn entryplus_size(entry: &EntryPlus<'_>) -> usize {
    let handle = match &entry.name_handle {
        Some(handle) => 4 + handle.encoded_size(),
        None => 4,
    };
    entry_size(entry.name.len()) + post_op_attr_size(&entry.name_attributes) + handle
}

/// Appends a successful `READDIR3res` or `READDIRPLUS3res`, status included, up to the first entry.
pub fn encode_listing_header(out: &mut Vec<u8>, dir_attributes: &PostOpAttr, cookieverf: [u8; 8]) {
    Nfsstat3::Ok.encode(out);
    dir_attributes.encode(out);
    cookieverf.encode(out);
}

/// Appends one entry of READDIR, preceded by the word that announces an entry.
#[inline]
pub fn encode_entry(out: &mut Vec<u8>, entry: &Entry<'_>) {
    true.encode(out);
    entry.encode(out);
}

/// Appends one entry of READDIRPLUS, preceded by the word that announces an entry.
#[inline]
pub fn encode_entryplus(out: &mut Vec<u8>, entry: &EntryPlus<'_>) {
    true.encode(out);
    entry.encode(out);
}

/// Appends the end of the list. `eof` is true if the directory has no further entries.
pub fn encode_listing_end(out: &mut Vec<u8>, eof: bool) {
    false.encode(out);
    eof.encode(out);
}

/// A list of entries in a received message. The list is checked when it is decoded, and read by iterating.
pub struct EntryList<'a, E> {
    // All entries with the words that announce them, and the end of the list.
    raw: &'a [u8],
    entry: PhantomData<E>,
}

impl<'a, E: Decode<'a>> EntryList<'a, E> {
    /// Returns the entries in the order of the message.
    #[must_use]
    pub fn iter(&self) -> EntryIter<'a, E> {
        EntryIter { input: Reader::new(self.raw), entry: PhantomData }
    }
}

impl<'a, E: Decode<'a>> IntoIterator for EntryList<'a, E> {
    type Item = E;
    type IntoIter = EntryIter<'a, E>;

    fn into_iter(self) -> EntryIter<'a, E> {
        self.iter()
    }
}

/// An iterator over an [`EntryList`].
#[derive(Debug, Clone)]
pub struct EntryIter<'a, E> {
    input: Reader<'a>,
    entry: PhantomData<E>,
}

impl<'a, E: Decode<'a>> Iterator for EntryIter<'a, E> {
    type Item = E;

    #[inline]
    fn next(&mut self) -> Option<E> {
        // Errors cannot happen here, because the list was checked when it was decoded.
        Option::<E>::decode(&mut self.input).ok().flatten()
    }
}

impl<E> Encode for EntryList<'_, E> {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.raw);
    }
}

impl<'a, E: Decode<'a>> Decode<'a> for EntryList<'a, E> {
    fn decode(input: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let start = input.rest();
        while Option::<E>::decode(input)?.is_some() {}
        Ok(Self { raw: &start[..start.len() - input.remaining()], entry: PhantomData })
    }
}

// A derived implementation would require `E: Clone`, and so on. These implementations do not.
impl<E> Clone for EntryList<'_, E> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<E> Copy for EntryList<'_, E> {}

impl<E> PartialEq for EntryList<'_, E> {
    fn eq(&self, other: &Self) -> bool {
        self.raw == other.raw
    }
}

impl<E> Eq for EntryList<'_, E> {}

impl<'a, E: Decode<'a> + std::fmt::Debug> std::fmt::Debug for EntryList<'a, E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}
