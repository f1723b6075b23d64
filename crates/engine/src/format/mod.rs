//! What is on the devices, byte by byte: see docs/on-disk-format.md.

mod checksum;
mod record;

pub use checksum::{bind, content_hash};
pub use record::{Body, Facts, Record};
