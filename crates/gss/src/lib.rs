//! RPCSEC_GSS (RFC 2203) with Kerberos 5 (RFC 4121), on the server's side. The crate knows no sockets: it gets records
//! and returns records.
//!
//! The system's library `libgssapi_krb5.so.2` is loaded when the first export asks for Kerberos. A build needs neither
//! the library nor its headers (decision 052).
//!
//! A call with this flavour has four stages:
//!
//! 1. [`Server::receive`] answers the calls that make and end contexts.
//! 2. It checks the header's checksum and the sequence number of all other calls, and removes the protection of their
//!    arguments.
//! 3. The program carries the call out for the user of the context.
//! 4. [`Seal::reply`] protects the reply.

mod api;
mod context;
mod principal;
mod server;
mod sys;
mod table;
mod window;

#[cfg(feature = "client")]
pub mod client;

pub use api::{Error, Load};
pub use server::{Arguments, Caller, Lookup, Received, Seal, Server, Settings};
pub use table::Limits;
