//! The tiers of clean data: memory, clean segments on the cache devices, and the policy that moves blocks between them.

pub(crate) mod blocks;
pub(crate) mod clean;
pub(crate) mod copies;
pub(crate) mod credit;
pub(crate) mod evict;
pub(crate) mod fill;
pub(crate) mod ghost;
pub(crate) mod policy;
pub(crate) mod ram;
pub(crate) mod share;
pub(crate) mod trim;
