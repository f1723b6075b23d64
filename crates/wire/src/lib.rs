//! Codecs for ONC RPC (RFC 5531), NFSv3 and MOUNT v3 (RFC 1813) and the portmapper (RFC 1833).
//!
//! The crate encodes and decodes every message and does no I/O. Decoding borrows from the message and never
//! allocates, except for the bounded lists of MOUNT and the portmapper. Encoding appends to a buffer.

#[macro_use]
mod macros;

pub mod mount3;
pub mod nfs3;
pub mod portmap;
pub mod rpc;
pub mod xdr;

pub use xdr::{Decode, DecodeError, Encode, Reader};

#[cfg(test)]
mod tests;
