//! The NBD door: clients attach block volumes over Unix sockets and TCP.
//!
//! The transport is that of the NFS door ([`forebay_rpc`]): its event loops, buffers, limits and TLS. This crate adds
//! what NBD is. `negotiation` and `request` decide without I/O; [`Nbd`] carries requests out; [`Door`] starts and
//! stops all of it.

mod answer;
mod door;
mod export;
mod nbd;
mod negotiation;
mod request;
mod session;

pub use door::{Config, Door, Error};
pub use export::CACHE_CONTEXT;
pub use nbd::{Counts, Nbd, Policy};
