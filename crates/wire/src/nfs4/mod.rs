//! NFS version 4.1 and 4.2 (RFC 8881, RFC 7862, RFC 8276) and their callbacks.
//!
//! A server decodes a [`Compound`] and then its operations one at a time. It appends the results to a
//! [`CompoundReply`]. Callbacks go the other way, with [`CompoundWriter`] and [`CompoundRes`].

#[macro_use]
mod op_macro;

mod acl;
pub mod attr;
mod attr_types;
mod bitmap;
mod callback;
mod compound;
mod copy;
mod dir;
mod io;
mod layout;
mod lock;
mod objects;
mod obsolete;
mod open;
mod ops;
mod reply;
mod results;
mod session;
mod status;
mod types;
mod xattr;

pub use acl::*;
pub use attr::{Attributes, Fattr};
pub use attr_types::*;
pub use bitmap::*;
pub use callback::*;
pub use compound::*;
pub use copy::*;
pub use dir::*;
pub use io::*;
pub use layout::*;
pub use lock::*;
pub use objects::*;
pub use obsolete::*;
pub use open::*;
pub use ops::*;
pub use reply::*;
pub use results::*;
pub use session::*;
pub use status::*;
pub use types::*;
pub use xattr::*;

/// Program number of NFS.
pub const PROGRAM: u32 = 100_003;
/// Version of the program.
pub const VERSION: u32 = 4;
/// Procedure that does nothing, of the program and of callbacks.
pub const PROC_NULL: u32 = 0;
/// Procedure that executes operations: [`Compound`] or [`CbCompound`] to [`CompoundRes`].
pub const PROC_COMPOUND: u32 = 1;
