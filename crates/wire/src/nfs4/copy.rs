//! CLONE, COPY and their relatives (RFC 7862, section 15).

use super::io::WriteResponse;
use super::status::Nfsstat4;
use super::types::{Netaddr, Nfstime4, Stateid};
use crate::array::Array;

/// Most addresses of a server in COPY and COPY_NOTIFY; decoding fails above it.
pub const MAX_NETLOCS: usize = 64;

xdr_union! {
    /// `netloc4`: the address of a server.
    pub enum Netloc<'a>("netloc_type4") {
        /// Name of a host.
        Name(name: &'a [u8]) = 1,
        /// URL.
        Url(url: &'a [u8]) = 2,
        /// Universal address.
        Netaddr(address: Netaddr<'a>) = 3,
    }
}

xdr_struct! {
    /// `CLONE4args`: the arguments of CLONE.
    pub struct CloneArgs {
        /// Right to read the saved handle.
        pub src_stateid: Stateid,
        /// Right to write the current handle.
        pub dst_stateid: Stateid,
        /// Offset in the source.
        pub src_offset: u64,
        /// Offset in the destination.
        pub dst_offset: u64,
        /// Number of bytes; 0 means to the end of the source.
        pub count: u64,
    }
}

xdr_struct! {
    /// `COPY4args`: the arguments of COPY.
    pub struct CopyArgs<'a> {
        /// Right to read the saved handle.
        pub src_stateid: Stateid,
        /// Right to write the current handle.
        pub dst_stateid: Stateid,
        /// Offset in the source.
        pub src_offset: u64,
        /// Offset in the destination.
        pub dst_offset: u64,
        /// Number of bytes; 0 means to the end of the source.
        pub count: u64,
        /// True if the server must copy in ascending order.
        pub consecutive: bool,
        /// True if the server must finish before it replies.
        pub synchronous: bool,
        /// Addresses of the source; empty means this server.
        pub source_server: Array<'a, Netloc<'a>, MAX_NETLOCS>,
    }
}

xdr_struct! {
    /// `copy_requirements4`: how a server copies.
    pub struct CopyRequirements {
        /// True if it copies in ascending order.
        pub consecutive: bool,
        /// True if it finishes before it replies.
        pub synchronous: bool,
    }
}

xdr_struct! {
    /// `COPY4resok`: the successful result of COPY.
    pub struct CopyOk {
        /// Bytes copied, or the identity of the copy.
        pub response: WriteResponse,
        /// How the server copies.
        pub requirements: CopyRequirements,
    }
}

xdr_struct! {
    /// `COPY_NOTIFY4args`: the arguments of COPY_NOTIFY.
    pub struct CopyNotifyArgs<'a> {
        /// Right to read the current handle.
        pub src_stateid: Stateid,
        /// Address of the destination.
        pub destination: Netloc<'a>,
    }
}

xdr_struct! {
    /// `COPY_NOTIFY4resok`: the successful result of COPY_NOTIFY.
    pub struct CopyNotifyOk<'a> {
        /// Time within which the copy must begin.
        pub lease_time: Nfstime4,
        /// Right of the destination to read.
        pub stateid: Stateid,
        /// Addresses of this server.
        pub source_server: Array<'a, Netloc<'a>, MAX_NETLOCS>,
    }
}

xdr_struct! {
    /// `OFFLOAD_STATUS4resok`: the successful result of OFFLOAD_STATUS.
    pub struct OffloadStatusOk {
        /// Bytes copied.
        pub count: u64,
        /// Outcome, if the copy has finished.
        pub complete: Option<Nfsstat4>,
    }
}
