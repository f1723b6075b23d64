//! NFS version 3 (RFC 1813).

mod args;
mod attr;
mod dirlist;
mod handle;
mod procs;
mod results;
mod status;
mod types;

pub use args::*;
pub use attr::*;
pub use dirlist::*;
pub use handle::*;
pub use procs::*;
pub use results::*;
pub use status::*;
pub use types::*;

/// Program number.
pub const PROGRAM: u32 = 100_003;
/// Version of the program.
pub const VERSION: u32 = 3;
/// Port that clients try by default.
pub const PORT: u16 = 2049;
