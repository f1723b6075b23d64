//! The tiers of clean data: memory, clean segments on the cache devices, and the policy that moves blocks between them.

pub(crate) mod clean;
pub(crate) mod evict;
pub(crate) mod ghost;
pub(crate) mod ram;
