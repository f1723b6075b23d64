//! Codecs for ONC RPC (RFC 5531), NFSv3 and MOUNT v3 (RFC 1813), NFSv4.1 and NFSv4.2 with their callbacks (RFC 8881,
//! RFC 7862), NLM v4, NSM, NFSACL v3, the portmapper and rpcbind (RFC 1833), and NBD.
//!
//! The crate encodes and decodes every message and does no I/O. Decoding borrows from the message and never
//! allocates, except for the bounded lists of MOUNT and the portmapper. Encoding appends to a buffer.

#![forbid(unsafe_code)]

#[macro_use]
mod macros;

pub mod mount3;
pub mod nbd;
pub mod nfs3;
pub mod nfs4;
pub mod nfsacl3;
pub mod nlm4;
pub mod nsm;
pub mod portmap;
pub mod rpc;
pub mod rpcbind;
pub mod rpcsec_gss;
pub mod xdr;

mod array;

pub use array::{Array, Opaque};
pub use xdr::{Decode, DecodeError, Encode, Reader};

#[cfg(test)]
mod tests;
