//! Which blocks of which object are cached, and where: in memory, on the cache devices, dirty or clean.

pub(crate) mod account;
pub(crate) mod leaf;
pub(crate) mod object;
pub(crate) mod objects;
pub(crate) mod ranges;
