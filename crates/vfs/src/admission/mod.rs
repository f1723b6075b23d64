//! Whether a change may begin now: space in the backing file system, quotas, removals at a time.

pub(crate) mod quota;
pub(crate) mod reserve;
pub(crate) mod unlink_throttle;
