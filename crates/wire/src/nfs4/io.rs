//! READ, WRITE, COMMIT, and the I/O operations of NFSv4.2 on one file.

use super::bitmap::Bitmap;
use super::types::{StableHow4, Stateid, Verifier};
use crate::array::Array;
use crate::xdr::Encode;

/// Most pieces of the result of READ_PLUS; decoding fails above it.
pub const MAX_READ_PLUS: usize = 4096;

xdr_struct! {
    fixed
    /// `READ4args` and `READ_PLUS4args`: the arguments of READ and READ_PLUS.
    pub struct ReadArgs {
        /// The open, the locks or the delegation.
        pub stateid: Stateid,
        /// Offset of the first byte.
        pub offset: u64,
        /// Bytes wanted.
        pub count: u32,
    }
}

xdr_struct! {
    /// `READ4resok`: the successful result of READ.
    pub struct ReadOk<'a> {
        /// True if the read reached the end of the file.
        pub eof: bool,
        /// The data.
        pub data: &'a [u8],
    }
}

/// Appends a `READ4resok` up to and including the length word of the data. The caller then sends `count` bytes of
/// data and [`crate::xdr::padding`] of `count` zero bytes from another buffer.
#[inline]
pub fn encode_read_header(out: &mut Vec<u8>, count: u32, eof: bool) {
    eof.encode(out);
    count.encode(out);
}

xdr_struct! {
    /// `WRITE4args`: the arguments of WRITE.
    pub struct WriteArgs<'a> {
        /// The open, the locks or the delegation.
        pub stateid: Stateid,
        /// Offset of the first byte.
        pub offset: u64,
        /// Durability that the client asks for.
        pub stable: StableHow4,
        /// The data.
        pub data: &'a [u8],
    }
}

impl WriteArgs<'_> {
    /// Appends everything up to and including the length word of the data. The caller then sends `count` bytes of
    /// data and [`crate::xdr::padding`] of `count` zero bytes from another buffer.
    #[inline]
    pub fn encode_header(out: &mut Vec<u8>, stateid: &Stateid, offset: u64, stable: StableHow4, count: u32) {
        stateid.encode(out);
        offset.encode(out);
        stable.encode(out);
        count.encode(out);
    }
}

xdr_struct! {
    fixed
    /// `WRITE4resok`: the successful result of WRITE.
    pub struct WriteOk {
        /// Bytes written.
        pub count: u32,
        /// Durability of the data, at least the durability in the request.
        pub committed: StableHow4,
        /// Write verifier. It changes when data that was not committed may have been lost.
        pub verifier: Verifier,
    }
}

xdr_struct! {
    fixed
    /// `COMMIT4args`: the arguments of COMMIT.
    pub struct CommitArgs {
        /// Offset of the first byte.
        pub offset: u64,
        /// Bytes to commit; 0 means up to the end of the file.
        pub count: u32,
    }
}

xdr_struct! {
    fixed
    /// `COMMIT4resok`: the successful result of COMMIT.
    pub struct CommitOk {
        /// Write verifier.
        pub verifier: Verifier,
    }
}

xdr_struct! {
    /// `ALLOCATE4args` and `DEALLOCATE4args`: a range of a file.
    pub struct AllocateArgs {
        /// The open, the locks or the delegation.
        pub stateid: Stateid,
        /// Offset of the first byte.
        pub offset: u64,
        /// Number of bytes.
        pub length: u64,
    }
}

/// Bit numbers of the hints of IO_ADVISE (RFC 7862, section 15.5).
pub mod io_advise {
    /// No special pattern.
    pub const NORMAL: u32 = 0;
    /// Ascending offsets.
    pub const SEQUENTIAL: u32 = 1;
    /// Descending offsets.
    pub const SEQUENTIAL_BACKWARDS: u32 = 2;
    /// Random offsets.
    pub const RANDOM: u32 = 3;
    /// The range is needed soon.
    pub const WILLNEED: u32 = 4;
    /// The range may be needed soon.
    pub const WILLNEED_OPPORTUNISTIC: u32 = 5;
    /// The range is not needed soon.
    pub const DONTNEED: u32 = 6;
    /// The range is needed once.
    pub const NOREUSE: u32 = 7;
    /// The range will be read.
    pub const READ: u32 = 8;
    /// The range will be written.
    pub const WRITE: u32 = 9;
    /// The client is near this server.
    pub const INIT_PROXIMITY: u32 = 10;
}

