//! The doors of block volumes: NBD for clients on Unix sockets and TCP, and [`ublk`] for block devices of this host.
//!
//! The transport of the NBD door is that of the NFS door ([`forebay_rpc`]): its event loops, buffers, limits and TLS.
//! `negotiation` and `request` decide without I/O; [`Nbd`] carries requests out; [`Door`] starts and stops all of it.

mod answer;
mod door;
mod export;
mod nbd;
mod negotiation;
mod refused;
mod request;
mod session;
pub mod ublk;

pub use door::{Config, Door, Error};
pub use export::CACHE_CONTEXT;
pub use nbd::{Counts, Nbd, Policy};
pub use refused::{Refusal, Tell};
