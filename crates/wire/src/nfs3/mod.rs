//! NFS version 3 (RFC 1813).

mod args;
mod dirlist;
mod procs;
mod results;
mod types;

pub use args::*;
pub use dirlist::*;
pub use procs::*;
pub use results::*;
pub use types::*;

/// Program number.
pub const PROGRAM: u32 = 100_003;
/// Version of the program.
pub const VERSION: u32 = 3;
/// Port that clients try by default.
pub const PORT: u16 = 2049;
