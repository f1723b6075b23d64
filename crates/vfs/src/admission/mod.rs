//! Admission of changes: space in the backing file system, quotas, and the limit on removals at once.

pub(crate) mod mount;
pub(crate) mod quota;
pub(crate) mod reserve;
pub(crate) mod room;
pub(crate) mod unlink_throttle;