xdr_struct! {
    /// `IO_ADVISE4args`: the arguments of IO_ADVISE.
    pub struct IoAdviseArgs {
        /// The open, the locks or the delegation.
        pub stateid: Stateid,
        /// Offset of the first byte.
        pub offset: u64,
        /// Number of bytes; 0 means to the end of the file.
        pub count: u64,
        /// Bits of [`io_advise`].
        pub hints: Bitmap,
    }
}

xdr_struct! {
    /// `IO_ADVISE4resok`: the hints that the server follows.
    pub struct IoAdviseOk {
        /// Bits of [`io_advise`].
        pub hints: Bitmap,
    }
}

/// Kinds of content in SEEK and READ_PLUS.
pub mod content {
    /// Data.
    pub const DATA: u32 = 0;
    /// A hole.
    pub const HOLE: u32 = 1;
}

xdr_struct! {
    /// `SEEK4args`: the arguments of SEEK.
    pub struct SeekArgs {
        /// The open, the locks or the delegation.
        pub stateid: Stateid,
        /// Offset from which the server searches.
        pub offset: u64,
        /// Number of [`content`]. The server answers any other number with NFS4ERR_UNION_NOTSUPP.
        pub content: u32,
    }
}

xdr_struct! {
    /// `seek_res4`: the successful result of SEEK.
    pub struct SeekOk {
        /// True if the search reached the end of the file.
        pub eof: bool,
        /// Offset of the content found.
        pub offset: u64,
    }
}

xdr_struct! {
    /// `data4`: data of READ_PLUS.
    pub struct DataPiece<'a> {
        /// Offset of the first byte.
        pub offset: u64,
        /// The data.
        pub data: &'a [u8],
    }
}

xdr_struct! {
    /// `data_info4`: a hole of READ_PLUS.
    pub struct HolePiece {
        /// Offset of the first byte.
        pub offset: u64,
        /// Number of bytes.
        pub length: u64,
    }
}

xdr_union! {
    /// `read_plus_content`: a piece of the result of READ_PLUS.
    pub enum ReadPlusContent<'a>("data_content4") {
        /// Data.
        Data(piece: DataPiece<'a>) = 0,
        /// A hole.
        Hole(piece: HolePiece) = 1,
    }
}

xdr_struct! {
    /// `read_plus_res4`: the successful result of READ_PLUS.
    pub struct ReadPlusOk<'a> {
        /// True if the pieces reach the end of the file.
        pub eof: bool,
        /// The pieces in the order of their offsets.
        pub contents: Array<'a, ReadPlusContent<'a>, MAX_READ_PLUS>,
    }
}

/// Appends a `read_plus_res4` up to the first of `pieces` pieces. The caller appends each piece: a
/// [`ReadPlusContent::Hole`], or [`encode_data_header`] and the data.
pub fn encode_read_plus_header(out: &mut Vec<u8>, eof: bool, pieces: u32) {
    eof.encode(out);
    pieces.encode(out);
}

/// Appends a piece of data of READ_PLUS up to and including the length word of the data. The caller then sends `count`
/// bytes of data and [`crate::xdr::padding`] of `count` zero bytes from another buffer.
pub fn encode_data_header(out: &mut Vec<u8>, offset: u64, count: u32) {
    content::DATA.encode(out);
    offset.encode(out);
    count.encode(out);
}

xdr_struct! {
    /// `app_data_block4`: a pattern that WRITE_SAME repeats.
    pub struct AppDataBlock<'a> {
        /// Offset of the first block.
        pub offset: u64,
        /// Bytes in a block.
        pub block_size: u64,
        /// Number of blocks.
        pub block_count: u64,
        /// Offset of the block number within a block.
        pub reloff_blocknum: u64,
        /// Number of the first block.
        pub block_num: u32,
        /// Offset of the pattern within a block.
        pub reloff_pattern: u64,
        /// The pattern.
        pub pattern: &'a [u8],
    }
}

xdr_struct! {
    /// `WRITE_SAME4args`: the arguments of WRITE_SAME.
    pub struct WriteSameArgs<'a> {
        /// The open, the locks or the delegation.
        pub stateid: Stateid,
        /// Durability that the client asks for.
        pub stable: StableHow4,
        /// The pattern.
        pub adb: AppDataBlock<'a>,
    }
}

xdr_struct! {
    /// `write_response4`: the successful result of WRITE_SAME, and a part of the result of COPY and CB_OFFLOAD.
    pub struct WriteResponse {
        /// Identity of the copy, if the copy goes on after the reply.
        pub callback_id: Option<Stateid>,
        /// Bytes written.
        pub count: u64,
        /// Durability of the data.
        pub committed: StableHow4,
        /// Write verifier.
        pub verifier: Verifier,
    }
}
