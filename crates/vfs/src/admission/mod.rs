//! Admission of changes: space in the backing file system, quotas, and the limit on removals at once.

pub(crate) mod quota;
pub(crate) mod reserve;
pub(crate) mod unlink_throttle;
